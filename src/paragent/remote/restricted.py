"""What is said to a peer that accepts data and no code: items, values and errors in forms that need no unpickling."""

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

__all__ = ["as_data", "described", "encode_data", "error_from", "error_of", "outcome_as_data", "translated"]

_NO_PICKLES = ("m", "r", "v", "d")
"""Tags of values that hold none."""
_LONGEST_INT = 1 << 16
"""Bits of an integer that is part of a frame; a longer one is packed, so that its own limit is met by it alone."""


def encode_data(thing: Any, expand: Any = None) -> Any:
    """Return an argument as it goes into a frame; one that cannot travel as data goes as the error of that.

    Args:
        thing: the argument.
        expand: as that of `data.dump`.
    """
    if type(thing) in PLAIN and is_short(thing) and not _is_long(thing):
        return thing
    try:
        return ("d", dump(thing, expand))
    except Exception as error:  # noqa: BLE001 - a lazy result inside may raise what its agent raised
        return ("f", described(error))


def as_data(value: Any) -> Any:
    """Return an encoded value in a form without pickles. The value is this process's own, or of a server that it trusts."""
    if type(value) is not tuple:
        return encode_data(value) if _is_long(value) else value
    if value[0] in _NO_PICKLES:
        return value
    if value[0] == "f":
        return ("f", error_of(value[1]))
    try:
        thing = decode(value)
    except Exception as error:  # noqa: BLE001 - loading an object of a user's class may fail in any way
        return ("f", described(error))
    return encode_data(thing)


def outcome_as_data(kind: OutcomeKind, value: Any) -> tuple[OutcomeKind, Any]:
    """Return the outcome of a call in a form without pickles: its kind and its value or error."""
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
            return message  # the common one, short
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
    """Return an encoded error in a form without pickles."""
    if type(value) is tuple and value[0] == "x":
        return value
    error = decode_error(value)
    text = error.__cause__.text if isinstance(error.__cause__, RemoteTraceback) else ""
    return described(error, text)


def described(error: BaseException, text: str | None = None) -> tuple[str, str, str, str]:
    """Return an error as texts: the name of its type, its message, its traceback (`text`, where it is known already)."""
    told = traceback_of(error, of_ours=False) if text is None else text
    if isinstance(error, RemoteError):
        return "x", error.error_type, error.message, error.traceback or told
    return "x", type_name(error), message_of(error), told


def error_from(value: Any) -> BaseException:
    """Return the error that texts of `described`, from anybody, stand for.

    One of Python's own types, or of this package's, is of that type again; any other is a `RemoteError`.
    """
    if type(value) is not tuple or len(value) != 4 or value[0] != "x" or not all(type(part) is str for part in value):
        return ProtocolError("an error that is not described as a server without code reads it")
    _, name, message, text = value
    kind = getattr(builtins, name, None) or getattr(errors, name, None)
    if isinstance(kind, type) and (issubclass(kind, ParagentError) or _is_simple(kind)):
        try:
            error: BaseException = kind(message)
        except TypeError:  # its constructor wants more than a message
            return RemoteError(name, message, text)
        if text:
            error.__cause__ = RemoteTraceback(text)
        return error
    return RemoteError(name, message, text)


def _is_simple(kind: type) -> bool:
    """Return whether an error of this type may stand for one of somebody else: it ends no thread and no program."""
    return issubclass(kind, Exception) and not issubclass(kind, StopIteration | StopAsyncIteration)
