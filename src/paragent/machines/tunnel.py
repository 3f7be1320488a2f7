"""`MachineTunnel`: streams of a process in a leased machine, and connections from the machine to one Unix socket of this host.

The machine needs no network: everything passes through its guest agent, with the token of the lease. See `tunnel_main`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import secrets
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.errors import EnvironmentFailed, MachineFailed, ParagentError
from paragent.subprocesses import tunnel_main

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.machines.machine import Machine

__all__ = ["MachineTunnel"]

_CHUNK = 1 << 16
_MOST_FRAMES = 16
"""Frames in one message: 1 MiB of data."""
_MOST_CONNECTIONS = 64
"""Concurrent connections of one machine."""
_POLL_LIMIT = 60.0
"""Seconds for one message; an idle tunnel sends an empty one every 5 s."""
_START_LIMIT = 60.0
_CLOSE_LIMIT = 20.0


_END = """cd {folder} || exit 0
pid=$(cat pid); kill -9 $pid; i=0
while kill -0 -- -$pid && [ $i -lt 50 ]; do sleep 0.1; i=$((i+1)); done
kill -9 -- -$pid
for pipe in in.* out.*; do : 1<>"$pipe"; done
rm -rf {folder}; true"""
"""Ends the tunnel. Its process then ends everything that it started, and itself. Opening the pipes ends commands that wait."""


class MachineTunnel:
    """Runs a Python file in a machine; its stdin and stdout are `send` and `receive`.

    Raises:
        MachineFailed, LeaseLost: (all methods) the machine was lost, or sent something malformed.
    """

    def __init__(self, machine: Machine, socket: str) -> None:
        self._machine, self._socket = machine, socket
        self.folder = f"/tmp/paragent-{secrets.token_hex(8)}"  # noqa: S108 - on the machine, with a random name
        """A folder in the machine for files of this process; removed by `close`."""
        self.port = 0
        """The port of 127.0.0.1 in the machine whose connections are carried to the socket."""
        self.home = ""
        """The folder in which commands start."""
        self.variables: dict[str, str] = {}
        """The environment variables of commands."""
        self._outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MOST_FRAMES)
        self._incoming: asyncio.Queue[bytes] = asyncio.Queue()
        self._connections: dict[int, asyncio.Queue[bytes]] = {}
        """What the machine sent on each connection; empty bytes are the end."""
        self._opened = asyncio.Event()
        self._failure: ParagentError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False

    async def start(self, main: Path, files: Mapping[str, bytes]) -> None:
        """Copy `main` and other files to the folder, and run it with Python.

        Raises:
            EnvironmentFailed: the machine cannot run Python, or does not answer in time.
        """
        scripts = {"tunnel_main.py": Path(tunnel_main.__file__).read_bytes(), "main.py": main.read_bytes()}
        for name, data in {**scripts, **files}.items():
            await self._machine.aput_file(f"{self.folder}/{name}", data)
        folder = shlex.quote(self.folder)
        command = f"python3 -I {folder}/tunnel_main.py {folder} python3 -I {folder}/main.py"
        started = await self._machine.aexecute(
            f"command -v python3 >/dev/null && mkfifo -m 600 {folder}/out.0 {folder}/in.0 && "
            f"{{ setsid {command} </dev/null >/dev/null 2>{folder}/log & echo $! >{folder}/pid; }}",
            timeout=_START_LIMIT,
        )
        if not started.ok:
            problem = started.error or started.output or "python3 is not installed (the image `tiny` has it)"
            raise EnvironmentFailed(f"the machine cannot run Python: {problem}")
        self._add_task(self._poll())
        self._add_task(self._upload())
        try:
            async with asyncio.timeout(_POLL_LIMIT):
                await self._opened.wait()
        except TimeoutError:
            raise EnvironmentFailed(f"the tunnel into the machine did not open within {_POLL_LIMIT:g} s") from None
        if self._failure is not None:
            raise self._failure

    async def send(self, data: bytes) -> None:
        """Send bytes to stdin."""
        await self._queue(0, data)

    async def receive(self) -> bytes:
        """Return the next bytes of stdout; empty at the end."""
        data = await self._incoming.get()
        if not data and self._failure is not None:
            raise self._failure
        return data

    async def problem(self) -> str:
        """Return what the process wrote to stderr."""
        log = await self._machine.aexecute(["tail", "-c", "2000", f"{self.folder}/log"], timeout=_CLOSE_LIMIT)
        return f"was killed from outside. {log.output}".strip()

    def overrun(self) -> str | None:
        """Return None: the machine is the limit."""
        return None

    async def close(self) -> None:
        """End the process and everything that it started, and remove the folder. Idempotent."""
        if self._closed:
            return
        self._closed = True
        for task in self._tasks:
            task.cancel()
        end = _END.format(folder=shlex.quote(self.folder))
        with contextlib.suppress(ParagentError):  # a machine that is lost has no processes
            await self._machine.aexecute(end, timeout=_CLOSE_LIMIT)

    def _add_task(self, running: Any) -> None:
        task = asyncio.create_task(running)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _queue(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), _CHUNK):
            piece = base64.b64encode(data[start : start + _CHUNK]).decode()
            await self._outgoing.put({"id": number, "data": piece})

    async def _poll(self) -> None:
        """Read the messages of the machine, and act on their frames."""
        number, ended = 0, False
        try:
            while not ended:
                command = ["cat", f"{self.folder}/out.{number}"]
                reply = await self._machine.aexecute(command, timeout=_POLL_LIMIT)
                if not reply.ok:
                    raise MachineFailed(f"the tunnel in the machine has ended: {reply.error[-500:]}")
                for frame in _frames_in(reply.output):
                    ended = ended or (frame.get("id") == 0 and bool(frame.get("end")))
                    self._act(frame)
                number += 1
        except ParagentError as error:
            self._failure = error
        finally:
            self._opened.set()
            self._incoming.put_nowait(b"")

    def _act(self, frame: dict[str, Any]) -> None:
        if "port" in frame:
            self.port, self.home, self.variables = frame["port"], frame["folder"], frame["variables"]
            self._opened.set()
            return
        number = frame["id"]
        if number == 0:
            if "data" in frame:
                self._incoming.put_nowait(frame["data"])
        elif "open" in frame:
            if len(self._connections) >= _MOST_CONNECTIONS:
                raise MachineFailed(f"the machine opened more than {_MOST_CONNECTIONS} connections to the gateway")
            waiting = self._connections[number] = asyncio.Queue()
            self._add_task(self._connect(number, waiting))
        elif number in self._connections:
            self._connections[number].put_nowait(frame.get("data", b""))

    async def _connect(self, number: int, waiting: asyncio.Queue[bytes]) -> None:
        """Carry one connection of the machine to the socket."""
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket)
        except OSError:
            del self._connections[number]
            await self._outgoing.put({"id": number, "end": True})
            return
        self._add_task(self._pump(number, reader))
        try:
            while data := await waiting.get():
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # the other direction reports the end
        finally:
            writer.close()
            self._connections.pop(number, None)

    async def _pump(self, number: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                await self._queue(number, data)
        await self._outgoing.put({"id": number, "end": True})

    async def _upload(self) -> None:
        """Write queued frames to the machine."""
        number = 0
        try:
            while True:
                frames = [await self._outgoing.get()]
                while len(frames) < _MOST_FRAMES and not self._outgoing.empty():
                    frames.append(self._outgoing.get_nowait())
                await self._machine.aput_file(f"{self.folder}/in.{number}", json.dumps(frames).encode())
                number += 1
        except ParagentError as error:
            self._failure = self._failure or error
            self._incoming.put_nowait(b"")


def _frames_in(text: str) -> list[dict[str, Any]]:
    """Return the frames of a message, with decoded data.

    Raises:
        MachineFailed: it is malformed.
    """
    try:
        frames = [_frame(one) for one in json.loads(text)]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise MachineFailed(f"the machine sent a malformed message: {text[:200]!r}") from None
    return frames


def _frame(given: Any) -> dict[str, Any]:
    if "port" in given:
        variables = {str(name): str(value) for name, value in given["variables"].items()}
        return {"port": int(given["port"]), "folder": str(given["folder"]), "variables": variables}
    frame: dict[str, Any] = {"id": int(given["id"])}
    if "data" in given:
        frame["data"] = base64.b64decode(given["data"], validate=True)
    return frame | {name: True for name in ("open", "end") if given.get(name)}
