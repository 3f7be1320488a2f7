"""Log records of the far side, sent to where the user's own handlers are."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from paragent.engines.worker.output import Line, plain_text
from paragent.tasks.recording import current_task

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LogForwarder", "forward_logs"]


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
