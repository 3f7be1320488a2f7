"""Loss of the network: a server in a network namespace whose link can be cut."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from paragent import ServerLost
from paragent.agents.proxy import link_of
from paragent.transport import Address
from tests.children import BoundedPopen
from tests.namespaces import Namespace, ip, network_namespace
from tests.remote.agents import Worker
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

SUBNET = "10.213.57"


class Machine:
    """A network namespace, the server in it, and the link to it."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self.address = Address(f"{SUBNET}.2", 23456)

    @contextlib.contextmanager
    def server(self) -> Iterator[None]:
        near = f"mh{os.getpid() % 100000}a"
        self._namespace.connect(near, f"{SUBNET}.2/24")
        ip("addr", "add", f"{SUBNET}.1/24", "dev", near)
        ip("link", "set", near, "up")
        command = [
            *(*self._namespace.prefix, sys.executable, "-m", "paragent", "agent-server"),
            *("--host", self.address.host, "--port", str(self.address.port), "--lease", "5"),
        ]
        with BoundedPopen(command, stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                assert "agent server" in server.stdout.readline()
                yield
            finally:
                server.terminate()

    def cut(self) -> None:
        """Drop all packets without an error to either side."""
        self._namespace.ip("link", "set", "eth0", "down")

    def mend(self) -> None:
        self._namespace.ip("link", "set", "eth0", "up")


@pytest.fixture
def machine() -> Iterator[Machine]:
    with network_namespace() as namespace:
        there = Machine(namespace)
        with there.server():
            yield there


@pytest.mark.slow
def test_a_cut_network_is_noticed_within_two_seconds_and_can_recover(machine: Machine, soon: Any) -> None:
    def remote() -> Any:
        where = {"host": machine.address.host, "port": machine.address.port}
        return Worker("far", to_dist=where)

    agent = remote()
    assert agent.add(1) == 2
    counted = [agent.note(n) for n in range(50)]
    machine.cut()
    counted += [agent.note(n) for n in range(50, 100)]
    time.sleep(0.2)
    machine.mend()
    assert [result.result(60) for result in counted] == list(range(1, 101)), (
        "no call is lost or executed twice after a short cut"
    )
    child: Any = Worker("near", to_dist=True)
    assert agent.echo(child.nap(0.1)).result(60) == "near", (
        "the server cannot connect to the child, so the value goes through the caller"
    )
    assert child.echo(agent.nap(0.1)).result(60) == "far", "the child fetches the value from the server"
    waiting = [agent.nap(60), agent.add(1)]

    async def awaiting() -> float:
        calls = [agent.nap(60) for _ in range(3)]
        machine.cut()
        started = time.monotonic()
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, ServerLost)
        return time.monotonic() - started

    assert soon(asyncio.run(awaiting()))
    for result in waiting:
        assert isinstance(result.exception(0.5), ServerLost)
    machine.mend()
    wait_until(lambda: remote().add(1).exception(5) is None, 10, what="a new agent after the network is back")
    newest = remote()
    assert newest.add(1) == 2
    # Agents and not clients are counted: the child is one too, if it did not notice the cut.
    wait_until(
        lambda: link_of(newest).control("info").result(60)["agents"] <= 1,
        40,
        what="the end of the lost client's agents after its lease",
        interval=0.1,
    )
