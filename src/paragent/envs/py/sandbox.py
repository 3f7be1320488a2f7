"""Sandboxes of the environment `py`: start a Python interpreter in bubblewrap, or without protection."""

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
"""Size of the sandbox's /tmp, which is kept in memory."""
_START_LIMIT = 60.0
"""Seconds for an interpreter to start; it takes 0.1 on a quiet machine."""
_CHILD_MAIN = Path(child_main.__file__)
_INSIDE = "/run/child_main.py"
_TMP = "/tmp"  # noqa: S108 - inside the sandbox
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "HOME": _TMP,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_CURE = (
    "install the package `bubblewrap` (0.8 or later) on a kernel that allows user namespaces, use --sandbox vm, "
    "or use --sandbox none to run programs without protection"
)


async def start_in_bubblewrap(limits: ProcessLimits) -> Child:
    """Start an interpreter without network, with a read-only system, its own empty /tmp, and no view of other processes.

    It replaces the session keyring before it runs code. A seccomp filter denies the system calls listed in `seccomp`.

    Raises:
        MissingProgram: bubblewrap is missing or does not work here, or there is no seccomp filter for this CPU.
        EnvironmentFailed: the interpreter does not start for another reason.
    """
    program = shutil.which("bwrap")
    if program is None:
        raise MissingProgram("the sandbox of the environment 'py'", "bubblewrap (bwrap) is not installed", _CURE)
    try:
        blocked = filter_file()
    except UnsupportedMachine as error:
        raise MissingProgram("the sandbox of the environment 'py'", str(error), "use --sandbox vm") from None
    try:
        command = [program, "--seccomp", str(blocked), *_command(limits)]
        child = await Child.start(command, limits, environment={}, pass_fds=(blocked,))
    finally:
        os.close(blocked)
    try:
        await child.request({"code": "", "limit": _START_LIMIT}, _START_LIMIT)
    except ChildLost as lost:
        if "bwrap:" in lost.output:
            problem = f"bubblewrap does not work here ({lost.output.strip()[-500:]})"
            raise MissingProgram("the sandbox of the environment 'py'", problem, _CURE) from None
        raise EnvironmentFailed(f"the interpreter {lost.reason}: {lost.output[-500:]}") from None
    return child


def _command(limits: ProcessLimits) -> list[str]:
    """Return bubblewrap's options and the interpreter's command."""
    root = os.geteuid() == 0
    settings = {
        "limits": limits.as_rlimits(own_user=True),
        "uid": _unused_uid() if root else None,
        "keyctl": [keyctl_number(), JOIN_SESSION_KEYRING],
    }
    return [*_namespaces(root), *_file_system(), "--", sys.executable, "-I", _INSIDE, json.dumps(settings)]


def _unused_uid() -> int:
    """Return a user id that no other process has.

    Root is exempt from the limit on processes, and sandboxes with the same user would share it. The kernel accepts a user id
    without a name.
    """
    return 1_000_000_000 + secrets.randbelow(1_000_000_000)


def _namespaces(root: bool) -> list[str]:
    """Return the options that isolate the process.

    Root needs no user namespace. It keeps only the capability to change its user, and loses it by doing so.
    """
    isolated = [
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--die-with-parent",
        "--new-session",
    ]
    if root:
        return [*isolated, "--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
    return [*isolated, "--unshare-user", "--disable-userns"]


def _file_system() -> list[str]:
    options = ["--clearenv", "--hostname", "sandbox"]
    for name, value in _VARIABLES.items():
        options += ["--setenv", name, value]
    options += ["--proc", "/proc", "--dev", "/dev"]
    for path in ("/proc/keys", "/proc/key-users"):  # they list the user's keys, regardless of the session keyring
        if Path(path).exists():
            options += ["--ro-bind", "/dev/null", path]
    for path in ("/dev/shm", _TMP):  # noqa: S108 - inside the sandbox
        options += ["--perms", "1777", "--size", str(_TMP_BYTES), "--tmpfs", path]
    # Bind mounts come after the tmpfs mounts, which would hide an interpreter that is installed below /tmp.
    pythons = [path for path in dict.fromkeys((sys.base_prefix, sys.prefix)) if not path.startswith("/usr")]
    parents = {str(parent) for path in (*pythons, _INSIDE, "/etc/x") for parent in Path(path).parents}
    for folder in sorted(parents - {"/", _TMP}):
        options += [
            "--perms",
            "0755",
            "--dir",
            folder,
        ]  # bubblewrap would create them with access for its own user only
    options += ["--ro-bind", "/usr", "/usr", "--ro-bind", str(_CHILD_MAIN), _INSIDE]
    for path in ("/bin", "/lib", "/lib64", "/etc/ld.so.cache"):
        options += ["--ro-bind-try", path, path]
    for path in pythons:
        options += ["--ro-bind", path, path]
    return [*options, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", _TMP]


async def start_unprotected(limits: ProcessLimits) -> Child:
    """Start an interpreter with all rights of this process. Only for trusted programs.


    Raises:
        EnvironmentFailed: it does not start.
    """
    settings = {"limits": limits.as_rlimits(), "die_with_parent": True}
    child = await Child.start([sys.executable, "-I", str(_CHILD_MAIN), json.dumps(settings)], limits)
    try:
        await child.request({"code": "", "limit": _START_LIMIT}, _START_LIMIT)
    except ChildLost as lost:
        raise EnvironmentFailed(f"the interpreter {lost.reason}: {lost.output[-500:]}") from None
    return child


SANDBOXES: Mapping[str, Callable[[ProcessLimits], Awaitable[Child]]] = {
    "bubblewrap": start_in_bubblewrap,
    "none": start_unprotected,
}
