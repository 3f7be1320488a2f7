"""Where machines keep things on this host, and where its programs are."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from paragent.errors import UsageError

__all__ = ["cache_folder", "find_program"]

_PACKAGES = {
    "dbus-daemon": "dbus-daemon",
    "debugfs": "e2fsprogs",
    "mke2fs": "e2fsprogs",
    "mmdebstrap": "mmdebstrap",
    "openbox": "openbox",
    "qemu-img": "qemu-utils",
    "ip": "iproute2",
    "qemu-system-x86_64": "qemu-system-x86",
    "setpriv": "util-linux",
    "slirp4netns": "slirp4netns",
    "unshare": "util-linux",
    "VBoxManage": "virtualbox",
    "Xvfb": "xvfb",
}
"""Which Debian package has which program."""


def cache_folder(*parts: str) -> Path:
    """Return a folder for what can be made again: `PARAGENT_CACHE`, else the user's cache folder; it is created."""
    chosen = os.environ.get("PARAGENT_CACHE")
    if chosen:
        root = Path(chosen)
    else:
        configured = os.environ.get("XDG_CACHE_HOME")
        root = (Path(configured) if configured else Path.home() / ".cache") / "paragent"
    folder = root.joinpath(*parts)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder


def find_program(name: str) -> str:
    """Return the path of a program, also where only the administrator's search path has it.

    Raises:
        UsageError: it is not installed.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        package = _PACKAGES.get(name)
        cure = f"sudo apt-get install --no-install-recommends {package}" if package else "install it"
        raise UsageError(f"the program {name} is not on this host: {cure}")
    return found
