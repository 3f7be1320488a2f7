"""Modules that came with a parcel: imported from the source that travelled, in place of any file of this machine."""

from __future__ import annotations

import importlib.abc
import importlib.util
import pickle
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["Source", "install"]


class Source(NamedTuple):
    """One module."""

    file: str
    """Where it was on the machine it came from: what tracebacks show."""
    text: bytes
    is_package: bool


_sources: dict[str, Source] = {}
_installed: set[str] = set()


def install(digest: str, blob: bytes) -> None:
    """Make the modules of a piece of code importable; none is imported by this. Later pieces win over earlier ones."""
    if digest in _installed:
        return
    _installed.add(digest)
    _sources.update(pickle.loads(blob))
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Knows the modules that were carried here, and no others."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the import system's own interface
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        source = _sources.get(name)
        return None if source is None else importlib.util.spec_from_loader(name, _Loader(source))


class _Loader(importlib.abc.ExecutionLoader):
    """Imports one module from its source; `inspect` and tracebacks see the source too."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002 - the import system's own interface
        return self._source.is_package

    def get_source(self, fullname: str) -> str:  # noqa: ARG002
        return importlib.util.decode_source(self._source.text)

    def get_filename(self, fullname: str) -> str:
        return self._source.file or f"<{fullname}>"
