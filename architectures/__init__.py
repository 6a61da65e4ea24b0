"""Architectures: trainable predictors, one file each; see `regbench ls architectures`."""
