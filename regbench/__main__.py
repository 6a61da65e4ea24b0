"""`python -m regbench`."""

import sys

from regbench.cli.app import main

sys.exit(main())
