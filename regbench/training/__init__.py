"""The one training loop, its checkpoints, and the record of what a model was made from."""
