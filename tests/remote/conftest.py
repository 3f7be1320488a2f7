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


@pytest.fixture(scope="session", autouse=True)
def _own_token(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A token file of the tests' own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        patch.delenv("PARAGENT_TOKEN", raising=False)
        yield


@pytest.fixture(scope="module")
def server() -> Iterator[RpcAgentServerLauncher]:
    """An independent server in a process of its own that accepts code."""
    launcher = RpcAgentServerLauncher(lease=1.0)
    launcher.launch(in_subprocess=True)
    yield launcher
    launcher.shutdown()


@pytest.fixture
def own_server() -> Iterator[RpcAgentServerLauncher]:
    """As `server`, for one test alone: nobody else's agents are on it."""
    launcher = RpcAgentServerLauncher(lease=1.0)
    launcher.launch(in_subprocess=True)
    yield launcher
    launcher.shutdown()


@pytest.fixture
def worker() -> Worker:
    """An agent in a child process, typed as what it stands for."""
    return Worker("worker", to_dist=True)


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], None]:
    """Wait until something is so, for ten seconds at most."""

    def wait(condition: Callable[[], bool], seconds: float = 10.0) -> None:
        wait_until(condition, seconds)

    return wait


@pytest.fixture
def soon() -> Iterator[Callable[[float], bool]]:
    """Whether a loss that took so many seconds was known in time: 2 s, and what the machine stood still meanwhile.

    Three threads of gRPC and the loop take turns in noticing a loss, and each of them may have been kept waiting.
    """
    with StallTimer() as stalls:
        yield lambda seconds: seconds < 2.0 + 3 * stalls.seconds


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """The path of a file that remote code leaves as a sign."""
    return tmp_path / "mark"
