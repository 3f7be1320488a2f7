"""Processes that are forked by a program with remote agents: gRPC does not work there, and paragent says so."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

from paragent import Result, RpcAgentServerLauncher, UsageError, as_completed
from tests.remote.agents import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.pool import Pool
    from pathlib import Path

SECONDS = 30.0

inherited: dict[str, Any] = {}
"""What the parent process had when it forked."""


def new_agent(place: Any) -> object:
    return Result.of(Worker(to_dist=place).add(1)).result(SECONDS)


def proxy(agent: Any) -> object:
    return Result.of(agent.add(1)).result(SECONDS)


def inherited_proxy(_: Any) -> object:
    return proxy(inherited["agent"])


def attribute(_: Any) -> object:
    return inherited["agent"].name


def pending(_: Any) -> object:
    return inherited["pending"].result(SECONDS)


def pending_of_several(_: Any) -> object:
    return next(as_completed([inherited["pending"]], SECONDS)).result()


def poll_pending(_: Any) -> object:
    assert inherited["pending"].done()
    assert not inherited["pending"].running()
    assert not inherited["pending"].cancelled()
    assert not inherited["pending"].cancel()
    return inherited["pending"].result(SECONDS)


def new_stream(_: Any) -> object:
    return list(inherited["agent"].numbers(3))


def open_stream(_: Any) -> object:
    return list(inherited["stream"])


@pytest.fixture
def pool(worker: Worker, tmp_path: Path) -> Iterator[Pool]:
    """A pool with one forked process, while a call is pending and a stream is open."""
    idle: Any = Worker(to_dist=True)
    busy: Any = Worker(to_dist=True)
    inherited.update(agent=worker, pending=idle.nap(60), stream=busy.late_numbers(str(tmp_path / "mark")))
    assert worker.add(1) == 2
    next(inherited["stream"])
    with multiprocessing.get_context("fork").Pool(1) as forked:
        yield forked
    inherited["pending"].cancel()
    inherited.clear()


@pytest.mark.parametrize(
    "use", [attribute, inherited_proxy, pending, pending_of_several, poll_pending, new_stream, open_stream]
)
def test_a_forked_process_cannot_use_what_it_inherited(
    pool: Pool, worker: Worker, use: Callable[[Any], object]
) -> None:
    with pytest.raises(UsageError, match=r"forked after remote agents.*set_start_method\('spawn'\)"):
        pool.apply_async(use, [None]).get(SECONDS)
    assert Result.of(worker.add(1)).result(SECONDS) == 2
    assert Result.of(inherited["pending"]).running()


def test_a_forked_process_cannot_use_agents_and_proxies_that_it_receives(
    pool: Pool, worker: Worker, server: RpcAgentServerLauncher
) -> None:
    place = {"host": "localhost", "port": server.port}
    there = Worker(to_dist=place)
    assert there.add(1) == 2
    for use, argument in ((new_agent, True), (new_agent, place), (proxy, worker), (proxy, there)):
        with pytest.raises(UsageError, match="forked after remote agents"):
            pool.apply_async(use, [argument]).get(SECONDS)
    for agent in (worker, there, Worker(to_dist=True)):
        assert Result.of(agent.add(1)).result(SECONDS) == 2


def run(code: str) -> str:
    script = "import multiprocessing, os, sys\nfrom paragent import DistConf, Result\nfrom tests.remote.agents import Worker\n"
    done = subprocess.run(
        [sys.executable, "-c", script + textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_process_that_is_forked_before_remote_agents_are_used_can_use_them() -> None:
    code = """
        def child():
            print(Result.of(Worker(to_dist=True).add(1)).result(30), flush=True)
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
        process.join(30)
        print(process.exitcode, Result.of(Worker(to_dist=True).add(2)).result(30))
    """
    assert run(code) == "2\n0 3\n"


def test_a_forked_process_that_drops_its_proxies_and_exits_does_not_end_their_agents() -> None:
    code = """
        agents = [Worker(to_dist=DistConf(own_process=True)), Worker(to_dist=True)]
        pending = [agent.sleep(1) for agent in agents]
        child = os.fork()
        if child == 0:
            del agents, pending
            sys.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        print([Result.of(result).result(30) for result in pending], [Result.of(agent.add(1)).result(30) for agent in agents])
    """
    assert run(code) == "3\n['worker', 'worker'] [2, 2]\n"
