"""Machines for cluster tests: network namespaces with their own host names, connected by a bridge.

If the kernel or the user's rights do not allow that, the machines share the network of this one and differ only in their
loopback addresses.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import psutil

from tests.namespaces import ip, network_namespace

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STARTS = 3
"""How often a program is started before the test fails."""
START_LIMIT = 180.0
"""Seconds for a program to start: thirty times what a node of Ray or Spark takes on an idle machine."""
SUBNET = f"10.213.{os.getpid() % 250}"
TAG = f"mh{os.getpid() % 10_000_000}"


@dataclass
class Machine:
    """A host with an address that runs programs until it is switched off."""

    name: str
    address: str
    prefix: list[str]
    """The command prefix that runs a command on the machine."""
    log: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start(self, *command: str, **environment: str) -> None:
        """Start a program in a directory without files of the tests."""
        with self.log.open("ab") as log:
            self.processes.append(
                subprocess.Popen(
                    [*self.prefix, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                    env={**os.environ, **environment},
                    start_new_session=True,
                )
            )

    def bring_up(self, sign: str, *command: str, **environment: str) -> None:
        """Start a program and wait until it has written `sign`; start it again if it ends or does not."""
        for _ in range(STARTS):
            self.log.write_bytes(b"")
            self.start(*command, **environment)
            if self._writes(sign):
                return
            self.switch_off()
        written = self.log.read_text(errors="replace")
        raise TimeoutError(
            f"{self.name} was started {STARTS} times and never wrote {sign!r}; its last output: {written}"
        )

    def _writes(self, sign: str) -> bool:
        deadline = time.monotonic() + START_LIMIT
        while sign not in self.log.read_text(errors="replace"):
            if time.monotonic() > deadline or any(process.poll() is not None for process in self.processes):
                return False
            time.sleep(0.05)
        return True

    def switch_off(self) -> None:
        """Kill all its processes at once, so that none can tell its peers."""
        family = [psutil.Process(process.pid) for process in self.processes if process.poll() is None]
        family += [child for parent in list(family) for child in parent.children(recursive=True)]
        for signal_number in (
            signal.SIGSTOP,
            signal.SIGKILL,
        ):  # stopped first, so that none can report the death of another
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal_number)
        for started in self.processes:
            started.wait(60)
        self.processes.clear()


@contextlib.contextmanager
def machines(count: int, folder: Path) -> Iterator[list[Machine]]:
    """Yield this machine, by the address that the others see, and `count` others; switch all off at the end."""
    with contextlib.ExitStack() as stack:
        addresses = [f"127.0.0.{number}" for number in range(1, count + 2)]
        prefixes: list[list[str]] = [[] for _ in addresses]
        if shutil.which("ip") and os.geteuid() == 0:
            with contextlib.suppress(subprocess.CalledProcessError):
                prefixes = _network(count, stack)
                addresses = [f"{SUBNET}.{number}" for number in range(1, count + 2)]
        made = [
            Machine(f"node{number}", address, prefix, folder / f"node{number}.log")
            for number, (address, prefix) in enumerate(zip(addresses, prefixes, strict=True))
        ]
        try:
            yield made
        finally:
            for machine in reversed(made):
                machine.switch_off()


def _network(count: int, stack: contextlib.ExitStack) -> list[list[str]]:
    """Create a bridge with `count` namespaces; return the command prefixes of all machines."""
    bridge = f"{TAG}b"
    ip("link", "add", bridge, "type", "bridge")
    stack.callback(ip, "link", "del", bridge)
    ip("addr", "add", f"{SUBNET}.1/24", "dev", bridge)
    ip("link", "set", bridge, "up")
    prefixes: list[list[str]] = [[]]
    for number in range(1, count + 1):
        namespace = stack.enter_context(network_namespace(f"node{number}"))
        namespace.connect(f"{TAG}v{number}", f"{SUBNET}.{number + 1}/24")
        ip("link", "set", f"{TAG}v{number}", "master", bridge, "up")
        prefixes.append(namespace.prefix)
    return prefixes
