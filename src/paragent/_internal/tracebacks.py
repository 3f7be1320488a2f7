"""What an exception has to say to those who are far from where it was raised; whatever it is, it says something."""

from __future__ import annotations

import os
import traceback

__all__ = ["described", "message_of", "root_cause", "traceback_of", "type_name"]

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - pathlib takes long to import
"""The folder of paragent, as the file names of its frames begin."""


def type_name(error: BaseException) -> str:
    """Return the name of its class, with the module where that is neither Python's nor `paragent.errors`."""
    kind = type(error)
    known = kind.__module__ in ("builtins", "paragent.errors")
    return kind.__qualname__ if known else f"{kind.__module__}.{kind.__qualname__}"


def message_of(error: BaseException) -> str:
    """Return its message."""
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - a broken __str__ must not hide the error itself
        return f"(its message cannot be shown: {type(second).__name__})"


def described(error: BaseException) -> str:
    """Return its class and message, and those of its root cause; errors of paragent have the cause in their message."""
    text, root = f"{type(error).__name__}: {message_of(error)}", root_cause(error)
    if root is error or type(error).__module__ == "paragent.errors":
        return text
    return f"{text} (caused by {type(root).__name__}: {message_of(root)})"


def root_cause(error: BaseException) -> BaseException:
    """Return the first error of the chain of causes, which says more than those that were raised from it.

    Errors without a message are passed over, for they say nothing.
    """
    root, seen = error, {id(error)}
    earlier = error.__cause__
    while earlier is not None and id(earlier) not in seen:
        seen.add(id(earlier))
        root = earlier if message_of(earlier) else root
        earlier = earlier.__cause__
    return root


def traceback_of(error: BaseException, *, of_ours: bool) -> str:
    """Return its traceback, without the frames of paragent above the user's code.

    Args:
        error: what was raised.
        of_ours: whether there is one, its last frame, where no frame is the user's; else it is empty then.
    """
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE) and trace.tb_next:
        trace = trace.tb_next
    if not of_ours and (trace is None or trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)):
        return ""
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except BaseException as second:  # noqa: BLE001 - as above
        return f"(its traceback cannot be shown: {type(second).__name__})"
