"""Where the browser is. This module needs no optional package."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from paragent.errors import MissingProgram

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["find_chromium"]

_CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_chromium(program: Path | None = None) -> str:
    """Return the path of the browser: `program` if given, otherwise the system's Chromium.

    Raises:
        MissingProgram: it is not installed.
    """
    names = [str(program)] if program is not None else list(_CHROMIUM)
    for name in names:
        if found := shutil.which(name):
            return found
    raise MissingProgram(
        "the environment 'web'",
        f"Chromium was not found (looked for {', '.join(names)})",
        "install your system's `chromium` package or set the option `chromium` to the path of a browser",
    )
