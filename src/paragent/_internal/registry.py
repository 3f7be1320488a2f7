"""Registries of interchangeable implementations (engines, providers, environments, models, scorers, ...).

A registry is a literal table of names. It imports an implementation when it is first loaded and also finds implementations
that other packages add by entry points. An unknown name raises `UnknownName`; a known name whose optional packages are not
installed raises `MissingExtra`.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent._internal.text import suggestion
from paragent._internal.tracebacks import message_of
from paragent.errors import ConfigError, MissingExtra, UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.metadata import EntryPoints
    from types import ModuleType

__all__ = [
    "Implementation",
    "Registry",
    "import_named",
    "import_named_module",
    "import_object",
    "import_required",
    "require",
    "require_extra",
]


_LISTED = 10
"""Names of a module that a message lists."""


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
                return import_named(entry_point.value, f"the {self.kind} {name!r} of another package, ")
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
        own = [name for name, value in vars(module).items() if getattr(value, "__module__", None) == module_name]
        hint = suggestion(attribute, own) or (f"; it defines {', '.join(own[:_LISTED])}" if own else "")
        raise ConfigError(f"module {module_name!r}{found} has no attribute {attribute!r}{hint}") from error


def import_named(location: str, owner: str = "") -> Any:
    """Import what a user names as `package.module:attribute`.

    Args:
        location: the name.
        owner: the beginning of messages, such as the flag with a space.

    Raises:
        ConfigError: `location` has another form, or it cannot be imported.
    """
    module = location.partition(":")[0] if ":" in location else location.rpartition(".")[0]
    with _readable(location, module, owner):
        return import_object(location)


def import_named_module(name: str, owner: str = "") -> ModuleType:
    """Import a module that a user names; arguments and errors as those of `import_named`."""
    with _readable(name, name, owner):
        return importlib.import_module(name)


@contextlib.contextmanager
def _readable(given: str, module: str, owner: str) -> Iterator[None]:
    """Raise `ConfigError` for what goes wrong when code of a user is imported; its message says where and why."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(f"{owner}{given}: {error}") from error
    except ModuleNotFoundError as error:
        if module == error.name or module.startswith(f"{error.name}."):
            problem = f"there is no module {error.name!r} in the current folder, in PYTHONPATH or among the installed packages"
            if module.endswith(".py"):
                problem = f"write the name of the module without .py, as in {given.replace('.py', '', 1)}"
        else:
            place = _place(error)
            problem = f"the module {module!r} needs {error.name!r}, which is not installed in the environment of paragent{place}"
        raise ConfigError(f"{owner}{given}: {problem}") from error
    except (Exception, SystemExit) as error:  # whatever the code of the user raises
        cause = f"{type(error).__name__}: {message_of(error)}"
        raise ConfigError(
            f"{owner}{given}: the module {module!r} cannot be imported: {cause}{_place(error)}"
        ) from error


def _place(error: BaseException) -> str:
    """Return the file and the line of the user's code that raised an error, in brackets; empty for a wrong syntax."""
    import traceback  # not at the top: every worker loads this module

    if isinstance(error, SyntaxError):  # its message has the place
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


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
