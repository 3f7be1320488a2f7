"""Ownership of what a pool creates on this host, so that the next pool can remove what a killed one left behind.

Every pool process is one owner. The owner's folder contains a file that the process keeps locked while it lives; the kernel
releases the lock when the process ends, however it ends. An owner whose lock is free is therefore dead, and everything with
its id (processes, containers, cloud instances, folders) may be removed. Nothing else is removed.

This module also has what providers and images need of the host: the cache folder, and programs by name.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import IO

__all__ = ["PACKAGES", "Owner", "cache_folder", "dead_owners", "find_program", "kill_owned", "owned_processes"]

_OWNER_VARIABLE = "PARAGENT_OWNER"
"""The environment variable of local processes that belong to a machine: `<owner id>/<provider's machine id>`."""
_KILL_SECONDS = 10.0
"""For the kernel to remove killed processes; freeing a machine's memory takes milliseconds."""
PACKAGES = {
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
"""The Debian packages of programs."""


def cache_folder(*parts: str) -> Path:
    """Return a folder below `PARAGENT_CACHE` or the user's cache folder; it is created if it is missing."""
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
    """Return the path of a program; `/usr/sbin` and `/sbin` are searched, too.

    Raises:
        UsageError: the program is not installed.
    """
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")
    if found is None:
        package = PACKAGES.get(name)
        advice = f"sudo apt-get install --no-install-recommends {package}" if package else "install it"
        raise UsageError(f"the program {name} is not installed: {advice}")
    return found


class Owner:
    """The identity of this pool process: `id` is in the labels, tags, environments and folders of everything that it creates.

    Raises:
        ConfigError: the name of the pool is invalid.
    """

    def __init__(self, pool: str) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", pool):
            raise ConfigError(f"a pool's name has up to 31 lower-case letters, digits and '-', not {pool!r}")
        self.pool = pool
        """The name of the pool."""
        self.id = f"{pool}-{os.getpid()}-{os.urandom(4).hex()}"
        """Unique for each process that owns machines of the pool."""
        self.folder = cache_folder("owners", pool) / self.id
        """The folder of this owner's records, from which a later pool cleans up."""
        self._lock = self._create_folder()

    def _create_folder(self) -> IO[str]:
        """Lock before the folder gets its final name: others never see it with a free lock."""
        draft = self.folder.with_name(f".{self.id}")
        draft.mkdir(mode=0o700)
        lock = (draft / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(self.folder)
        return lock

    def environment(self, machine_id: str) -> dict[str, str]:
        """Return the environment variables to add to a process that belongs to a machine."""
        return {_OWNER_VARIABLE: f"{self.id}/{machine_id}"}

    def close(self, *, keep: bool = False) -> None:
        """Remove the folder if nothing of this owner is left; `keep` it if the next pool has to clean up."""
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def dead_owners(pool: str) -> list[Path]:
    """Return the folders of pools of this name on this host whose process has ended."""
    return [folder for folder in sorted(cache_folder("owners", pool).iterdir()) if _is_dead(folder)]


def _is_dead(folder: Path) -> bool:
    if folder.name.startswith("."):
        return False  # it is being created, or its creation was interrupted: it owns nothing
    try:
        with (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return not folder.joinpath("lock").exists() and folder.is_dir()
    return True


def owned_processes(owners: Iterable[str]) -> dict[int, str]:
    """Return the processes of this user that belong to these owners: process id to the provider's machine id."""
    wanted = set(owners)
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended, or belongs to another user
            owner, _, machine = _owner_in((folder / "environ").read_bytes()).partition("/")
            if owner and owner in wanted and int(folder.name) != os.getpid():
                found[int(folder.name)] = machine
    return found


def _owner_in(environment: bytes) -> str:
    prefix = f"{_OWNER_VARIABLE}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return entry.removeprefix(prefix).decode(errors="replace")
    return ""


def kill_owned(owner: str, machine_id: str | None = None) -> None:
    """Kill every process of an owner, or of one of its machines, and wait until the processes are gone."""
    deadline = time.monotonic() + _KILL_SECONDS
    while time.monotonic() < deadline:
        chosen = [pid for pid, machine in owned_processes([owner]).items() if machine_id in {None, machine}]
        if not chosen:
            return
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
