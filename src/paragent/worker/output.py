"""Prints and log records of tasks: captured in the worker line by line, written to the user's streams by the engine."""

from __future__ import annotations

import io
import sys
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent._internal.threads import write_traceback
from paragent.execution import current_task

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "MAX_LINE_LENGTH",
    "LabelledOutput",
    "LabelledStream",
    "Line",
    "OutputCapture",
    "as_str",
    "forward_logs",
    "log_levels",
    "show",
]


_WARNING = 30
"""`logging.WARNING`, the level of a root logger that is not configured."""
_forwarding = False
"""Whether the log records of this process are sent to another one, which labels them."""
MAX_LINE_LENGTH = 1 << 20
"""Characters of a line; a longer line is split. A task that prints without newlines buffers no more than this."""


def as_str(text: str) -> str:
    """Return `text` as exactly `str`: a subclass may not be importable in the process that reads it."""
    return text if type(text) is str else str.__str__(text)


class Line(NamedTuple):
    """One line that a task printed, or one record that it logged."""

    label: str | None
    """The task's id; None if the line was printed outside every task."""
    stream: str
    """`stdout`, `stderr`, or `log`."""
    text: str
    logger: str = ""
    level: int = 0
    """With `log`: the logger's name and the record's level."""


class _PartialLine:
    """The pieces of a line that has no newline yet."""

    __slots__ = ("_pieces", "size")

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self.size = 0

    def add(self, piece: str) -> None:
        self._pieces.append(piece)
        self.size += len(piece)

    def end(self, piece: str) -> str:
        """Return the whole line with `piece` as its end."""
        return "".join((*self._pieces, piece))

    def cut(self) -> list[str]:
        """Return all lines of the maximal length, and keep the rest."""
        whole = "".join(self._pieces)
        full = len(whole) - len(whole) % MAX_LINE_LENGTH
        self._pieces, self.size = [whole[full:]], len(whole) - full
        return [whole[start : start + MAX_LINE_LENGTH] for start in range(0, full, MAX_LINE_LENGTH)]


class LabelledStream(io.TextIOBase):
    """Replaces `sys.stdout` or `sys.stderr`: splits text into lines and labels each with the task that printed it.

    Args:
        name: `stdout` or `stderr`.
        emit: receives each complete line.
        original: the stream that this one replaces.
        keep_unlabelled: text that is printed outside every task goes to `original` instead of `emit`.
    """

    def __init__(
        self, name: str, emit: Callable[[Line], None], original: io.TextIOBase, *, keep_unlabelled: bool
    ) -> None:
        self._name = name
        self._emit = emit
        self.original = original
        self.users = 0
        """How many objects share this stream; protected by `_sharing`."""
        self._keep_unlabelled = keep_unlabelled
        self._partial_lines: dict[str | None, _PartialLine] = {}
        self._lock = threading.Lock()
        """Protects `_partial_lines`."""

    encoding = "utf-8"
    errors = "replace"

    def write(self, text: str) -> int:
        """Emit complete lines at once; buffer the rest until the next newline or the end of the task."""
        label = current_task()
        if label is None and self._keep_unlabelled:
            return self.original.write(text)
        *lines, rest = as_str(text).split("\n")
        with self._lock:
            partial = self._partial_lines.get(label)
            if partial is not None and lines:
                lines[0] = partial.end(lines[0])
                partial = None
                del self._partial_lines[label]
            if rest:
                partial = partial or self._partial_lines.setdefault(label, _PartialLine())
                partial.add(rest)
                if partial.size > MAX_LINE_LENGTH:
                    lines += partial.cut()
        for line in lines:
            for start in range(0, len(line) or 1, MAX_LINE_LENGTH):
                self._emit(Line(label, self._name, line[start : start + MAX_LINE_LENGTH]))
        return len(text)

    @property
    def holds_text(self) -> bool:
        """Whether a line without newline is buffered."""
        return bool(self._partial_lines)

    def finish(self, label: str) -> None:
        """Emit the buffered last line of a task, if there is one."""
        if label in self._partial_lines:
            with self._lock:
                partial = self._partial_lines.pop(label, None)
            if partial is not None:
                self._emit(Line(label, self._name, partial.end("")))

    def writable(self) -> bool:
        """Return True."""
        return True

    def fileno(self) -> int:
        """Return the file descriptor of the original stream, so that child processes can inherit it."""
        return self.original.fileno()

    def flush(self) -> None:
        """Do nothing: complete lines are emitted at once."""


class OutputCapture:
    """Replaces `sys.stdout` and `sys.stderr` of this process until `restore` is called."""

    def __init__(self, emit: Callable[[Line], None]) -> None:
        self._before = (sys.stdout, sys.stderr)
        self._streams = [
            LabelledStream(name, emit, stream, keep_unlabelled=False)  # type: ignore[arg-type]
            for name, stream in (("stdout", sys.stdout), ("stderr", sys.stderr))
        ]
        for stream in self._streams:
            stream.users = 1  # so that `LabelledOutput` objects in this process share them and never remove them
        sys.stdout, sys.stderr = self._streams

    def finish(self, label: str) -> None:
        """Emit what a finished task printed without a newline."""
        for stream in self._streams:
            if stream.holds_text:
                stream.finish(label)

    def restore(self) -> None:
        """Restore the original streams, unless other code has replaced them meanwhile."""
        if sys.stdout is self._streams[0]:
            sys.stdout = self._before[0]
        if sys.stderr is self._streams[1]:
            sys.stderr = self._before[1]


def show(lines: Iterable[Line], streams: tuple[Any, Any] | None = None) -> None:
    """Write captured lines to the user's streams, and log records to the user's loggers.

    It never raises: a log handler or a stream that fails must not end the engine's thread.

    Args:
        lines: lines and log records of tasks.
        streams: replacements for stdout and stderr; None: the current `sys.stdout` and `sys.stderr`.
    """
    for line in lines:
        try:
            _show(line, streams)
        except BaseException as error:  # noqa: BLE001 - see the docstring
            write_traceback("output of a task could not be shown", error)


def _show(line: Line, streams: tuple[Any, Any] | None) -> None:
    prefix = f"[{line.label}] " if line.label else ""
    if line.stream == "log":
        import logging

        logger = logging.getLogger(line.logger)
        if logger.isEnabledFor(line.level):
            logger.handle(logger.makeRecord(line.logger, line.level, "(worker)", 0, prefix + line.text, (), None))
        return
    out, err = streams or (sys.stdout, sys.stderr)
    stream = out if line.stream == "stdout" else err
    if stream is not None:
        stream.write(f"{prefix}{line.text}\n")
        stream.flush()


def forward_logs(emit: Callable[[Line], None], levels: Mapping[str, int]) -> None:
    """Emit every log record of this process as a `Line`, from the level of its logger on.

    Args:
        emit: receives each record.
        levels: the levels of loggers by name; the root logger has the empty name.
    """
    import logging  # not at the top: the engine imports this module, and loading `logging` delays its first worker

    class Forwarder(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            try:
                text = self.format(record)
            except Exception:  # noqa: BLE001 - a wrong format string must not stop the task
                self.handleError(record)
                return
            emit(Line(current_task(), "log", as_str(text), as_str(record.name), int(record.levelno)))

    global _forwarding
    _forwarding = True
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
    logging.getLogger().addHandler(Forwarder())


def log_levels() -> dict[str, int]:
    """Return the levels of this process's loggers for `forward_logs`, without importing `logging`.

    Another thread may be importing it: then the module is incomplete and may have no root logger yet.
    """
    root = getattr(sys.modules.get("logging"), "root", None)
    if root is None:
        return {"": _WARNING}
    loggers = list(getattr(getattr(root, "manager", None), "loggerDict", {}).items())
    # Plain numbers: the enum of a user's level would have to be imported in the worker.
    levels = {name: int(level) for name, logger in loggers if (level := getattr(logger, "level", 0))}
    return {**levels, "": int(root.getEffectiveLevel())}


_sharing = threading.Lock()
"""Protects what `LabelledOutput` objects share: the installed streams and record factory, and their `users`."""


class _LabellingFactory:
    """A log record factory that puts the id of the task in front of the message."""

    def __init__(self, original: Callable[..., logging.LogRecord]) -> None:
        self.original = original
        self.users = 0

    def __call__(self, *args: Any, **kwargs: Any) -> logging.LogRecord:
        record = self.original(*args, **kwargs)
        label = None if _forwarding else current_task()
        if label:
            prefix = f"[{label}] "
            record.msg = (prefix.replace("%", "%%") if record.args else prefix) + str(record.msg)
        return record


class LabelledOutput:
    """Puts the id of the task in front of each line and log record that tasks of this process write, until it is closed.

    Objects that are open at the same time share the streams and the record factory that they install: each line has one label,
    and the last object that closes restores the originals. What other code has replaced meanwhile is left as it is.
    """

    def __init__(self) -> None:
        import logging  # as in `forward_logs`

        with _sharing:
            self._streams = {name: _labelled_stream(name) for name in ("stdout", "stderr")}
            factory: Any = logging.getLogRecordFactory()
            self._factory = factory if isinstance(factory, _LabellingFactory) else _LabellingFactory(factory)
            logging.setLogRecordFactory(self._factory)
            self._count_users(1)

    def finish(self, label: str) -> None:
        """Emit what a finished task printed without a newline."""
        for stream in self._streams.values():
            stream.finish(label)

    def close(self) -> None:
        """Restore the originals if no other object shares them; to be called once."""
        import logging  # as in `forward_logs`

        with _sharing:
            self._count_users(-1)
            for name, stream in self._streams.items():
                if not stream.users and getattr(sys, name) is stream:
                    setattr(sys, name, stream.original)
            factory: Any = logging.getLogRecordFactory()
            if not self._factory.users and factory is self._factory:
                logging.setLogRecordFactory(self._factory.original)

    def _count_users(self, change: int) -> None:
        self._factory.users += change
        for stream in self._streams.values():
            stream.users += change


def _labelled_stream(name: str) -> LabelledStream:
    """Return the stream that labels prints to `sys.stdout` or `sys.stderr`; install one if there is none."""
    current = getattr(sys, name)
    if isinstance(current, LabelledStream):
        return current
    stream = LabelledStream(name, lambda line: show([line], (current, current)), current, keep_unlabelled=True)
    setattr(sys, name, stream)
    return stream
