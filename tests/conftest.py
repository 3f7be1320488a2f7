"""Settings of all tests: longer start limits for Ray, no deadlines in hypothesis, and a cache folder for the session."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from paragent.machines.cleanup import cache_folder

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

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Assign tests to processes, with `--dist loadgroup`: each file runs in one process, and all tests that start clusters,
    machines or browsers in the same one, because two of them at a time overload a small computer. A test may name its group."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            if item.get_closest_marker("xdist_group"):
                continue
            heavy = any(item.get_closest_marker(name) for name in ("ray", "spark", "qemu", "browser"))
            item.add_marker(pytest.mark.xdist_group("heavy" if heavy else item.nodeid.partition("::")[0]))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the failures of tests that passed when `make test` ran them again: they are bugs that occur by chance."""
    reports = [report for report in terminalreporter.stats.get("rerun", ()) if isinstance(report, pytest.TestReport)]
    for report in reports:
        terminalreporter.section(f"failed at first: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)


@pytest.fixture(scope="session", autouse=True)
def _own_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Use a token file of this test session instead of the user's. Child processes that a test starts are used by later tests,
    so it is set before the first test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("PARAGENT_TOKEN", raising=False)
        yield
