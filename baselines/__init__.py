"""Baselines: predictors that learn from the prompt alone, or know the truth. One file each: `regbench ls baselines`."""
