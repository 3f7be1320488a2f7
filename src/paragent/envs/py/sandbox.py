"""Where programs run: how a Python process is started so that it can harm nobody."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.envs.py.seccomp import JOIN_SESSION_KEYRING, UnsupportedMachine, filter_file, keyctl_number
from paragent.errors import EnvironmentFailed, MissingProgram
from paragent.subprocesses import Child, ChildLost, ProcessLimits, child_main

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["SANDBOXES", "start_in_bubblewrap", "start_unprotected"]

_TMP_BYTES = 256 << 20
"""Of a program's own files, which live in memory."""
_START_LIMIT = 60.0
"""Seconds for an interpreter to start; it takes 0.1 on a quiet machine."""
_FAR_SIDE = Path(child_main.__file__)
_INSIDE = "/run/child_main.py"
_TMP = "/tmp"  # noqa: S108 - the sandbox's own
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "HOME": _TMP,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_CURE = (
    "install the package `bubblewrap` (0.8 or later) on a kernel that allows it namespaces, or choose --sandbox vm, "
    "or run programs without protection with --sandbox none"
)


async def start_in_bubblewrap(limits: ProcessLimits) -> Child:
    """Start an interpreter that has no network, sees a read-only system and an empty /tmp of its own, and no other process.

    It leaves the session keyring before it runs code, and a seccomp filter denies the system calls listed in `seccomp`.

    Raises:
        MissingProgram: bubblewrap is not there, may not do its work here, or there is no filter for this processor.
        EnvironmentFailed: the interpreter does not start for another reason.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise MissingProgram("the sandbox of the environment 'py'", "there is no bubblewrap (bwrap) here", _CURE)
    try:
        blocked = filter_file()
    except UnsupportedMachine as error:
        raise MissingProgram("the sandbox of the environment 'py'", str(error), "choose --sandbox vm") from None
    try:
        command = [program, "--seccomp", str(blocked), *_command(limits)]
        partner = await Child.start(command, limits, environment={}, pass_fds=(blocked,))
    finally:
        os.close(blocked)
    try:
        await partner.request({"code": "", "limit": _START_LIMIT}, _START_LIMIT)
    except ChildLost as lost:
        if "bwrap:" in lost.output:
            problem = f"bubblewrap does not work here ({lost.output.strip()[-500:]})"
            raise MissingProgram("the sandbox of the environment 'py'", problem, _CURE) from None
        raise EnvironmentFailed(f"the interpreter {lost.reason}: {lost.output[-500:]}") from None
    return partner


def _command(limits: ProcessLimits) -> list[str]:
    """Return bubblewrap's options and the interpreter's command."""
    root = os.geteuid() == 0
    settings = {
        "limits": limits.as_rlimits(own_user=True),
        "uid": _fresh_user() if root else None,
        "keyctl": [keyctl_number(), JOIN_SESSION_KEYRING],
    }
    return [*_namespaces(root), *_file_system(), "--", sys.executable, "-I", _INSIDE, json.dumps(settings)]


def _fresh_user() -> int:
    """Return a user id that nobody has.

    Root would be exempt from the limit on processes, and a shared user would share it. The kernel knows users by number; it
    does not mind one without a name.
    """
    return 1_000_000_000 + secrets.randbelow(1_000_000_000)


def _namespaces(root: bool) -> list[str]:
    """Return the options that part the process from all others.

    Root needs no user namespace; it keeps only the right to become the fresh user, and gives that up by doing so.
    """
    parted = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent", "--new-session"]
    if root:
        return [*parted, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*parted, "--unshare-user", "--disable-userns"]


def _file_system() -> list[str]:
    options = ["--clearenv", "--hostname", "sandbox"]
    for name, value in _VARIABLES.items():
        options += ["--setenv", name, value]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/proc/keys", "/proc/key-users"):  # they list the keys of the user, whatever the session keyring is
        if Path(path).exists():
            options += ["--ro-bind", "/dev/null", path]
    for path in ("/dev/shm", _TMP):  # noqa: S108 - the sandbox's own
        options += ["--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", path]
    # Only now what is bound: an interpreter that lives below /tmp would be hidden by the sandbox's own.
    pythons = [path for path in dict.fromkeys((sys.base_prefix, sys.prefix)) if not path.startswith("/usr")]
    parents = {str(parent) for path in (*pythons, _INSIDE, "/etc/x") for parent in Path(path).parents}
    for folder in sorted(parents - {"/", _TMP}):
        options += ["--perms", "0755", "--dir", folder]  # bubblewrap would make them for its own user only
    options += ["--ro-bind", "/usr", "/usr", "--ro-bind", str(_FAR_SIDE), _INSIDE]
    for path in ("/bin", "/lib", "/lib64", "/etc/ld.so.cache"):
        options += ["--ro-bind-try", path, path]
    for path in pythons:
        options += ["--ro-bind", path, path]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _TMP]


async def start_unprotected(limits: ProcessLimits) -> Child:
    """Start an interpreter that may do whatever this process may; only for programs that one trusts.

    Raises:
        EnvironmentFailed: it does not start.
    """
    settings = {"limits": limits.as_rlimits(), "die_with_parent": True}
    partner = await Child.start([sys.executable, "-I", str(_FAR_SIDE), json.dumps(settings)], limits)
    try:
        await partner.request({"code": "", "limit": _START_LIMIT}, _START_LIMIT)
    except ChildLost as lost:
        raise EnvironmentFailed(f"the interpreter {lost.reason}: {lost.output[-500:]}") from None
    return partner


SANDBOXES: Mapping[str, Callable[[ProcessLimits], Awaitable[Child]]] = {
    "bubblewrap": start_in_bubblewrap,
    "none": start_unprotected,
}
