"""Prints and logs of the far side, line by line, marked with the task they belong to."""

from __future__ import annotations

import io
import logging
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent._internal.threads import write_traceback
from paragent.tasks import current_task

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["LONGEST_LINE", "Line", "LogForwarder", "MarkedStream", "Output", "forward_logs", "plain_text", "show"]


LONGEST_LINE = 1 << 20
"""Characters of a line; a longer one is shown as several. A task that prints without newlines holds no more than this."""


def plain_text(text: str) -> str:
    """Return `text` as a `str` proper: a subclass of it may not exist where the text is read."""
    return text if type(text) is str else str.__str__(text)


class Line(NamedTuple):
    """One line that a task printed, or one record that it logged."""

    label: str | None
    """The task, or None where the line came from no task's context."""
    stream: str
    """`stdout`, `stderr`, or `log`."""
    text: str
    logger: str = ""
    level: int = 0
    """With `log`: the logger's name and the record's level."""


class _Begun:
    """A line that was begun and not ended, in the pieces in which it was written."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.size += len(piece)

    def end(self, piece: str) -> str:
        """Return the whole line, which ends with `piece`."""
        return "".join((*self._pieces, piece))

    def cut(self) -> list[str]:
        """Return what there is in lines of the full length, and keep the rest."""
        whole = "".join(self._pieces)
        full = len(whole) - len(whole) % LONGEST_LINE
        self._pieces, self.size = [whole[full:]], len(whole) - full
        return [whole[start : start + LONGEST_LINE] for start in range(0, full, LONGEST_LINE)]


class MarkedStream(io.TextIOBase):
    """Stands in for `sys.stdout` or `sys.stderr`: cuts what is written into lines and says whose they are.

    Lines of no task go through to the stream that was there before, where there is one to keep.
    """

    def __init__(self, name: str, emit: Callable[[Line], None], behind: io.TextIOBase, *, keep_unmarked: bool) -> None:
        self._name = name
        self._emit = emit
        self._behind = behind
        self._keep_unmarked = keep_unmarked
        self._partial: dict[str | None, _Begun] = {}
        self._lock = threading.Lock()
        """Protects `_partial`."""

    encoding = "utf-8"
    errors = "replace"

    def write(self, text: str) -> int:
        """Take text in; complete lines go out at once, the rest with the next newline or the end of the task."""
        label = current_task()
        if label is None and self._keep_unmarked:
            return self._behind.write(text)
        *lines, rest = plain_text(text).split("\n")
        with self._lock:
            begun = self._partial.get(label)
            if begun is not None and lines:
                lines[0] = begun.end(lines[0])
                begun = None
                del self._partial[label]
            if rest:
                begun = begun or self._partial.setdefault(label, _Begun())
                begun.add(rest)
                if begun.size > LONGEST_LINE:
                    lines += begun.cut()
        for line in lines:
            for start in range(0, len(line) or 1, LONGEST_LINE):
                self._emit(Line(label, self._name, line[start : start + LONGEST_LINE]))
        return len(text)

    @property
    def holds_text(self) -> bool:
        """Whether some task has begun a line and not ended it."""
        return bool(self._partial)

    def finish(self, label: str) -> None:
        """Send out the last line of a task if it has no newline."""
        if label in self._partial:
            with self._lock:
                begun = self._partial.pop(label, None)
            if begun is not None:
                self._emit(Line(label, self._name, begun.end("")))

    def writable(self) -> bool:
        """As every output stream."""
        return True

    def fileno(self) -> int:
        """The file descriptor behind, so that a child process can be given this stream."""
        return self._behind.fileno()

    def flush(self) -> None:
        """Lines go out by themselves; a partial one waits for its end."""


class Output:
    """Takes over this process's prints and, in a worker of its own, its logs; `restore` gives them back."""

    def __init__(self, emit: Callable[[Line], None], *, keep_unmarked: bool) -> None:
        self._before = (sys.stdout, sys.stderr)
        self._streams = [
            MarkedStream(name, emit, stream, keep_unmarked=keep_unmarked)  # type: ignore[arg-type]
            for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))
        ]
        sys.stdout, sys.stderr = self._streams

    def finish(self, label: str) -> None:
        """Send out what a task that ended had printed without a newline."""
        for stream in self._streams:
            if stream.holds_text:
                stream.finish(label)

    def restore(self) -> None:
        """Give the streams back, unless somebody else took them over meanwhile."""
        if sys.stdout is self._streams[0]:
            sys.stdout = self._before[0]
        if sys.stderr is self._streams[1]:
            sys.stderr = self._before[1]


def show(lines: Iterable[Line], streams: tuple[Any, Any] | None = None) -> None:
    """On the driver: write lines where the user sees them, logs through the user's own logging.

    It never raises: a log handler or a stream of the user that fails must not end the thread on which all results wait.

    Args:
        lines: what tasks said.
        streams: where prints to stdout and stderr go; None: to what these are now.
    """
    for line in lines:
        try:
            _show(line, streams)
        except BaseException as error:  # noqa: BLE001 - as above
            write_traceback("output of a task could not be shown", error)


def _show(line: Line, streams: tuple[Any, Any] | None) -> None:
    mark = f"[{line.label}] " if line.label else ""
    if line.stream == "log":
        import logging

        logger = logging.getLogger(line.logger)
        if logger.isEnabledFor(line.level):
            logger.handle(logger.makeRecord(line.logger, line.level, "(worker)", 0, mark + line.text, (), None))
        return
    out, err = streams or (sys.stdout, sys.stderr)
    stream = out if line.stream == "stdout" else err
    if stream is not None:
        stream.write(f"{mark}{line.text}\n")
        stream.flush()


class LogForwarder(logging.Handler):
    """Sends log records of tasks to the driver, where the user's own handlers are."""

    def __init__(self, emit: Callable[[Line], None]) -> None:
        super().__init__()
        self._emit_line = emit

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            text = self.format(record)
        except Exception:  # noqa: BLE001 - a wrong format string must not stop the task
            self.handleError(record)
            return
        self._emit_line(Line(current_task(), "log", plain_text(text), plain_text(record.name), int(record.levelno)))


def forward_logs(emit: Callable[[Line], None], level: int) -> None:
    """Send every log record of this process to the driver, from the level that the driver's root logger has."""
    root = logging.getLogger()
    root.setLevel(level)
    root.addHandler(LogForwarder(emit))
