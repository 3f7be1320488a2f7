"""Encoding of one argument or result in a message.

======================  ================================================================================
a builtin value         itself: str, int, float, bool, bytes, None
`("m", ...)`            the fields of a `Msg` without metadata whose content is a builtin value
`("M", bytes)`          any other `Msg`: its fields, pickled
`("p", bytes[, code])`  any other object, pickled; `code` is the code that the receiver cannot import
`("d", bytes)`          any value, as `data` writes it, for a receiver that accepts no code
`("b"/"B"/"D", index)`  as "p", "M" and "d", but the bytes are an attachment of the frame
`("r", ...)`            reference to the result of another call: address, session, number, TLS settings or None, and the
                        key under which the caller pushes the value if the server requests it
`("v", key)`            reference to a value that the caller will push
`("f", value)`          the error of the call that should have made the value
`("x", ...)`            (only as an error) for a receiver that accepts no code: type name, message, traceback
======================  ================================================================================

A builtin tuple is always pickled, so that it cannot be confused with a tagged one.
"""

from __future__ import annotations

import pickle
import threading
from typing import TYPE_CHECKING, Any

from paragent._internal.tracebacks import message_of, traceback_of, type_name
from paragent.errors import ProtocolError, RemoteError, Unserialisable
from paragent.messages import Msg
from paragent.remote.protocol import ATTACH_BYTES
from paragent.serialization import add_code, pack
from paragent.serialization.exceptions import dump_data
from paragent.serialization.packing import Packer, unserialisable
from paragent.serialization.payload import PLAIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.result import Result
    from paragent.serialization.payload import Payload

__all__ = [
    "ATTACHED",
    "PLAIN",
    "RemoteTraceback",
    "ResultsMissing",
    "attach",
    "decode",
    "decode_error",
    "describe_error",
    "encode_argument",
    "encode_error",
    "encode_result",
    "is_reference",
    "is_short",
    "note_missing",
    "restore",
    "size_of",
    "weight_of",
]


ATTACHED = {"p": "b", "M": "B", "d": "D"}
"""Tags of values that are bytes, and their tags when the bytes are an attachment."""
_RESTORED = {attached: tag for tag, attached in ATTACHED.items()}

_packers = (Packer(forwards_code=True), Packer(sends_modules=True, forwards_code=True))
"""For servers on this host, which can import its modules, and for servers on other hosts, which are sent their code."""
_packing = threading.RLock()
"""Protects `_packers`, and the cache of `serialization.pack`. Reentrant: an object's own code may pack others meanwhile."""


class _Found(threading.local):
    results: list[Result[Any]] | None = None
    """The lazy results without a value in the object that this thread packs; None while it packs none."""


_found = _Found()


class ResultsMissing(Exception):
    """An object contains lazy results without a value, `results`; it can be encoded when they have one."""

    def __init__(self, results: list[Result[Any]]) -> None:
        super().__init__(results)
        self.results = results


def note_missing(result: Result[Any]) -> bool:
    """Note a lazy result without a value in the object that this thread packs; return False if it packs none.

    The object is packed again when the result has a value. Waiting at once would hold `_packing`, which the result's own call
    needs if its server runs in this process.
    """
    if _found.results is None:
        return False
    _found.results.append(result)
    return True


def _pack_with_lock(pack_one: Callable[..., Payload], *args: Any, waits: bool = True) -> Payload:
    """Return what `pack_one(*args)` returns, called with `_packing`, when all lazy results in the object have a value.

    Raises:
        Unserialisable: a part of it cannot be pickled; the error names the part.
        ResultsMissing: a lazy result has no value, and `waits` is False.
        Exception: the error of a lazy result.
    """
    while True:
        outer, _found.results = _found.results, []
        try:
            with _packing:
                payload = pack_one(*args)
            missing = _found.results
        finally:
            _found.results = outer
        if not missing:
            return payload
        if not waits:
            raise ResultsMissing(missing)
        for result in missing:
            result.result()


def encode_argument(
    thing: Any, what: str, root: str = "it", *, other_host: bool = False
) -> tuple[Any, int, dict[str, bytes]]:
    """Return an encoded argument, its size, and the code that the server may lack.

    Args:
        thing: the argument.
        what: what to call it in an error.
        root: what to call it in the path to an unserialisable part.
        other_host: the server may be on another host, so the code of the program's own modules is sent too.

    Raises:
        Unserialisable: a part of it cannot be pickled; the error names the part.
    """
    kind = type(thing)
    if kind in PLAIN:
        if is_short(thing):
            return thing, len(thing) if kind is str or kind is bytes else 8, {}
        return ("p", pickle.dumps(thing, protocol=5)), len(thing), {}
    message = thing if kind is Msg else None
    if message is not None:
        content = thing.content
        if type(content) in PLAIN and not thing.metadata and is_short(content):
            size = len(content) if type(content) is str or type(content) is bytes else 8
            return ("m", thing.name, content, thing.role, thing.id, thing.timestamp), size + 64, {}
        thing, tag = (thing.name, content, thing.role, thing.metadata, thing.id, thing.timestamp), "M"
    else:
        tag = "p"
    try:
        payload = _pack_with_lock(_packers[other_host].pack, thing, what, root)
    except Unserialisable as error:
        if message is None:
            raise
        raise unserialisable(message, what, root, error.__cause__ or error) from error.__cause__
    return (tag, payload.body), len(payload.body), payload.code


def encode_result(thing: Any, *what: str, waits: bool = True) -> Any:
    """Return an encoded result: as an argument, but with the code inside.

    Args:
        thing: the result.
        what: words that describe it in errors; they are joined only when needed.
        waits: whether to wait for lazy results inside it.

    Raises:
        Unserialisable: a part of it cannot be pickled; the error names the part.
        ResultsMissing: a lazy result inside it has no value, and `waits` is False.
        Exception: the error of a lazy result inside it.
    """
    kind = type(thing)
    if kind in PLAIN:
        if (kind is str or kind is bytes) and len(thing) >= ATTACH_BYTES:
            return ("p", pickle.dumps(thing, protocol=5))
        return thing
    if kind is Msg:
        content = thing.content
        if type(content) in PLAIN and not thing.metadata and is_short(content):
            return ("m", thing.name, content, thing.role, thing.id, thing.timestamp)
        thing, tag = (thing.name, content, thing.role, thing.metadata, thing.id, thing.timestamp), "M"
    else:
        tag = "p"
    payload = _pack_with_lock(lambda: pack(thing, " ".join(what)), waits=waits)
    return (tag, payload.body, payload.code) if payload.code else (tag, payload.body)


def is_short(thing: Any) -> bool:
    """Return whether a builtin value is short enough to be part of its frame."""
    return type(thing) not in (str, bytes) or len(thing) < ATTACH_BYTES


def size_of(value: Any) -> int:
    """Return the number of bytes of a packed value; 0 for a value that is not packed."""
    return len(value[1]) if type(value) is tuple and value[0] in ATTACHED else 0


def weight_of(value: Any) -> int:
    """Return the bytes of an encoded value that count towards the size of its frame: of strings, bytes and packed objects."""
    if type(value) is tuple:
        value = value[1] if value[0] in ATTACHED else value[2] if value[0] == "m" else None
    return len(value) if type(value) is str or type(value) is bytes else 0


def attach(value: Any, attachments: list[Any]) -> Any:
    """Return the value; its bytes are moved to `attachments` if they are large."""
    if type(value) is tuple and value[0] in ATTACHED and len(value[1]) >= ATTACH_BYTES:
        attachments.append(value[1])
        return (ATTACHED[value[0]], len(attachments) - 1, *value[2:])
    return value


def restore(value: Any, attachments: list[bytes]) -> Any:
    """Undo `attach`.

    Raises:
        ProtocolError: the frame does not have that attachment.
    """
    if type(value) is tuple and value and value[0] in _RESTORED:
        index = value[1]
        if type(index) is not int or not 0 <= index < len(attachments):
            raise ProtocolError("a frame lacks an attachment")
        return (_RESTORED[value[0]], attachments[index], *value[2:])
    return value


def is_reference(value: Any) -> bool:
    """Return whether an encoded value is a reference, or the error of the call that should have made the value."""
    return type(value) is tuple and value[0] in ("r", "v", "f")


def decode(value: Any) -> Any:
    """Return a new copy of an encoded value of a trusted sender.

    Raises:
        ProtocolError: the tag is unknown.
        Exception: an error of unpickling an object of a user's class.
    """
    if type(value) is not tuple:
        return value
    tag = value[0]
    if tag == "m":
        _, name, content, role, identifier, timestamp = value
        return Msg(name, content, role, {}, identifier, timestamp)
    if tag not in ("p", "M"):
        raise ProtocolError(f"a value with the tag {tag!r}")
    if len(value) == 3:
        add_code(value[2])
    thing = pickle.loads(value[1])
    return Msg(*thing) if tag == "M" else thing


class RemoteTraceback(Exception):
    """Cause of an error that came from an agent server: shows the traceback on the server.

    Its own cause is the error from which the remote error was raised, if any.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f'\n"""\n{self.text}"""'


def encode_error(error: BaseException, *, plain: bool = False) -> Any:
    """Return an encoded error. This works for every error: what cannot be pickled is left out.

    With `plain` only those attributes of the error are sent that are builtin values.
    """
    text = traceback_of(error, of_ours=False)  # a traceback of paragent's frames only does not help a user
    body: bytes | None = None
    code: dict[str, bytes] = {}
    try:
        if plain:
            body = dump_data(error)
        else:
            body, code = _pack_with_lock(pack, error, "an error")
    except BaseException:  # noqa: BLE001 - a user's exception class may raise anything; its texts are sent
        body = None
    return ("p", pickle.dumps((type_name(error), message_of(error), text, body, code), protocol=5))


def describe_error(value: Any) -> str:
    """Return the type and the message of an encoded error of a trusted sender, without loading the error."""
    try:
        kind, message, *_ = value[1:3] if value[0] == "x" else pickle.loads(value[1])
    except Exception:  # noqa: BLE001 - the error of an argument may come from another version
        return "an error that cannot be read"
    return f"{kind}: {message}"


def decode_error(value: Any) -> BaseException:
    """Return a decoded error; its cause shows the remote traceback.

    It is a `RemoteError` if its class cannot be imported here or the error cannot be unpickled.
    """
    try:
        kind, message, text, body, code = pickle.loads(value[1])
    except Exception as trouble:  # noqa: BLE001 - the server may run another version
        return RemoteError("ProtocolError", f"the server sent a malformed error ({type(trouble).__name__})")
    try:
        add_code(code)
        error = pickle.loads(body) if body is not None else None
    except Exception:  # noqa: BLE001 - the class of the error may not exist here, or fail to load
        error = None
    if not isinstance(error, BaseException):
        error = RemoteError(kind, message, text)
    if text:
        traceback = RemoteTraceback(text)
        # Not through the error's own methods: a class may forbid setting attributes, as frozen dataclasses do.
        traceback.__cause__ = object.__getattribute__(error, "__cause__")
        object.__setattr__(error, "__cause__", traceback)
    return error
