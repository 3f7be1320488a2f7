"""A machine as its holder sees it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.errors import MachineFailed
from paragent.vms.guest_http import ANSWER_BYTES, FILE_BYTES, Reply, as_form, as_json, as_upload, ask, checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.vms.guest_http import Body

__all__ = ["CommandResult", "Machine"]

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
