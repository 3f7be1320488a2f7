"""Network namespaces: hosts of their own on this computer, for tests of what crosses a network."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass

from tests.children import BoundedPopen


@dataclass(frozen=True)
class Namespace:
    """A network namespace with a host name. It exists as long as its first process, which ends with the test's."""

    pid: int

    @property
    def prefix(self) -> list[str]:
        """The words before a command that run it in the namespace."""
        return ["nsenter", f"--target={self.pid}", "--net", "--uts", "--"]

    def connect(self, near: str, address: str) -> None:
        """Add a link between this host and the namespace, where it is called `eth0`.

        Args:
            near: the name of the link on this host, which ends with the namespace.
            address: the address of the namespace, with the length of its prefix.
        """
        ip("link", "add", near, "type", "veth", "peer", "name", "eth0", "netns", str(self.pid))
        self.ip("addr", "add", address, "dev", "eth0")
        self.ip("link", "set", "eth0", "up")

    def ip(self, *arguments: str) -> None:
        """Run `ip` in the namespace."""
        run(*self.prefix, "ip", *arguments)


@contextlib.contextmanager
def network_namespace(name: str = "far") -> Iterator[Namespace]:
    """Create a namespace with the host name `name` and a loopback interface; remove it at the end.

    `ip netns add` is not used: its namespaces are mounts, which remain after a kill.

    Raises:
        subprocess.CalledProcessError: the kernel or the user's rights do not allow namespaces.
    """
    script = 'hostname "$1" && ip link set lo up && echo ready && exec cat'
    command = ["unshare", "--net", "--uts", "sh", "-c", script, "sh", name]
    with BoundedPopen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        if first.stdout.readline() != "ready\n":
            raise subprocess.CalledProcessError(first.wait(20), command)
        yield Namespace(first.pid)


def ip(*arguments: str) -> None:
    """Run `ip` on this host."""
    run("ip", *arguments)


def run(*command: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command, check=True, capture_output=True, timeout=60)
