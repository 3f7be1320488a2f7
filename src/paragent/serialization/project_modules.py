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
from paragent.errors import UsageError
from paragent.serialization.code_cache import MODULES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

__all__ = ["Source", "check_loaded", "collect", "install"]


class Source(NamedTuple):
    """One module."""

    file: str
    """Its path on the sender's host, for tracebacks."""
    text: bytes
    is_package: bool


_sources: dict[str, Source] = {}
_installed: dict[str, dict[str, bytes]] = {}
"""By digest of a set of modules: the hash of the source of each module."""
_checked: dict[str, int] = {}
"""By digest of a set: the number of loaded modules when it was found to agree with them."""
_loaded: dict[str, tuple[ModuleType, bytes | None]] = {}
"""By name: a loaded module and the hash of its source."""


def install(digest: str, blob: bytes) -> None:
    """Make modules importable, without importing them. Later modules replace earlier ones of the same name."""
    if digest in _installed:
        return
    sources: dict[str, Source] = dict(pickle.loads(blob))
    # Packages without a file of their own have no source.
    _installed[digest] = {name: _hash(source.text) for name, source in sources.items() if source.file}
    _sources.update(sources)
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def check_loaded(digest: str) -> None:
    """Check that those modules of a set that this process has loaded were loaded from the source in the set.

    Raises:
        UsageError: one of them was loaded from another source: sent by another client, or a file of this host.
    """
    if _checked.get(digest) == len(sys.modules):
        return
    count = len(sys.modules)
    for name, wanted in _installed[digest].items():
        module = sys.modules.get(name)
        if module is not None and _hash_of_loaded(name, module) not in (wanted, None):
            raise UsageError(
                f"this agent server has already loaded another version of the module {name!r}, for another client or from "
                f"{getattr(module, '__file__', 'a file')}: restart the server, or use another server for each project"
            )
    _checked[digest] = count


def _hash_of_loaded(name: str, module: ModuleType) -> bytes | None:
    """Return the hash of the source that a module was loaded from; None if it is unknown."""
    known = _loaded.get(name)
    if known is None or known[0] is not module:
        loader, file = getattr(module, "__loader__", None), getattr(module, "__file__", None)
        found: bytes | None = None
        if isinstance(loader, _Loader):
            found = _hash(loader.source.text)
        elif isinstance(file, str) and file.endswith(".py") and Path(file).is_file():
            found = _hash(Path(file).read_bytes())
        known = _loaded[name] = (module, found)
    return known[1]


def _hash(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=12).digest()


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
        self.source = source

    def is_package(self, fullname: str) -> bool:  # noqa: ARG002 - the interface of the import system
        return self.source.is_package

    def get_source(self, fullname: str) -> str:  # noqa: ARG002
        return importlib.util.decode_source(self.source.text)

    def get_filename(self, fullname: str) -> str:
        return self.source.file or f"<{fullname}>"


_MOST_FILES = 2000
_MOST_BYTES = 16 << 20
"""Beyond these limits only imported modules are sent: such a folder is probably a home directory, not a program."""


def collect() -> dict[str, bytes]:
    """Return the own modules as code of a payload: digest and bytes; empty if there are none."""
    imported = dict(_imported())
    files = {**imported, **_not_yet_imported(imported)}
    if len(files) > _MOST_FILES or sum(path.stat().st_size for path in files.values()) > _MOST_BYTES:
        files = imported
    sources = {name: Source(str(path), _text(name, path), path.name == "__init__.py") for name, path in files.items()}
    for name in list(sources):
        while name := name.rpartition(".")[0]:
            sources.setdefault(name, Source("", b"", is_package=True))
    if not sources:
        return {}
    blob = pickle.dumps(sorted(sources.items()), protocol=5)
    return {MODULES + hashlib.blake2b(blob, digest_size=12).hexdigest(): blob}


_texts: dict[str, tuple[ModuleSpec | None, Path, bytes]] = {}
"""By name: what `_text` has returned, and for which module."""


def _text(name: str, path: Path) -> bytes:
    """Return the source of a module as it was when it was first collected, or collected after a reload.

    A program that runs while its files are edited thus sends the same modules as before.
    """
    spec = getattr(sys.modules.get(name), "__spec__", None)
    known = _texts.get(name)
    if known is None or known[0] is not spec or known[1] != path:
        known = _texts[name] = (spec, path, path.read_bytes())
    return known[2]


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
