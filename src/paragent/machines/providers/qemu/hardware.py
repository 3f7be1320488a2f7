"""What a QEMU machine is made of: one record, from which every command line and the key of its golden state follow."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.processes import describe_exit
from paragent.errors import UsageError
from paragent.machines.cleanup import find_program
from paragent.machines.providers.base import GUEST_PORT
from paragent.machines.providers.qemu.network import INNER_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Accelerator", "Drives", "Hardware", "kvm_works", "qemu_program"]

Accelerator = str
"""`kvm` or `tcg`."""

_FORM = 2
"""Of golden states: another one whenever the devices on the command line change."""
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""System calls that QEMU gives up before a guest runs: a guest that breaks out of it shall find little to use."""
# Under emulation a plain x86-64-v2 processor is faster than `max`: guests would use wide vectors, which are emulated.
_PROCESSORS = {"kvm": "host", "tcg": "Nehalem"}


@dataclass(frozen=True, slots=True)
class Program:
    """The QEMU of this host."""

    path: str
    version: str
    machine: str
    """A versioned machine type: an unversioned one is another machine after an upgrade."""


def qemu_program() -> Program:
    """Return the QEMU of this host.

    Raises:
        UsageError: it is not installed, does not work, or does not know the machine that we use.
    """
    path = find_program("qemu-system-x86_64")
    version, machines = _said(path, "--version"), _said(path, "-machine", "help")
    alias = re.search(r"^pc\s.*\(alias of (\S+?)\)", machines, re.MULTILINE)
    if alias is None:
        raise UsageError(f"{path} has no machine type 'pc'")
    return Program(path, version.splitlines()[0], alias[1])


def _said(*command: str) -> str:
    """Return what a program says; in a session of its own, for a Ctrl-C is meant for us."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, start_new_session=True)
    if done.returncode:
        raise UsageError(f"{shlex.join(command)} {describe_exit(done.returncode)}: {done.stderr.strip()[-300:]}")
    return done.stdout


def kvm_works(cpuinfo: Path = Path("/proc/cpuinfo"), device: Path = Path("/dev/kvm")) -> bool:
    """Return whether KVM can be expected to work.

    The device alone is no proof: there are hosts on which it exists, QEMU starts, and every guest hangs.
    """
    try:
        flags = re.search(r"^flags\s*:.*\b(vmx|svm)\b", cpuinfo.read_text(), re.MULTILINE)
    except OSError:
        return False
    return flags is not None and os.access(device, os.R_OK | os.W_OK)


@dataclass(frozen=True, slots=True)
class Drives:
    """Which files one process uses."""

    ram: Path
    shared: bool
    """Whether writes to memory go to the file: only while the golden state is made."""
    disk: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """A machine. Two machines with equal records can continue each other's state."""

    program: str
    version: str
    machine: str
    accelerator: Accelerator
    memory_mib: int
    cores: int
    image_key: str
    """Which image, and which contents of it."""
    kernel: str = ""
    initrd: str = ""
    arguments: str = ""
    disk: bool = False
    graphics: bool = False
    screen: tuple[int, int] = (1920, 1080)
    host: str = "127.0.0.1"
    forwards: tuple[int, ...] = (GUEST_PORT,)
    network: str = "none"
    """What the guest reaches; `none`, `internet` or `host`. It is reached in any case."""
    firmware: str = ""

    @property
    def key(self) -> str:
        """Return a digest of all that is part of a state: the name of its golden state.

        Forwarded ports are not; where the program and the image's files are does not matter, as version and key name them.
        """
        elsewhere = {"host", "forwards", "program", "kernel", "initrd", "network"}
        fields: dict[str, object] = {name: value for name, value in asdict(self).items() if name not in elsewhere}
        fields["form"] = _FORM
        # A guest that asks for its address is told a gateway or none. Images that are built here, with a kernel, do not ask.
        fields["offline"] = self.network == "none" and not self.kernel
        return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:24]

    def command(
        self,
        drives: Drives,
        monitor: int,
        *,
        incoming: bool,
        secret: Path,
        display: str = "",
        password: Path | None = None,
    ) -> list[str]:
        """Return the command line of one process. It can start no other program and gain no rights.

        Args:
            drives: Its files.
            monitor: The descriptor of a connected socket for QMP.
            incoming: Whether it waits for a state instead of booting.
            secret: A file with what the guest is told, by which it knows its pool.
            display: An address for VNC; empty: no display.
            password: A file with the display's password.
        """
        memory = f"memory-backend-file,id=ram0,mem-path={drives.ram},size={self.memory_mib}M"
        return [
            self.program,
            *("-nodefaults", "-no-user-config", "-no-reboot"),
            *(("-sandbox", _SANDBOX) if sys.platform == "linux" else ()),
            *("-machine", f"{self.machine},memory-backend=ram0", "-accel", self.accelerator),
            *("-cpu", _PROCESSORS[self.accelerator], "-smp", str(self.cores), "-m", f"{self.memory_mib}M"),
            *("-object", f"{memory},share={'on' if drives.shared else 'off'}"),
            *("-chardev", f"socket,id=qmp,fd={monitor}", "-mon", "chardev=qmp,mode=control"),
            *("-chardev", "file,id=serial0,path=console.log,append=on", "-serial", "chardev:serial0"),
            *("-fw_cfg", f"name=opt/paragent/secret,file={secret}"),
            *self._boot(),
            *self._disk(drives.disk),
            *self._network(),
            *("-device", "virtio-rng-pci"),
            *self._graphics(display, password),
            *(("-S", "-incoming", "defer") if incoming else ()),
        ]

    def _boot(self) -> list[str]:
        parts: Mapping[str, str] = {
            "-kernel": self.kernel,
            "-initrd": self.initrd,
            "-append": self.arguments,
            "-bios": self.firmware,
        }
        return [word for option, value in parts.items() if value for word in (option, value)]

    def _disk(self, disk: Path | None) -> list[str]:
        """A machine that ends is thrown away, so what it writes need never reach the disk."""
        if disk is None:
            return []
        drive = f"if=none,id=disk0,file={disk},format=qcow2,cache=unsafe,discard=unmap"
        return ["-drive", drive, "-device", "virtio-blk-pci,drive=disk0"]

    def _network(self) -> list[str]:
        """Port 0 lets the kernel choose: nobody else can take the port in between."""
        inner = INNER_ADDRESS if self.network == "internet" else self.host
        forwards = "".join(f",hostfwd=tcp:{inner}:0-:{port}" for port in self.forwards)
        restrict = ",restrict=on" if self.network == "none" else ""
        return ["-netdev", f"user,id=net0{restrict}{forwards}", "-device", "virtio-net-pci,netdev=net0"]

    def _graphics(self, display: str, password: Path | None) -> list[str]:
        shown = ["-display", "none"]
        if display:
            shown = ["-object", f"secret,id=vnc0,file={password}", "-vnc", f"{display},password-secret=vnc0"]
        if not self.graphics:
            return ["-vga", "none", *shown]
        width, height = self.screen
        return ["-device", f"VGA,edid=on,xres={width},yres={height}", "-device", "virtio-tablet-pci", *shown]
