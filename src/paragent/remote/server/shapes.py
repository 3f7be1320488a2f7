"""The shapes of items that a restricted server takes from its clients: checked before anything is done with an item."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError
from paragent.remote import wire

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["check_shape"]

_MOST_NUMBER = 1 << 60
"""Below the modulus of Python's hashes of integers: no two numbers have the same hash."""
_MOST_ARGUMENTS = 1 << 16
_MOST_LISTED = 1 << 16
_LONGEST_NAME = 1_000


def check_shape(item: tuple[Any, ...]) -> None:
    """Check the number and the types of an item's fields.

    Raises:
        ProtocolError: they are not those of its kind, or there is no such kind.
    """
    checks = _SHAPES.get(item[0])
    if checks is None or len(checks) != len(item) - 1:
        raise ProtocolError(f"an item of kind {item[0][:20]!r} with {len(item) - 1} fields")
    for check, field in zip(checks, item[1:], strict=True):
        if not check(field):
            raise ProtocolError(f"an item of kind {item[0]!r} with a field of the wrong type")


def _number(field: Any) -> bool:
    return type(field) is int and 0 <= field < _MOST_NUMBER


def _name(field: Any) -> bool:
    return type(field) is str and len(field) <= _LONGEST_NAME


def _session(field: Any) -> bool:
    return field is None or _name(field)


def _agent(field: Any) -> bool:
    return _number(field) or (type(field) is tuple and len(field) == 2 and _name(field[0]) and _number(field[1]))


def _arguments(field: Any) -> bool:
    return type(field) is tuple and len(field) <= _MOST_ARGUMENTS and () not in field


def _keywords(field: Any) -> bool:
    if field is None:
        return True
    return type(field) is dict and len(field) <= _MOST_ARGUMENTS and all(map(_name, field)) and () not in field.values()


def _seconds(field: Any) -> bool:
    return field is None or type(field) is float or _number(field)


def _subject(field: Any) -> bool:
    """What a question about the server is about: nothing, a number, or some calls."""
    if type(field) is list:
        return len(field) <= _MOST_LISTED and all(map(_number, field))
    return field is None or _number(field)


def _value(_: Any) -> bool:
    return True


_SHAPES: dict[str, tuple[Callable[[Any], bool], ...]] = {
    wire.BYE: (),
    wire.CALL: (_number, _agent, _name, _arguments),
    wire.CALL_MORE: (_number, _agent, _name, _arguments, _keywords, _number, _seconds),
    wire.CANCEL: (_number,),
    wire.CLASS: (_number, _name, _name, _value),
    wire.CODE: (_value,),
    wire.CONTROL: (_number, _name, _subject),
    wire.DROP: (_agent,),
    wire.FETCH: (_number, _session, _number),
    wire.GRANT: (_number, _number),
    wire.NEW: (_number, _number, _name, _arguments, _keywords),
    wire.PIN: (_number,),
    wire.PUSH: (_number, _name, _value),
    wire.READ: (_number, _agent, _name),
    wire.RELEASE: (_number,),
    wire.STOP: (_number, _agent),
}
