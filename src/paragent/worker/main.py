"""A worker process from the inside: one thread reads, one writes, the main thread works."""

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
from paragent.serialization import Parcel, forget, learn, size_of
from paragent.tasks import Ending, Outcome
from paragent.transport.framing import encode, read_frame, write_bytes
from paragent.worker.executor import Hands
from paragent.worker.output import Line, Output, forward_logs
from paragent.worker.protocol import (
    CANCEL,
    RECALL,
    STOP,
    Hello,
    News,
    WireOutcome,
    Work,
)

__all__ = ["work"]

_FRAME = 1 << 20
"""Bytes of answers after which a frame is sent and another begun: whoever reads it holds it twice for a moment."""
_LINES_AHEAD = 20_000
_TEXT_AHEAD = 8 << 20
"""How many lines, and characters of them, may wait to be sent before printing blocks."""


class _Returned(list[int]):
    """Slots that were recalled, on their way out."""


class _End:
    """The last thing in the outbox."""


def work(socket_fd: int, starts_fd: int) -> None:
    """Serve the supervisor at the other end of `socket_fd` until it says stop or goes away."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(
        signal.SIGCHLD, signal.SIG_DFL
    )  # a program that ignores it passes that on, and children have no status
    faulthandler.enable()
    link = FileIO(socket_fd, "r+")  # a socket by another name: the module of sockets takes long to load
    hello: Hello = read_frame(link)
    sys.path[:] = hello.sys_path
    starts = memoryview(mmap.mmap(starts_fd, 0)).cast("d")
    outbox = _Outbox()
    output = Output(outbox.put_line, keep_unmarked=False)
    forward_logs(outbox.put_line, hello.log_level)
    hands = Hands(
        outbox.put,
        sync_limit=hello.sync_limit,
        async_limit=hello.async_limit,
        shared=hello.shared_limit,
        starts=starts,
        finished=output.finish,
    )
    gc.freeze()
    gc.enable()
    write_bytes(link, encode(News([], [])))
    writer = start_thread(_write, link, outbox, name="paragent-writer")
    start_thread(_read, link, hands, outbox, name="paragent-reader")
    try:
        hands.lane()
    except BaseException as error:  # noqa: BLE001 - written to where it can be seen, not to the streams of tasks
        fatal("MainThread", error)
    output.restore()
    outbox.put(_End())
    writer.join()


class _Outbox(SimpleQueue[Any]):
    """What waits to be sent. Printing blocks while much of it is text; outcomes never wait."""

    def __init__(self) -> None:
        self._printed = 0
        self._sent = 0
        self._lock = threading.Lock()
        """Protects `_printed`; `_sent` belongs to the writer's thread."""

    def put_line(self, line: Line) -> None:
        """Add a line when there is room for it."""
        while self.qsize() > _LINES_AHEAD or self._printed - self._sent > _TEXT_AHEAD:
            time.sleep(0.001)
        with self._lock:
            self._printed += len(line.text)
        self.put(line)

    def note_sent(self, lines: list[Line]) -> None:
        """Make room: these lines were sent."""
        self._sent += sum(len(line.text) for line in lines)


def _read(link: FileIO, hands: Hands, outbox: _Outbox) -> None:
    targets: dict[int, Parcel] = {}
    while True:
        try:
            message = read_frame(link)
        except (EOFError, OSError):
            end_own_group()
        if isinstance(message, Work):
            if message.forget_code:
                forget(message.forget_code)
                hands.forget_targets()
            learn(message.code)
            hands.take(message.unwrap(targets))
        elif message == RECALL:
            outbox.put(_Returned(hands.recall()))
        elif message == CANCEL:
            hands.cancel()
        elif message == STOP:
            hands.close()
            return


def _write(link: FileIO, outbox: _Outbox) -> None:
    """Send what there is, as soon as there is something; what comes up meanwhile goes with the next frame."""
    ended = False
    while not ended:
        news, size = News([], []), 0
        item = outbox.get()
        while item is not None:
            if isinstance(item, Outcome):
                size += size_of(item.value)
                news.outcomes.append(
                    (item.number, item.ending, item.value, item.error, item.seconds, item.usage, item.trajectory)
                )
            elif isinstance(item, Line):
                size += len(item.text)
                news.lines.append(item)
            elif isinstance(item, _Returned):
                news = news._replace(returned=[*(news.returned or ()), *item])
            else:
                ended = True
            try:
                item = outbox.get_nowait() if size < _FRAME else None
            except Empty:
                item = None
        frame = _encoded(news)
        try:
            write_bytes(link, frame)
        except OSError:
            end_own_group()
        outbox.note_sent(news.lines)


def _encoded(news: News) -> bytes:
    """Return the frame; an outcome that cannot be encoded is replaced by a failure of its task."""
    try:
        return encode(news)
    except Exception:  # noqa: BLE001 - then it is looked for; if there is none, encoding raises again
        return encode(news._replace(outcomes=[_encodable(outcome) for outcome in news.outcomes]))


def _encodable(outcome: WireOutcome) -> WireOutcome:
    try:
        encode(outcome)
    except Exception as problem:  # noqa: BLE001 - whatever it is, other outcomes must not be lost for it
        from paragent._internal.tracebacks import message_of, type_name  # not at the top: most workers never need it
        from paragent.tasks import ErrorInfo

        error = ErrorInfo(type_name(problem), f"the outcome cannot be sent to the driver: {message_of(problem)}")
        return outcome[0], Ending.RAISED, None, error, outcome[4], None, None
    return outcome
