"""Messages, values and errors for a peer that accepts data only: in forms that need no unpickling."""

from __future__ import annotations

import builtins
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent import errors
from paragent._internal.tracebacks import message_of, traceback_of, type_name
from paragent.errors import ParagentError, ProtocolError, RemoteError
from paragent.remote.data import dump
from paragent.remote.protocol import (
    AddCode,
    CallError,
    CallMethod,
    CallResult,
    CreateAgent,
    DefineClass,
    PushValue,
)
from paragent.remote.values import PLAIN, RemoteTraceback, decode, decode_error, is_short

if TYPE_CHECKING:
    from paragent.remote.protocol import OutcomeKind

__all__ = ["as_data", "described", "dump_argument", "error_from", "error_of", "outcome_as_data", "translated"]

_NO_PICKLES = ("m", "r", "v", "d")
"""Tags of values that contain no pickle."""
_LONGEST_INT = 1 << 16
"""Longest integer that is part of a frame, in bits. A longer one is packed, so that exceeding the limit of integers fails only
its call."""


def dump_argument(thing: Any, expand: Any = None) -> Any:
    """Return an argument encoded as data.

    Args:
        thing: the argument.
        expand: as in `data.dump`.

    Raises:
        AccessDenied: it is not data.
        LimitExceeded: it is nested too deeply, or contains itself.
        Exception: the error of a lazy result inside it.
    """
    if type(thing) in PLAIN and is_short(thing) and not _is_long(thing):
        return thing
    return ("d", dump(thing, expand))


def _encode_data(thing: Any) -> Any:
    """Return a value encoded as data; if it is not data, return an encoded error."""
    try:
        return dump_argument(thing)
    except Exception as error:  # noqa: BLE001 - code of a user's class may raise anything
        return ("f", described(error))


def as_data(value: Any) -> Any:
    """Return an encoded value without pickles. The value must come from this process or a trusted server: it is unpickled."""
    if type(value) is not tuple:
        return _encode_data(value) if _is_long(value) else value
    if value[0] in _NO_PICKLES:
        return value
    if value[0] == "f":
        return ("f", error_of(value[1]))
    try:
        thing = decode(value)
    except Exception as error:  # noqa: BLE001 - unpickling an object of a user's class may raise anything
        return ("f", described(error))
    return _encode_data(thing)


def outcome_as_data(kind: OutcomeKind, value: Any) -> tuple[OutcomeKind, Any]:
    """Return the kind and the value or error of a call, encoded without pickles."""
    if kind is not CallResult:
        return CallError, error_of(value)
    value = as_data(value)
    if type(value) is tuple and value[0] == "f":
        return CallError, value[1]
    return CallResult, value


def translated(message: Any) -> Any | None:
    """Return a message for a server that accepts no code; None if there is nothing to send."""
    if isinstance(message, CallMethod | CreateAgent):
        if message.kwargs is None and not any(type(value) is tuple or type(value) is int for value in message.args):
            return message  # the most frequent case
        kwargs = message.kwargs and {key: as_data(value) for key, value in message.kwargs.items()}
        return replace(message, args=_values(message.args), kwargs=kwargs)
    if isinstance(message, DefineClass):
        return replace(message, value=None)
    if isinstance(message, PushValue):
        kind, value = outcome_as_data(CallError if message.failed else CallResult, message.value)
        return PushValue(message.key, kind is CallError, value)
    return None if isinstance(message, AddCode) else message


def _is_long(thing: Any) -> bool:
    return type(thing) is int and thing.bit_length() > _LONGEST_INT


def _values(args: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple([as_data(value) for value in args])


# --- errors -------------------------------------------------------------------------------------------------------------


def error_of(value: Any) -> Any:
    """Return an encoded error without pickles."""
    if type(value) is tuple and value[0] == "x":
        return value
    error = decode_error(value)
    text = error.__cause__.text if isinstance(error.__cause__, RemoteTraceback) else ""
    return described(error, text)


def described(error: BaseException, text: str | None = None) -> tuple[str, str, str, str]:
    """Return an error as strings: its type name, its message, its traceback (`text` if it is already known)."""
    traceback = traceback_of(error, of_ours=False) if text is None else text
    if isinstance(error, RemoteError):
        return "x", error.error_type, error.message, error.traceback or traceback
    return "x", type_name(error), message_of(error), traceback


def error_from(value: Any) -> BaseException:
    """Return the error for strings of `described`, which may come from an untrusted sender.

    An error of a builtin type or of this package has that type again; any other is a `RemoteError`.
    """
    if type(value) is not tuple or len(value) != 4 or value[0] != "x" or not all(type(part) is str for part in value):
        return ProtocolError("a malformed error: a server that accepts no code reads errors as strings only")
    _, name, message, text = value
    kind = getattr(builtins, name, None) or getattr(errors, name, None)
    if isinstance(kind, type) and (issubclass(kind, ParagentError) or _is_simple(kind)):
        try:
            error: BaseException = kind(message)
        except TypeError:  # its constructor needs more than a message
            return RemoteError(name, message, text)
        if text:
            error.__cause__ = RemoteTraceback(text)
        return error
    return RemoteError(name, message, text)


def _is_simple(kind: type) -> bool:
    """Return whether a remote error may be raised as this type: it must not end a thread, a loop or a program."""
    return issubclass(kind, Exception) and not issubclass(kind, StopIteration | StopAsyncIteration)
