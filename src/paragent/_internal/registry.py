"""Registries of interchangeable implementations (engines, providers, environments, models, scorers, ...).

A registry is a literal table of names. It imports an implementation when it is first loaded and also finds implementations
that other packages add by entry points. An unknown name raises `UnknownName`; a known name whose optional packages are not
installed raises `MissingExtra`.
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

__all__ = ["Implementation", "Registry", "import_named", "import_object", "import_required", "require", "require_extra"]


@dataclass(frozen=True, slots=True)
class Implementation:
    """The location of an implementation and the extra that installs its dependencies."""

    location: str
    """`package.module:attribute`."""
    extra: str | None = None


@dataclass(frozen=True, slots=True)
class Registry:
    """The named implementations of one contract."""

    kind: str
    """The noun for one implementation in messages: `engine`, `provider`, ..."""
    implementations: Mapping[str, Implementation]
    entry_points: str
    """The entry-point group by which other packages add implementations."""

    def load(self, name: str) -> Any:
        """Return the implementation called `name`.

        Raises:
            UnknownName: neither the table nor an installed package has it.
            MissingExtra: the table has it, but its optional packages are not installed.
        """
        if implementation := self.implementations.get(name):
            try:
                return import_object(implementation.location)
            except ModuleNotFoundError as error:
                if implementation.extra is None or (error.name or "").startswith("paragent"):
                    raise
                raise MissingExtra(f"the {self.kind} {name!r}", implementation.extra, str(error.name)) from error
        for entry_point in _entry_points(self.entry_points):
            if entry_point.name == name:
                return entry_point.load()
        raise UnknownName(self.kind, name, self.names())

    def names(self) -> list[str]:
        """Return all names that `load` accepts, sorted; those of extras that are not installed are included."""
        added = (entry_point.name for entry_point in _entry_points(self.entry_points))
        return sorted({*self.implementations, *added})


def _entry_points(group: str) -> EntryPoints:
    from importlib import metadata  # imported here because it takes longer than the rest of the package

    return metadata.entry_points(group=group)


def import_object(location: str) -> Any:
    """Import `package.module:attribute` (or `package.module.attribute`) and return the attribute.

    Raises:
        ConfigError: `location` has another form, or the module does not have the attribute.
        ModuleNotFoundError: the module does not exist.
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
        found = f" ({file})" if file else ""  # the file shows whether the user meant another module of this name
        raise ConfigError(f"module {module_name!r}{found} has no attribute {attribute!r}") from error


def import_named(location: str) -> Any:
    """Import what a user names as `package.module:attribute`.

    Raises:
        ConfigError: `location` has another form, or it cannot be found.
    """
    try:
        return import_object(location)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{location}: {error}. Modules are searched in the current folder and in PYTHONPATH"
        ) from error


def require_extra(part: str, *, extra: str, package: str) -> None:
    """Check that an optional package is installed, without importing it.

    Raises:
        MissingExtra: it is not installed; the message has the `pip install` command.
    """
    if importlib.util.find_spec(package) is None:
        raise MissingExtra(part, extra, package)


def require(*modules: str) -> None:
    """Declare, at import, optional modules that the calling module imports later, inside its functions.

    Raises:
        ModuleNotFoundError: one is not installed; `Registry.load` turns it into `MissingExtra`.
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
    _required.update(modules)


def import_required() -> None:
    """Import every module that was declared with `require` in this process, before it is used."""
    while _required:
        importlib.import_module(_required.pop())


_required: set[str] = set()
