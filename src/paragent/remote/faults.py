"""An exception that travels: the original type where it can, and always with the traceback of the far side."""

from __future__ import annotations

from typing import Any

from paragent._faults import message_of, traceback_of, type_name
from paragent.errors import RemoteError
from paragent.remote.values import decode, encode_result

__all__ = ["RemoteTraceback", "decode_error", "encode_error"]


class RemoteTraceback(Exception):
    """The cause of an error that came from an agent server: shows where it was raised there."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def encode_error(error: BaseException) -> Any:
    """Return the value that stands for an error in a frame; whatever the error is, there is one."""
    text = traceback_of(error, of_ours=False)  # frames of paragent alone say nothing to a user
    try:
        packed = encode_result((error, text), "an error")
        decode(packed)  # an exception whose constructor takes other arguments than it stores fails only here
    except Exception:  # noqa: BLE001 - a user's exception class may fail in any way
        return encode_result((RemoteError(type_name(error), message_of(error), text), text), "an error")
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
