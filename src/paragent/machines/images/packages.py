"""Building blocks of images: Debian packages, cpio archives, disks and kernel modules. Nothing is installed on this host."""

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
    "first_match",
    "make_disk",
    "matching_dependency",
    "sources",
    "unpack",
    "versions",
    "write_archive",
]


_ORIGINS = {"Debian", "Ubuntu"}
"""Package sources that are used; other sources of a host may need keys or logins."""
_SECONDS = 300.0
"""For one program: a slow mirror sends the 40 MB of a kernel, and a slow disk writes a file system, in that time."""


def matching_dependency(package: str, pattern: str) -> str:
    """Return the dependency of a metapackage that matches `pattern`, such as `linux-image-6.1.0-9-cloud-amd64`.

    Raises:
        UsageError: this host has no apt, or apt does not know the package.
    """
    listed = _run(["apt-cache", "depends", "--important", package])
    for line in listed.splitlines():
        kind, _, name = line.strip().partition(": ")
        if kind.endswith("Depends") and re.fullmatch(pattern, name):
            return name
    raise UsageError(f"apt does not know {package} with {pattern}: run 'apt-get update' as root and try again")


def versions(packages: Sequence[str]) -> str:
    """Return names and versions of packages, as apt would download them now.

    Raises:
        UsageError: as `matching_dependency`.
    """
    found = candidates(packages)
    missing = set(packages) - set(found)
    if missing:
        raise UsageError(f"apt does not know {', '.join(sorted(missing))}: run 'apt-get update' as root and try again")
    return " ".join(f"{name}={version}" for name, version in sorted(found.items()))


def candidates(packages: Sequence[str]) -> dict[str, str]:
    """Return the packages that apt knows, with the versions that it would download; raises as `matching_dependency`."""
    listed = _run(["apt-cache", "policy", *packages])
    found = re.findall(r"^(\S+):\n(?:.*\n)*?\s+Candidate: (\S+)", listed, re.MULTILINE)
    return {name: version for name, version in found if version != "(none)"}


def sources() -> str:
    """Return the package sources of this host's distribution, as lines for apt.

    Raises:
        UsageError: this host has no apt, or apt has no package lists.
    """
    line_format = "deb $(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"
    lines = set()
    for line in _run(["apt-get", "indextargets", "--format", line_format, "Created-By: Packages"]).splitlines():
        entry, _, origin = line.rpartition(" ")
        if origin in _ORIGINS:
            lines.add(entry)
    if not lines:
        raise UsageError("apt has no package lists: run 'apt-get update' as root and try again")
    return "".join(f"{line}\n" for line in sorted(lines))


def unpack(packages: Sequence[str], folder: Path, downloads: Path) -> None:
    """Download packages into `downloads` and unpack them into `folder`.

    Raises:
        UsageError: this host has no apt.
        MachineFailed: a download failed, or a package is broken.
    """
    downloads.mkdir(parents=True, exist_ok=True)
    _run(["apt-get", "download", "-q", *packages], downloads)
    for archive in sorted(downloads.glob("*.deb")):
        _run(["dpkg-deb", "-x", str(archive), str(folder)])


def _run(command: list[str], folder: Path | None = None) -> str:
    if shutil.which(command[0]) is None:
        raise UsageError(f"building an image needs {command[0]}, a program of Debian and Ubuntu")
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if done.returncode:
        raise MachineFailed(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


_TRAILER = "TRAILER!!!"


def write_archive(root: Path, archive: IO[bytes]) -> None:
    """Write a cpio archive of everything below `root`, sorted by name and without times, so that equal trees give equal bytes."""
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


def make_disk(raw: Path, disk: Path, size: str) -> None:
    """Create a qcow2 image of the ext4 file system `raw`; if `raw` is missing, of an empty file system.

    Raises:
        UsageError: a program is missing.
        MachineFailed: a program failed.
    """
    if not raw.exists():
        _run_tool(["mke2fs", "-q", "-t", "ext4", "-E", "lazy_itable_init=1,lazy_journal_init=1", str(raw), size])
    _run_tool(["qemu-img", "convert", "-O", "qcow2", str(raw), str(disk)])


def add_to_disk(base: Path, raw: Path, folder: Path) -> None:
    """Write a copy of the file system image `base` to `raw`, with everything below `folder` added.

    Raises:
        UsageError: a program is missing.
        MachineFailed: a program failed.
    """
    _run_tool(["cp", "--sparse=always", "--reflink=auto", str(base), str(raw)])
    commands, target = [], "/"
    for path in sorted(folder.rglob("*")):
        target = f"/{path.relative_to(folder)}"
        if path.is_dir():
            commands.append(f'mkdir "{target}"')
        else:
            commands += [f'rm "{target}"', f'write "{path}" "{target}"']
            commands += [f'sif "{target}" {field} 0' for field in ("uid", "gid")]
            commands.append(f'sif "{target}" mode 0{path.stat().st_mode:o}')
    _run_tool(["debugfs", "-w", "-f", "-", str(raw)], "\n".join([*commands, ""]))
    _run_tool(["debugfs", "-R", f'stat "{target}"', str(raw)], wanted="Inode:")


def _run_tool(command: list[str], commands: str | None = None, wanted: str = "") -> None:
    program = find_program(command[0])
    done = subprocess.run(
        [program, *command[1:]], input=commands, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if done.returncode or wanted not in done.stdout:
        raise MachineFailed(f"{' '.join(command)} failed: {done.stderr.strip()[-500:]}")


def add_modules(packed: Path, root: Path, modules: Sequence[str]) -> None:
    """Copy kernel modules and their dependencies to `root/modules`, with a file that lists them in the order of loading.

    Raises:
        MachineFailed: the package has no modules.
    """
    home = first_match(packed / "lib/modules", "*")
    paths = {path.name.partition(".ko")[0].replace("-", "_"): path for path in home.rglob("*.ko*")}
    (root / "modules").mkdir()
    order: list[str] = []
    for module in modules:
        _add_module(module.replace("-", "_"), paths, root / "modules", order)
    (root / "modules/order").write_text("".join(f"{name}\n" for name in order))


def _add_module(name: str, paths: dict[str, Path], target: Path, order: list[str]) -> None:
    path = paths.get(name)
    if path is None or path.name in order:
        return  # it is built into the kernel, or was copied already
    needed = re.search(rb"\0depends=([^\0]*)\0", path.read_bytes())
    for other in needed[1].decode().split(",") if needed else ():
        if other:
            _add_module(other.replace("-", "_"), paths, target, order)
    shutil.copy(path, target / path.name)
    order.append(path.name)


def first_match(folder: Path, pattern: str) -> Path:
    """Return the first file that matches a pattern.

    Raises:
        MachineFailed: no file matches.
    """
    found = sorted(folder.glob(pattern))
    if not found:
        raise MachineFailed(f"the packages have no {pattern}; the image cannot be built from them")
    return found[0]
