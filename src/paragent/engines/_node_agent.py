"""Node agent: runs on a cluster node, owns one worker and executes the commands of the engine.

Time limits are enforced and dead workers replaced here, next to the worker, by the same `ProcessHandle` as on the local
engine. The engine decides only what happens to the calls of a node that is lost.
"""

from __future__ import annotations

import os
import selectors
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent._internal.tracebacks import message_of
from paragent.engines._worker_handle import ProcessHandle, WorkerReport, WorkerSettings
from paragent.errors import AccessDenied, ProtocolError
from paragent.transport.auth import Token, connect_with_proof
from paragent.transport.framing import FramedSocket
from paragent.worker.protocol import CallBatch, OutcomeBatch, WorkerCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paragent.serialization import Payload
    from paragent.worker.output import Line

__all__ = [
    "HEARTBEAT",
    "SILENCE_LIMIT",
    "NodeAgent",
    "NodeAgentSpec",
    "NodeReport",
    "ParentProcess",
    "keep_alive",
    "run_node_agent",
    "run_node_agents",
]

HEARTBEAT = 2.0
"""Seconds after which a node agent that has nothing to report sends an empty report."""
SILENCE_LIMIT = 15 * HEARTBEAT
"""Seconds without a report after which a node agent counts as lost; long, for nodes that swap or pause."""
_CONNECT_TIMEOUT = 10.0
"""Seconds to reach the engine and to pass the handshake."""
_STOP_TIMEOUT = 1.0
_MAX_BACKLOG = 16 << 20
"""Bytes that may wait for the engine before the agent stops reading from the worker, which slows the worker down."""


# --- messages ---------------------------------------------------------------------------------------------------------


class ParentProcess(NamedTuple):
    """What a worker on the engine's own host takes over from the engine's process, like a child process would."""

    sys_path: tuple[str, ...]
    directory: str
    environment: dict[str, str]


class NodeAgentSpec(NamedTuple):
    """Everything that a node agent needs to know; it is the argument of a Ray actor or a Spark task."""

    name: str
    host: str
    port: int
    token: Token
    sync_limit: int
    async_limit: int
    shared_limit: bool
    slots: int
    log_levels: dict[str, int]
    python: tuple[int, int]
    """The engine's Python version: pickled code cannot be exchanged between different versions."""
    parent: ParentProcess | None
    """None: the node agent is on another host and uses its own settings."""

    def __repr__(self) -> str:
        return f"NodeAgentSpec({self.name!r}, {self.host}:{self.port})"

    @property
    def version_problem(self) -> str | None:
        """Why a worker of this process could not work for the engine, or None."""
        ours = sys.version_info[:2]
        if ours == self.python:
            return None
        return (
            f"the workers have Python {ours[0]}.{ours[1]} and the engine's process has {self.python[0]}.{self.python[1]}; "
            "use the same minor version on both"
        )


class NodeReport(NamedTuple):
    """What happened at a node agent since its last report; an empty report is a heartbeat."""

    outcomes: OutcomeBatch
    ran_in: str
    """Where the calls of `outcomes` ran, as `host:pid`."""
    alone: bool
    """Whether calls of `outcomes` that were lost had been the only running call."""
    lines: list[Line]
    location: str
    """Where the current worker runs, as `host:pid`."""
    answered: bool
    """Whether a worker has sent anything."""
    recalled: bool = False
    """The reply to RECALL: calls that had not started are among the outcomes."""
    ended: str | None = None
    """The node agent ends, and why."""
    crashed: str = ""
    """How the worker before the current one ended unexpectedly; empty if it did not."""
    worker: str = ""
    """The id of the current worker."""


# --- running node agents ----------------------------------------------------------------------------------------------


def run_node_agents(specs: Sequence[NodeAgentSpec]) -> dict[str, str]:
    """Run node agents until all have ended; return how each ended, by name."""
    endings: dict[str, str] = {}

    def run(spec: NodeAgentSpec) -> None:
        try:
            endings[spec.name] = run_node_agent(spec)
        except BaseException as error:  # noqa: BLE001 - the failure of one must not hide the endings of the others
            endings[spec.name] = f"{type(error).__name__}: {message_of(error)}"

    threads = []
    for spec in specs[1:]:
        thread = threading.Thread(target=run, args=(spec,), name=spec.name)
        try:
            thread.start()
        except RuntimeError as error:  # the system cannot start another thread
            endings[spec.name] = f"no thread for this worker: {error}"
        else:
            threads.append(thread)
    for spec in specs[:1]:
        run(spec)
    for thread in threads:
        thread.join()
    return endings


def run_node_agent(spec: NodeAgentSpec) -> str:
    """Run a worker for the engine that `spec` names until either is gone; return how it ended.

    It does not raise for errors of the engine or the network: the cluster must not treat a rejected node agent as a failed
    task and start it again.
    """
    if spec.version_problem:
        return spec.version_problem
    try:
        connection = socket.create_connection((spec.host, spec.port), timeout=_CONNECT_TIMEOUT)
    except OSError as error:
        return f"cannot connect to the engine at {spec.host}:{spec.port} from {socket.gethostname()}: {error}"
    with connection:
        try:
            connect_with_proof(connection, spec.token, spec.name)
        except (AccessDenied, ProtocolError, OSError) as error:
            return f"the handshake of node agent {spec.name} with the engine failed: {error}"
        keep_alive(connection)
        return NodeAgent(connection, spec).run()


def keep_alive(connection: socket.socket) -> None:
    """Send small frames at once, and let the kernel detect that the peer's host is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, seconds in (("TCP_KEEPIDLE", HEARTBEAT), ("TCP_KEEPINTVL", HEARTBEAT), ("TCP_KEEPCNT", 15)):
        if hasattr(socket, option):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), int(seconds))
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(1000 * SILENCE_LIMIT))


class NodeAgent:
    """Serves one connection to the engine with one worker at a time, in one thread."""

    worker: ProcessHandle

    def __init__(self, connection: socket.socket, spec: NodeAgentSpec) -> None:
        self._connection = FramedSocket(connection)
        self._settings = _worker_settings(spec)
        self._code: dict[str, bytes] = {}
        """All code that the engine sent, for workers that start later."""
        self._targets: dict[int, Payload] = {}
        self._selector = selectors.DefaultSelector()
        self._reads_worker = False
        self._answered = False
        self._last_report = 0.0
        self._ended: str | None = None

    def run(self) -> str:
        """Work until the engine says stop or is gone, or until no worker can be started; return the reason."""
        self._selector.register(self._connection, selectors.EVENT_READ, self._connection)
        try:
            self._start_worker()
            self._serve()
        finally:
            self._selector.close()
        self._connection.finish(_STOP_TIMEOUT)
        assert self._ended is not None
        return self._ended

    def _serve(self) -> None:
        try:
            while self._ended is None:
                self.step()
        except BaseException:
            self.worker.close(0.0)  # the engine sees the connection end and reports the calls of the worker as lost
            raise

    def _start_worker(self) -> None:
        """Start a worker, or end with the reason why that is impossible."""
        try:
            self.worker = ProcessHandle(self._settings)
        except OSError as error:
            self._give_up(f"cannot start a worker on {socket.gethostname()}: {error}")
            return
        self.worker.add_code(self._code)
        self._reads_worker = False
        self._read_worker(True)

    def _read_worker(self, wanted: bool) -> None:
        """Start or stop to select on the worker."""
        if wanted == self._reads_worker:
            return
        self._reads_worker = wanted
        for fileno in self.worker.filenos():
            if wanted:
                self._selector.register(fileno, selectors.EVENT_READ, self.worker)
            else:
                self._selector.unregister(fileno)

    def step(self) -> None:
        """Wait for events of the engine and of the worker, and handle them."""
        self._read_worker(self._connection.backlog < _MAX_BACKLOG)
        self._select_writing(self._connection.fileno(), self._connection.wants_to_write)
        if self._reads_worker:
            self._select_writing(self.worker.filenos()[0], self.worker.wants_to_write)
        now = time.monotonic()
        until = self._last_report + HEARTBEAT
        if self.worker.deadline is not None:
            until = min(until, self.worker.deadline)
        ready = {key.data for key, _ in self._selector.select(max(0.0, until - now))}
        if self._connection in ready:
            self._connection.flush()
            for message in self._connection.messages():
                self._execute(message)
                if self._ended is not None:
                    return
            if self._connection.closed:
                self._end("the connection to the engine was closed", 0.0)
                return
        deadline = self.worker.deadline
        if self.worker in ready or (deadline is not None and deadline <= time.monotonic()):
            self._poll_worker()
        elif time.monotonic() - self._last_report >= HEARTBEAT:
            self._send_report(WorkerReport())

    def _select_writing(self, fileno: int, wanted: bool) -> None:
        key = self._selector.get_key(fileno)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
        if key.events != events:
            self._selector.modify(fileno, events, key.data)

    def _execute(self, message: Any) -> None:
        if isinstance(message, CallBatch):
            for digest in message.dropped_code:
                self._code.pop(digest, None)
            self.worker.forget_code(message.dropped_code)
            self._code |= message.code
            self.worker.add_code(message.code)
            self.worker.send(message.calls(self._targets))
        elif message is WorkerCommand.RECALL:
            self.worker.recall()
        elif message is WorkerCommand.CANCEL:
            self.worker.cancel()
        elif message is WorkerCommand.KILL:
            self._read_worker(False)
            location = self.worker.location
            report = self.worker.kill("the engine asked for it", cancelled=True)
            self._send_report(report, ran_in=location)
            self._start_worker()
        elif message is WorkerCommand.RESTART:
            self._read_worker(False)
            self.worker.close(0.0)
            self._start_worker()
        elif message is WorkerCommand.STOP:
            self._end("the engine asked for it", 0.0 if self.worker.in_flight else _STOP_TIMEOUT)

    def _poll_worker(self) -> None:
        """Report what happened in the worker to the engine, and replace the worker if it is gone."""
        filenos = self.worker.filenos() if self._reads_worker else []
        recalling = self.worker.recalling
        location = self.worker.location
        report = self.worker.poll()
        self._answered = self._answered or self.worker.answered
        if report.ended is not None:
            for fileno in filenos:
                self._selector.unregister(fileno)
            self._reads_worker = False
        recalled = recalling and (report.ended is not None or not self.worker.recalling)
        if report.ended is not None and not self.worker.answered:
            self._send_report(report, ran_in=location, recalled=recalled, ended=report.ended)
            self._give_up(report.ended)
            return
        if report.ended is not None:
            self._start_worker()
        if report.ended is not None or recalled or report.outcomes or report.lines or not self._last_report:
            self._send_report(report, ran_in=location, recalled=recalled)

    def _send_report(
        self, report: WorkerReport, *, ran_in: str = "", recalled: bool = False, ended: str | None = None
    ) -> None:
        self._last_report = time.monotonic()
        alone = all(outcome.alone for outcome in report.outcomes)
        batch = OutcomeBatch.of(report.outcomes)
        self._connection.post(
            NodeReport(
                batch,
                ran_in,
                alone,
                report.lines,
                self.worker.location,
                self._answered,
                recalled,
                ended,
                report.crashed,
                self.worker.id,
            )
        )

    def _give_up(self, reason: str) -> None:
        """End without a worker, and tell the engine if it still reads."""
        if self._ended is None:
            self._ended = reason
            self._connection.post(NodeReport(OutcomeBatch.of([]), "", True, [], "", answered=False, ended=reason))

    def _end(self, reason: str, timeout: float) -> None:
        self._ended = reason
        if timeout:
            self.worker.stop()
        self.worker.close(timeout)


def _worker_settings(spec: NodeAgentSpec) -> WorkerSettings:
    parent = spec.parent
    directory = parent.directory if parent and Path(parent.directory).is_dir() else None
    return WorkerSettings(
        sync_limit=spec.sync_limit,
        async_limit=spec.async_limit,
        shared_limit=spec.shared_limit,
        slots=spec.slots,
        sys_path=parent.sys_path if parent else None,
        log_levels=spec.log_levels,
        directory=directory,
        environment={**os.environ, **parent.environment, **_cluster_variables()} if parent else None,
        evicts_code=False,
    )


def _cluster_variables() -> dict[str, str]:
    """Return the environment variables that the cluster set for this process, such as those of a runtime environment or the
    numbers of its GPUs: the ones that differ from the environment with which its parent process was started."""
    try:
        inherited = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(item).partition("=") for item in inherited)
    before = {name: value for name, _, value in pairs}
    return {name: value for name, value in os.environ.items() if before.get(name) != value}
