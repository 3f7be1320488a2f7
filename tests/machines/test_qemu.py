"""QEMU machines: clones, clocks, random numbers, displays, ports, snapshots, KVM that does not work."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import socket
import subprocess
import time
from pathlib import Path

import pytest

from paragent import ConfigError, MachineFailed, UsageError, VMPoolManager
from paragent.machines.cleanup import Owner
from paragent.machines.images import frozen_states, images
from paragent.machines.kvm import boot_problem, kvm_problem, kvm_works
from paragent.machines.providers import MachineSettings, qemu
from paragent.machines.providers.qemu.golden import remove_drafts
from paragent.machines.providers.qemu.hardware import qemu_program
from paragent.machines.providers.qemu.process import Monitor
from tests.waiting import wait_until


@pytest.mark.qemu
def test_clones_have_the_current_time_and_their_own_random_numbers() -> None:
    seen = []
    with VMPoolManager("qemu", 2, spares=1, name="clones") as pool:
        for _ in range(2):
            with pool.lease(timeout=60) as first, pool.lease(timeout=60) as second:
                for machine in (first, second):
                    before = time.time()
                    assert before - 5 < float(machine.execute("date +%s").output) < time.time() + 5
                    seen.append(machine.execute("cat /proc/sys/kernel/random/uuid").output)
                    seen.append(machine.execute("head -c 16 /dev/urandom | od -x").output)
                    assert "left" not in machine.execute("ls /data / /tmp").output
                    machine.execute("touch /data/left /left /tmp/left; sync")
    assert len(seen) == len(set(seen)) == 8
    assert "tiny" in {image.name for image in images()}
    assert "tiny" in {state.image for state in frozen_states()}


def test_an_abandoned_monitor_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def give_up() -> None:
        stopped, lost = Monitor("stopped"), Monitor("lost")
        other_end = os.dup(stopped.descriptor)  # a peer that never answers
        connecting = asyncio.create_task(stopped.connect())
        try:
            for _ in range(10):  # iterations of the loop, so that it waits for the greeting
                await asyncio.sleep(0)
            connecting.cancel()
            await asyncio.wait([connecting])
            with pytest.raises(MachineFailed, match="QEMU of lost does not answer"):
                await lost.connect()
        finally:
            os.close(other_end)
            await stopped.close()
            await lost.close()
        assert connecting.cancelled()

    with caplog.at_level(logging.INFO):
        asyncio.run(give_up())
    assert not caplog.records


@pytest.mark.qemu
def test_the_display_and_forwarded_ports_are_reachable() -> None:
    with (
        VMPoolManager("qemu", 1, spares=0, name="display", headless=False, forwards=(9222,)) as pool,
        pool.lease(timeout=60) as machine,
    ):
        host, port = machine.details["vnc"].rsplit(":", 1)
        with socket.create_connection((host, int(port)), 10) as display:
            assert display.recv(3) == b"RFB"
        machine.execute("(echo from-9222 | nc -l -p 9222) > /dev/null 2>&1 &")
        assert read_all(machine.host, machine.ports[9222]) == b"from-9222\n"


def read_all(host: str, port: int) -> bytes:
    """Read from a port of a machine, which is open on the host before the machine listens."""

    def read() -> bytes:
        with socket.create_connection((host, port), 5) as connection:
            connection.settimeout(5)
            try:
                return connection.recv(100)
            except OSError:
                return b""

    return wait_until(read, 20, what=f"data from port {port}", interval=0.1)


def test_kvm_is_used_only_if_the_processor_supports_it(tmp_path: Path) -> None:
    device, plain, capable = tmp_path / "kvm", tmp_path / "plain", tmp_path / "capable"
    device.touch()
    plain.write_text("processor : 0\nflags : fpu sse2 vmxish\n")
    capable.write_text("processor : 0\nflags : fpu vmx sse2\n")
    assert not kvm_works(plain, device)
    assert kvm_works(capable, device)
    assert not kvm_works(capable, tmp_path / "absent")
    assert not kvm_works(tmp_path / "absent", device)
    assert "the processor has no hardware virtualization" in kvm_problem(plain, device)
    assert kvm_problem(capable, tmp_path / "absent") == f"there is no {tmp_path / 'absent'}"


@pytest.mark.qemu
def test_a_machine_that_only_boots_shows_whether_an_accelerator_works() -> None:
    program = qemu_program().path
    assert boot_problem(program, "tcg", 30) == ""
    assert "does not boot" in boot_problem(program, "absent", 30)
    assert "did not boot within" in boot_problem(program, "tcg", 0.001)
    assert "cannot be started" in boot_problem("/absent", "tcg", 30)


@pytest.mark.qemu
def test_emulation_is_used_if_kvm_does_not_work(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The device is missing, or no machine boots with it; in both cases machines are emulated."""
    if kvm_works():
        monkeypatch.setattr(qemu, "qemu_program", broken_program)
    monkeypatch.setattr(qemu, "kvm_works", lambda: True)
    monkeypatch.setattr(qemu, "KVM_BOOT_SECONDS", 3.0)
    with (
        caplog.at_level(logging.WARNING, "paragent.machines"),
        VMPoolManager("qemu", 1, spares=0, name="kvm") as pool,
        pool.lease(timeout=60) as machine,
    ):
        assert machine.execute(["true"]).ok
    assert "KVM does not work on this host" in caplog.text


def broken_program() -> object:
    pytest.fail("this host has KVM: the fallback cannot be shown with its QEMU")


@pytest.mark.qemu
def test_an_internal_snapshot_is_extracted(tmp_path: Path) -> None:
    disk = tmp_path / "disk.qcow2"
    for command in (
        ["qemu-img", "create", "-q", "-f", "qcow2", str(disk), "1M"],
        ["qemu-io", "-c", "write -P 7 0 64k", str(disk)],
        ["qemu-img", "snapshot", "-c", "init_state", str(disk)],
        ["qemu-io", "-c", "write -P 9 0 64k", str(disk)],
    ):
        subprocess.run(command, check=True, capture_output=True, timeout=30)
    extracted = qemu.extract_snapshot(disk, "init_state")
    read = ["qemu-io", "-r", "-c", "read -P 7 0 64k", str(extracted)]
    assert (
        "Pattern verification failed"
        not in subprocess.run(read, capture_output=True, text=True, check=True, timeout=100).stdout
    )
    with pytest.raises(UsageError, match="no snapshot 'other'; snapshots: init_state"):
        qemu.extract_snapshot(disk, "other")
    extracted.unlink()


def test_the_image_name_depends_on_the_settings() -> None:
    """A wrong name would replace the golden state of another image, which would boot again each time."""
    run = Owner("named")
    try:
        for settings, name in (
            (MachineSettings(), "tiny"),
            (MachineSettings(desktop=True), "desktop"),
            (MachineSettings(desktop=True, path_to_vm="tiny"), "tiny"),
        ):
            assert qemu.QemuProvider(settings, run).image_name == name
    finally:
        run.close()


@pytest.mark.qemu
def test_a_missing_disk_and_an_unknown_accelerator_are_rejected() -> None:
    with pytest.raises(UsageError, match=r"neither a file nor a built image; images: .*tiny"):
        VMPoolManager("qemu", 1, path_to_vm="/no/such.qcow2", name="wrong").start()
    with pytest.raises(ConfigError, match="'kvm' or 'tcg'"):
        VMPoolManager("qemu", 1, options={"accelerator": "xen"}, name="wrong").start()


def test_incomplete_golden_states_are_removed_unless_locked(tmp_path: Path) -> None:
    for name in (".left", ".being-made", "whole"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ram").touch()
    with (tmp_path / ".being-made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        remove_drafts(tmp_path)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {".being-made", "whole"}
