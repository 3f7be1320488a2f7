"""Fixtures of the tests of remote agents: servers, agents in child processes, waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from paragent import RpcAgentServerLauncher
from tests.remote.agents import Worker
from tests.remote.stall_timer import StallTimer
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def server() -> Iterator[RpcAgentServerLauncher]:
    """A server in its own process that accepts code."""
    launcher = RpcAgentServerLauncher(lease=1.0)
    launcher.launch(in_subprocess=True)
    yield launcher
    launcher.shutdown()


@pytest.fixture
def own_server() -> Iterator[RpcAgentServerLauncher]:
    """As `server`, but for one test: it has no other agents."""
    launcher = RpcAgentServerLauncher(lease=1.0)
    launcher.launch(in_subprocess=True)
    yield launcher
    launcher.shutdown()


@pytest.fixture
def worker() -> Worker:
    """An agent in a child process."""
    return Worker("worker", to_dist=True)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until a condition is true, for at most a minute."""

    def wait(condition: Callable[[], bool], seconds: float = 60.0) -> None:
        wait_until(condition, seconds)

    return wait


@pytest.fixture
def soon() -> Iterator[Callable[[float], bool]]:
    """Return whether a loss was noticed in time: within 2 s plus the time for which the host stalled.

    Three threads of gRPC and the I/O loop are involved in noticing a loss, and each of them may have been delayed.
    """
    with StallTimer() as stalls:
        yield lambda seconds: seconds < 2.0 + 3 * stalls.seconds


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """Path of a file that remote code creates as a signal."""
    return tmp_path / "mark"
