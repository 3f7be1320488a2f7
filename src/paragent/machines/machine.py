"""A machine: where it is, what its holder can do with it, and how the pool verifies it and assigns it to a holder."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from paragent.errors import MachineFailed
from paragent.machines.guest_client import (
    FILE_BYTES,
    REPLY_BYTES,
    GuestReply,
    GuestRequest,
    form_body,
    json_body,
    upload_body,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.machines.guest_client import RequestBody
    from paragent.machines.state_machine import MachineState

__all__ = ["CommandResult", "Machine", "MachineStatus", "PoolStatus", "assign_to_holder", "verify_clean"]

_FILE_SECONDS = 60.0
"""For the transfer of a file; a machine's network transfers tens of megabytes per second."""
_REPLY_SECONDS = 10.0
"""For replies that need no work."""
_COMMAND_SECONDS = 90.0
"""The time limit of a command in OSWorld's client."""
_POOL_SECONDS = 20.0
"""For one reply to the pool of a machine that is known to be up; a busy host with emulation takes up to some seconds."""
_NOT_FOUND = 404
"""The status of a reply to `/paragent/...` by another guest agent, such as OSWorld's own server."""
_MARKER = ".paragent-marker"
_CREATE_MARKER = f"import pathlib; pathlib.Path.home().joinpath({_MARKER!r}).touch()"
_FIND_MARKER = f"import pathlib; print(pathlib.Path.home().joinpath({_MARKER!r}).exists())"


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a command."""

    output: str
    """What the command wrote to standard output."""
    error: str
    """What it wrote to standard error."""
    returncode: int
    """Its exit status."""

    @property
    def ok(self) -> bool:
        """Whether the command ended with status 0."""
        return self.returncode == 0


@dataclass(frozen=True, slots=True)
class Machine:
    """The address of a machine and the token that its guest agent accepts.

    A provider returns one with its own id and the machine's secret as token. A holder gets one with the pool's id and the
    token of its lease. After the lease has ended, the machine rejects that token.

    It is a plain record: it can be pickled, and it owns nothing.

    Raises:
        MachineFailed: (all methods) the machine does not answer in time, or rejects the request.
        LeaseLost: (all methods) the machine has another holder now.
    """

    id: str
    """Unique among the machines of a provider."""
    host: str
    """The address at which the machine is reached."""
    port: int
    """Where the guest agent listens."""
    token: str | None = field(default=None, repr=False)
    """The secret that its server demands; None: none."""
    ports: Mapping[int, int] = field(default_factory=dict)
    """Other ports of the machine and the ports of `host` at which they are reached."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else the provider knows: the address of a display, a process id."""

    @property
    def address(self) -> str:
        """`host:port` of the guest agent."""
        return f"{self.host}:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: RequestBody | None = None,
        *,
        timeout: float = _REPLY_SECONDS,
        limit: int = REPLY_BYTES,
    ) -> GuestReply:
        """Send any request of the guest protocol and return the reply, whatever its status is.

        Args:
            method: the HTTP method.
            path: the path, such as `/screenshot`.
            body: what to send.
            timeout: seconds for the whole exchange.
            limit: maximum number of bytes of the reply's body.
        """
        return GuestRequest(self.host, self.port, method, path, body, self.token, timeout, limit).send()

    def platform(self) -> str:
        """Return the name of the machine's operating system, such as `Linux`."""
        return self.request("GET", "/platform").check("platform").body.decode(errors="replace").strip()

    def execute(
        self, command: str | Sequence[str], *, shell: bool | None = None, timeout: float = _COMMAND_SECONDS
    ) -> CommandResult:
        """Run a command and return its result.

        A string runs in a shell and a list does not, unless `shell` says otherwise. The command is sent once: if the reply
        is lost, the caller has to find out whether the command ran.
        """
        in_shell = isinstance(command, str) if shell is None else shell
        fields: dict[str, Any] = {"command": command if isinstance(command, str) else list(command), "shell": in_shell}
        fields["timeout"] = timeout
        reply = self.request("POST", "/execute", json_body(fields), timeout=timeout + _REPLY_SECONDS)
        answer = reply.check(f"execute {command!r}").fields()
        output, error, status = answer.get("output") or "", answer.get("error") or "", answer.get("returncode", 0)
        if not (isinstance(output, str) and isinstance(error, str) and isinstance(status, int)):
            raise MachineFailed(f"execute {command!r}: the machine sent {reply.body[:200]!r}")
        return CommandResult(output, error, status)

    def put_file(self, path: str, data: bytes) -> None:
        """Write a file in the machine; missing folders are created."""
        self.request("POST", "/setup/upload", upload_body(path, data), timeout=_FILE_SECONDS).check(f"put_file {path}")

    def get_file(self, path: str, *, limit: int = FILE_BYTES) -> bytes:
        """Return the contents of a file in the machine; a file with more than `limit` bytes is an error."""
        reply = self.request("POST", "/file", form_body({"file_path": path}), timeout=_FILE_SECONDS, limit=limit)
        return reply.check(f"get_file {path}").body

    def screenshot(self) -> bytes:
        """Return the screen as PNG: from the emulated display if the provider serves it, else from the guest agent."""
        host, _, port = self.details.get("screen", self.address).rpartition(":")
        request = GuestRequest(host, int(port), "GET", "/screenshot", token=self.token, timeout=_FILE_SECONDS)
        return request.send().check("screenshot").body

    async def ascreenshot(self) -> bytes:
        """Like `screenshot`, without blocking the event loop."""
        return await asyncio.to_thread(self.screenshot)

    async def aexecute(
        self, command: str | Sequence[str], *, shell: bool | None = None, timeout: float = _COMMAND_SECONDS
    ) -> CommandResult:
        """Like `execute`, without blocking the event loop."""
        return await asyncio.to_thread(self.execute, command, shell=shell, timeout=timeout)

    async def aput_file(self, path: str, data: bytes) -> None:
        """Like `put_file`, without blocking the event loop."""
        await asyncio.to_thread(self.put_file, path, data)

    async def aget_file(self, path: str, *, limit: int = FILE_BYTES) -> bytes:
        """Like `get_file`, without blocking the event loop."""
        return await asyncio.to_thread(self.get_file, path, limit=limit)


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One row of the table of machines."""

    id: str
    """The id of the machine."""
    state: MachineState
    """Its state."""
    seconds: float
    """How long it has been in this state."""
    holder: str
    """Who leases it; empty if it is not leased."""
    uses: int
    """Number of leases that have ended on it."""
    address: str
    """Its host and port; empty before it has one."""
    reason: str
    """Why it is in a final state, or will be after its lease; else empty."""
    lease_seconds: float | None = None
    """How long its holder has had it; None without a holder, or while it is being given to one."""
    resets: int = 0
    """Number of resets between two leases."""
    failures: int = 0
    """How often it failed; a machine is quarantined at its first failure."""
    screenshot: bool = False
    """Whether its screen can be shown now."""
    log: bool = False
    """Whether there is a log of it."""

    @property
    def leases(self) -> int:
        """Number of leases that it has had, the current one included."""
        return self.uses + bool(self.holder)


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The state of a pool, as `paragent pool status` shows it."""

    pool: str
    """The name of the pool."""
    provider: str
    """The name of the provider."""
    size: int
    """How many machines can be leased at the same time."""
    spares: int
    """How many additional machines are kept ready."""
    waiting: int
    """Number of requests that wait for a machine."""
    draining: bool
    """Whether the pool grants no more leases."""
    failure: str | None
    """Why the pool failed, or None."""
    machines: tuple[MachineStatus, ...]
    """All machines."""
    leases_granted: int = 0
    """How many leases have been granted."""
    leased_seconds: float = 0.0
    """Total time for which holders had machines."""
    seconds: float = 0.0
    """Time since the machines were requested."""
    changes: int = 0
    """Number of state changes of machines; see `Pool.changes`."""

    def count(self, state: MachineState) -> int:
        """Return how many machines are in a state."""
        return sum(1 for machine in self.machines if machine.state is state)


async def verify_clean(machine: Machine) -> None:
    """Return if the guest agent answers and the machine shows no trace of an earlier holder.

    Args:
        machine: the machine as its provider returned it.

    Raises:
        MachineFailed: it does not answer, or it is not clean.
    """
    reply = await _request(machine, "GET", "/paragent/state")
    if reply.status == _NOT_FOUND:
        if (await _run_python(machine, _FIND_MARKER)).strip() != "False":
            raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the disk")
        return
    state = reply.check("state").fields()
    if state.get("held") is not False or state.get("marker") is not False:
        raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the machine")
    # The first command of an emulated clone takes three times as long as the next ones: run one before a holder waits.
    (await _request(machine, "POST", "/execute", json_body({"command": ["true"], "shell": False}))).check("execute")


async def assign_to_holder(machine: Machine, machine_id: str) -> Machine:
    """Let the machine serve a new holder: leave a marker, set clock and random state, accept only the holder's token.

    The token is random. It cannot be derived from the number of the lease, which others can guess.

    Args:
        machine: the machine as its provider returned it.
        machine_id: the pool's id of the machine.

    Returns:
        The machine for its holder.

    Raises:
        MachineFailed: the guest agent does not answer, or rejects the request.
    """
    token = secrets.token_urlsafe(32)
    fields = {"token": token, "time": time.time(), "entropy": secrets.token_hex(64)}
    reply = await _request(machine, "POST", "/paragent/adopt", json_body(fields))
    if reply.status == _NOT_FOUND:
        await _run_python(machine, _CREATE_MARKER)
    else:
        reply.check("adopt")
    return replace(machine, id=machine_id, token=token, ports=dict(machine.ports), details=dict(machine.details))


async def _request(machine: Machine, method: str, path: str, body: RequestBody | None = None) -> GuestReply:
    request = GuestRequest(machine.host, machine.port, method, path, body, machine.token, _POOL_SECONDS)
    return await request.send_async()


async def _run_python(machine: Machine, code: str) -> str:
    command = json_body({"command": ["python3", "-c", code], "shell": False})
    answer = (await _request(machine, "POST", "/execute", command)).check("marker").fields()
    if answer.get("returncode"):
        raise MachineFailed(f"the machine cannot run Python: {str(answer.get('error', ''))[:200]}")
    return str(answer.get("output", ""))
