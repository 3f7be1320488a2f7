"""An exception on the far side, as a record that can travel."""

from __future__ import annotations

from manyhands._faults import message_of, traceback_of, type_name
from manyhands.tasks import ErrorInfo

__all__ = ["fault"]


def fault(error: BaseException) -> ErrorInfo:
    """Return the record of an exception; frames of manyhands above the user's code are left out of its traceback."""
    retryable = getattr(error, "retryable", True)
    return ErrorInfo(type_name(error), message_of(error), traceback_of(error, of_ours=True), bool(retryable))
