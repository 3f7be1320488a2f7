"""Lazy results as arguments: the value goes from server to server."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest

from paragent.agents.proxy import link_of
from paragent.transport import Address
from tests.remote.agents import Worker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from paragent import RpcAgentServerLauncher


def remote(name: str = "agent", **settings: Any) -> Any:
    return Worker(name, to_dist=settings or True)


def at(server: RpcAgentServerLauncher, name: str = "agent") -> Any:
    return remote(name, host=server.host, port=server.port)


def kept(*agents: Any) -> int:
    return sum(link_of(agent).control("info").result(60)["results_kept"] for agent in agents)


def test_a_pending_result_is_passed_on_between_processes() -> None:
    first, second = remote(own_process=True), remote(own_process=True)
    chain = second.echo(first.nap(0.2))
    assert not chain.done()
    assert chain.result(60) == "agent"
    assert second.add(first.add(1), b=first.add(2)) == 5
    total = first.add(0)
    for agent in (second, first) * 5:
        total = agent.add(total)
    assert total.result(60) == 11


def test_results_of_the_same_server_and_finished_results_as_arguments(worker: Any) -> None:
    done = worker.add(1)
    done.result(60)
    assert worker.add(done) == 3
    assert worker.add(worker.add(worker.add(1))) == 4
    assert remote().add(done) == 3
    assert Worker("x", start=worker.add(9), to_dist=True).note(1) == 11


def test_a_failed_argument_fails_the_call_with_the_same_error() -> None:
    first, second = remote(own_process=True), remote(own_process=True)
    with pytest.raises(ValueError, match="a value error"):
        second.echo(first.fail("value")).result(60)
    failed = first.fail("value")
    assert isinstance(failed.exception(60), ValueError)
    with pytest.raises(ValueError, match="a value error"):
        second.echo(failed).result(60)


def test_a_call_that_waits_for_its_argument_keeps_its_position(worker: Any) -> None:
    slow = remote()
    waiting = worker.note(slow.nap(0.3))
    worker.note("second")
    assert waiting.result(60) == 1
    assert worker.notes() == ["agent", "second"]


@pytest.mark.slow
def test_large_results_do_not_pass_through_the_caller(eventually: Any) -> None:
    first, second = remote(own_process=True), remote(own_process=True)
    first.echo(1).result(60)
    size = 64 << 20
    before = psutil.Process().memory_info().rss
    made = first.echo(b"x" * 8).result(60)
    del made
    big = first.make(size)
    length = second.size(big)
    assert length.result(20) == size
    assert psutil.Process().memory_info().rss - before < size // 2
    assert kept(first) == 1
    assert len(big.result(20)) == size
    del big
    gc.collect()
    eventually(lambda: kept(first) == 0)


def test_dropped_results_are_freed(eventually: Any) -> None:
    agent = remote(own_process=True)
    results = [agent.make(2 << 20) for _ in range(5)]
    for result in results:
        wait_until(result.done)
    assert kept(agent) == 5
    del results, result
    gc.collect()
    eventually(lambda: kept(agent) == 0)
    agent.make(2 << 20)
    eventually(lambda: kept(agent) == 0)


def test_results_pass_between_a_child_and_an_external_server(server: RpcAgentServerLauncher) -> None:
    child, other = remote(), at(server)
    assert other.echo(child.nap(0.1)) == "agent"
    assert child.add(other.add(1)) == 3


def test_results_go_through_the_caller_if_servers_cannot_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = remote(own_process=True), remote(own_process=True)
    second.echo(1).result(60)
    local = property(lambda address: address != link_of(second).address)
    monkeypatch.setattr(Address, "is_local", local)
    assert second.echo(first.nap(0.1)).result(60) == "agent"
    assert second.size(first.make(3 << 20)).result(60) == 3 << 20
    with pytest.raises(ValueError, match="a value error"):
        second.echo(first.fail("value")).result(60)


@pytest.mark.slow
def test_a_hundred_megabytes_can_be_sent(worker: Any) -> None:
    array = np.arange(100 << 17, dtype="f8")
    assert worker.size(array).result(60) == len(array)
    assert np.array_equal(worker.echo(array).result(60), array)
    assert worker.size("é" * (5 << 20)).result(20) == 5 << 20
