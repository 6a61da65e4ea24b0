"""The command `regbench`: one file a command in `commands/`; a command parses, calls and prints."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Does what the arguments ask for, by default those of this process. Returns the exit code."""
    try:
        from regbench.cli import app  # inside, since Ctrl-C may come while it is imported

        return app.main(arguments)
    except KeyboardInterrupt:
        again = shlex.join(["regbench", *(sys.argv[1:] if arguments is None else arguments)])
        print(f"regbench: interrupted; go on with: {again}", file=sys.stderr)
        return 130
