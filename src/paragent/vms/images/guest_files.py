"""Our code inside a machine with a screen: the modules of `vms/guest`, below packages of the same names that are empty."""

from __future__ import annotations

import hashlib
from pathlib import Path

from paragent.vms import guest

__all__ = ["guest_digest", "write_guest_files"]

_HOME = Path(guest.__file__).parent
_PACKAGE = Path("paragent/vms/guest")
_PYTHON_PATH = "python_path"


def _sources() -> dict[Path, Path]:
    """Return where each file goes, and where it is."""
    found = {}
    for path in sorted(_HOME.rglob("*.py")):
        inner = path.relative_to(_HOME)
        found[Path(inner.name) if inner.parts[0] == _PYTHON_PATH else _PACKAGE / inner] = path
    return found


def guest_digest() -> str:
    """Return a text that changes when a file changes."""
    parts = (f"{target} {source.read_text()}" for target, source in _sources().items())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def write_guest_files(folder: Path) -> None:
    """Write the files to a folder that the machine's Python has in its path."""
    for target, source in _sources().items():
        place = folder / target
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(source.read_bytes())
    for package in (_PACKAGE.parent, _PACKAGE.parent.parent):
        (folder / package / "__init__.py").write_text(f'"""{package.name}, inside a machine."""\n')
