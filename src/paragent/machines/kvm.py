"""Hardware virtualization of this host: whether it is likely to work, and a test that executes code with it."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

__all__ = ["boot_problem", "kvm_problem", "kvm_works"]

_BOOT_SECTOR = bytes.fromhex("b02a e6f4 f4 ebfd").ljust(510, b"\0") + b"\x55\xaa"
"""mov al, 42; out 0xf4, al; then halt. QEMU's device `isa-debug-exit` ends the process when something is written to its port."""
_DONE = 42 * 2 + 1
"""The exit status that this device makes of 42."""


def kvm_works(cpuinfo: Path = Path("/proc/cpuinfo"), device: Path = Path("/dev/kvm")) -> bool:
    """Return whether KVM is likely to work."""
    return not kvm_problem(cpuinfo, device)


def kvm_problem(cpuinfo: Path = Path("/proc/cpuinfo"), device: Path = Path("/dev/kvm")) -> str:
    """Return why KVM cannot work; empty if it is likely to work.

    The device alone is not enough: on some hosts it exists and QEMU starts, but every machine hangs.
    """
    try:
        flags = re.search(r"^flags\s*:.*\b(vmx|svm)\b", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return f"there is no {cpuinfo}"
    if not device.exists():
        return f"there is no {device}"
    if flags is None:
        return f"{device} exists, but the processor has no hardware virtualization (vmx or svm in {cpuinfo})"
    if not os.access(device, os.R_OK | os.W_OK):
        return f"you may not use {device}"
    return ""


def boot_problem(program: str, accelerator: str, seconds: float) -> str:
    """Boot a machine that only ends itself, which takes 0.1 s; return why it did not, empty if it did.

    Args:
        program: the path of `qemu-system-x86_64`.
        accelerator: `kvm` or `tcg`.
        seconds: how long it may take.
    """
    with tempfile.NamedTemporaryFile(prefix="paragent-boot-") as disk:
        disk.write(_BOOT_SECTOR)
        disk.flush()
        command = [program, "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-vga", "none"]
        command += ["-machine", "pc", "-accel", accelerator, "-m", "16M", "-boot", "a"]
        command += ["-device", "isa-debug-exit,iobase=0xf4,iosize=0x01"]
        command += ["-drive", f"file={disk.name},format=raw,if=floppy,readonly=on"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        except subprocess.TimeoutExpired:
            return f"a machine with {accelerator} did not boot within {seconds:g} s"
        except OSError as error:
            return f"{program} cannot be started: {error}"
    if done.returncode != _DONE:
        reason = done.stderr.strip()[-200:] or f"QEMU ended with status {done.returncode}"
        return f"a machine with {accelerator} does not boot: {reason}"
    return ""
