"""Debian packages, downloaded from this machine's own sources and unpacked into a folder; nothing is installed."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
from typing import IO, TYPE_CHECKING

from paragent.errors import MachineFailed, UsageError
from paragent.machines.cleanup import find_program

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = [
    "add_modules",
    "add_to_disk",
    "candidates",
    "make_disk",
    "newest",
    "only",
    "sources",
    "unpack",
    "versions",
    "write_archive",
]


_ORIGINS = {"Debian", "Ubuntu"}
"""Whose packages a machine is made of; what else a host has in its sources may need keys or logins."""
_SECONDS = 300.0
"""For one call of apt: a slow mirror gives the 40 MB of a kernel in that time."""


def newest(package: str, pattern: str) -> str:
    """Return the dependency of `package` that matches `pattern`, as `linux-image-6.1.0-9-cloud-amd64` of its metapackage.

    Raises:
        UsageError: this machine has no apt, or apt does not know the package.
    """
    listed = _run(["apt-cache", "depends", "--important", package])
    for line in listed.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind.endswith("Depends") and re.fullmatch(pattern, name):
            return name
    raise UsageError(f"apt knows no {package} with {pattern}: run 'apt-get update' as root and try again")


def versions(packages: Sequence[str]) -> str:
    """Return a text that changes when apt would download something else.

    Raises:
        UsageError: as `newest`.
    """
    found = candidates(packages)
    missing = set(packages) - set(found)
    if missing:
        raise UsageError(f"apt knows no {', '.join(sorted(missing))}: run 'apt-get update' as root and try again")
    return " ".join(f"{name}={version}" for name, version in sorted(found.items()))


def candidates(packages: Sequence[str]) -> dict[str, str]:
    """Return which of these packages apt knows, and in which version it would download them; raises as `newest`."""
    listed = _run(["apt-cache", "policy", *packages])
    found = re.findall(r"^(\S+):\n(?:.*\n)*?\s+Candidate: (\S+)", listed, re.MULTILINE)
    return {name: version for name, version in found if version != "(none)"}


def sources() -> str:
    """Return where this machine gets packages of its distribution from, as lines for apt.

    Raises:
        UsageError: this machine has no apt, or apt has no lists of packages.
    """
    form = "deb $(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    lines = set()
    for line in _run(["apt-get", "indextargets", "--format", form, "Created-By: Packages"]).splitlines():
        entry, _, origin = line.rpartition(" ")
        if origin in _ORIGINS:
            lines.add(entry)
    if not lines:
        raise UsageError("apt has no lists of packages: run 'apt-get update' as root and try again")
    return "".join(f"{line}\n" for line in sorted(lines))


def unpack(packages: Sequence[str], folder: Path, downloads: Path) -> None:
    """Download packages into `downloads` and unpack them into `folder`.

    Raises:
        UsageError: this machine has no apt.
        MachineFailed: a download or a package is broken.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "-q", *packages], downloads)
    for archive in sorted(downloads.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(folder)])


def _run(command: list[str], folder: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise UsageError(f"building an image needs {command[0]}, which Debian and Ubuntu have")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise MachineFailed(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


_TRAILER = "TRAILER!!!"


def write_archive(root: Path, archive: IO[bytes]) -> None:
    """Write everything below `root`, sorted by name and without times, so that the same tree gives the same bytes."""
    for inode, path in enumerate(sorted(root.rglob("*")), 1):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            data = str(path.readlink()).encode()
        elif stat.S_ISREG(status.st_mode):
            data = path.read_bytes()
        else:
            data = b""
        _write_entry(archive, str(path.relative_to(root)), status.st_mode, inode, data)
    _write_entry(archive, _TRAILER, 0, 0, b"")
    archive.write(b"\0" * (-archive.tell() % 512))


def _write_entry(archive: IO[bytes], name: str, mode: int, inode: int, data: bytes) -> None:
    encoded = os.fsencode(name) + b"\0"
    links = 2 if stat.S_ISDIR(mode) else 1
    numbers = (inode, mode, 0, 0, links, 0, len(data), 0, 0, 0, 0, len(encoded), 0)
    archive.write(b"070701" + "".join(f"{number:08X}" for number in numbers).encode() + encoded)
    archive.write(b"\0" * (-archive.tell() % 4))
    archive.write(data)
    archive.write(b"\0" * (-archive.tell() % 4))


"""For a file system of some hundred megabytes to be written, on a slow disk."""


def make_disk(raw: Path, disk: Path, size: str) -> None:
    """Make a qcow2 image of an ext4 file system: of `raw` if that is there, else of an empty one.

    Raises:
        UsageError: a program is missing.
        MachineFailed: it failed.
    """
    if not raw.exists():
        _disks_run(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(raw), size])
    _disks_run(["qemu-img", "convert", "-O", "qcow2", str(raw), str(disk)])


def add_to_disk(base: Path, raw: Path, folder: Path) -> None:
    """Write a copy of the file system image `base` to `raw`, with everything below `folder` added.

    Raises:
        UsageError: a program is missing.
        MachineFailed: it failed.
    """
    _disks_run(["cp", "--sparse=always", "--reflink=auto", str(base), str(raw)])
    orders, inside = [], "/"
    for path in sorted(folder.rglob("*")):
        inside = f"/{path.relative_to(folder)}"
        if path.is_dir():
            orders.append(f'mkdir "{inside}"')
        else:
            orders += [f'rm "{inside}"', f'write "{path}" "{inside}"']
            orders += [f'sif "{inside}" {field} 0' for field in ("uid", "gid")]
            orders.append(f'sif "{inside}" mode 0{path.stat().st_mode:o}')
    _disks_run(["debugfs", "-w", "-f", "-", str(raw)], "\n".join([*orders, ""]))
    _disks_run(["debugfs", "-R", f'stat "{inside}"', str(raw)], wanted="Inode:")


def _disks_run(command: list[str], orders: str | None = None, wanted: str = "") -> None:
    program = find_program(command[0])
    done = subprocess.run(
        [program, *command[1:]], input=orders, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode or wanted not in done.stdout:
        raise MachineFailed(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


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
