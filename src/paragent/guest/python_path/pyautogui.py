"""Lets `import pyautogui` inside a machine return our module itself, so that settings such as PAUSE apply to it."""

import sys

from paragent.guest.desktop import pyautogui

sys.modules[__name__] = pyautogui
