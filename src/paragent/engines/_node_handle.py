"""The engine's side of node agents: a listener that accepts their connections, and a worker handle for each."""

from __future__ import annotations

import contextlib
import logging
import math
import socket
import threading
import time
from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, Heartbeat, monotonic
from paragent._internal.threads import start_thread, write_traceback
from paragent._internal.worker_ids import announce_end
from paragent.engines._node_agent import HEARTBEAT, SILENCE_LIMIT, NodeReport, keep_alive
from paragent.engines._worker_handle import BatchWriter, WorkerReport
from paragent.errors import AccessDenied, ProtocolError
from paragent.execution import Ending, Outcome
from paragent.tasks import ErrorInfo
from paragent.transport.auth import Token, accept_with_proof
from paragent.transport.framing import READ_BUDGET, FramedSocket
from paragent.worker.protocol import WorkerCommand

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paragent.engines.base import Call

__all__ = ["NodeHandle", "NodeListener"]

_logger = logging.getLogger("paragent")
_HANDSHAKE_TIMEOUT = 10.0
"""Seconds that a new connection has for each step of the handshake."""
_ACCEPT_PAUSE = 0.01
"""Seconds to wait after a connection could not be accepted, so that a lack of file descriptors does not occupy a core."""
_MAX_HANDSHAKES = 64
"""Handshakes at a time; further connections wait in the kernel's queue."""
_STOP_TIMEOUT = 2.0
"""Seconds to wait for a node agent that was told to end or to kill its worker, which takes it milliseconds."""


class NodeListener:
    """Listens on one address and passes on the connections of node agents that know the token.

    Args:
        host: the only address to listen on.
        token: the secret that a node agent must know.
        accept: called, from a thread of the listener, with the name and the connection of each authenticated node agent;
            returns False to reject it.
        failed: called with the name of the listening thread and its error if the thread ends unexpectedly.
    """

    def __init__(
        self,
        host: str,
        token: Token,
        accept: Callable[[str, socket.socket], bool],
        failed: Callable[[str, BaseException], object],
    ) -> None:
        self._token = token
        self._accept = accept
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family, backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._handshakes = threading.Semaphore(_MAX_HANDSHAKES)
        self._closed = False
        self._thread = start_thread(self._listen, name="paragent-listener", failed=failed)

    def close(self) -> None:
        """Stop listening; accepted connections stay open."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes `accept`
        self._listener.close()
        self._thread.join(_HANDSHAKE_TIMEOUT)

    def _listen(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # the peer is already gone, no file descriptor is free, or the listener was closed
                time.sleep(_ACCEPT_PAUSE)
                continue
            self._handshakes.acquire()
            try:
                start_thread(self._authenticate, connection, name="paragent-handshake", failed=write_traceback)
            except RuntimeError as problem:  # no thread can be started; the node agent ends and is replaced
                _logger.warning("a node agent was rejected because no thread can be started: %s", problem)
                self._handshakes.release()
                connection.close()

    def _authenticate(self, connection: socket.socket) -> None:
        connection.settimeout(_HANDSHAKE_TIMEOUT)
        try:
            name = accept_with_proof(connection, self._token)
            keep_alive(connection)
            if self._accept(name, connection):
                return
        except (AccessDenied, ProtocolError, OSError) as problem:
            _logger.debug("a connection to the engine's port was rejected: %s", problem)
        finally:
            self._handshakes.release()
        connection.close()


class NodeHandle:
    """The handle of a worker on a cluster node, which is reached through its node agent.

    The node agent reports and replaces a worker that dies. If the node agent itself is lost, with its node or its connection,
    every call that it held may have started: all of them are lost, and the runner finds out in smaller groups whether one of
    them was the cause.
    """

    def __init__(self, name: str, connection: socket.socket, clock: Clock = monotonic) -> None:
        self.location = name
        self.recalling = False
        self.answered = False
        self._worker = name
        """The id of the current worker; before its first report, the name of the node agent."""
        self._connection = FramedSocket(connection)
        self._writer = BatchWriter()
        self._calls: dict[int, Call] = {}
        self._clock = clock
        self._heartbeat = Heartbeat(HEARTBEAT, clock)
        self._killed: set[int] = set()
        """Calls whose worker the node agent was told to kill, and that have no outcome yet."""
        self._killed_by = math.inf
        """When these calls get an outcome without a report of the node agent."""
        self.deadline: float | None = None
        self._set_deadline()

    @property
    def in_flight(self) -> int:
        """The number of calls that were sent and have no outcome."""
        return len(self._calls)

    def filenos(self) -> list[int]:
        """Return the socket."""
        return [self._connection.fileno()]

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the node agent to read."""
        return self._connection.wants_to_write

    def send(self, calls: Sequence[Call]) -> None:
        """Send calls to the node agent."""
        self._writer.evict(self._calls.values())
        self._calls.update((call.number, call) for call in calls)
        self._connection.post(self._writer.batch([call.number for call in calls], calls))

    def recall(self) -> None:
        """Ask for the calls that have not started."""
        self.recalling = True
        self._connection.post(WorkerCommand.RECALL)

    def cancel(self) -> None:
        """Ask the worker to cancel async calls and calls that have not started."""
        self._connection.post(WorkerCommand.CANCEL)

    def kill(self, cause: str, *, cancelled: bool = False) -> WorkerReport:
        """Let the node agent kill and replace the worker.

        The outcomes of cancelled calls follow from `poll`, because only the node agent knows which calls had started.
        """
        report = WorkerReport()
        if not cancelled:
            self._end_calls(report, list(self._calls), Ending.LOST, cause)
        elif self._killed >= self._calls.keys():
            return report
        self._killed = set(self._calls)
        self._killed_by = self._clock() + _STOP_TIMEOUT
        self._set_deadline()
        self._connection.post(WorkerCommand.KILL)
        return report

    def restart(self) -> bool:
        """Let the node agent replace the idle worker."""
        self._connection.post(WorkerCommand.RESTART)
        return True

    def stop(self) -> None:
        """Ask the node agent to end."""
        self._connection.post(WorkerCommand.STOP)

    def close(self, timeout: float) -> None:
        """End the node agent; wait a moment until its worker is gone."""
        if not timeout:
            self._connection.post(WorkerCommand.STOP)
        self._connection.finish(max(timeout, _STOP_TIMEOUT), until_closed=True)
        self._connection.close()
        announce_end(self._worker)

    def poll(self) -> WorkerReport:
        """Move bytes in both directions without blocking, and return what happened."""
        report = WorkerReport()
        self._connection.flush()
        ended: str | None = None
        for message in self._connection.messages(READ_BUDGET):
            self._heartbeat.beat()
            ended = self._add(message, report) or ended
        if self._clock() >= self._killed_by:
            self._end_calls(report, [number for number in self._killed if number in self._calls], Ending.CANCELLED)
        self._killed &= self._calls.keys()
        self._killed_by = self._killed_by if self._killed else math.inf
        self._set_deadline()
        # Before the checks below: after a lost connection or silence, nothing says that another worker would not start either.
        report.never_ready = ended is not None and not self.answered
        if self._connection.closed:
            ended = ended or f"the node agent of worker {self.location} is gone, with its node or its connection"
        elif self._heartbeat.silence() >= SILENCE_LIMIT:
            ended = f"the node agent of worker {self.location} has sent nothing for {SILENCE_LIMIT:g} s"
        if ended is not None:
            self._end_calls(report, list(self._calls), Ending.LOST, ended)
            report.ended = report.crashed = ended
            self._connection.close()
            announce_end(self._worker)
        return report

    def _add(self, message: NodeReport, report: WorkerReport) -> str | None:
        self.answered = self.answered or message.answered
        self.location = message.location or self.location
        if message.worker not in {"", self._worker}:
            announce_end(self._worker)
            self._worker = message.worker
        report.lines += message.lines
        report.crashed = message.crashed or report.crashed
        for outcome in message.outcomes.outcomes(message.ran_in, message.alone):
            if self._calls.pop(outcome.number, None):  # otherwise it already got an outcome without a report
                report.outcomes.append(outcome)
        if message.recalled:
            self.recalling = False
        return message.ended

    def _set_deadline(self) -> None:
        self.deadline = min(self._clock() + HEARTBEAT, self._killed_by)

    def _end_calls(self, report: WorkerReport, numbers: Sequence[int], ending: Ending, cause: str = "") -> None:
        """Add outcomes for calls about which the node agent reported nothing."""
        alone = len(self._calls) == 1
        for number in numbers:
            outcome = Outcome(number, ending, worker=self.location, alone=alone)
            if ending is Ending.LOST:
                outcome.error = ErrorInfo("WorkerLost", cause, retryable=True)
            report.outcomes.append(outcome)
            del self._calls[number]
