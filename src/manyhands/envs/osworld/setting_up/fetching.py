"""Files from the network, fetched once for all attempts of this host."""

from __future__ import annotations

import asyncio
import os
import shutil
import urllib.parse
import urllib.request
import uuid
from typing import TYPE_CHECKING

from manyhands.errors import EnvironmentFailed
from manyhands.vms.folders import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["fetch"]

_TRIES = 3
_PAUSE = 2.0
"""Seconds before a second try, twice as many before the third."""
_SILENCE = 60.0
"""Seconds in which a server says nothing before it is given up."""


async def fetch(url: str) -> Path:
    """Return a file of this host with what `url` has; it is fetched once and kept in the user's cache folder.

    Raises:
        EnvironmentFailed: it cannot be had, and was asked for three times.
    """
    name = os.path.basename(urllib.parse.urlsplit(url).path) or "file"  # noqa: PTH119 - of an address, not of a file
    kept = cache_folder("osworld") / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{name[-80:]}"
    if kept.exists():
        return kept
    for number in range(1, _TRIES + 1):
        try:
            await asyncio.to_thread(_fetch, url, kept)
        except (OSError, ValueError) as error:
            if number == _TRIES:
                raise EnvironmentFailed(f"cannot fetch {url}: {error}") from error
            await asyncio.sleep(_PAUSE * number)
        else:
            break
    return kept


def _fetch(url: str, target: Path) -> None:
    draft = target.with_name(f".{uuid.uuid4().hex}.draft")
    request = urllib.request.Request(url, headers={"User-Agent": "manyhands"})  # noqa: S310 - the task file chose the address
    try:
        with urllib.request.urlopen(request, timeout=_SILENCE) as source, draft.open("wb") as file:  # noqa: S310 - as above
            shutil.copyfileobj(source, file)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
