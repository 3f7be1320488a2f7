"""The program's own modules, as source code, for workers on hosts that do not have them.

Own modules are those that were imported from a source file that belongs neither to Python nor to an installed package: modules
next to the script, in the working directory, or in a project on the path. All modules of an imported package are sent, and all
modules in the folder of the script, because code may import them later.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.util
import pickle
import site
import sys
import sysconfig
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import paragent
from paragent.serialization.code_cache import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["Source", "collect", "install"]


class Source(NamedTuple):
    """One module."""

    file: str
    """Its path on the sender's host, for tracebacks."""
    text: bytes
    is_package: bool


_sources: dict[str, Source] = {}
_installed: set[str] = set()


def install(digest: str, blob: bytes) -> None:
    """Make modules importable, without importing them. Later modules replace earlier ones of the same name."""
    if digest in _installed:
        return
    _installed.add(digest)
    _sources.update(pickle.loads(blob))
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules that were sent to this process."""

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the interface of the import system
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        source = _sources.get(name)
        return None if source is None else importlib.util.spec_from_loader(name, _Loader(source))


class _Loader(importlib.abc.ExecutionLoader):
    """Imports one module from its source; `inspect` and tracebacks see the source too."""

    def __init__(self, source: Source) -> None:
        self._source = source

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002 - the interface of the import system
        return self._source.is_package

    def get_source(self, fullname: str) -> str:  # noqa: ARG002
        return importlib.util.decode_source(self._source.text)

    def get_filename(self, fullname: str) -> str:
        return self._source.file or f"<{fullname}>"


_MOST_FILES = 2000
_MOST_BYTES = 16 << 20
"""Beyond these limits only imported modules are sent: such a folder is probably a home directory, not a program."""


def collect() -> dict[str, bytes]:
    """Return the own modules as code of a payload: digest and bytes; empty if there are none."""
    imported = dict(_imported())
    files = {**imported, **_not_yet_imported(imported)}
    if len(files) > _MOST_FILES or sum(path.stat().st_size for path in files.values()) > _MOST_BYTES:
        files = imported
    sources = {name: Source(str(path), path.read_bytes(), path.name == "__init__.py") for name, path in files.items()}
    for name in list(sources):
        while name := name.rpartition(".")[0]:
            sources.setdefault(name, Source("", b"", is_package=True))
    if not sources:
        return {}
    blob = pickle.dumps(sorted(sources.items()), protocol=5)
    return {MODULES + hashlib.blake2b(blob, digest_size=12).hexdigest(): blob}


def _imported() -> Iterator[tuple[str, Path]]:
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not isinstance(file, str) or not file.endswith(".py"):
            continue
        path = Path(file)
        if not _is_installed(str(path.parent)) and path.is_file():
            yield name, path


def _not_yet_imported(imported: dict[str, Path]) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for name, path in imported.items():
        if "." not in name and path.name == "__init__.py":
            found |= _package(name, path.parent)
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script and not _is_installed(str(Path(script).absolute().parent)):
        found |= {path.stem: path for path in Path(script).absolute().parent.glob("*.py") if path.stem.isidentifier()}
    return found


def _package(name: str, folder: Path) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.rglob("*.py"))[: _MOST_FILES + 1]:
        parts = path.relative_to(folder).with_suffix("").parts
        if all(part.isidentifier() for part in parts):
            found[".".join([name, *(parts[:-1] if parts[-1] == "__init__" else parts)])] = path
    return found


@cache
def _is_installed(folder: str) -> bool:
    """Return whether a folder belongs to Python, to installed packages or to paragent, which every worker has."""
    path = Path(folder)
    if {"site-packages", "dist-packages"} & set(path.parts):
        return True
    resolved = path.resolve()
    return any(resolved.is_relative_to(home) for home in _homes())


@cache
def _homes() -> list[Path]:
    paths = sysconfig.get_paths()
    homes = [paths[kind] for kind in ("stdlib", "platstdlib", "purelib", "platlib")]
    homes += [*site.getsitepackages(), site.getusersitepackages(), str(Path(paragent.__file__).parent)]
    return [Path(home).resolve() for home in homes]
