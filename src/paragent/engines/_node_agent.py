"""A station: on whatever node a cluster put it, it keeps one supervised worker and carries out the driver's orders.

Time limits are enforced and dead workers replaced here, next to the worker, exactly as on the local engine: by the same
`Supervisor`. What is lost when a whole node goes is the driver's to judge.
"""

from __future__ import annotations

import os
import selectors
import socket
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.tracebacks import message_of
from paragent.engines._node_protocol import HEARTBEAT, KILL, RENEW, SILENCE, Posting, Report, to_wire
from paragent.engines._worker_handle import Supervisor, Tidings, WorkerSettings
from paragent.errors import AccessDenied, ProtocolError
from paragent.transport.auth import connect_with_proof
from paragent.transport.framing import FramedSocket
from paragent.worker.protocol import CANCEL, RECALL, STOP, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.serialization import Parcel

__all__ = ["host", "keep_alive", "serve"]


_CONNECT = 10.0
"""Seconds to reach the driver and be let in."""
_STOP_PATIENCE = 1.0
_BACKLOG = 16 << 20
"""Bytes that may wait for the driver before the worker is no longer listened to, and so is slowed down."""


def serve(posting: Posting) -> str:
    """Keep a worker for the driver that `posting` names until either is gone; return how it ended.

    Never raises for what the driver does or the network: engines must not take a station that was turned away for a
    failed task and start it again.
    """
    if posting.version_problem:
        return posting.version_problem
    try:
        connection = socket.create_connection((posting.host, posting.port), timeout=_CONNECT)
    except OSError as error:
        return f"cannot reach the driver at {posting.host}:{posting.port} from {socket.gethostname()}: {error}"
    with connection:
        try:
            connect_with_proof(connection, posting.token, posting.name)
        except (AccessDenied, ProtocolError, OSError) as error:
            return f"the driver did not let station {posting.name} in: {error}"
        keep_alive(connection)
        return _Station(connection, posting).run()


def keep_alive(connection: socket.socket) -> None:
    """Send small frames at once, and have the kernel notice when the machine at the other end is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", HEARTBEAT), ("TCP_KEEPINTVL", HEARTBEAT), ("TCP_KEEPCNT", 15)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), int(seconds))
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * SILENCE))


class _Station:
    """One link to the driver, one worker; both in the hands of one thread."""

    def __init__(self, connection: socket.socket, posting: Posting) -> None:
        self._link = FramedSocket(connection)
        self._settings = _settings(posting)
        self._code: dict[str, bytes] = {}
        """Everything that the driver sent once, for workers that are started later."""
        self._targets: dict[int, Parcel] = {}
        self._selector = selectors.DefaultSelector()
        self._listening = True
        self._answered = False
        self._spoke = 0.0
        self._ended: str | None = None

    def run(self) -> str:
        """Work until told to stop, until the driver is gone, or until no worker can be started."""
        self._selector.register(self._link, selectors.EVENT_READ, self._link)
        try:
            self._hire()
            self._serve()
        finally:
            self._selector.close()
        self._link.finish(_STOP_PATIENCE)
        assert self._ended is not None
        return self._ended

    def _serve(self) -> None:
        try:
            while self._ended is None:
                self._turn()
        except BaseException:
            self._worker.release(0.0)  # the driver sees the connection end, and accounts for what the worker held
            raise

    def _hire(self) -> None:
        """Start a worker, or end with the reason why that is impossible."""
        try:
            self._worker = Supervisor(self._settings)
        except OSError as error:
            self._give_up(f"cannot start a worker on {socket.gethostname()}: {error}")
            return
        self._worker.teach(self._code)
        self._listening = False
        self._listen(True)

    def _listen(self, wanted: bool) -> None:
        """Select on the worker, or stop doing so."""
        if wanted == self._listening:
            return
        self._listening = wanted
        for source in self._worker.sources():
            if wanted:
                self._selector.register(source, selectors.EVENT_READ, self._worker)
            else:
                self._selector.unregister(source)

    def _turn(self) -> None:
        self._listen(self._link.backlog < _BACKLOG)
        self._mind_writing(self._link.fileno(), self._link.wants_to_write)
        if self._listening:
            self._mind_writing(self._worker.sources()[0], self._worker.wants_to_write)
        now = time.monotonic()
        until = self._spoke + HEARTBEAT
        if self._worker.alarm is not None:
            until = min(until, self._worker.alarm)
        ready = {key.data for key, _ in self._selector.select(max(0.0, until - now))}
        if self._link in ready:
            self._link.flush()
            for message in self._link.messages():
                self._obey(message)
                if self._ended is not None:
                    return
            if self._link.closed:
                self._end("the driver is gone", 0.0)
                return
        alarm = self._worker.alarm
        if self._worker in ready or (alarm is not None and alarm <= time.monotonic()):
            self._relay()
        elif time.monotonic() - self._spoke >= HEARTBEAT:
            self._report(Tidings())

    def _mind_writing(self, source: int, wanted: bool) -> None:
        key = self._selector.get_key(source)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if key.events != events:
            self._selector.modify(source, events, key.data)

    def _obey(self, message: Any) -> None:
        if isinstance(message, Work):
            for digest in message.forget_code:
                self._code.pop(digest, None)
            self._worker.unteach(message.forget_code)
            self._code |= message.code
            self._worker.teach(message.code)
            self._worker.give(message.unwrap(self._targets))
        elif message == RECALL:
            self._worker.recall()
        elif message == CANCEL:
            self._worker.cancel()
        elif message == KILL:
            self._listen(False)
            self._report(self._worker.kill("the driver asked for it", cancelled=True))
            self._hire()
        elif message == RENEW:
            self._listen(False)
            self._worker.release(0.0)
            self._hire()
        elif message == STOP:
            self._end("the driver asked for it", 0.0 if self._worker.in_flight else _STOP_PATIENCE)

    def _relay(self) -> None:
        """Tell the driver what the worker has to tell, and replace it if it is gone."""
        sources = self._worker.sources() if self._listening else []
        recalling = self._worker.recalling
        tidings = self._worker.news()
        self._answered = self._answered or self._worker.answered
        died = tidings.died
        if died is not None:
            for source in sources:
                self._selector.unregister(source)
            self._listening = False
        recalled = recalling and (died is not None or not self._worker.recalling)
        if died is not None and not self._worker.answered:
            self._report(tidings, recalled=recalled, ended=died)
            self._give_up(died)
        else:
            if died is not None:
                self._hire()
            if died is not None or recalled or tidings.outcomes or tidings.lines or not self._spoke:
                self._report(tidings, recalled=recalled)

    def _report(self, tidings: Tidings, *, recalled: bool = False, ended: str | None = None) -> None:
        self._spoke = time.monotonic()
        outcomes = [to_wire(outcome) for outcome in tidings.outcomes]
        self._link.post(Report(outcomes, tidings.lines, self._worker.place, self._answered, recalled, ended))

    def _give_up(self, reason: str) -> None:
        """End without a worker; the driver is told, if it listens."""
        if self._ended is None:
            self._ended = reason
            self._link.post(Report([], [], "", answered=False, ended=reason))

    def _end(self, reason: str, patience: float) -> None:
        self._ended = reason
        if patience:
            self._worker.stop()
        self._worker.release(patience)


def _settings(posting: Posting) -> WorkerSettings:
    around = posting.surroundings
    directory = around.directory if around and Path(around.directory).is_dir() else None
    return WorkerSettings(
        sync_limit=posting.sync_limit,
        async_limit=posting.async_limit,
        shared_limit=posting.shared_limit,
        slots=posting.slots,
        sys_path=around.sys_path if around else None,
        log_level=posting.log_level,
        directory=directory,
        environment={**around.environment, **os.environ} if around else None,
        tidies=False,
    )


def host(postings: Sequence[Posting]) -> dict[str, str]:
    """Serve every posting until all have ended; return how each did, by name."""
    endings: dict[str, str] = {}

    def keep(posting: Posting) -> None:
        try:
            endings[posting.name] = serve(posting)
        except BaseException as error:  # noqa: BLE001 - one station's failure must not keep the others from being reported
            endings[posting.name] = f"{type(error).__name__}: {message_of(error)}"

    threads = []
    for posting in postings[1:]:
        thread = threading.Thread(target=keep, args=(posting,), name=posting.name)
        try:
            thread.start()
        except RuntimeError as error:  # the system has no room for another thread
            endings[posting.name] = f"no thread for this worker: {error}"
        else:
            threads.append(thread)
    for posting in postings[:1]:
        keep(posting)
    for thread in threads:
        thread.join()
    return endings
