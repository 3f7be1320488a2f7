"""A machine as its holder sees it."""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.errors import MachineFailed
from paragent.machines.guest_client import (
    ANSWER_BYTES,
    FILE_BYTES,
    Reply,
    as_form,
    as_json,
    as_upload,
    ask,
    ask_async,
    checked,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.machines.guest_client import Body
    from paragent.machines.providers.base import Instance
    from paragent.machines.state_machine import MachineState

__all__ = ["CommandResult", "Grant", "Machine", "MachineStatus", "PoolStatus", "adopt", "verify_clean"]


_FILE_SECONDS = 60.0
"""For moving a file; the guest's network gives tens of megabytes a second."""
_ANSWER_SECONDS = 10.0
"""For what a guest answers without work."""
COMMAND_SECONDS = 90.0
"""What OSWorld's client allows a command."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What came of a command."""

    output: str
    error: str
    returncode: int

    @property
    def ok(self) -> bool:
        """Whether the command ended with status 0."""
        return self.returncode == 0


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a machine is and what it can do for its holder.

    It is a plain record: it can travel between processes, and it owns nothing. Every request carries the lease's fencing
    token, so that one who has lost the lease is refused.

    Raises:
        MachineFailed: (all methods) the guest does not answer in time, or refuses.
        LeaseLost: (all methods) the machine has another holder now.
    """

    id: str
    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    ports: Mapping[int, int] = field(default_factory=dict)
    """Other ports of the guest and where they are reached on `host`."""
    details: Mapping[str, str] = field(default_factory=dict)
    """What else the provider knows: a display's address, an instance's id."""

    @property
    def address(self) -> str:
        """`host:port` of the guest agent."""
        return f"{self.host}:{self.port}"

    def request(
        self,
        method: str,
        path: str,
        body: Body | None = None,
        *,
        timeout: float = _ANSWER_SECONDS,
        limit: int = ANSWER_BYTES,
    ) -> Reply:
        """Send any request of the guest protocol and return the answer, whatever it is.

        `timeout` is for the whole answer, `limit` its size in bytes; a guest that exceeds either has failed.
        """
        return ask(self.host, self.port, method, path, body, token=self.token, timeout=timeout, limit=limit)

    def platform(self) -> str:
        """Return the name of the guest's system, as `Linux`."""
        return checked(self.request("GET", "/platform"), "platform").body.decode(errors="replace").strip()

    def execute(
        self, command: str | Sequence[str], *, shell: bool | None = None, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """Run a command to its end. A text runs in a shell, a list does not, unless `shell` says so.

        It is never sent twice: whether a command whose answer was lost has run is for the caller to find out.
        """
        in_shell = isinstance(command, str) if shell is None else shell
        fields: dict[str, Any] = {"command": command if isinstance(command, str) else list(command), "shell": in_shell}
        fields["timeout"] = timeout
        reply = self.request("POST", "/execute", as_json(fields), timeout=timeout + _ANSWER_SECONDS)
        answer = checked(reply, f"execute {command!r}").fields()
        output, error, status = answer.get("output") or "", answer.get("error") or "", answer.get("returncode", 0)
        if not (isinstance(output, str) and isinstance(error, str) and isinstance(status, int)):
            raise MachineFailed(f"execute {command!r}: the guest answered {reply.body[:200]!r}")
        return CommandResult(output, error, status)

    def put_file(self, path: str, data: bytes) -> None:
        """Write a file in the guest; folders on the way are made."""
        checked(self.request("POST", "/setup/upload", as_upload(path, data), timeout=_FILE_SECONDS), f"put_file {path}")

    def get_file(self, path: str, *, limit: int = FILE_BYTES) -> bytes:
        """Return the contents of a file in the guest, which may have `limit` bytes."""
        reply = self.request("POST", "/file", as_form({"file_path": path}), timeout=_FILE_SECONDS, limit=limit)
        return checked(reply, f"get_file {path}").body

    def screenshot(self) -> bytes:
        """Return what the machine's screen shows, as PNG: from its emulated display if the provider serves that."""
        host, _, port = self.details.get("screen", self.address).rpartition(":")
        reply = ask(host, int(port), "GET", "/screenshot", token=self.token, timeout=_FILE_SECONDS)
        return checked(reply, "screenshot").body

    async def ascreenshot(self) -> bytes:
        """As `screenshot`, without holding the event loop."""
        return await asyncio.to_thread(self.screenshot)

    async def aexecute(
        self, command: str | Sequence[str], *, shell: bool | None = None, timeout: float = COMMAND_SECONDS
    ) -> CommandResult:
        """As `execute`, without holding the event loop."""
        return await asyncio.to_thread(self.execute, command, shell=shell, timeout=timeout)

    async def aput_file(self, path: str, data: bytes) -> None:
        """As `put_file`, without holding the event loop."""
        await asyncio.to_thread(self.put_file, path, data)

    async def aget_file(self, path: str, *, limit: int = FILE_BYTES) -> bytes:
        """As `get_file`, without holding the event loop."""
        return await asyncio.to_thread(self.get_file, path, limit=limit)


@dataclass(frozen=True, slots=True)
class Grant:
    """A machine for a holder, and how long until the next heartbeat must have come."""

    token: int
    machine: Machine
    duration: float


@dataclass(frozen=True, slots=True)
class MachineStatus:
    """One row of the table of machines."""

    id: str
    state: MachineState
    seconds: float
    """Since when it is in this state."""
    holder: str
    uses: int
    address: str
    reason: str


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """What `paragent pool status` shows."""

    pool: str
    provider: str
    size: int
    spares: int
    waiting: int
    draining: bool
    failure: str | None
    machines: tuple[MachineStatus, ...]
    hand_overs: int = 0
    """Leases whose holders got their machine."""
    leased_seconds: float = 0.0
    """How long machines were with holders, all together."""
    seconds: float = 0.0
    """Since the machines were asked for."""

    def count(self, state: MachineState) -> int:
        """Return how many machines are in a state."""
        return sum(1 for machine in self.machines if machine.state is state)


_SECONDS = 20.0
"""For one answer of a guest that is known to be up; a busy host under emulation takes up to some seconds."""
_NOT_FOUND = 404
_MARKER = ".paragent-marker"
_LEAVE = f"import pathlib; pathlib.Path.home().joinpath({_MARKER!r}).touch()"
_LOOK = f"import pathlib; print(pathlib.Path.home().joinpath({_MARKER!r}).exists())"


async def verify_clean(instance: Instance) -> None:
    """Return when the guest answers and shows no trace of an earlier holder.

    Raises:
        MachineFailed: it does not answer, or it is dirty.
    """
    reply = await _ask(instance, "GET", "/paragent/state")
    if reply.status == _NOT_FOUND:
        if (await _python(instance, _LOOK)).strip() != "False":
            raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the disk")
        return
    state = checked(reply, "state").fields()
    if state.get("held") is not False or state.get("marker") is not False:
        raise MachineFailed("the marker of an earlier holder is still there: the reset did not reset the machine")
    # The first command of an emulated clone takes three times as long as the next ones: let it be one that nobody waits for.
    checked(await _ask(instance, "POST", "/execute", as_json({"command": ["true"], "shell": False})), "execute")


async def adopt(machine_id: str, instance: Instance) -> Machine:
    """Give the machine to a new holder: leave a marker, set clock and random state, serve only the holder's token.

    The token is random. It does not depend on the lease's number, which others can guess.

    Raises:
        MachineFailed: the guest does not answer or refuses.
    """
    token = secrets.token_urlsafe(32)
    fields = {"token": token, "time": time.time(), "entropy": secrets.token_hex(64)}
    reply = await _ask(instance, "POST", "/paragent/adopt", as_json(fields))
    if reply.status == _NOT_FOUND:
        await _python(instance, _LEAVE)
    else:
        checked(reply, "adopt")
    return Machine(machine_id, instance.host, instance.port, token, dict(instance.ports), dict(instance.details))


async def _ask(instance: Instance, method: str, path: str, body: Body | None = None) -> Reply:
    token = instance.secret or None
    return await ask_async(instance.host, instance.port, method, path, body, token=token, timeout=_SECONDS)


async def _python(instance: Instance, code: str) -> str:
    reply = await _ask(instance, "POST", "/execute", as_json({"command": ["python3", "-c", code], "shell": False}))
    answer = checked(reply, "marker").fields()
    if answer.get("returncode"):
        raise MachineFailed(f"the guest cannot run Python: {str(answer.get('error', ''))[:200]}")
    return str(answer.get("output", ""))
