"""The pool file of a live run, `live/pool.json`: how the web view reaches the pool of the run.

It contains the secret of the pool, so only the user who started the run can read it. It exists while the session uses the pool.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from paragent.errors import AccessDenied
from paragent.rollout.machines import PoolAccess
from paragent.transport.address import TlsConf
from paragent.transport.auth import read_secret_file, write_secret_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["pool_file", "read_pool_file"]

_FILE = "pool.json"


@contextlib.contextmanager
def pool_file(folder: Path, access: PoolAccess) -> Iterator[None]:
    """Keep a pool file in the folder `live` of a run inside a `with` block. Without it, only the view misses the pool."""
    path = folder / _FILE
    content = {
        "address": access.address,
        "secret": access.secret,
        "tls": None if access.tls is None else asdict(access.tls),
    }
    with contextlib.suppress(OSError):
        write_secret_file(path, json.dumps(content))
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()


def read_pool_file(folder: Path) -> PoolAccess | None:
    """Return how to reach the pool of a run; None if it has none, the file is damaged, or the run is of another user."""
    try:
        given = json.loads(read_secret_file(folder / _FILE))
        tls = given["tls"]
        return PoolAccess(
            address=str(given["address"]),
            secret=None if given["secret"] is None else str(given["secret"]),
            tls=None if tls is None else TlsConf(**tls),
        )
    except (OSError, AccessDenied, ValueError, KeyError, TypeError):
        return None
