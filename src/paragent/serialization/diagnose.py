"""Finding the part of an object that cannot travel, so that the error can name it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cloudpickle

from paragent.errors import Unserialisable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["culprit"]

_DEEPEST = 20
"""Levels of attributes and items to follow; beyond that the whole branch is named."""


def culprit(thing: Any, what: str, root: str, error: BaseException) -> Unserialisable:
    """Return the error that names the smallest part of `thing` which cannot be serialised."""
    path, part, reason = root, thing, error
    seen = {id(thing)}
    for _ in range(_DEEPEST):
        for step, child in _parts(part):
            if id(child) in seen:
                continue
            seen.add(id(child))
            problem = _problem(child)
            if problem is not None:
                path, part, reason = path + step, child, problem
                break
        else:
            break
    kind = type(part)
    return Unserialisable(what, f"`{path}`, a {kind.__module__}.{kind.__qualname__}", f"{reason}")


def _problem(thing: Any) -> BaseException | None:
    try:
        cloudpickle.dumps(thing)
    except Exception as error:  # noqa: BLE001 - any failure to serialise is the finding
        return error
    return None


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield what `thing` holds, each with the text that leads to it; nothing more where its own code does not allow a look."""
    try:
        yield from _visible_parts(thing)
    except Exception:  # noqa: BLE001 - a `__getattr__` may raise anything; then the whole of `thing` is named
        return


def _visible_parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, dict):
        for key, value in thing.items():
            yield f"[{key!r}]", value
    elif isinstance(thing, list | tuple | set | frozenset):
        for index, value in enumerate(thing):
            yield f"[{index}]", value
    closure, code = _look(thing, "__closure__"), _look(thing, "__code__")
    if closure and code:
        for name, cell in zip(code.co_freevars, closure, strict=True):
            try:
                yield f" (captured variable `{name}`)", cell.cell_contents
            except ValueError:
                continue
    if code and _look(thing, "__globals__"):
        for name in code.co_names:
            if name in thing.__globals__:
                yield f" (global `{name}`)", thing.__globals__[name]
    if _look(thing, "__func__") and _look(thing, "__self__"):
        yield ".__self__", thing.__self__
    for name, value in (_look(thing, "__dict__") or {}).items() if not isinstance(thing, type) else ():
        yield f".{name}", value
    for cls in type(thing).__mro__:
        for name in getattr(cls, "__slots__", ()):
            if isinstance(name, str) and (value := _look(thing, name)) is not None:
                yield f".{name}", value


def _look(thing: Any, name: str) -> Any:
    """Return an attribute, or None: the object is a user's, and looking at it may raise anything."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - as above
        return None
