"""Hides the packages named by HIDDEN_PACKAGES, as if they were not installed."""

from __future__ import annotations

import os
import sys
from typing import Any

_HIDDEN = frozenset(os.environ.get("HIDDEN_PACKAGES", "").split(","))


class _Without:
    """A finder that does not find the hidden packages."""

    def __init__(self, finder: Any) -> None:
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    def find_spec(self, name: str, *more: Any) -> Any:
        return None if name.partition(".")[0] in _HIDDEN else self._finder.find_spec(name, *more)


sys.meta_path[:] = [_Without(finder) for finder in sys.meta_path]
