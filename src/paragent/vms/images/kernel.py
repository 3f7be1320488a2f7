"""What a machine needs of a kernel's package: the modules of its devices, and in which order they are loaded."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING

from paragent.errors import MachineFailed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["add_modules", "only"]


def add_modules(packed: Path, root: Path, modules: Sequence[str]) -> None:
    """Copy modules and what they depend on to `root/modules`, and write their order beside them.

    Raises:
        MachineFailed: the package has no modules at all.
    """
    home = only(packed / "lib/modules", "*")
    where = {path.name.partition(".ko")[0].replace("-", "_"): path for path in home.rglob("*.ko*")}
    (root / "modules").mkdir()
    order: list[str] = []
    for module in modules:
        _add_module(module.replace("-", "_"), where, root / "modules", order)
    (root / "modules/order").write_text("".join(f"{name}\n" for name in order))


def _add_module(name: str, where: dict[str, Path], target: Path, order: list[str]) -> None:
    path = where.get(name)
    if path is None or path.name in order:
        return  # built into the kernel, or copied already
    needed = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
    for other in needed[1].decode().split(",") if needed else ():
        if other:
            _add_module(other.replace("-", "_"), where, target, order)
    shutil.copy(path, target / path.name)
    order.append(path.name)


def only(folder: Path, pattern: str) -> Path:
    """Return the first file that matches.

    Raises:
        MachineFailed: there is none.
    """
    found = sorted(folder.glob(pattern))
    if not found:
        raise MachineFailed(f"the packages have no {pattern}; the image cannot be built from them")
    return found[0]
