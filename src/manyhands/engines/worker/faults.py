"""An exception on the far side, as a record that can travel."""

from __future__ import annotations

import traceback

import manyhands
from manyhands.tasks import ErrorInfo

__all__ = ["fault"]

_HOUSE = manyhands.__path__[0]


def fault(error: BaseException) -> ErrorInfo:
    """Return the record of an exception; frames of manyhands above the user's code are left out of its traceback."""
    kind = type(error)
    own = kind.__module__ in {"builtins", "manyhands.errors"}
    name = kind.__qualname__ if own else f"{kind.__module__}.{kind.__qualname__}"
    retryable = getattr(error, "retryable", True)
    return ErrorInfo(name, _message(error), _traceback(error), bool(retryable))


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - a broken __str__ must not hide the error itself
        return f"(its message cannot be shown: {type(second).__name__})"


def _traceback(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_HOUSE) and trace.tb_next:
        trace = trace.tb_next
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception as second:  # noqa: BLE001 - as above
        return f"(its traceback cannot be shown: {type(second).__name__})"
