"""The command `regbench`: one file a command in `commands/`; a command parses, calls and prints."""

from regbench.cli.app import main

__all__ = ["main"]
