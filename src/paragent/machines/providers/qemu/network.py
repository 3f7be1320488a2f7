"""The network of a machine that can reach the Internet, but neither this host nor other machines.

QEMU runs in its own network namespace. Its user network opens sockets there, so the machine sees the namespace as its host,
and nothing else runs in it. slirp4netns connects the namespace to the network of this host, without its loopback interface.
Routes block private addresses and the addresses of this host. Ports of the machine are forwarded from this host into the
namespace.
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

    from paragent.machines.providers.base import LocalProcesses

__all__ = ["INNER_ADDRESS", "NetworkNamespace", "blocked_networks"]

_CIDR = "10.0.3.0/24"
"""Between the namespace and slirp4netns; the network between QEMU and the machine is 10.0.2.0/24."""
INNER_ADDRESS = "10.0.3.100"
"""The address of the namespace, assigned by slirp4netns."""
_RESOLVER = "10.0.3.3"
_LOOPBACK = "127.0.0.0/8"
"""In the namespace, only the machine's own process listens there."""
_SECONDS = 20.0
_POLL = 0.002
_TRIES = 20
"""Ports to try: another process may take one before it is used."""
_READY, _API, _RESOLV = "network.ready", "network.api", "network.resolv"
_SCRIPT = """set -eu
ip link set lo up
mount --bind "$PWD/{resolv}" "$(readlink -f /etc/resolv.conf)"
: > {ready}
read -r go
for blocked in {blocked}; do ip route replace prohibit "$blocked"; done
exec {setpriv} --pdeathsig KILL --no-new-privs --bounding-set=-all --inh-caps=-all -- "$@" < /dev/null
"""


class NetworkNamespace:
    """The network namespace of one machine."""

    def __init__(self, local: LocalProcesses, name: str) -> None:
        self._local, self._name = local, name

    @staticmethod
    def check() -> None:
        """Check that this host can create such a network.

        Raises:
            UsageError: a program is missing, or the kernel does not allow it.
        """
        for program in ("slirp4netns", "unshare", "setpriv", "ip"):
            find_program(program)
        probe = [*_unshare_command(), "ip", "tuntap", "add", "dev", "probe", "mode", "tap"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20, check=False, env=_environment())
        if done.returncode:
            raise UsageError(
                f"this host cannot create a network namespace for a machine ({done.stderr.strip()[-200:]}): "
                "use network=none, or network=host for machines that you trust like your own programs"
            )

    async def start(self, command: Sequence[str], descriptors: Collection[int]) -> None:
        """Start the machine's process in the namespace.

        Raises:
            MachineFailed: the namespace cannot be created or connected.
        """
        folder = self._local.folder(self._name)
        folder.mkdir(exist_ok=True)
        (folder / _RESOLV).write_text(f"nameserver {_RESOLVER}\n")
        blocked = [*blocked_networks(), *await asyncio.to_thread(_host_addresses)]
        parts = {"resolv": _RESOLV, "ready": _READY, "blocked": " ".join(blocked), "setpriv": find_program("setpriv")}
        script = ["sh", "-c", _SCRIPT.format_map({name: _quoted(part) for name, part in parts.items()}), "network"]
        start_reader, start = os.pipe()
        ended, alive = os.pipe()  # the machine inherits `alive`: slirp4netns ends when it is closed
        try:
            self._local.start(
                self._name,
                [*_unshare_command(), *script, *command],
                [*descriptors, alive],
                _environment(),
                stdin=start_reader,
            )
            os.close(alive)
            alive = -1
            await self._wait_for(lambda: (folder / _READY).exists(), "its network namespace was not created")
            await self._connect(ended)
            os.write(start, b"go\n")
        finally:
            for descriptor in (start_reader, start, ended, alive):
                if descriptor >= 0:
                    os.close(descriptor)

    async def _connect(self, ended: int) -> None:
        ready, ready_writer = os.pipe()
        command = [find_program("slirp4netns"), "--configure", "--mtu=65520", f"--cidr={_CIDR}"]
        command += ["--disable-host-loopback", "--enable-sandbox", "--enable-seccomp", f"--api-socket={_API}"]
        command += [f"--ready-fd={ready_writer}", f"--exit-fd={ended}", str(self._local.pid(self._name)), "tap0"]
        try:
            self._local.start_helper(self._name, command, [ready_writer, ended])
            os.close(ready_writer)
            ready_writer = -1
            os.set_blocking(ready, False)
            await self._wait_for(lambda: _is_ready(ready), "slirp4netns did not connect its network")
        finally:
            for descriptor in (ready, ready_writer):
                if descriptor >= 0:
                    os.close(descriptor)

    async def _wait_for(self, condition: Callable[[], bool], error: str) -> None:
        deadline = monotonic() + _SECONDS
        while not condition():
            if monotonic() > deadline or not self._local.alive(self._name):
                raise MachineFailed(f"{self._name}: {error} ({self._local.describe_end(self._name)})")
            await asyncio.sleep(_POLL)

    async def forward(self, host: str, ports: Mapping[int, int]) -> dict[int, int]:
        """Forward ports of `host` into the namespace.

        Args:
            host: the address at which to listen.
            ports: the machine's port to the port of the namespace.

        Returns:
            The machine's port to the port of `host`.

        Raises:
            MachineFailed: slirp4netns rejects the request.
        """
        return {port: await asyncio.to_thread(self._forward, host, inner) for port, inner in ports.items()}

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
                # The path of the folder itself may be too long for a socket address.
                connection.connect(f"/proc/self/fd/{folder}/{_API}")
                connection.sendall(json.dumps({"execute": command, "arguments": arguments}).encode())
                connection.shutdown(socket.SHUT_WR)
                data = b"".join(iter(lambda: connection.recv(4096), b""))
            answer: dict[str, Any] = json.loads(data)
        except (OSError, ValueError) as error:
            raise MachineFailed(f"{self._name}: slirp4netns does not answer: {error}") from error
        finally:
            os.close(folder)
        return answer


def blocked_networks() -> list[str]:
    """Return the networks that machines with Internet access cannot reach, besides the addresses of this host."""
    return [network for network in NOT_PUBLIC_4 if network != _LOOPBACK]


def _unshare_command() -> list[str]:
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return [find_program("unshare"), *rights, "--net", "--mount", "--"]


def _environment() -> dict[str, str]:
    return {"PATH": f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"}


def _quoted(text: str) -> str:
    return " ".join(shlex.quote(word) for word in text.split())


def _is_ready(descriptor: int) -> bool:
    with contextlib.suppress(BlockingIOError):
        return bool(os.read(descriptor, 1))
    return False


def _host_addresses() -> list[str]:
    """Return the addresses of this host, which machines must not reach."""
    done = subprocess.run(
        [find_program("ip"), "-json", "-4", "addr"], capture_output=True, text=True, timeout=20, check=False
    )
    found = [each.get("local", "") for link in json.loads(done.stdout or "[]") for each in link.get("addr_info", [])]
    return [f"{address}/32" for address in found if address and not ipaddress.ip_address(address).is_loopback]
