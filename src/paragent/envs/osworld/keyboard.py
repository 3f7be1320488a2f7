"""The names of keys that pyautogui knows, and how a text is typed."""

from __future__ import annotations

import string

__all__ = ["KEYS", "is_key", "typing"]

_NAMED = """
accept add alt altleft altright apps backspace browserback browserfavorites browserforward browserhome browserrefresh
browsersearch browserstop capslock clear command convert ctrl ctrlleft ctrlright decimal del delete divide down end enter esc
escape execute final fn hanguel hangul hanja help home insert junja kana kanji launchapp1 launchapp2 launchmail
launchmediaselect left modechange multiply nexttrack nonconvert numlock option optionleft optionright pagedown pageup pause
pgdn pgup playpause prevtrack print printscreen prntscrn prtsc prtscr return right scrolllock select separator shift shiftleft
shiftright sleep space stop subtract tab up volumedown volumemute volumeup win winleft winright yen
"""
KEYS = frozenset(
    [*_NAMED.split(), "\t", "\n", "\r", " ", *string.ascii_lowercase, *string.digits, *string.punctuation]
    + [f"num{digit}" for digit in range(10)]
    + [f"f{number}" for number in range(1, 25)]
)


def is_key(name: str) -> bool:
    """Return whether a key has this name; capitals do not matter."""
    return name.lower() in KEYS


def typing(text: str) -> list[str]:
    """Return the statements that type a text.

    On the keyboard layouts of OSWorld's images pyautogui types ">" for "<", so that key is pressed as
    the shifted comma that it is.
    """
    statements: list[str] = []
    for number, piece in enumerate(text.split("<")):
        if number:
            statements.append("pyautogui.hotkey('shift', ',')")
        if piece:
            statements.append(f"pyautogui.typewrite({piece!r})")
    return statements or ["pyautogui.typewrite('')"]
