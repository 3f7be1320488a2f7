"""The network of a machine that reaches the Internet, but neither this host nor other machines.

QEMU runs in a network namespace of its own. Its user network opens sockets there, so what the guest takes for its host is the
namespace, in which nothing else is. slirp4netns joins the namespace to the network of this host, without its loopback; routes
keep out private addresses and those of this host. Ports of the guest are forwarded from this host into the namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import shlex
import socket
import subprocess
from typing import TYPE_CHECKING, Any

from paragent._internal.clock import monotonic
from paragent._internal.networks import NOT_PUBLIC_4
from paragent.errors import MachineFailed, UsageError
from paragent.machines.cleanup import find_program

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from paragent.machines.providers.local_processes import LocalProcesses

__all__ = ["INNER_ADDRESS", "Namespace", "closed_networks"]

_CIDR = "10.0.3.0/24"
"""Between the namespace and slirp4netns; the guest's own network is 10.0.2.0/24."""
INNER_ADDRESS = "10.0.3.100"
"""What slirp4netns gives the namespace."""
_RESOLVER = "10.0.3.3"
_LOOPBACK = "127.0.0.0/8"
"""Of the namespace itself: nothing listens there but the machine's own process."""
_SECONDS = 20.0
_POLL = 0.002
_TRIES = 20
"""Ports to try: somebody else may take one between its choice and its use."""
_READY, _API, _RESOLV = "network.ready", "network.api", "network.resolv"
_SCRIPT = """set -eu
ip link set lo up
mount --bind "$PWD/{resolv}" "$(readlink -f /etc/resolv.conf)"
: > {ready}
read -r go
for closed in {closed}; do ip route replace prohibit "$closed"; done
exec {setpriv} --pdeathsig KILL --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@" < /dev/null
"""


class Namespace:
    """The network namespace of one machine."""

    def __init__(self, local: LocalProcesses, name: str) -> None:
        self._local, self._name = local, name

    @staticmethod
    def check() -> None:
        """Check that this host can make such a network.

        Raises:
            UsageError: a program is missing, or the kernel does not allow it.
        """
        for program in ("slirp4netns", "unshare", "setpriv", "ip"):
            find_program(program)
        probe = [*_unshared(), "ip", "tuntap", "add", "dev", "probe", "mode", "tap"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False, env=_environment())
        if done.returncode:
            raise UsageError(
                f"this host cannot give a machine a network of its own ({done.stderr.strip()[-200:]}): "
                "use network=none, or, for guests that you trust as your own programs, network=host"
            )

    async def start(self, command: Sequence[str], descriptors: Collection[int]) -> None:
        """Start the machine's process inside.

        Raises:
            MachineFailed: that does not work here.
        """
        folder = self._local.folder(self._name)
        folder.mkdir(exist_ok=True)
        (folder / _RESOLV).write_text(f"nameserver {_RESOLVER}\n")
        closed = [*closed_networks(), *await asyncio.to_thread(_own_addresses)]
        parts = {"resolv": _RESOLV, "ready": _READY, "closed": " ".join(closed), "setpriv": find_program("setpriv")}
        script = ["sh", "-c", _SCRIPT.format_map({name: _quoted(part) for name, part in parts.items()}), "network"]
        waits, go = os.pipe()
        ended, lives = os.pipe()  # the machine has `lives`: slirp4netns ends when nobody has it any more
        try:
            self._local.start(
                self._name, [*_unshared(), *script, *command], [*descriptors, lives], _environment(), stdin=waits
            )
            os.close(lives)
            lives = -1
            await self._until(lambda: (folder / _READY).exists(), "its network namespace is not there")
            await self._join(ended)
            os.write(go, b"go\n")
        finally:
            for descriptor in (waits, go, ended, lives):
                if descriptor >= 0:
                    os.close(descriptor)

    async def _join(self, ended: int) -> None:
        ready, tells = os.pipe()
        command = [find_program("slirp4netns"), "--configure", "--mtu=65520", f"--cidr={_CIDR}"]
        command += ["--disable-host-loopback", "--enable-sandbox", "--enable-seccomp", f"--api-socket={_API}"]
        command += [f"--ready-fd={tells}", f"--exit-fd={ended}", str(self._local.pid(self._name)), "tap0"]
        try:
            self._local.start_helper(self._name, command, [tells, ended])
            os.close(tells)
            tells = -1
            os.set_blocking(ready, False)
            await self._until(lambda: _said(ready), "slirp4netns does not join its network")
        finally:
            for descriptor in (ready, tells):
                if descriptor >= 0:
                    os.close(descriptor)

    async def _until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = monotonic() + _SECONDS
        while not condition():
            if monotonic() > deadline or not self._local.alive(self._name):
                raise MachineFailed(f"{self._name}: {otherwise} ({self._local.ending(self._name)})")
            await asyncio.sleep(_POLL)

    async def forward(self, host: str, ports: Mapping[int, int]) -> dict[int, int]:
        """Make ports of the namespace reachable at `host`: given guest's to namespace's, return guest's to host's.

        Raises:
            MachineFailed: slirp4netns refuses.
        """
        return {guest: await asyncio.to_thread(self._forward, host, inner) for guest, inner in ports.items()}

    def _forward(self, host: str, inner: int) -> int:
        answer: dict[str, Any] = {}
        address = socket.gethostbyname(host)
        for _ in range(_TRIES):
            with socket.create_server((address, 0)) as listener:
                port = int(listener.getsockname()[1])
            fields = {"proto": "tcp", "host_addr": address, "host_port": port}
            answer = self._call("add_hostfwd", fields | {"guest_addr": INNER_ADDRESS, "guest_port": inner})
            if "return" in answer:
                return port
        raise MachineFailed(f"{self._name}: no port could be forwarded: {answer.get('error')}")

    def _call(self, command: str, arguments: dict[str, Any]) -> dict[str, Any]:
        folder = os.open(self._local.folder(self._name), os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_SECONDS)
                connection.connect(f"/proc/self/fd/{folder}/{_API}")  # the path itself may be too long for an address
                connection.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
                connection.shutdown(socket.SHUT_WR)
                said = b"".join(iter(lambda: connection.recv(4096), b""))
            answer: dict[str, Any] = json.loads(said)
        except (OSError, ValueError) as error:
            raise MachineFailed(f"{self._name}: slirp4netns does not answer: {error}") from error
        finally:
            os.close(folder)
        return answer


def closed_networks() -> list[str]:
    """Return the networks that guests with a network do not reach, besides the addresses of this host."""
    return [network for network in NOT_PUBLIC_4 if network != _LOOPBACK]


def _unshared() -> list[str]:
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [find_program("unshare"), *rights, "--net", "--mount", "--"]


def _environment() -> dict[str, str]:
    return {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def _quoted(text: str) -> str:
    return " ".join(shlex.quote(word) for word in text.split())


def _said(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(descriptor, 1))
    return False


def _own_addresses() -> list[str]:
    """Return the addresses of this host, so that guests do not reach what listens there."""
    done = subprocess.run(
        [find_program("ip"), "-json", "-4", "addr"], capture_output=True, text=True, timeout=20, check=False
    )
    found = [each.get("local", "") for link in json.loads(done.stdout or "[]") for each in link.get("addr_info", [])]
    return [f"{address}/32" for address in found if address and not ipaddress.ip_address(address).is_loopback]
