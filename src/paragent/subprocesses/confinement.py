"""Calls that are confined to the files of one folder, for children of a `SubprocessPool`.

A pool's child forks for each such call, and the forked process drops its rights before the call. Two mechanisms apply:

- Landlock, if the kernel has it (Linux 5.13 or newer), for all code of the process and the programs that it starts;
- a Python audit hook, always, for files that Python code opens. Code that passes a path to a library or program opens the
  file in Python first.

Both allow reading the Python installation and the system's programs and libraries, and reading and writing the folder.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
import sys
import tempfile
from typing import Any

from paragent._internal.processes import die_with_parent
from paragent.subprocesses import child_main

__all__ = ["apply_landlock", "call_confined", "confine", "serve"]

_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/nix/store", "/sys/devices/system/cpu")
_SYSTEM_FILES = (
    "/etc/fonts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/mime.types",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/dev/random",
    "/dev/urandom",
    "/dev/zero",
)
_SINK = "/dev/null"
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = {
    "os.chmod",
    "os.link",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.utime",
}
_LISTS = {"os.listdir", "os.scandir"}

# From <linux/landlock.h> and <linux/prctl.h>; the numbers of the system calls are the same on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG, _PATH_BENEATH = 1, 1
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14, 1 << 15
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
"""All file rights, by the Landlock version that introduced the last of them."""
_NETWORK_SINCE, _NETWORK = 4, 0b11
"""TCP bind and connect."""
_SCOPES_SINCE, _SCOPES = 6, 0b11
"""Abstract Unix sockets and signals."""
_PR_SET_NO_NEW_PRIVS = 38


def serve(settings: dict[str, Any]) -> None:
    """Answer requests as `child_main.serve` does; a request with a folder is confined to it."""
    child_main.serve(settings, call_confined)


def call_confined(target: str, arguments: list[Any], folder: str | None = None) -> dict[str, Any]:
    """Call `module:function` in a forked process that can only use files of `folder`; without a folder, call it here.

    Returns:
        The result of `child_main.call`; if the process was killed, an error of the type `limit`.
    """
    if folder is None:
        return child_main.call(target, arguments)
    reader, writer = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        try:
            os.close(reader)
            _die_with(parent)
            confine(folder)
            _send(writer, json.dumps(child_main.call(target, arguments)).encode())
        except BaseException as error:  # noqa: BLE001 - reported to the parent; this process must not return
            _send(writer, json.dumps({"ok": False, "error": str(error), "type": type(error).__name__}).encode())
        finally:
            os._exit(0)  # exit handlers belong to the parent
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        output = pipe.read()
    _, status = os.waitpid(child, 0)
    try:
        reply: dict[str, Any] = json.loads(output)
    except ValueError:
        return {"ok": False, "error": f"the call ended its process (status {status})", "type": "limit"}
    return reply


def _send(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent` ends."""
    die_with_parent()
    if os.getppid() != parent:
        os._exit(1)  # the parent ended before the call above


def confine(folder: str) -> None:
    """Permanently confine this process to the files of `folder`, except for reading installed software.

    Raises:
        OSError: the kernel has Landlock, but applying it failed.
    """
    writable = os.path.realpath(folder)
    readable = [*_installation(), *map(os.path.realpath, (*_SYSTEM, *_SYSTEM_FILES))]
    os.chdir(writable)
    tempfile.tempdir = writable
    apply_landlock([path for path in readable if os.path.exists(path)], writable)  # noqa: PTH110 - plain strings are enough here
    _add_audit_hook((*readable, writable), writable)


def _installation() -> list[str]:
    """Return the folders of Python and its packages, except folders that contain the user's home."""
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - as above
    given = {sys.prefix, sys.base_prefix, sys.exec_prefix, *(path for path in sys.path if path)}
    found = {os.path.realpath(path) for path in given}
    return sorted(path for path in found if not _below(home, path))


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def _add_audit_hook(readable: tuple[str, ...], writable: str) -> None:
    def check(path: Any, writing: bool) -> None:
        if isinstance(path, int) or path is None:
            return
        real = os.path.realpath(os.fsdecode(path))
        allowed = (writable, _SINK) if writing else (*readable, _SINK)
        if not any(_below(real, folder) for folder in allowed):
            raise PermissionError(errno.EACCES, "outside of the attempt's folder", real)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            check(arguments[0], bool(arguments[2] & _WRITING))
        elif event in _CHANGES:
            for path in arguments[:2] if event in {"os.link", "os.rename", "os.symlink"} else arguments[:1]:
                check(path, writing=True)
        elif event in _LISTS:
            check(arguments[0] if arguments[0] is not None else ".", writing=False)

    sys.addaudithook(hook)


def apply_landlock(readable: list[str], writable: str) -> None:
    """Apply Landlock to this thread, which is the only one, and its descendants; does nothing without Landlock."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION_FLAG)
    if version < 1:
        return
    rights = _FILE_RIGHTS[max(known for known in _FILE_RIGHTS if known <= version)]
    network = _NETWORK if version >= _NETWORK_SINCE else 0
    scopes = _SCOPES if version >= _SCOPES_SINCE else 0
    attributes = struct.pack("=QQQ", rights, network, scopes)
    rules = _checked(libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0))
    for path in readable:
        _allow(libc, rules, path, _READ)
    _allow(libc, rules, _SINK, (_READ_FILE | _WRITE_FILE) & rights)
    _allow(libc, rules, writable, rights & ~_EXECUTE)
    _checked(libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _checked(libc.syscall(_RESTRICT_SELF, rules, 0))
    os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = rights if os.path.isdir(path) else rights & _OF_FILES  # noqa: PTH112 - as above
        _checked(libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, descriptor), 0))
    finally:
        os.close(descriptor)


def _checked(result: int) -> int:
    if result < 0:
        failure = ctypes.get_errno()
        raise OSError(failure, f"cannot confine a process to a folder with Landlock: {os.strerror(failure)}")
    return result
