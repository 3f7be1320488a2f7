"""An exception on the far side, as a record that can travel."""

from __future__ import annotations

from paragent._faults import message_of, traceback_of, type_name
from paragent.tasks import ErrorInfo

__all__ = ["fault"]


def fault(error: BaseException) -> ErrorInfo:
    """Return the record of an exception; frames of paragent above the user's code are left out of its traceback."""
    retryable = getattr(error, "retryable", True)
    return ErrorInfo(type_name(error), message_of(error), traceback_of(error, of_ours=True), bool(retryable))
