"""What architectures are built on: options, the contract of a mixer, the common backbone."""
