"""`python -m paragent` is the command `paragent`."""

import sys

from paragent.cli import main

sys.exit(main())
