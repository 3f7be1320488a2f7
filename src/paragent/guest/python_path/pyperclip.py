"""Makes `import pyperclip` inside a machine give ours."""

import sys

from paragent.guest.desktop import pyperclip

sys.modules[__name__] = pyperclip
