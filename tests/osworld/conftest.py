"""Fixtures shared by the tests of OSWorld: desktops that run as processes of this host."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from paragent.machines import Machine, VMPoolManager


@pytest.fixture(scope="session")
def desktops() -> Iterator[VMPoolManager]:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder that use a desktop or a browser."""
    for item in items:
        if Path(__file__).parent not in item.path.parents:
            continue
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & {"desktops", "devtools", "browser", "machine"}:
            item.add_marker(pytest.mark.slow)
        if fixtures & {"devtools", "browser"}:
            item.add_marker(pytest.mark.browser)
