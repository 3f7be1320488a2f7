"""Access."""

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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent._internal.networks import PrivateAddress, check_public, connect_public, resolve
from paragent.errors import EnvironmentFailed
from paragent.machines.cleanup import cache_folder

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

__all__ = ["Access", "fetch"]


@dataclass(frozen=True, slots=True)
class Access:
    """What the tasks of a run may use. By default no file of this host, and public addresses only."""

    data_folder: Path | None = None
    """Where the files are that tasks may read; None: nowhere."""
    allow_private: bool = False
    """Whether files may be fetched from this host and private networks, too."""

    def file(self, name: str) -> Path:
        """Return the path of a file that a task names, absolute or relative to the data folder.

        Raises:
            EnvironmentFailed: it is not in the data folder, is hidden, or is not a regular file.
        """
        if refusal := self._refusal(name):
            raise EnvironmentFailed(f"the task reads {refusal}")
        path = self._path(name)
        if not path.is_file():
            raise EnvironmentFailed(f"the task reads {name!r}: No such file in {self.data_folder}")
        return path

    def refused(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return which files set-up steps name and may not read, in words for the user, before anything is played."""
        named: list[Any] = []
        for step in steps:
            parameters = step.get("parameters") or {}
            if step.get("type") == "upload_file":
                named += [file.get("local_path") for file in parameters.get("files") or () if isinstance(file, dict)]
            elif step.get("type") == "replay":
                named.append(parameters.get("trajectory"))
        return [refusal for name in named if isinstance(name, str) and (refusal := self._refusal(name))]

    def _path(self, name: str) -> Path:
        assert self.data_folder is not None
        return (self.data_folder / name).resolve()

    def _refusal(self, name: str) -> str:
        """Return why a file may not be read; empty if it may."""
        if self.data_folder is None:
            return (
                f"{name!r} of this host, and no folder is allowed: put the data into a folder of its own, not your home or "
                "above it, or name the folder with the files: --env-option data_folder=FOLDER"
            )
        root = self.data_folder.resolve()
        path = self._path(name)
        if not path.is_relative_to(root):
            return f"{name!r}, which is outside of the folder of its data, {root}: --env-option data_folder=FOLDER"
        if any(part.startswith(".") for part in path.relative_to(root).parts):
            return f"{name!r}, which is hidden: tasks may not read hidden files and folders"
        return ""


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


async def fetch(url: str, access: Access) -> Path:
    """Return a file of this host with what `url` has; it is fetched once and kept in the user's cache folder.

    Raises:
        EnvironmentFailed: it cannot be had, and was asked for three times; or it is too large, not of the web, or at an
            address that `access` does not allow.
    """
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise EnvironmentFailed(f"cannot fetch {url}: only http and https are allowed")
    name = os.path.basename(urllib.parse.urlsplit(url).path) or "file"  # noqa: PTH119 - of an address, not of a file
    folder = (
        "osworld-private" if access.allow_private else "osworld"
    )  # what only some runs may fetch, only they may find
    kept = cache_folder(folder) / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{name[-80:]}"
    if _use(kept):
        return kept
    for number in range(1, _TRIES + 1):
        try:
            await asyncio.to_thread(_fetch, url, kept, _opener(access))
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, PrivateAddress) or isinstance(getattr(error, "reason", None), PrivateAddress):
                cure = "if that is wanted: --env-option allow_private=true"
                raise EnvironmentFailed(f"cannot fetch {url}: {error}; {cure}") from error
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


class _PublicHTTP(http.client.HTTPConnection):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._create_connection = connect_public


class _PublicHTTPS(http.client.HTTPSConnection):
    def __init__(self, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self._create_connection = connect_public


class _PublicHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    """Opens addresses at public hosts only. A proxy of the user's may be anywhere; what it is asked for may not."""

    def http_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(request, _PublicHTTP, http.client.HTTPConnection)

    def https_open(self, request: urllib.request.Request) -> http.client.HTTPResponse:
        return self._open(request, _PublicHTTPS, http.client.HTTPSConnection)

    def _open(self, request: urllib.request.Request, direct: Any, by_proxy: Any) -> http.client.HTTPResponse:
        if not request.has_proxy() and getattr(request, "_tunnel_host", None) is None:
            return self.do_open(direct, request)
        wanted = urllib.parse.urlsplit(request.full_url)
        host = urllib.parse.unquote(wanted.hostname or "")
        try:
            addresses = resolve(host, wanted.port or 443)
        except OSError:  # a name that only the proxy knows
            addresses = []
        check_public(host, addresses)
        return self.do_open(by_proxy, request)


def _opener(access: Access) -> urllib.request.OpenerDirector:
    """Return what follows redirects within http and https, and nothing else: no files, no FTP."""
    opener = urllib.request.OpenerDirector()
    handlers: list[urllib.request.BaseHandler] = [
        urllib.request.ProxyHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.UnknownHandler(),
    ]
    if access.allow_private:
        handlers += [urllib.request.HTTPHandler(), urllib.request.HTTPSHandler()]
    else:
        handlers.append(_PublicHandler())
    for handler in handlers:
        opener.add_handler(handler)
    return opener


def _fetch(url: str, target: Path, opener: urllib.request.OpenerDirector) -> None:
    draft = target.with_name(f".{uuid.uuid4().hex}.draft")
    request = urllib.request.Request(url, headers={"User-Agent": "paragent"})  # noqa: S310 - http or https, see above
    ends = time.monotonic() + _SECONDS
    try:
        with opener.open(request, timeout=_SILENCE) as source, draft.open("wb") as file:
            promised, size = source.headers.get("Content-Length"), 0
            while chunk := source.read1(_CHUNK):  # not `read`, which waits until the whole chunk is there
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
