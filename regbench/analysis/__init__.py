"""What a model that keeps a summary of its context knows: measured on a trained run, told in numbers and pictures."""
