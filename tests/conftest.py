"""What holds for all tests: other people's programs have time to start, also on a slow machine that is busy."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite(
    "paragent.testing", "tests.engines.cluster_contract"
)  # for failures that say what was seen

_PATIENCE = 180
"""Seconds for each step of Ray's start, which gives up after 30 by itself: a node took longer on a machine with a load of ten."""

os.environ |= {
    "RAY_raylet_start_wait_time_s": f"{_PATIENCE}",
    "RAY_gcs_server_port_wait_time_s": f"{_PATIENCE}",
    "RAY_gcs_server_request_timeout_seconds": f"{_PATIENCE}",
    "RAY_py_gcs_connect_timeout_s": f"{_PATIENCE}",
    "RAY_gcs_rpc_server_connect_timeout_s": f"{_PATIENCE}",
    "RAY_worker_register_timeout_seconds": f"{_PATIENCE}",
    "RAY_agent_register_timeout_ms": f"{1000 * _PATIENCE}",
}

settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what failed and then passed when `make test` tried it again: it is a bug that shows itself by chance."""
    reports = [report for report in terminalreporter.stats.get("rerun", ()) if isinstance(report, pytest.TestReport)]
    for report in reports:
        terminalreporter.section(f"failed at first: {report.nodeid}", sep="_")
        terminalreporter.write_line(report.longreprtext)
