"""Every test session has a cache of its own for runs, and shares images and golden states, which take long to make."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from paragent.machines.cleanup import cache_folder


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    shared = [cache_folder(name) for name in ("images", "golden", "snapshots")]
    own = tmp_path_factory.mktemp("cache")
    for folder in shared:
        (own / folder.name).symlink_to(folder)
    before = os.environ.get("PARAGENT_CACHE")
    os.environ["PARAGENT_CACHE"] = str(own)
    yield
    if before is None:
        del os.environ["PARAGENT_CACHE"]
    else:
        os.environ["PARAGENT_CACHE"] = before
