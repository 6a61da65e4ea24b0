"""CGT and Fast and Slow: what the summary y of a context holds, and models that are specialised to a prompt."""
