"""What architectures are built on: options, the mixer's contract, the common backbone."""
