"""An exception that travels: the original type where it can, and always with the traceback of the far side."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Any

from manyhands.errors import RemoteError
from manyhands.remote.values import decode, encode_result

__all__ = ["RemoteTraceback", "decode_error", "encode_error"]

_HOUSE = str(Path(__file__).parents[1])


class RemoteTraceback(Exception):
    """The cause of an error that came from an agent server: shows where it was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def encode_error(error: BaseException) -> Any:
    """Return the value that stands for an error in a frame; whatever the error is, there is one."""
    text = _traceback(error)
    try:
        packed = encode_result((error, text), "an error")
        decode(packed)  # an exception whose constructor takes other arguments than it stores fails only here
    except Exception:  # noqa: BLE001 - a user's exception class may fail in any way
        kind = type(error)
        name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return encode_result((RemoteError(name, _message(error), text), text), "an error")
    return packed


def decode_error(value: Any) -> BaseException:
    """Return the error, its cause being the traceback of the far side."""
    try:
        error, text = decode(value)
    except Exception as trouble:  # noqa: BLE001 - the class of the error may not exist here, or fail to load
        return RemoteError(type(trouble).__name__, f"an error came back that cannot be read here: {trouble}")
    if not isinstance(error, BaseException):
        return RemoteError("ProtocolError", "the server sent an error that is none")
    if text:
        error.__cause__ = RemoteTraceback(text)
    return error


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as second:  # noqa: BLE001 - a broken __str__ must not hide the error itself
        return f"(its message cannot be shown: {type(second).__name__})"


def _traceback(error: BaseException) -> str:
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename.startswith(_HOUSE) and trace.tb_next:
        trace = trace.tb_next
    if trace is None or trace.tb_frame.f_code.co_filename.startswith(_HOUSE):
        return ""  # raised by manyhands itself: its frames say nothing to a user
    try:
        return "".join(traceback.format_exception(type(error), error, trace))
    except Exception as second:  # noqa: BLE001 - as above
        return f"(its traceback cannot be shown: {type(second).__name__})"
