"""Who owns what on this host: every pool process marks what it starts, so that the next one can clear up after it.

A run is one pool process. Its folder holds a file that the process keeps locked as long as it lives; the kernel drops the
lock when the process ends, however it ends. A run whose lock can be taken is therefore dead, and what bears its mark may
be removed. Nothing else ever is.
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

__all__ = ["Run", "cache_folder", "dead_runs", "end_marked", "find_program", "marked_processes"]


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


MARK = "PARAGENT_RUN"
"""The environment variable that marks local processes: `<run>/<machine>`."""
_END_SECONDS = 10.0
"""For the kernel to remove processes that were killed; freeing a machine's memory takes milliseconds."""


class Run:
    """This pool process's mark. `id` names it everywhere: in labels, tags, environments and folders."""

    def __init__(self, pool: str) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", pool):
            raise ConfigError(f"a pool's name has up to 31 small letters, digits and '-', not {pool!r}")
        self.pool = pool
        self.id = f"{pool}-{os.getpid()}-{os.urandom(4).hex()}"
        self.folder = cache_folder("runs", pool) / self.id
        self._lock = self._take()

    def _take(self) -> IO[str]:
        """Lock first, then appear: nobody sees a folder of this run whose lock is free."""
        draft = self.folder.with_name(f".{self.id}")
        draft.mkdir(mode=0o700)
        lock = (draft / "lock").open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        draft.rename(self.folder)
        return lock

    def mark(self, machine_id: str) -> dict[str, str]:
        """Return what to add to the environment of a process that belongs to a machine."""
        return {MARK: f"{self.id}/{machine_id}"}

    def close(self, *, keep: bool = False) -> None:
        """Remove the folder, as all that bears the mark is gone; or `keep` it for the next run to clear up."""
        if not keep:
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def dead_runs(pool: str) -> list[Path]:
    """Return the folders of runs of this pool on this host whose process has ended."""
    return [folder for folder in sorted(cache_folder("runs", pool).iterdir()) if _is_dead(folder)]


def _is_dead(folder: Path) -> bool:
    if folder.name.startswith("."):
        return False  # being made, or abandoned while it was: it owns nothing
    try:
        with (folder / "lock").open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except FileNotFoundError:
        return not folder.joinpath("lock").exists() and folder.is_dir()
    return True


def marked_processes(runs: Iterable[str]) -> dict[int, str]:
    """Return the processes of this user that bear the mark of one of `runs`: process id to machine id."""
    wanted = set(runs)
    found = {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with contextlib.suppress(OSError):  # it ended meanwhile, or is somebody else's
            run, _, machine = _mark_in((folder / "environ").read_bytes()).partition("/")
            if run in wanted and int(folder.name) != os.getpid():
                found[int(folder.name)] = machine
    return found


def _mark_in(environment: bytes) -> str:
    prefix = f"{MARK}=".encode()
    for entry in environment.split(b"\0"):
        if entry.startswith(prefix):
            return entry.removeprefix(prefix).decode(errors="replace")
    return ""


def end_marked(run: str, machine_id: str | None = None) -> None:
    """Kill every process with the mark of a run, or of one machine of it, and wait until they are gone."""
    deadline = time.monotonic() + _END_SECONDS
    while time.monotonic() < deadline:
        chosen = [pid for pid, owner in marked_processes([run]).items() if machine_id in {None, owner}]
        if not chosen:
            return
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
