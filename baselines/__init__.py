"""Baselines: predictors that learn from the prompt alone, or know the truth. One file each; see `regbench ls baselines`."""
