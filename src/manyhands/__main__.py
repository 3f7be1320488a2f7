"""`python -m manyhands` is the command `manyhands`."""

import sys

from manyhands.cli import main

sys.exit(main())
