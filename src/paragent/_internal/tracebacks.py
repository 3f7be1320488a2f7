"""Text of exceptions: type, message, cause and traceback. It works for every exception, even if its methods raise."""

from __future__ import annotations

import os
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["described", "message_of", "root_cause", "stack_of", "traceback_of", "type_name"]

_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - pathlib takes long to import
"""The folder of paragent, as the file names of its frames begin."""


def type_name(error: BaseException) -> str:
    """Return the name of its class, with the module unless that is `builtins` or `paragent.errors`."""
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
    """Return its class and message, and those of its root cause unless it is an error of paragent, whose message has it."""
    text, root = f"{type(error).__name__}: {message_of(error)}", root_cause(error)
    if root is error or type(error).__module__ == "paragent.errors":
        return text
    return f"{text} (caused by {type(root).__name__}: {message_of(root)})"


def root_cause(error: BaseException) -> BaseException:
    """Return the first error of the chain of causes that has a message."""
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
        error: the exception.
        of_ours: return the last frame of paragent if no frame is the user's; otherwise the result is empty in that case.
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


_STACK_FRAMES = 6


def stack_of(frame: FrameType | None) -> str:
    """Return where the code of a thread is: its innermost frames as in a traceback, from the first one that is the user's."""
    stack = traceback.extract_stack(frame) if frame is not None else []
    own = next((at for at in range(len(stack) - 1, -1, -1) if stack[at].filename.startswith(_PACKAGE)), -1)
    return "".join(traceback.format_list(stack[own + 1 :][-_STACK_FRAMES:] or stack[-1:]))
