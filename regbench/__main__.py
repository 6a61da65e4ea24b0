"""`python -m regbench`."""

import sys

from regbench.cli import main

sys.exit(main())
