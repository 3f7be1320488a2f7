"""Exceptions in frames: their own class where it can be imported, and always the traceback of the far side.

A packed error unpacks to `(type, message, traceback, pickle, code)`. The first three are texts, so that a receiver which cannot
load the pickle still knows what happened; the pickle is None if the error could not be packed.
"""

from __future__ import annotations

import pickle
from typing import Any

from paragent._faults import message_of, traceback_of, type_name
from paragent.errors import RemoteError
from paragent.parcels import learn, pack
from paragent.parcels.exceptions import dump_data
from paragent.remote.values import packing

__all__ = ["RemoteTraceback", "decode_error", "encode_error"]


class RemoteTraceback(Exception):
    """The cause of an error that came from an agent server: shows where it was raised there.

    Its own cause is what the error was raised from, if it was raised from another one.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def encode_error(error: BaseException, *, plain: bool = False) -> Any:
    """Return the value that stands for an error in a frame; whatever the error is, there is one.

    With `plain` its attributes are sent where they are builtin values, and other objects are not.
    """
    text = traceback_of(error, of_ours=False)  # frames of paragent alone say nothing to a user
    body: bytes | None = None
    code: dict[str, bytes] = {}
    try:
        if plain:
            body = dump_data(error)
        else:
            with packing:
                body, code = pack(error, "an error")
    except BaseException:  # noqa: BLE001 - a user's exception class may fail in any way; its texts are sent
        body = None
    return ("p", pickle.dumps((type_name(error), message_of(error), text, body, code), protocol=5))


def decode_error(value: Any) -> BaseException:
    """Return the error, its cause being the traceback of the far side.

    It is a `RemoteError` if its class cannot be imported here or the error cannot be rebuilt.
    """
    try:
        kind, message, text, body, code = pickle.loads(value[1])
    except Exception as trouble:  # noqa: BLE001 - another version may run there
        return RemoteError("ProtocolError", f"the server sent a malformed error ({type(trouble).__name__})")
    try:
        learn(code)
        error = pickle.loads(body) if body is not None else None
    except Exception:  # noqa: BLE001 - the class of the error may not exist here, or fail to load
        error = None
    if not isinstance(error, BaseException):
        error = RemoteError(kind, message, text)
    if text:
        traceback = RemoteTraceback(text)
        # Not by the error's own methods: a class may forbid setting attributes, as frozen dataclasses do.
        traceback.__cause__ = object.__getattribute__(error, "__cause__")
        object.__setattr__(error, "__cause__", traceback)
    return error
