"""Command lines of bubblewrap: namespaces, a read-only view of chosen folders, and nothing else of this host."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.errors import MissingProgram
from paragent.subprocesses.seccomp import JOIN_SESSION_KEYRING, UnsupportedMachine, filter_file, keyctl_number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paragent.subprocesses.child import ProcessLimits

__all__ = ["TMP", "SandboxFiles", "bubblewrap_command", "privilege_settings", "reported_problem"]

TMP = "/tmp"  # noqa: S108 - inside the sandbox
_SYSTEM = ("/bin", "/lib", "/lib32", "/lib64", "/etc/ld.so.cache")
"""Read-only, besides /usr. Some are links or do not exist, depending on the distribution."""


@dataclass(frozen=True, slots=True)
class SandboxFiles:
    """What a sandbox contains besides the system's programs and libraries. It cannot see or change anything else."""

    readable: Sequence[str] = ()
    """Files and folders of this host, at their own paths; missing ones are left out."""
    inside: Mapping[str, str] = field(default_factory=dict)
    """Files and sockets of this host by their paths in the sandbox, read-only."""
    contents: Mapping[str, str] = field(default_factory=dict)
    """Texts of further files by their paths in the sandbox, read-only."""
    hidden: Sequence[str] = ()
    """Files and folders below `readable` that are empty in the sandbox, unless they are in `readable` themselves."""
    folders: Sequence[str] = ()
    """Additional empty folders that all may write to, below `TMP`."""
    tmp_bytes: int = 256 << 20
    """Size of `TMP` and of /dev/shm, which are kept in memory."""
    start_in: str = TMP
    """The working folder."""

    def options(self, descriptors: Mapping[str, int]) -> list[str]:
        """Return the options of bubblewrap, given file descriptors from which it can read the files in `contents`."""
        options = ["--hostname", "sandbox", "--proc", "/proc", "--dev", "/dev"]
        for path in ("/proc/keys", "/proc/key-users"):  # they list the user's keys, regardless of the session keyring
            if Path(path).exists():
                options += ["--ro-bind", "/dev/null", path]
        for path in ("/dev/shm", TMP):  # noqa: S108 - inside the sandbox
            options += ["--perms", "1777", "--size", str(self.tmp_bytes), "--tmpfs", path]
        # Bind mounts come after the tmpfs mounts, which would hide a folder of this host that is below /tmp.
        absolute = map(os.path.abspath, self.readable)
        readable = [path for path in dict.fromkeys(absolute) if not _is_system(path) and Path(path).exists()]
        parents = {
            str(parent) for path in (*readable, *self.inside, *self.contents, "/etc/x") for parent in Path(path).parents
        }
        for folder in sorted(parents - {"/", TMP}):  # bubblewrap would create them with access for its own user only
            options += ["--perms", "0755", "--dir", folder]
        for folder in self.folders:
            options += ["--perms", "1777", "--dir", folder]
        options += ["--ro-bind", "/usr", "/usr"]
        for path in _SYSTEM:
            options += ["--ro-bind-try", path, path]
        for path in sorted(readable):  # a folder before what is below it
            options += ["--ro-bind", path, path]
        options += self._hiding(readable)
        for path, source in self.inside.items():
            options += ["--ro-bind", source, path]
        for path in self.contents:
            options += ["--perms", "0444", "--ro-bind-data", str(descriptors[path]), path]
        return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", self.start_in]

    def _hiding(self, readable: Sequence[str]) -> list[str]:
        options: list[str] = []
        for path in dict.fromkeys(self.hidden):
            if path in readable or not any(Path(path).is_relative_to(folder) for folder in (*readable, "/usr")):
                continue  # it is shown on its own, or not visible anyway
            if Path(path).is_dir():
                options += ["--perms", "0755", "--tmpfs", path, "--remount-ro", path]
            elif Path(path).exists():
                options += ["--ro-bind", "/dev/null", path]
        shown = [path for path in readable if any(_is_below(path, hidden) for hidden in self.hidden)]
        for path in shown:  # for example an environment of Python in a hidden folder
            options += ["--ro-bind", path, path]
        return options


def _is_system(path: str) -> bool:
    return path == "/usr" or path.startswith("/usr/")


def _is_below(path: str, folder: str) -> bool:
    return path != folder and Path(path).is_relative_to(folder)


@contextlib.contextmanager
def bubblewrap_command(
    files: SandboxFiles,
    command: Sequence[str],
    *,
    user: str,
    advice: str,
    network: bool = False,
    first: bool = False,
) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the command line that runs `command` in a sandbox, and the file descriptors that it must inherit.

    The process sees no other processes, and ends when the thread that started it ends. With the settings of
    `privilege_settings`, it must give up its user before it runs code that is not trusted.

    Args:
        files: what it sees.
        command: the command.
        user: what needs the sandbox, for messages.
        advice: what to do if it cannot be started.
        network: whether it has the network of this host; otherwise it has a loopback interface of its own only.
        first: whether the command is process 1 of the sandbox, which other processes in it cannot kill. It must reap orphans.

    Raises:
        MissingProgram: bubblewrap is not installed, or there is no seccomp filter for this CPU.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise MissingProgram(user, "bubblewrap (bwrap) is not installed", advice)
    with contextlib.ExitStack() as opened:
        try:
            blocked = filter_file()
        except UnsupportedMachine as error:
            raise MissingProgram(user, str(error), advice) from None
        opened.callback(os.close, blocked)
        contents = {path: _memory_file(text) for path, text in files.contents.items()}
        for descriptor in contents.values():
            opened.callback(os.close, descriptor)
        options = [*_namespaces(network=network), *(["--as-pid-1"] if first else []), *files.options(contents)]
        yield [program, "--seccomp", str(blocked), *options, "--", *command], [blocked, *contents.values()]


def _memory_file(text: str) -> int:
    """Return a new file descriptor from which `text` can be read."""
    descriptor = os.memfd_create("file of a sandbox")
    with os.fdopen(os.dup(descriptor), "wb") as file:
        file.write(text.encode())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _namespaces(*, network: bool) -> list[str]:
    """Return the options that isolate the process.

    Root needs no user namespace. It keeps only the capabilities to change its user and to end processes of other users of the
    sandbox. A process that changes its user loses both.
    """
    isolated = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"]
    if not network:
        isolated.append("--unshare-net")
    if os.geteuid() == 0:
        kept = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")
        return [*isolated, "--cap-drop", "ALL", *(word for name in kept for word in ("--cap-add", name))]
    return [*isolated, "--unshare-user", "--disable-userns"]


def privilege_settings(limits: ProcessLimits) -> dict[str, Any]:
    """Return the settings with which `child_main.apply_limits` gives up privileges in a sandbox."""
    return {
        "limits": limits.as_rlimits(own_user=True),
        "uid": _unused_uid() if os.geteuid() == 0 else None,
        "keyctl": [keyctl_number(), JOIN_SESSION_KEYRING],
    }


def _unused_uid() -> int:
    """Return a user id that no other process has.

    Root is exempt from the limit on processes, and sandboxes with the same user would share it. The kernel accepts a user id
    without a name.
    """
    return 1_000_000_000 + secrets.randbelow(1_000_000_000)


def reported_problem(output: str) -> str | None:
    """Return what bubblewrap reported if it could not create the sandbox; None if the output says something else.

    A command that it could not execute in the sandbox is something else: the sandbox works.
    """
    return output.strip()[-500:] if "bwrap:" in output and "bwrap: execvp" not in output else None
