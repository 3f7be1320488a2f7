"""Settings of all tests: longer start limits for Ray, no deadlines in hypothesis, and a cache folder for the session."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from paragent.machines.cleanup import cache_folder

pytest_plugins = ["tests.distribution", "tests.time_limits"]

# Assertions of these modules show the values of their operands, as those of test modules do.
pytest.register_assert_rewrite("paragent.testing", "tests.engines.cluster_contract")

_START_SECONDS = 180
"""Seconds for each step of Ray's start, whose default is 30: on a host with a load of ten, a node took longer."""

os.environ |= {
    "RAY_raylet_start_wait_time_s": f"{_START_SECONDS}",
    "RAY_gcs_server_port_wait_time_s": f"{_START_SECONDS}",
    "RAY_gcs_server_request_timeout_seconds": f"{_START_SECONDS}",
    "RAY_py_gcs_connect_timeout_s": f"{_START_SECONDS}",
    "RAY_gcs_rpc_server_connect_timeout_s": f"{_START_SECONDS}",
    "RAY_worker_register_timeout_seconds": f"{_START_SECONDS}",
    "RAY_agent_register_timeout_ms": f"{1000 * _START_SECONDS}",
}

for profile, examples in {"usual": 50, "nightly": 500}.items():
    settings.register_profile(
        profile, deadline=None, max_examples=examples, suppress_health_check=[HealthCheck.too_slow]
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "usual"))


@pytest.fixture(autouse=True, scope="session")
def _test_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a cache folder of this test session that shares the user's images and golden states, which take minutes to build."""
    shared = [cache_folder(name) for name in ("images", "golden", "snapshots")]
    own = tmp_path_factory.mktemp("cache")
    for folder in shared:
        (own / folder.name).symlink_to(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PARAGENT_CACHE", str(own))
        yield


@pytest.fixture(autouse=True)
def _same_path() -> Iterator[None]:
    """Remove what a test added to `sys.path`: commands add the current folder, whose modules another test would find."""
    before = sys.path.copy()
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def _same_signal_handlers() -> Iterator[None]:
    """Fail a test that leaves handlers of Ctrl-C or SIGTERM behind: they would not interrupt later tests."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    after = {number: signal.getsignal(number) for number in before}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


@pytest.fixture(scope="session", autouse=True)
def _own_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a token file of this test session instead of the user's. Child processes that a test starts are used by later tests,
    so it is set before the first test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("PARAGENT_TOKEN", raising=False)
        yield
