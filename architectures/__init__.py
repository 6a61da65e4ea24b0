"""Architectures: trainable predictors, one file each. `regbench ls architectures` lists them."""
