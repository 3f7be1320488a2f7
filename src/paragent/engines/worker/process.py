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

from paragent._processes import die_with_parent, end_own_group
from paragent.engines.wire import CANCEL, RECALL, STOP, Hello, News, Work, read_frame, write_frame
from paragent.engines.worker.hands import Hands
from paragent.engines.worker.logs import forward_logs
from paragent.engines.worker.output import Line, Output
from paragent.parcels import Parcel, forget, learn, size_of
from paragent.tasks.outcome import Outcome

__all__ = ["work"]

_FRAME = 1 << 20
"""Bytes of answers after which a frame is sent and another begun: whoever reads it holds it twice for a moment."""
_LINES_AHEAD = 20_000
"""How many lines may wait to be sent before printing blocks."""


class _Returned(list[int]):
    """Slots that were recalled, on their way out."""


class _End:
    """The last thing in the outbox."""


def work(socket_fd: int, starts_fd: int) -> None:
    """Serve the supervisor at the other end of `socket_fd` until it says stop or goes away."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    link = FileIO(socket_fd, "r+")  # a socket by another name: the module of sockets takes long to load
    hello: Hello = read_frame(link)
    sys.path[:] = hello.sys_path
    starts = memoryview(mmap.mmap(starts_fd, 0)).cast("d")
    outbox: SimpleQueue[Any] = SimpleQueue()

    def emit_line(line: Line) -> None:
        while outbox.qsize() > _LINES_AHEAD:
            time.sleep(0.001)
        outbox.put(line)

    output = Output(emit_line, keep_unmarked=False)
    forward_logs(emit_line, hello.log_level)
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
    write_frame(link, News([], []))
    writer = threading.Thread(target=_write, args=(link, outbox), name="paragent-writer", daemon=True)
    writer.start()
    threading.Thread(target=_read, args=(link, hands, outbox), name="paragent-reader", daemon=True).start()
    hands.lane()
    output.restore()
    outbox.put(_End())
    writer.join()


def _read(link: FileIO, hands: Hands, outbox: SimpleQueue[Any]) -> None:
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


def _write(link: FileIO, outbox: SimpleQueue[Any]) -> None:
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
                news.lines.append(item)
            elif isinstance(item, _Returned):
                news = news._replace(returned=[*(news.returned or ()), *item])
            else:
                ended = True
            try:
                item = outbox.get_nowait() if size < _FRAME else None
            except Empty:
                item = None
        try:
            write_frame(link, news)
        except OSError:
            end_own_group()
