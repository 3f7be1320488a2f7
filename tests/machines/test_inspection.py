"""What a pool tells about its machines: counts, leases, logs and screenshots, here and through the pool service."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paragent import AccessDenied, MachineFailed, MachineState, PoolClient, UsageError, VMPoolManager
from paragent.machines import Machine, MachineStatus
from paragent.machines.cleanup import Owner
from paragent.machines.inspection import MachineInspector
from paragent.machines.lease import Pool
from paragent.machines.providers import MachineSettings
from paragent.machines.providers.base import LOG_BYTES, read_logs
from paragent.machines.providers.process import ProcessProvider
from paragent.transport import Token
from tests.waiting import wait_until

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def pool() -> Iterator[VMPoolManager]:
    with VMPoolManager("process", 1, spares=1, name="inspected") as opened:
        opened.serve()
        yield opened


@pytest.fixture
def client(pool: VMPoolManager) -> Iterator[PoolClient]:
    with PoolClient(pool.address) as opened:
        yield opened


def row(pool: Pool, machine_id: str) -> MachineStatus:
    return next(machine for machine in pool.status().machines if machine.id == machine_id)


def test_the_status_counts_leases_and_resets(pool: VMPoolManager, client: PoolClient) -> None:
    lease = client.allocate(timeout=30, holder="t7#2")
    name = lease.machine.id
    before = row(client, name)
    assert (before.holder, before.state, before.failures) == ("t7#2", MachineState.LEASED, 0)
    assert before.lease_seconds is not None
    assert before.lease_seconds >= 0
    lease.release()
    wait_until(lambda: row(client, name).resets == before.resets + 1)
    after = row(client, name)
    assert (after.leases, after.holder, after.lease_seconds) == (before.leases, "", None)


def test_a_machine_that_is_to_be_replaced_says_so(client: PoolClient) -> None:
    lease = client.allocate(timeout=30)
    client.retire(lease.machine.id)
    assert row(client, lease.machine.id).reason == "is replaced when its lease ends"
    lease.release()
    wait_until(lambda: row(client, lease.machine.id).state is MachineState.STOPPED)
    assert row(client, lease.machine.id).reason == "retired"


def test_a_log_is_text_of_the_machine_and_the_kept_log_of_a_failed_one(pool: VMPoolManager, client: PoolClient) -> None:
    lease = client.allocate(timeout=30)
    name = lease.machine.id
    hostile = "\x1b[31m<script>alert(1)</script>"
    log = f"/proc/{lease.machine.details['pid']}/fd/2"
    lease.machine.execute(["sh", "-c", f"printf '{hostile}' >> {log}"])
    assert row(client, name).log
    assert hostile in client.machine_log(name)
    assert client.machine_log(name) == pool.machine_log(name)
    os.kill(int(lease.machine.details["pid"]), signal.SIGKILL)
    wait_until(lambda: row(client, name).state is MachineState.QUARANTINED and "(log:" in row(client, name).reason)
    failed = row(client, name)
    assert (failed.failures, failed.log, failed.screenshot) == (1, True, False)
    assert "stopped answering" in failed.reason
    assert hostile in client.machine_log(name)


def test_machines_without_a_screen_and_unknown_machines(client: PoolClient) -> None:
    with client.lease(timeout=30) as machine:
        assert not row(client, machine.id).screenshot
        with pytest.raises(MachineFailed, match="has no screen that can be shown now; its state is leased"):
            client.machine_screenshot(machine.id)
    for ask in (client.machine_log, client.machine_screenshot):
        with pytest.raises(UsageError, match="no machine 'm99' in this pool"):
            ask("m99")


def test_a_client_with_another_token_learns_nothing(pool: VMPoolManager) -> None:
    with PoolClient(pool.address, token=Token("another token of enough characters")) as client:
        for ask in (lambda: client.machine_log("m0"), lambda: client.machine_screenshot("m0"), client.status):
            with pytest.raises(AccessDenied):
                ask()


def test_a_log_is_bounded_and_only_a_regular_file_is_read(tmp_path: Path) -> None:
    long, other = tmp_path / "machine.log", tmp_path / "console.log"
    long.write_bytes(b"start" + b"x" * LOG_BYTES + b"\xffend")
    assert read_logs([long]) == "x" * (LOG_BYTES - 4) + "�end"
    other.write_text("booted\n")
    both = read_logs([long, other])
    assert both.startswith("== machine.log ==\nxxx")
    assert both.endswith("\n== console.log ==\nbooted\n")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(other)
    assert read_logs([tmp_path / "pipe", tmp_path / "link", tmp_path / "missing"]) == ""


class Screen(ThreadingHTTPServer):
    """A guest agent that answers requests for screenshots when it is allowed to."""

    daemon_threads = True

    def __init__(self, image: bytes) -> None:
        super().__init__(("127.0.0.1", 0), _ScreenHandler)
        self.image, self.requests, self.allowed = image, 0, threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def machine(self) -> Machine:
        return Machine("m0-x", "127.0.0.1", self.server_port, "token")


class _ScreenHandler(BaseHTTPRequestHandler):
    server: Screen

    def do_GET(self) -> None:
        self.server.requests += 1
        self.server.allowed.wait(20)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.server.image)))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(self.server.image)

    def log_message(self, *_: object) -> None: ...


@contextlib.contextmanager
def inspected(image: bytes) -> Iterator[tuple[Screen, MachineInspector]]:
    owner, screen = Owner("screens"), Screen(image)
    try:
        yield screen, MachineInspector(ProcessProvider(MachineSettings(), owner))
    finally:
        screen.allowed.set()
        screen.shutdown()
        screen.server_close()
        owner.close()


def test_one_request_at_a_time_is_sent_to_a_machine() -> None:
    async def program(screen: Screen, inspector: MachineInspector) -> None:
        asked = [asyncio.create_task(inspector.screenshot("m0", screen.machine)) for _ in range(5)]
        while not screen.requests:
            await asyncio.sleep(0.01)
        screen.allowed.set()
        assert set(await asyncio.gather(*asked)) == {screen.image}
        assert screen.requests == 1
        await inspector.screenshot("m0", screen.machine)
        assert screen.requests == 2

    with inspected(PNG + b"rest") as (screen, inspector):
        asyncio.run(program(screen, inspector))


def test_something_else_than_a_png_is_rejected() -> None:
    with inspected(b"<svg onload='alert(1)'>") as (screen, inspector):
        screen.allowed.set()
        with pytest.raises(MachineFailed, match="not a PNG image"):
            asyncio.run(inspector.screenshot("m0", screen.machine))


def test_a_machine_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paragent.machines.inspection.SCREENSHOT_SECONDS", 0.2)
    with inspected(PNG) as (screen, inspector), pytest.raises(MachineFailed, match="no screenshot within"):
        asyncio.run(inspector.screenshot("m0", screen.machine))


@pytest.mark.slow
@pytest.mark.browser
def test_screens_of_free_and_leased_desktops_through_the_service() -> None:
    options = {"desktop": True, "applications": "terminal"}
    with VMPoolManager("process", 1, spares=1, name="screens", screen=(800, 600), options=options) as pool:
        pool.wait_until_free(2, 100)
        pool.serve()
        with PoolClient(pool.address) as client:
            lease = client.allocate(timeout=100)
            assert all(machine.screenshot for machine in client.status().machines)
            for machine in client.status().machines:
                assert client.machine_screenshot(machine.id).startswith(PNG)
            assert client.machine_screenshot(lease.machine.id) == lease.machine.screenshot()
            assert lease.renew() > 0
            lease.release()
