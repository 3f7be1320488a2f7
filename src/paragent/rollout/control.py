"""Control of a live run: the session listens on loopback, `ControlClient` sends it commands.

The address and a random secret are in `live/control.json`, which only the user who started the session can read. Both sides prove
that they know the secret (`transport.auth`). The session's own loop executes the commands, between two polls of its engine;
`status` is answered at once, whatever the session is doing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.processes import is_alive
from paragent.errors import AccessDenied, ConfigError, RunNotLive, ServerLost, StoreFailed, UsageError
from paragent.rollout.live_run import LiveRun, RunState
from paragent.store import ATTEMPTS, JOURNAL_FILE, Journal, RolloutStatus, summarise
from paragent.transport.auth import Token, read_secret_file, write_secret_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from paragent.transport.client import ClientStream
    from paragent.transport.server import ServerStream

__all__ = ["ControlClient", "RunControl", "ended_run"]

_FILE = "control.json"
_SERVICE = "control"
"""The name of the service in the handshake."""
_LOOPBACK = "127.0.0.1"
_START_SECONDS = 20.0
_STOP_SECONDS = 5.0
_CONNECT_SECONDS = 20.0
"""The process of the session exists; on an overloaded host it may take long to answer."""
_CONNECT_ATTEMPTS = 3
"""gRPC gives a connection up whose server does not answer a ping for half a second, which happens on an overloaded host."""
_CONNECT_PAUSE = 0.1
_ANSWER_SECONDS = 60.0
"""Seconds to wait for the answer to a command. The session's loop takes a second, longer with a slow disk."""


class RunControl:
    """The server in the session. A context manager; inside, clients can connect.

    Args:
        folder: the folder `live` of the run.
        status: returns the current state of the run; called from another thread.
    """

    def __init__(self, folder: Path, status: Callable[[], LiveRun]) -> None:
        self._path = folder / _FILE
        self._status = status
        self._lock = threading.Lock()
        """Protects the queue and `_refusal`."""
        self._commands: deque[tuple[str, str, Future[str]]] = deque()
        self._refusal: str | None = "the run is starting; try again when it is running"
        """Why commands are not executed now; None while they are."""
        self._starting = True
        """Whether the session has not begun to execute commands."""
        self._arrived = threading.Event()

    def __enter__(self) -> Self:
        from paragent.transport.address import Address
        from paragent.transport.loop import run as run_on_io_loop
        from paragent.transport.server import RpcServer

        secret = secrets.token_urlsafe(32)
        self._server = RpcServer(Address.of(_LOOPBACK, 0), {_SERVICE: self}, Token(secret))
        port = run_on_io_loop(self._server.start(), _START_SECONDS)
        content = {"address": f"{_LOOPBACK}:{port}", "secret": secret, "pid": os.getpid(), "host": socket.gethostname()}
        try:
            write_secret_file(self._path, json.dumps(content))
        except OSError as error:
            run_on_io_loop(self._server.stop(0.0), _STOP_SECONDS)
            raise StoreFailed(f"cannot write {self._path}: {error}. What was recorded before is safe") from error
        return self

    def __exit__(self, *_: object) -> None:
        from paragent.transport.loop import run as run_on_io_loop

        self.refuse("the run has finished")
        with contextlib.suppress(OSError):
            self._path.unlink()
        run_on_io_loop(self._server.stop(0.0), _STOP_SECONDS)

    # --- called by the session's loop ---------------------------------------------------------------------------------

    def accept(self) -> None:
        """Queue commands from now on, because the session's loop executes them."""
        with self._lock:
            self._refusal, self._starting = None, False

    def refuse(self, why: str) -> None:
        """Reject queued and further commands."""
        with self._lock:
            self._refusal, self._starting = why, False
            rejected, self._commands = self._commands, deque()
        for _, _, answer in rejected:
            if answer.set_running_or_notify_cancel():
                answer.set_exception(UsageError(why))

    def execute(self, command: Callable[[str, str], str]) -> None:
        """Execute the queued commands with `command(name, argument)`, which returns the answer or raises `UsageError`.

        A command whose client has disconnected meanwhile is not executed.
        """
        while True:
            with self._lock:
                if not self._commands:
                    self._arrived.clear()
                    return
                name, argument, answer = self._commands.popleft()
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                answer.set_result(command(name, argument))
            except Exception as error:
                answer.set_exception(error)
                if not isinstance(error, UsageError):
                    raise

    def wait(self, timeout: float) -> None:
        """Wait until a command is queued or `wake` is called, at most `timeout` seconds."""
        self._arrived.wait(timeout)

    def wake(self) -> None:
        """End the current or the next `wait`; from any thread."""
        self._arrived.set()

    # --- called by the server -----------------------------------------------------------------------------------------

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Any]:  # noqa: ARG002 - the signature of a service
        """Admit every client that knows the secret."""
        return {}, None

    async def serve(self, stream: ServerStream, admitted: Any) -> None:  # noqa: ARG002 - the signature of a service
        """Answer the calls of one client."""
        from paragent.transport.json_calls import JsonConnection

        await JsonConnection(stream, {"status": self._answer_status, "command": self._answer_command}).serve()

    async def _answer_status(self) -> dict[str, Any]:
        return self._status().as_json()

    async def _answer_command(self, name: str, argument: str) -> str:
        answer: Future[str] = Future()
        with self._lock:
            if self._refusal is not None and not (self._starting and name == "stop"):
                raise UsageError(self._refusal)
            self._commands.append((str(name), str(argument), answer))
            self._arrived.set()
            if self._starting:  # starting machines can take longer than a client waits
                return "the run stops as soon as it has started; no rollout starts"
        return await asyncio.wrap_future(answer)


class ControlClient:
    """Sends commands to the session of a run. May be used from any thread that is not an event loop's; connects for each call.

    Args:
        path: the run directory.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def status(self) -> LiveRun:
        """Return the state of the run.

        Raises:
            RunNotLive: no session of the run is active.
            AccessDenied: the session belongs to another user.
        """
        return LiveRun.from_json(self._call("status"))

    def command(self, name: str, argument: str = "") -> str:
        """Execute a command and return a sentence that says what was done.

        Args:
            name: `pause`, `resume`, `cancel`, `retry`, `set`, `retire` or `stop`.
            argument: of `cancel` and `retry`, the rollout, `TASK` or `TASK#ATTEMPT`; of `set`, `num-rollouts=N`; of `retire`, the
                machine; of `stop`, `cancel` to cancel the rollouts under way.

        Raises:
            RunNotLive: no session of the run is active.
            AccessDenied: the session belongs to another user.
            UsageError: the command cannot be executed; the message says why.
            ServerLost: the session ended before it answered; it is unknown whether the command was executed.
        """
        return str(self._call("command", name, argument))

    def is_live(self) -> bool:
        """Return whether a session of the run is active and answers this user."""
        try:
            self.status()
        except (UsageError, ServerLost):
            return False
        return True

    def _call(self, method: str, *arguments: str) -> Any:
        from paragent.transport.loop import run as run_on_io_loop

        given = self._read_file()
        try:
            return run_on_io_loop(self._exchange(given, method, arguments), _ANSWER_SECONDS)
        except TimeoutError:
            raise ServerLost(
                f"the session of {self._path.name} (process {given['pid']}) has not answered within {_ANSWER_SECONDS:g} s"
            ) from None

    async def _exchange(self, given: dict[str, Any], method: str, arguments: tuple[str, ...]) -> Any:
        from paragent.transport.json_calls import JsonConnection

        stream = await self._connect(given)
        connection = JsonConnection(stream, errors=(UsageError, ConfigError), other_errors=UsageError)
        reader = asyncio.create_task(connection.serve())
        try:
            return await connection.call(method, *arguments)
        finally:
            reader.cancel()
            await asyncio.wait([reader])
            await stream.close()

    async def _connect(self, given: dict[str, Any]) -> ClientStream:
        from paragent.transport.address import Address
        from paragent.transport.client import connect

        host, _, port = given["address"].rpartition(":")
        address, token = Address.of(host, port), Token(given["secret"])
        for attempt in range(1, _CONNECT_ATTEMPTS + 1):
            try:
                stream, _ = await connect(address, _SERVICE, token, None, {}, _CONNECT_SECONDS)
                break
            except ServerLost as error:
                if attempt == _CONNECT_ATTEMPTS:
                    raise RunNotLive(
                        f"no session of {self._path.name} is active: the one of process {given['pid']} left its file behind "
                        f"({error}). The command that started the run continues it"
                    ) from None
                await asyncio.sleep(_CONNECT_PAUSE)
        return stream

    def _read_file(self) -> dict[str, Any]:
        """Return the content of the control file.

        Raises:
            RunNotLive: there is none, or the process that wrote it has ended.
            AccessDenied: it can be read by other users, or belongs to another user.
        """
        path = self._path / "live" / _FILE
        name = self._path.name
        try:
            given: dict[str, Any] = json.loads(read_secret_file(path))
            pid, host = int(given["pid"]), str(given["host"])
            given = {"address": str(given["address"]), "secret": str(given["secret"]), "pid": pid}
        except FileNotFoundError:
            raise RunNotLive(f"no session of {name} is active; the command that started the run continues it") from None
        except PermissionError as error:
            if isinstance(error, AccessDenied):
                raise
            raise AccessDenied(f"{path} belongs to another user, who alone can control the run") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RunNotLive(f"{path} is damaged: {error!r}") from None
        if given["address"].rpartition(":")[0] != _LOOPBACK:
            # Sessions listen on loopback only. The file of a run directory that came from elsewhere may say anything.
            raise RunNotLive(f"{path} is damaged: a session does not listen on {given['address']}")
        if host != socket.gethostname():
            raise RunNotLive(f"the session of {name} runs on the host {host}; use this command there")
        if not is_alive(pid):
            raise RunNotLive(
                f"no session of {name} is active: process {pid} was killed. The command that started the run continues it"
            )
        return given


def ended_run(path: Path) -> LiveRun:
    """Return the state of a run without an active session, from its journal.

    Raises:
        StoreFailed: the journal cannot be read.
    """
    with Journal(path / JOURNAL_FILE, read_only=True) as journal:
        summary = summarise(journal, int(journal.meta(ATTEMPTS) or 1))
    pending = summary.pending
    return LiveRun(
        run=path.name,
        state=RunState.STOPPED if pending else RunState.COMPLETE,
        at=time.time(),
        pid=0,
        host="",
        note="the command that started the run continues it" if pending else "",
        total=summary.rollouts,
        done=summary.done,
        pending=pending,
        failed=summary.statuses[RolloutStatus.FAILED] + summary.statuses[RolloutStatus.TIMED_OUT],
        cancelled=summary.statuses[RolloutStatus.CANCELLED],
        infrastructure_failures=summary.statuses[RolloutStatus.INFRASTRUCTURE],
        mean_score=summary.mean,
        measured=summary.measured,
        cut=summary.cut,
        prompt_tokens=summary.prompt_tokens,
        completion_tokens=summary.completion_tokens,
        cost=summary.cost,
        seconds=summary.seconds,
    )
