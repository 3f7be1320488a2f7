"""Makes `import pyautogui` inside a machine give ours: the module itself, so that settings such as PAUSE are its own."""

import sys

from paragent.guest.desktop import pyautogui

sys.modules[__name__] = pyautogui
