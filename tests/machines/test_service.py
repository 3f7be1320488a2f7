"""`PoolClient` and the pool service."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Self

import pytest

from paragent import (
    AccessDenied,
    ConfigError,
    LeaseLost,
    LeaseTimeout,
    MachineFailed,
    MachineSettings,
    MachineState,
    PoolClient,
    PoolStopped,
    ServerLost,
    UsageError,
    VMPoolManager,
)
from paragent.machines import service
from paragent.transport import Token
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def pool() -> object:
    with VMPoolManager("process", 2, name="served", spares=1) as pool:
        pool.serve()
        yield pool


@pytest.fixture
def client(pool: VMPoolManager) -> object:
    with pickle.loads(pickle.dumps(pool)) as client:
        assert isinstance(client, PoolClient)
        yield client


def test_a_pickled_pool_is_a_client(client: PoolClient) -> None:
    with client.lease(timeout=20) as machine:
        assert machine.execute(["echo", "far"]).output == "far\n"
    assert client.status().size == 2


def test_closing_a_client_that_never_connected_starts_no_thread() -> None:
    program = """if True:
        import threading
        from paragent import PoolClient, PoolStopped

        with PoolClient("localhost:1") as client:
            pass
        assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
        try:
            client.status()
        except PoolStopped:
            print("closed")
    """
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == "closed\n", ended.stderr


def test_a_client_pauses_and_resumes_a_machine(client: PoolClient) -> None:
    lease = client.allocate(timeout=20)
    lease.pause()
    lease.resume()
    assert lease.machine.execute(["echo", "on"]).output == "on\n"
    lease.release()
    with pytest.raises(LeaseLost):
        lease.pause()


def test_the_holder_has_the_name_of_its_program(client: PoolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAGENT_NAME", "monday")
    with client.lease(timeout=20) as machine:
        holders = {row.id: row.holder for row in client.status().machines}
        assert holders[machine.id].startswith("monday ")


def test_settings_of_machines_are_checked() -> None:
    with pytest.raises(ConfigError, match="MachineSettings has no field 'core', did you mean 'cores'"):
        VMPoolManager("process", 1, core=2)
    with pytest.raises(ConfigError, match="leave `settings` out"):
        VMPoolManager("process", 1, settings=MachineSettings(), cores=2)


def test_a_pool_that_is_not_served_cannot_be_pickled() -> None:
    with pytest.raises(UsageError, match="serve"):
        pickle.dumps(VMPoolManager("process", 1))


@pytest.mark.slow
def test_twelve_threads_share_two_machines(client: PoolClient) -> None:
    def work(number: int) -> str:
        with client.lease(timeout=60) as machine:
            return machine.execute(["echo", str(number)]).output.strip()

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(work, range(12))) == [str(number) for number in range(12)]


def test_errors_keep_their_type(client: PoolClient) -> None:
    leases = [client.allocate(timeout=20) for _ in range(2)]
    with pytest.raises(LeaseTimeout), client.lease(timeout=0.2):
        pass
    assert client.status().waiting == 0
    for lease in leases:
        lease.release()
    with pytest.raises(LeaseLost):
        leases[0].renew()
    with pytest.raises(UsageError, match="no live machine"):
        client.retire("m99")
    with pytest.raises(ConfigError):
        client.allocate(duration=-1)


def test_a_client_resets_its_machine(client: PoolClient) -> None:
    lease = client.allocate(timeout=20)
    lease.machine.put_file("x", b"")
    assert "x" not in lease.reset().execute("ls").output
    lease.release()


def test_a_client_with_a_wrong_token_is_rejected(pool: VMPoolManager) -> None:
    address = pool.address
    with PoolClient(address, token=Token("not the user's token")) as other_client, pytest.raises(AccessDenied):
        other_client.status()


def test_a_pool_that_cannot_be_reached_is_an_error() -> None:
    with PoolClient("127.0.0.1:1", reconnect=0.5) as client, pytest.raises(ServerLost):
        client.allocate(timeout=20)


class Relay:
    """A TCP relay in front of a pool's service; `cut` breaks all connections."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self.received = bytearray()
        """What clients have sent."""
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(20)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(20)

    def cut(self) -> None:
        while self._sockets:
            _shut_down(self._sockets.pop())

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for source, target, record in ((client, server, self.received), (server, client, bytearray())):
                    self._threads.append(threading.Thread(target=_forward, args=(source, target, record)))
                    self._threads[-1].start()


def _forward(source: socket.socket, target: socket.socket, record: bytearray) -> None:
    """Copy what one end sends to the other end until either is closed."""
    with source:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                record += data
                target.sendall(data)
        _shut_down(target)


def _shut_down(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """Callbacks that the service has scheduled for clients that do not reconnect; the test calls them."""
    kept: list[Callable[[], None]] = []
    clock = SimpleNamespace(call_later=lambda _, call, *given: kept.append(lambda: call(*given)))
    monkeypatch.setattr(service, "io_loop", lambda: clock)
    return kept


def test_a_client_that_reconnects_keeps_its_place_and_then_its_machine(
    pool: VMPoolManager, later: list[Callable[[], None]]
) -> None:
    held = [pool.allocate(timeout=20) for _ in range(2)]
    with Relay(pool.address) as relay, PoolClient(relay.address) as client, ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.allocate, timeout=60)
        wait_until(lambda: pool.status().waiting == 1)
        relay.cut()
        wait_until(lambda: later and relay.received.count(b'"acquire"') == 2)
        client.status()  # has the answer only after the service has seen the second request
        later[0]()
        assert pool.status().waiting == 1
        held[0].release()
        lease = waiting.result(20)
        later[0]()
        assert lease.renew() > 0, "the client has reconnected"
        for one in (lease, held[1]):
            one.release()


def test_a_client_that_does_not_reconnect_loses_its_place(pool: VMPoolManager, later: list[Callable[[], None]]) -> None:
    held = [pool.allocate(timeout=20) for _ in range(2)]
    client = PoolClient(pool.address, reconnect=0.0)
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(client.allocate, timeout=60)
        wait_until(lambda: pool.status().waiting == 1)
        client.close()
        with pytest.raises((ServerLost, PoolStopped)):
            waiting.result(20)
    wait_until(lambda: later)
    later[0]()
    assert pool.status().waiting == 0
    for lease in held:
        lease.release()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (("acquire",), MachineFailed),
        (("renew", "x", 1), MachineFailed),
        (("acquire", "r", "h", "long", None), ConfigError),
        (("acquire", "r", "h", float("nan"), None), ConfigError),
        (("fly",), MachineFailed),
    ],
)
def test_an_invalid_call_is_answered_with_an_error(
    client: PoolClient, call: tuple[str, ...], error: type[Exception]
) -> None:
    with pytest.raises(error):
        client.bridge.wait(client.async_pool.call(*call), 20)
    assert client.status().size == 2


def test_a_client_with_its_own_token_cannot_be_pickled() -> None:
    with pytest.raises(ConfigError, match="PARAGENT_TOKEN"):
        pickle.dumps(PoolClient("127.0.0.1:1", token=Token("the token of this client")))


def test_clients_of_a_drained_pool_get_an_error() -> None:
    with VMPoolManager("process", 1, name="drained", spares=0) as pool, PoolClient(str(pool.serve().address)) as client:
        held = client.allocate(timeout=20)
        with ThreadPoolExecutor(1) as threads:
            waiting = threads.submit(client.allocate, timeout=60)
            wait_until(lambda: pool.status().waiting == 1)
            client.drain()
            with pytest.raises(PoolStopped):
                waiting.result(20)
        with pytest.raises(PoolStopped):
            client.allocate(timeout=20)
        held.release()
        assert pool.drain(timeout=20)


@pytest.mark.slow
def test_a_lease_is_lost_if_no_heartbeat_reaches_the_pool() -> None:
    with VMPoolManager("process", 1, name="unreachable", spares=0) as pool:
        server = pool.serve()
        with PoolClient(str(server.address)) as client:
            lease = client.allocate(timeout=20, duration=0.6)
            server.close()
            wait_until(lambda: lease.lost)
            assert "no heartbeat reached the pool in time" in str(lease.lost)
            wait_until(lambda: pool.status().count(MachineState.LEASED) == 0)


HOLDER = """
import sys, time
from paragent import PoolClient
lease = PoolClient(sys.argv[1]).allocate(duration=1.0)
print(lease.machine.id, flush=True)
time.sleep(300)
"""


@pytest.mark.slow
def test_a_killed_holder_loses_its_machine_and_a_killed_waiter_its_place(pool: VMPoolManager) -> None:
    address = pool.address
    command = [sys.executable, "-c", HOLDER, address]
    holders = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for holder in holders:
        assert holder.stdout is not None
        assert holder.stdout.readline().startswith("m")
    waiting = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    wait_until(lambda: pool.status().waiting == 1)
    for process in (waiting, *holders):
        os.kill(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)
    with pool.lease(timeout=30), pool.lease(timeout=30):
        pass
    wait_until(lambda: pool.status().waiting == 0)
