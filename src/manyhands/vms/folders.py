"""Where machines keep things on this host."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder(*parts: str) -> Path:
    """Return a folder for what can be made again: `MANYHANDS_CACHE`, else the user's cache folder; it is created."""
    chosen = os.environ.get("MANYHANDS_CACHE")
    if chosen:
        root = Path(chosen)
    else:
        configured = os.environ.get("XDG_CACHE_HOME")
        root = (Path(configured) if configured else Path.home() / ".cache") / "manyhands"
    folder = root.joinpath(*parts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder
