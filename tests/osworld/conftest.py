"""Fixtures shared by the tests of OSWorld: desktops that run as processes of this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paragent.machines import Machine, VMPoolManager


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep downloads in a folder of the test run instead of the user's cache."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PARAGENT_CACHE", str(Path(tmp_path_factory.mktemp("cache"))))


@pytest.fixture(scope="session")
def desktops(_own_cache: None) -> Iterator[VMPoolManager]:
    """A pool with one desktop; each lease gets a fresh one."""
    options = {"desktop": True, "applications": "editor,terminal"}
    with VMPoolManager("process", 1, spares=0, name="env-tests", screen=(1280, 800), options=options) as pool:
        yield pool


@pytest.fixture
def desktop(desktops: VMPoolManager) -> Iterator[Machine]:
    """A fresh desktop."""
    with desktops.lease(timeout=100) as machine:
        yield machine


@pytest.fixture(scope="module")
def shared_desktop(desktops: VMPoolManager) -> Iterator[Machine]:
    """One desktop for all tests of a module; they must not leave changes behind."""
    with desktops.lease(timeout=100) as machine:
        yield machine
