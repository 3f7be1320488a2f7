"""`python -m paragent.cli` is the command `paragent`."""

import sys

from paragent.cli.main import main

sys.exit(main())
