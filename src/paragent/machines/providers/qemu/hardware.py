"""The hardware of a QEMU machine: one record that determines the command line and the key of the golden state."""

from __future__ import annotations

import hashlib
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from paragent._internal.processes import describe_exit
from paragent.errors import UsageError
from paragent.machines.cleanup import find_program
from paragent.machines.providers.base import AGENT_PORT
from paragent.machines.providers.qemu.network import INNER_ADDRESS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Hardware", "MachineFiles", "QemuProgram", "qemu_program"]

_FORMAT = 2
"""Version of golden states; to be increased whenever the devices on the command line change."""
_SANDBOX = "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"
"""System calls that QEMU gives up before the machine runs, so that code that breaks out of the machine can do little."""
# Under emulation a plain x86-64-v2 processor is faster than `max`, with which programs use wide vectors that are emulated.
_PROCESSORS = {"kvm": "host", "tcg": "Nehalem"}


@dataclass(frozen=True, slots=True)
class QemuProgram:
    """The QEMU that is installed on this host."""

    path: str
    version: str
    machine: str
    """A versioned machine type: an unversioned one changes with an upgrade of QEMU."""


def qemu_program() -> QemuProgram:
    """Return the QEMU that is installed on this host.

    Raises:
        UsageError: it is not installed, does not work, or does not have the machine type that we use.
    """
    path = find_program("qemu-system-x86_64")
    version, machines = _output(path, "--version"), _output(path, "-machine", "help")
    alias = re.search(r"^pc\s.*\(alias of (\S+?)\)", machines, re.MULTILINE)
    if alias is None:
        raise UsageError(f"{path} has no machine type 'pc'")
    return QemuProgram(path, version.splitlines()[0], alias[1])


def _output(*command: str) -> str:
    """Return the output of a program. It runs in its own session, so that a Ctrl-C of the user does not end it."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, start_new_session=True)
    if done.returncode:
        raise UsageError(f"{shlex.join(command)} {describe_exit(done.returncode)}: {done.stderr.strip()[-300:]}")
    return done.stdout


@dataclass(frozen=True, slots=True)
class MachineFiles:
    """The files of one process."""

    ram: Path
    shared: bool
    """Whether writes to the memory go to the file: only while the golden state is created."""
    disk: Path | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The hardware of a machine. A machine can continue from the state of another one with an equal record."""

    program: str
    version: str
    machine: str
    accelerator: str
    """`kvm` or `tcg`."""
    memory_mib: int
    cores: int
    image_key: str
    """Identifies the image and its contents."""
    kernel: str = ""
    initrd: str = ""
    arguments: str = ""
    disk: bool = False
    graphics: bool = False
    screen: tuple[int, int] = (1920, 1080)
    host: str = "127.0.0.1"
    forwards: tuple[int, ...] = (AGENT_PORT,)
    network: str = "none"
    """What the machine can reach: `none`, `internet` or `host`. Its forwarded ports are reachable in any case."""
    firmware: str = ""

    @property
    def key(self) -> str:
        """The name of the golden state: a digest of everything that a state depends on.

        It does not depend on forwarded ports, nor on the paths of the program and the image, whose version and key count.
        """
        independent = {"host", "forwards", "program", "kernel", "initrd", "network"}
        fields: dict[str, object] = {name: value for name, value in asdict(self).items() if name not in independent}
        fields["format"] = _FORMAT
        # A machine that uses DHCP gets a gateway or none. Images that are built here, with a kernel, do not use DHCP.
        fields["offline"] = self.network == "none" and not self.kernel
        return hashlib.sha256(repr(sorted(fields.items())).encode()).hexdigest()[:24]

    def command(
        self,
        files: MachineFiles,
        monitor: int,
        *,
        incoming: bool,
        secret: Path,
        display: str = "",
        password: Path | None = None,
    ) -> list[str]:
        """Return the command line of one process, which cannot start other programs or gain privileges.

        Args:
            files: the files of the process.
            monitor: the file descriptor of a connected socket for QMP.
            incoming: whether it waits for a state instead of booting.
            secret: the file with the secret by which the machine recognizes its pool.
            display: the address for VNC; empty: no display.
            password: the file with the password of the display.
        """
        memory = f"memory-backend-file,id=ram0,mem-path={files.ram},size={self.memory_mib}M"
        return [
            self.program,
            *("-nodefaults", "-no-user-config", "-no-reboot"),
            *(("-sandbox", _SANDBOX) if sys.platform == "linux" else ()),
            *("-machine", f"{self.machine},memory-backend=ram0", "-accel", self.accelerator),
            *("-cpu", _PROCESSORS[self.accelerator], "-smp", str(self.cores), "-m", f"{self.memory_mib}M"),
            *("-object", f"{memory},share={'on' if files.shared else 'off'}"),
            *("-chardev", f"socket,id=qmp,fd={monitor}", "-mon", "chardev=qmp,mode=control"),
            *("-chardev", "file,id=serial0,path=console.log,append=on", "-serial", "chardev:serial0"),
            *("-fw_cfg", f"name=opt/paragent/secret,file={secret}"),
            *self._boot(),
            *self._disk(files.disk),
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
        """Return the options of the disk. A machine that ends is discarded, so its writes need not reach the disk."""
        if disk is None:
            return []
        drive = f"if=none,id=disk0,file={disk},format=qcow2,cache=unsafe,discard=unmap"
        return ["-drive", drive, "-device", "virtio-blk-pci,drive=disk0"]

    def _network(self) -> list[str]:
        """Return the options of the network. With port 0 the kernel chooses a free port, which no other process can take."""
        inner = INNER_ADDRESS if self.network == "internet" else self.host
        forwards = "".join(f",hostfwd=tcp:{inner}:0-:{port}" for port in self.forwards)
        restrict = ",restrict=on" if self.network == "none" else ""
        return ["-netdev", f"user,id=net0{restrict}{forwards}", "-device", "virtio-net-pci,netdev=net0"]

    def _graphics(self, display: str, password: Path | None) -> list[str]:
        output = ["-display", "none"]
        if display:
            output = ["-object", f"secret,id=vnc0,file={password}", "-vnc", f"{display},password-secret=vnc0"]
        if not self.graphics:
            return ["-vga", "none", *output]
        width, height = self.screen
        return ["-device", f"VGA,edid=on,xres={width},yres={height}", "-device", "virtio-tablet-pci", *output]
