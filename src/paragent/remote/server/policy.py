"""What a server is willing to load: anything from those who have the token, or only what it was given by its owner."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING, Any

from paragent.errors import AccessDenied, LimitExceeded, ProtocolError
from paragent.messages.msg import Msg
from paragent.remote.values import PLAIN, decode

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Policy"]

_HARMLESS = {
    "builtins": {"bytearray", "complex", "frozenset", "range", "set", "slice"},
    "collections": {"Counter", "OrderedDict", "defaultdict", "deque"},
    "datetime": {"date", "datetime", "time", "timedelta", "timezone"},
    "decimal": {"Decimal"},
    "fractions": {"Fraction"},
    "uuid": {"UUID"},
    "paragent.messages.action": {"ActionModel"},
    "paragent.messages.msg": {"Msg"},
    "numpy": {"dtype", "ndarray"},
    "numpy._core.multiarray": {"_reconstruct", "scalar"},
    "numpy._core.numeric": {"_frombuffer"},
    "numpy.core.multiarray": {"_reconstruct", "scalar"},
    "numpy.core.numeric": {"_frombuffer"},
}
"""Data types that a server without code reads: making one runs nothing that the sender chose."""

_CONTAINERS = (dict, list, tuple, set)


class Policy:
    """Decides which classes may be made into agents and what arguments may consist of.

    Args:
        classes: the server's own agent classes; a client's class of the same name is taken to be one of them.
        accept_code: whether clients may also send classes and objects of any other kind.
        nesting: how deep containers may be nested.
    """

    def __init__(self, classes: Sequence[type], *, accept_code: bool, nesting: int) -> None:
        self.accept_code = accept_code
        self._nesting = nesting
        self._by_name = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes}
        self._by_qualname = {cls.__qualname__: cls for cls in classes}

    def resolve(self, module: str, qualname: str, value: Any) -> type:
        """Return the class that a client means.

        Raises:
            AccessDenied: it is none of the server's, and the server accepts no code.
            Exception: whatever loading the client's class raises.
        """
        own = self._by_name.get(f"{module}.{qualname}") or self._by_qualname.get(qualname)
        if own is not None:
            return own
        if not self.accept_code:
            raise AccessDenied(
                f"this server runs only its own agent classes ({', '.join(sorted(self._by_qualname)) or 'none'}), "
                f"not {qualname!r}; add it to custom_agent_classes there"
            )
        cls = decode(value)
        if not isinstance(cls, type):
            raise AccessDenied(f"{qualname!r} is no class")
        return cls

    def decode(self, value: Any) -> Any:
        """Return what an argument stands for.

        Raises:
            AccessDenied: it holds something that this server does not load.
            LimitExceeded: it is nested too deeply.
            ProtocolError: it is no argument as clients make them.
        """
        if type(value) is not tuple:
            if type(value) in PLAIN:
                return value
            raise ProtocolError("an argument that is neither a simple value nor packed")
        if value[0] == "m" and type(value[2]) not in PLAIN:
            raise ProtocolError("a message whose content is neither a simple value nor packed")
        thing = decode(value) if self.accept_code else decode(value, self._load_data)
        if value[0] != "m" and len(value[1]) > 2 * self._nesting:  # a level takes two bytes or more
            _check_nesting(thing, self._nesting)
        return thing

    def _load_data(self, data: bytes) -> Any:
        return _DataOnly(io.BytesIO(data), self._by_name).load()


class _DataOnly(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, own: dict[str, type]) -> None:
        super().__init__(file)
        self._own = own

    def find_class(self, module: str, name: str) -> Any:
        """Return a harmless type or one of the server's own, and nothing else."""
        if name in _HARMLESS.get(module, ()):
            return super().find_class(module, name)
        own = self._own.get(f"{module}.{name}")
        if own is None:
            raise AccessDenied(
                f"this server accepts data, no code: {module}.{name} is neither builtin nor one of its own"
            )
        return own


def _check_nesting(thing: Any, limit: int) -> None:
    """Refuse containers within containers beyond `limit`, without recursion."""
    if type(thing) is Msg:
        thing = (thing.content, thing.metadata)
    level, depth = [thing], 0
    seen: set[int] = set()
    while level:
        depth += 1
        if depth > limit:
            raise LimitExceeded(f"an argument is nested more than {limit} levels deep")
        deeper: list[Any] = []
        for part in level:
            for value in part.values() if isinstance(part, dict) else part if isinstance(part, _CONTAINERS) else ():
                if isinstance(value, _CONTAINERS) and id(value) not in seen:
                    seen.add(id(value))
                    deeper.append(value)
        level = deeper
