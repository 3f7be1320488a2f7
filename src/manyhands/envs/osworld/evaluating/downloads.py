"""Expected files from the network, kept on this host: a file is downloaded once, however many attempts need it."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import secrets
import shutil
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from manyhands.errors import EnvironmentFailed
from manyhands.vms.folders import cache_folder

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["download"]

_LARGEST = 1 << 30
"""Bytes of one file; the largest of OSWorld's expected files, a film, has 100 MB."""
_KEPT = 8 << 30
"""Bytes of the whole cache; all of OSWorld's expected files have less than two."""
_SECONDS = 300.0
"""For one file, as OSWorld's guest allows a download."""
_STALL_SECONDS = 30.0
"""Without a byte, after which a connection is given up."""
_TRIES = 3
_CHUNK = 1 << 20


def download(url: str, target: Path) -> None:
    """Put the file at a URL to `target`, from the cache if it is there; blocks.

    Raises:
        EnvironmentFailed: it cannot be had, is larger than 1 GiB or takes longer than 300 s.
    """
    if not url.startswith(("http://", "https://")):
        raise EnvironmentFailed(f"cannot download {url}: only http and https are allowed")
    kept = cache_folder("osworld", "files") / hashlib.sha256(url.encode()).hexdigest()
    while True:
        try:
            os.utime(kept)
            shutil.copyfile(kept, target)
        except FileNotFoundError:  # not there yet, or pruned this moment by another process
            _fetch(url, kept)
            _prune(kept.parent, but=kept)
        else:
            return


def _fetch(url: str, kept: Path) -> None:
    part = kept.with_name(f"{kept.name}.{secrets.token_hex(8)}.part")
    problem = ""
    for turn in range(_TRIES):
        try:
            _stream(url, part)
            part.replace(kept)
        except urllib.error.HTTPError as error:
            problem = f"the server answers {error.code} {error.reason}"
            if error.code < 500:
                break
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = str(error) or type(error).__name__
        else:
            return
        finally:
            part.unlink(missing_ok=True)
        time.sleep(turn)
    raise EnvironmentFailed(f"cannot download {url}: {problem}")


def _stream(url: str, part: Path) -> None:
    ends = time.monotonic() + _SECONDS
    request = urllib.request.Request(url, headers={"User-Agent": "manyhands"})  # noqa: S310 - http or https, see above
    size = 0
    with urllib.request.urlopen(request, timeout=_STALL_SECONDS) as response, part.open("wb") as file:  # noqa: S310 - as above
        while chunk := response.read(_CHUNK):
            size += len(chunk)
            if size > _LARGEST:
                raise ValueError(f"it is larger than {_LARGEST >> 20} MiB")
            if time.monotonic() > ends:
                raise ValueError(f"it took longer than {_SECONDS:g} s")
            file.write(chunk)
        promised = response.headers.get("Content-Length")
        if promised is not None and int(promised) != size:
            raise ValueError(f"it ended after {size} of {promised} bytes")


def _prune(folder: Path, but: Path) -> None:
    """Remove the files that were used least recently until the rest fits."""
    with contextlib.suppress(FileNotFoundError):  # another process prunes as well
        files = sorted(
            (file for file in folder.iterdir() if file.suffix != ".part"), key=lambda file: file.stat().st_mtime
        )
        size = sum(file.stat().st_size for file in files)
        for file in files:
            if size <= _KEPT or file == but:
                return
            size -= file.stat().st_size
            file.unlink(missing_ok=True)
