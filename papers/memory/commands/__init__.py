"""The commands of this paper, one module each; see `regbench.cli.commands`."""
