"""One shape for every family of interchangeable parts: a literal table of names, loaded when used, open to others.

An unknown name and a known name whose packages are missing are two mistakes and get two messages.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError, MissingExtra, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping
    from importlib.metadata import EntryPoints

__all__ = ["Family", "Member", "load_dotted", "require", "require_extra"]


@dataclass(frozen=True, slots=True)
class Member:
    """Where an implementation lives (`module:attribute`) and which extra brings what it imports."""

    location: str
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Family:
    """A named set of implementations of one contract."""

    kind: str
    """What a member is called in messages: `engine`, `provider`, ..."""
    members: Mapping[str, Member]
    entry_points: str
    """The entry-point group by which other packages add members."""

    def load(self, name: str) -> Any:
        """Return the implementation called `name`.

        Raises:
            UnknownName: neither the table nor an installed package has it.
            MissingExtra: the table has it, but its optional packages are not installed.
        """
        if member := self.members.get(name):
            try:
                return load_dotted(member.location)
            except ModuleNotFoundError as error:
                if member.extra is None or (error.name or "").startswith("paragent"):
                    raise
                raise MissingExtra(f"the {self.kind} {name!r}", member.extra, str(error.name)) from error
        for entry_point in _entry_points(self.entry_points):
            if entry_point.name == name:
                return entry_point.load()
        raise UnknownName(self.kind, name, self.names())

    def names(self) -> list[str]:
        """Return every name that `load` knows, installed or not, sorted."""
        return sorted({*self.members, *(entry_point.name for entry_point in _entry_points(self.entry_points))})


def _entry_points(group: str) -> EntryPoints:
    from importlib import metadata  # not at the top: it takes longer to import than all the rest of this package

    return metadata.entry_points(group=group)


def load_dotted(location: str) -> Any:
    """Import `package.module:attribute` (or `package.module.attribute`) and return the attribute.

    Raises:
        ConfigError: the text has no such form, or the module has no such attribute.
        ModuleNotFoundError: there is no such module.
    """
    module_name, separator, attribute = location.partition(":")
    if not separator:
        module_name, _, attribute = location.rpartition(".")
    if not module_name or not attribute:
        raise ConfigError(f"{location!r} is not of the form 'package.module:Name'")
    module = importlib.import_module(module_name)
    try:
        return getattr(module, attribute)
    except AttributeError as error:
        file = getattr(module, "__file__", None)
        place = f" ({file})" if file else ""  # another module of this name may be meant than the one that was found
        raise ConfigError(f"module {module_name!r}{place} has no {attribute!r}") from error


def require_extra(part: str, *, extra: str, package: str) -> None:
    """Check, without importing it, that an optional package is there.

    Raises:
        MissingExtra: it is not; the message has the line that installs it.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(part, extra, package)


def require(*modules: str) -> None:
    """Say at import that a module cannot work without others which it loads only when it uses them.

    Raises:
        ModuleNotFoundError: one is not installed; `Family.load` turns it into the `pip install` line.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    _required.update(modules)


def import_required() -> None:
    """Import all that modules of this process have said with `require` to need, before it is used."""
    while _required:
        importlib.import_module(_required.pop())


_required: set[str] = set()
