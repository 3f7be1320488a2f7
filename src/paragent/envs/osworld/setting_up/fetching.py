"""Files from the network, fetched once for all attempts of this host, within limits of size and time."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from typing import TYPE_CHECKING

from paragent.errors import EnvironmentFailed
from paragent.vms.folders import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["fetch"]

_TRIES = 3
_PAUSE = 2.0
"""Seconds before a second try, twice as many before the third."""
_SILENCE = 60.0
"""Seconds in which a server says nothing before it is given up."""
_SECONDS = 600.0
"""For one try; a slow line brings 500 KB a second, and a film of OSWorld has 100 MB."""
_LARGEST = 2 << 30
"""Bytes of one file."""
_KEPT = 16 << 30
"""Bytes of all of them; the files of all of OSWorld's tasks have about four."""
_CHUNK = 1 << 20


async def fetch(url: str) -> Path:
    """Return a file of this host with what `url` has; it is fetched once and kept in the user's cache folder.

    Raises:
        EnvironmentFailed: it cannot be had, and was asked for three times; or it is too large, or not of the web.
    """
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise EnvironmentFailed(f"cannot fetch {url}: only http and https are allowed")
    name = os.path.basename(urllib.parse.urlsplit(url).path) or "file"  # noqa: PTH119 - of an address, not of a file
    kept = cache_folder("osworld") / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{name[-80:]}"
    if _use(kept):
        return kept
    for number in range(1, _TRIES + 1):
        try:
            await asyncio.to_thread(_fetch, url, kept)
        except (OSError, ValueError, http.client.HTTPException) as error:
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if number == _TRIES or refused:
                raise EnvironmentFailed(f"cannot fetch {url}: {error}") from error
            await asyncio.sleep(_PAUSE * number)
        else:
            break
    return kept


def _use(kept: Path) -> bool:
    """Return whether the file is there, and mark it as used just now."""
    try:
        os.utime(kept)
    except FileNotFoundError:
        return False
    return True


def _fetch(url: str, target: Path) -> None:
    draft = target.with_name(f".{uuid.uuid4().hex}.draft")
    request = urllib.request.Request(url, headers={"User-Agent": "paragent"})  # noqa: S310 - http or https, see above
    try:
        with urllib.request.urlopen(request, timeout=_SILENCE) as source, draft.open("wb") as file:  # noqa: S310 - as above
            promised, size = source.headers.get("Content-Length"), 0
            ends = time.monotonic() + _SECONDS
            while chunk := source.read(_CHUNK):
                size += len(chunk)
                if size > _LARGEST or time.monotonic() > ends:
                    raise ValueError(f"more than {_LARGEST >> 20} MiB, or longer than {_SECONDS:g} s")
                file.write(chunk)
        if promised is not None and int(promised) != size:
            raise ValueError(f"it ended after {size} of {promised} bytes")
        draft.replace(target)
    except urllib.error.HTTPError as error:
        error.close()
        raise
    finally:
        draft.unlink(missing_ok=True)
    _prune(target)


def _prune(newest: Path) -> None:
    """Remove the files that were used least recently, but not the newest, until the rest fits."""
    with contextlib.suppress(FileNotFoundError):  # another process prunes as well
        files = [file for file in newest.parent.iterdir() if file.is_file() and file != newest]
        files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        size = newest.stat().st_size
        for file in files:
            size += file.stat().st_size
            if size > _KEPT:
                file.unlink(missing_ok=True)
