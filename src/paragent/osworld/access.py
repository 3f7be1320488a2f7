"""Host access of task files: which files and addresses of this host a task may use, and cached downloads.

Task files are untrusted. Their set-up steps and evaluators run on this host, next to the user's files and networks, and copy
what they read into a machine that may have a network. Every connection of a download is checked when it is made, including
connections after a redirect: without `allow_private` only public addresses are reachable.
"""

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

_TRIES = 3
_PAUSE = 2.0
"""Seconds before the second try, twice as many before the third."""
_SILENCE = 60.0
"""Seconds without data after which a connection is given up."""
_SECONDS = 600.0
"""Time limit of one try. A slow connection gives 500 KB/s, and a video of OSWorld has 100 MB."""
_LARGEST = 2 << 30
"""Maximum size of one file in bytes."""
_KEPT = 16 << 30
"""Maximum size of the cache in bytes; all files of OSWorld's tasks have about 4 GiB."""
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Access:
    """What the tasks of a run may use. The default is no file of this host, and public addresses only."""

    data_folder: Path | None = None
    """The folder whose files tasks may read; None allows no files."""
    allow_private: bool = False
    """Whether tasks may also download from this host and from private networks."""

    def file(self, name: str) -> Path:
        """Return the path of a file that a task names, absolute or relative to the data folder.

        Raises:
            EnvironmentFailed: the file is outside the data folder, hidden, or not a regular file.
        """
        if refusal := self._refusal(name):
            raise EnvironmentFailed(f"the task reads {refusal}")
        path = self._path(name)
        if not path.is_file():
            raise EnvironmentFailed(f"the task reads {name!r}, which is not a file in {self.data_folder}")
        return path

    def refused(self, steps: Sequence[Mapping[str, Any]]) -> list[str]:
        """Return a message for each file that the set-up steps name and must not read. Nothing is started for this check."""
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
        """Return why a file must not be read; empty if it may be read."""
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


async def fetch(url: str, access: Access) -> Path:
    """Return the path of a local copy of `url`. It is downloaded once and kept in the user's cache folder.

    Raises:
        EnvironmentFailed: three tries failed, the file is too large, the scheme is not http or https, or `access` does not
            allow the address.
    """
    if urllib.parse.urlsplit(url).scheme not in {"http", "https"}:
        raise EnvironmentFailed(f"cannot fetch {url}: only http and https are allowed")
    name = os.path.basename(urllib.parse.urlsplit(url).path) or "file"  # noqa: PTH119 - of an address, not of a file
    # A run that may only use public addresses must not find files that another run downloaded from a private one.
    folder = "osworld-private" if access.allow_private else "osworld"
    kept = cache_folder(folder) / f"{uuid.uuid5(uuid.NAMESPACE_URL, url)}_{name[-80:]}"
    if _mark_as_used(kept):
        return kept
    for number in range(1, _TRIES + 1):
        try:
            await asyncio.to_thread(_fetch, url, kept, _opener(access))
        except (OSError, ValueError, http.client.HTTPException) as error:
            if isinstance(error, PrivateAddress) or isinstance(getattr(error, "reason", None), PrivateAddress):
                advice = "if that is wanted: --env-option allow_private=true"
                raise EnvironmentFailed(f"cannot fetch {url}: {error}; {advice}") from error
            refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
            if number == _TRIES or refused:
                raise EnvironmentFailed(f"cannot fetch {url}: {error}") from error
            await asyncio.sleep(_PAUSE * number)
        else:
            break
    return kept


def _mark_as_used(kept: Path) -> bool:
    """Update the time of a file, for `_prune`; return whether the file exists."""
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
    """Opens public addresses only. The user's proxy may have any address, but the requested host must be public."""

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
        except OSError:  # a name that only the proxy can resolve
            addresses = []
        check_public(host, addresses)
        return self.do_open(by_proxy, request)


def _opener(access: Access) -> urllib.request.OpenerDirector:
    """Return an opener that follows redirects within http and https and supports no other schemes."""
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
            while chunk := source.read1(_CHUNK):  # `read` would wait for the whole chunk
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
    """Remove the least recently used files, but not the newest, until the rest fits into the cache."""
    with contextlib.suppress(FileNotFoundError):  # another process may prune at the same time
        files = [file for file in newest.parent.iterdir() if file.is_file() and file != newest]
        files.sort(key=lambda file: file.stat().st_mtime, reverse=True)
        size = newest.stat().st_size
        for file in files:
            size += file.stat().st_size
            if size > _KEPT:
                file.unlink(missing_ok=True)
