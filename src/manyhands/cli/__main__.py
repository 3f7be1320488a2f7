"""`python -m manyhands.cli` is the command `manyhands`."""

import sys

from manyhands.cli.main import main

sys.exit(main())
