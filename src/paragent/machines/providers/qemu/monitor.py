"""QMP: how the pool speaks to a QEMU process, over a socket that both had from the start."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import socket
from typing import TYPE_CHECKING, Any

from qemu.qmp import QMPClient, QMPError

from paragent._internal.clock import monotonic
from paragent.errors import MachineFailed

if TYPE_CHECKING:
    from pathlib import Path
    from typing import IO

__all__ = ["Monitor"]

_ANSWER_SECONDS = 20.0
"""For QEMU to answer; loading a program on a busy host takes some of it."""
_STATE_SECONDS = 120.0
"""For a state to be written or read: at most some megabytes, as the memory is in a file of its own."""
_POLL = 0.005
_FORWARD = re.compile(r"TCP\[HOST_FORWARD\]\s+\d+\s+\S+\s+(\d+)\s+\S+\s+(\d+)")

# What the library logs as errors, our errors say; or nobody needs to know it, as when a pool ends while machines load. Who
# wants it sets a level.
_library = logging.getLogger("qemu.qmp")
if _library.level == logging.NOTSET:
    _library.setLevel(logging.CRITICAL + 1)


class Monitor:
    """The control socket of one QEMU process. Make one, give `descriptor` to the process, then `connect`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._ours, self._theirs = socket.socketpair()
        self._client = QMPClient()  # with a name it would have a logger of its own, which Python keeps for ever

    @property
    def descriptor(self) -> int:
        """What the process is to inherit."""
        return self._theirs.fileno()

    async def connect(self) -> None:
        """Greet the process, which has been started by now; raises as `execute`."""
        self._theirs.close()
        self._ours.setblocking(False)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._client.connect(self._ours)
        except (QMPError, OSError, EOFError) as error:
            raise MachineFailed(f"QEMU of {self._name} does not speak: {error!r}") from error

    async def execute(self, command: str, **arguments: Any) -> Any:
        """Run a QMP command.

        Raises:
            MachineFailed: QEMU refused it, does not answer or is gone.
        """
        named = {name.replace("_", "-"): value for name, value in arguments.items()}
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                return await self._client.execute(command, named)
        except (QMPError, OSError, EOFError) as error:
            raise MachineFailed(f"QEMU of {self._name}: {command}: {str(error) or type(error).__name__}") from error

    async def freeze(self, state: Path) -> None:
        """Stop the machine and write its state, without its memory, to a file; raises as `execute`."""
        await self._ignore_memory()
        await self.execute("stop")
        await self.execute("migrate-set-parameters", max_bandwidth=1 << 40)
        with state.open("wb") as file:
            await self._give(file)
            await self.execute("migrate", uri="fd:state")
            await self._moved()

    async def load(self, state: Path) -> None:
        """Read a state that `freeze` wrote; the machine stays stopped; raises as `execute`."""
        await self._ignore_memory()
        with state.open("rb") as file:
            await self._give(file)
            await self.execute("migrate-incoming", uri="fd:state")
            await self._moved()

    async def _give(self, file: IO[bytes]) -> None:
        """Pass an open file, as QEMU may start no program that would read or write one for it."""
        try:
            self._client.send_fd_scm(file.fileno())
        except (QMPError, OSError) as error:
            raise MachineFailed(f"QEMU of {self._name} does not take a file: {error}") from error
        await self.execute("getfd", fdname="state")

    async def _ignore_memory(self) -> None:
        capability = {"capability": "x-ignore-shared", "state": True}
        await self.execute("migrate-set-capabilities", capabilities=[capability])

    async def _moved(self) -> None:
        deadline = monotonic() + _STATE_SECONDS
        while (answer := await self.execute("query-migrate")).get("status") != "completed":
            if answer.get("status") in {"failed", "cancelled"} or monotonic() > deadline:
                reason = answer.get("error-desc", answer.get("status"))
                raise MachineFailed(f"QEMU of {self._name}: the state could not be moved: {reason}")
            await asyncio.sleep(_POLL)

    async def ports(self) -> dict[int, int]:
        """Return which port of the host leads to which port of the guest: guest's to host's."""
        listed = await self.execute("human-monitor-command", command_line="info usernet")
        return {int(guest): int(host) for host, guest in _FORWARD.findall(listed)}

    async def display(self) -> str:
        """Return where the VNC display is, or an empty text."""
        answer = await self.execute("query-vnc")
        return f"{answer['host']}:{answer['service']}" if answer.get("enabled") else ""

    async def close(self) -> None:
        """Hang up; the process goes on."""
        with contextlib.suppress(QMPError, OSError, EOFError, TimeoutError):
            async with asyncio.timeout(_ANSWER_SECONDS):
                await self._client.disconnect()
        for end in (self._ours, self._theirs):
            end.close()
