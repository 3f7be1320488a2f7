"""Debian packages, downloaded from this machine's own sources and unpacked into a folder; nothing is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING

from paragent.errors import MachineFailed, UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["candidates", "newest", "sources", "unpack", "versions"]

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
