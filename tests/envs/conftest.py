"""What tests of environments have in common."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Indexes are built in a folder of the test run, not in the user's."""
    patch = pytest.MonkeyPatch()
    patch.setenv("PARAGENT_CACHE", str(Path(tmp_path_factory.mktemp("cache"))))
