"""Makes `import pyperclip` inside a machine give ours."""

import sys

from paragent.vms.guest.desktop import pyperclip

sys.modules[__name__] = pyperclip
