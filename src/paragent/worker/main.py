"""Entry point of a worker process: one thread reads, one thread writes, the main thread runs sync calls."""

from __future__ import annotations

import faulthandler
import gc
import mmap
import signal
import sys
import threading
import time
from io import FileIO
from queue import Empty, SimpleQueue
from typing import Any

from paragent._internal.processes import die_with_parent, end_own_group
from paragent._internal.threads import fatal, start_thread
from paragent._internal.tracebacks import message_of, type_name
from paragent._internal.worker_ids import set_worker_id
from paragent.execution import Ending, Outcome
from paragent.serialization import Payload, add_code, drop_code, size_of
from paragent.transport.framing import encode, read_frame, write_bytes
from paragent.worker.call_times import CallTimes
from paragent.worker.executor import CallExecutor
from paragent.worker.output import Line, OutputCapture, forward_logs
from paragent.worker.protocol import CallBatch, OutcomeBatch, WorkerCommand, WorkerSetup, WorkerUpdate

__all__ = ["main"]

_UPDATE_BYTES = 1 << 20
"""Bytes of answers after which an update is sent and another begun: the receiver holds an update twice for a moment."""
_QUEUED_LINES = 20_000
_QUEUED_TEXT = 8 << 20
"""Lines, and characters of them, that may wait to be sent before printing blocks."""


class _Returned(list[int]):
    """Numbers of recalled calls in the send queue."""


class _End:
    """The last item of the send queue.

    Args:
        replaced: end this process as soon as everything before is sent.
    """

    def __init__(self, *, replaced: bool = False) -> None:
        self.replaced = replaced


def main(socket_fd: int, times_fd: int) -> None:
    """Serve the owner at the other end of `socket_fd` until it says stop or its end is closed.

    Args:
        socket_fd: a socket connected to the owner.
        times_fd: shared memory for the `CallTimes` of this worker.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # A parent that ignores SIGCHLD passes that on to its children; the exit status of their children would be lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    faulthandler.enable()
    stream = FileIO(socket_fd, "r+")  # not a socket object: importing `socket` takes too long
    setup: WorkerSetup = read_frame(stream)
    sys.path[:] = setup.sys_path
    set_worker_id(setup.worker)
    queue = _SendQueue()
    output = OutputCapture(queue.put_line)
    forward_logs(queue.put_line, setup.log_levels)
    executor = CallExecutor(
        queue.put,
        sync_limit=setup.sync_limit,
        async_limit=setup.async_limit,
        shared=setup.shared_limit,
        times=CallTimes.of_memory(memoryview(mmap.mmap(times_fd, 0)).cast("d")),
        finished=output.finish,
        replace=lambda: queue.put(_End(replaced=True)),
    )
    gc.freeze()
    gc.enable()
    write_bytes(stream, encode(WorkerUpdate(OutcomeBatch.of([]), [])))
    writer = start_thread(_write, stream, queue, name="paragent-writer")
    start_thread(_read, stream, executor, queue, name="paragent-reader")
    # Now, while the first calls are on their way, and before they run: code that has used up all files or all memory would
    # prevent the import that `ErrorInfo` needs to report it.
    import paragent.tasks  # noqa: F401

    try:
        executor.run_sync_calls()
    except BaseException as error:  # noqa: BLE001 - reported on file descriptor 2; stdout and stderr belong to tasks
        fatal("MainThread", error)
    output.restore()
    queue.put(_End())
    writer.join()


class _SendQueue(SimpleQueue[Any]):
    """Items to send. Printing blocks while much text waits; outcomes never block."""

    def __init__(self) -> None:
        self._printed = 0
        self._sent = 0
        self._lock = threading.Lock()
        """Protects `_printed`; `_sent` belongs to the writer's thread."""

    def put_line(self, line: Line) -> None:
        """Add a line; blocks while too much text waits."""
        while self.qsize() > _QUEUED_LINES or self._printed - self._sent > _QUEUED_TEXT:
            time.sleep(0.001)
        with self._lock:
            self._printed += len(line.text)
        self.put(line)

    def note_sent(self, lines: list[Line]) -> None:
        """Record that these lines were sent."""
        self._sent += sum(len(line.text) for line in lines)


def _read(stream: FileIO, executor: CallExecutor, queue: _SendQueue) -> None:
    targets: dict[int, Payload] = {}
    while True:
        try:
            message = read_frame(stream)
        except (EOFError, OSError):
            end_own_group()
        if isinstance(message, CallBatch):
            if message.dropped_code:
                drop_code(message.dropped_code)
                executor.clear_targets()
            add_code(message.code)
            executor.submit(message.calls(targets))
        elif message is WorkerCommand.RECALL:
            queue.put(_Returned(executor.recall()))
        elif message is WorkerCommand.CANCEL:
            executor.cancel()
        elif message is WorkerCommand.STOP:
            executor.close()
            return


def _write(stream: FileIO, queue: _SendQueue) -> None:
    """Send what is queued at once; items that arrive meanwhile go into the next update."""
    ended: _End | None = None
    while ended is None:
        outcomes: list[Outcome] = []
        lines: list[Line] = []
        returned: list[int] | None = None
        size = 0
        item = queue.get()
        while item is not None:
            if isinstance(item, Outcome):
                size += size_of(item.value)
                outcomes.append(item)
            elif isinstance(item, Line):
                size += len(item.text)
                lines.append(item)
            elif isinstance(item, _Returned):
                returned = [*(returned or ()), *item]
            else:
                ended = item
            try:
                item = queue.get_nowait() if size < _UPDATE_BYTES else None
            except Empty:
                item = None
        frame = _encoded(outcomes, lines, returned)
        try:
            write_bytes(stream, frame)
        except OSError:
            end_own_group()
        queue.note_sent(lines)
    if ended.replaced:
        end_own_group()


def _encoded(outcomes: list[Outcome], lines: list[Line], returned: list[int] | None) -> bytes:
    """Return the frame of an update; an outcome that cannot be pickled becomes a failure of its task."""
    try:
        return encode(WorkerUpdate(OutcomeBatch.of(outcomes), lines, returned))
    except Exception:  # noqa: BLE001 - find the outcome; if there is none, encoding raises again
        sendable = [_sendable(outcome) for outcome in outcomes]
        return encode(WorkerUpdate(OutcomeBatch.of(sendable), lines, returned))


def _sendable(outcome: Outcome) -> Outcome:
    try:
        encode(OutcomeBatch.of([outcome]))
    except Exception as problem:  # noqa: BLE001 - the other outcomes must be sent, whatever is wrong with this one
        from paragent.tasks import ErrorInfo  # not at the top: see `paragent.execution`

        error = ErrorInfo(type_name(problem), f"the outcome cannot be sent to the engine: {message_of(problem)}")
        return Outcome(outcome.number, Ending.RAISED, error=error, seconds=outcome.seconds)
    return outcome
