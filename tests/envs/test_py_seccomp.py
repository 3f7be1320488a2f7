"""The seccomp filter: system calls from inside the real sandbox, and the filter program on both architectures."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import json
import os
import platform
import secrets
import struct
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.envs import open_environment
from paragent.envs.py import sandbox
from paragent.errors import MissingProgram
from paragent.subprocesses import Child, ProcessLimits, child_main
from paragent.subprocesses.seccomp import JOIN_SESSION_KEYRING, UnsupportedMachine, filter_program, keyctl_number

pytestmark = pytest.mark.slow

_ADD_KEY = {"x86_64": 248, "aarch64": 217}[platform.machine()]
_SESSION = -3
"""KEY_SPEC_SESSION_KEYRING."""
_PRELUDE = (
    "import ctypes, errno, os\n"
    "libc = ctypes.CDLL(None, use_errno=True)\n"
    "def attempt(name, *arguments):\n"
    "    ctypes.set_errno(0)\n"
    "    result = getattr(libc, name)(*arguments)\n"
    "    return errno.errorcode.get(ctypes.get_errno(), '') if result < 0 else 'done'\n"
)


def inside(*codes: str) -> list[str]:
    async def scenario() -> list[str]:
        async with open_environment("py", {"cell_limit": 20}) as environment:
            return [(await environment.call("python", {"code": code})).text for code in codes]

    return asyncio.run(asyncio.wait_for(scenario(), 90))


def key_of_the_user(secret: str) -> int:
    """Put a key into this process's session keyring, as a login or a mounted file system does; return its number."""
    libc = ctypes.CDLL(None, use_errno=True)
    key: int = libc.syscall(_ADD_KEY, b"user", secret.encode(), secret.encode(), len(secret), _SESSION)
    assert key > 0, os.strerror(ctypes.get_errno())
    return key


def test_kernel_keys_of_the_user_cannot_be_read() -> None:
    secret = secrets.token_hex(8)
    key = key_of_the_user(secret)
    keyctl, add_key = keyctl_number(), _ADD_KEY
    request_key = add_key + 1
    found = inside(
        _PRELUDE,
        f"attempt('syscall', {keyctl}, 11, {key}, ctypes.create_string_buffer(64), 64)",  # KEYCTL_READ
        f"attempt('syscall', {keyctl}, 10, -3, b'user', {secret.encode()!r}, 0)",  # KEYCTL_SEARCH
        f"attempt('syscall', {request_key}, b'user', {secret.encode()!r}, None, 0)",
        f"attempt('syscall', {add_key}, b'user', b'planted', b'x', 1, -3)",
        f"attempt('syscall', {keyctl}, 1, b'_uid_ses.0')",  # joins a keyring by name
        "open('/proc/keys').read()",
    )
    assert [text.strip("'") for text in found[1:6]] == ["EPERM"] * 5
    assert secret not in "".join(found)


def test_the_session_keyring_is_replaced_even_without_the_filter() -> None:
    secret = secrets.token_hex(8)
    key_of_the_user(secret)
    search = f"attempt('syscall', {keyctl_number()}, 10, -3, b'user', {secret.encode()!r}, 0)"

    async def ask(settings: dict[str, Any]) -> str:
        command = [sys.executable, "-I", str(child_main.__file__), json.dumps({"limits": {}, **settings})]
        partner = await Child.start(command, ProcessLimits())
        try:
            return (await partner.request({"code": f"{_PRELUDE}\n{search}", "limit": 20}, 60)).output.strip()
        finally:
            await partner.close()

    assert asyncio.run(ask({})) == "'done'", "the attack works on a process that keeps the keyring"
    assert asyncio.run(ask({"keyctl": [keyctl_number(), JOIN_SESSION_KEYRING]})) == "'ENOKEY'"


@pytest.mark.parametrize(
    ("attack", "answer"),
    [
        ("'ptrace', 0, 0, 0, 0", "EPERM"),
        ("'process_vm_readv', os.getpid(), None, 0, None, 0, 0", "EPERM"),
        ("'process_vm_writev', os.getpid(), None, 0, None, 0, 0", "EPERM"),
        ("'unshare', 0x10000000", "EPERM"),
        ("'unshare', 0x40000000", "EPERM"),
        ("'setns', os.open('/proc/self/ns/user', 0), 0", "EPERM"),
        ("'syscall', 435, None, 0", "ENOSYS"),
        ("'syscall', 425, 8, ctypes.create_string_buffer(256)", "EPERM"),
        ("'mount', b'none', b'/tmp', b'tmpfs', 0, None", "EPERM"),
        ("'umount2', b'/proc/keys', 2", "EPERM"),
        ("'syscall', 430, b'tmpfs', 0", "EPERM"),
        ("'open_by_handle_at', 0, None, 0", "EPERM"),
        ("'personality', 0x0040000", "EPERM"),
        ("'ioctl', 0, 0x5412, b'x'", "EPERM"),
        ("'ioctl', 0, ctypes.c_ulong(0x1_0000_5412), b'x'", "EPERM"),
        ("'socket', 40, 1, 0", "EPERM"),
        ("'socket', 38, 5, 0", "EPERM"),
        ("'syscall', 458, 0, 0, 0, 0", "ENOSYS"),
    ],
)
def test_denied_system_calls_fail(attack: str, answer: str) -> None:
    _, reported = inside(_PRELUDE, f"attempt({attack})")
    assert reported == repr(answer)


def test_a_process_in_new_namespaces_cannot_be_cloned() -> None:
    number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
    flags = [0x10000000 | 17, 0x40000000 | 17, 0x20000 | 17]
    reported = inside(_PRELUDE, *(f"attempt('syscall', {number}, {flag}, None, None, None, None)" for flag in flags))
    assert reported[1:] == ["'EPERM'"] * 3


def test_threads_processes_sockets_and_events_work() -> None:
    _, threads, children, sockets, loop = inside(
        "import threading, subprocess, socket, asyncio, multiprocessing",
        "t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()",
        "subprocess.run(['echo', 'child']); multiprocessing.get_context('fork').Pool(2).map(abs, [-1, 2])",
        "a, b = socket.socketpair(); a.send(b'x'); b.recv(1); s = socket.create_server(('127.0.0.1', 0)); s.close()",
        "async def f():\n    await asyncio.sleep(0)\n    return 'loop'\nasyncio.run(f())",
    )
    assert threads == "thread"
    assert children.split() == ["child", "[1,", "2]"]
    assert sockets == "(no output)"
    assert loop == "'loop'"


def test_the_filter_descriptor_is_not_inherited() -> None:
    _, reported = inside(
        "import os",
        "sorted({os.readlink(f'/proc/self/fd/{n}') for n in range(3, 20) if os.path.exists(f'/proc/self/fd/{n}')})",
    )
    assert "memfd" not in reported


def test_an_unsupported_cpu_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    with pytest.raises(MissingProgram, match="--sandbox vm"):
        asyncio.run(sandbox.start_in_bubblewrap(ProcessLimits()))
    with pytest.raises(UnsupportedMachine, match="riscv64"):
        filter_program()


# --- the program, run by an interpreter of BPF -------------------------------------------------------------------------

_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def decide(program: bytes, number: int, architecture: int, *arguments: int) -> int:
    """Interpret the filter as the kernel would, and return its action."""
    padded = [*arguments, 0, 0, 0, 0, 0, 0][:6]
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(one & (1 << 64) - 1 for one in padded))
    instructions = list(struct.iter_unpack("<HBBI", program))
    at, loaded = 0, 0
    while True:
        code, if_true, if_false, value = instructions[at]
        at += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            loaded = struct.unpack_from("<I", data, value)[0]
            continue
        truth = {0x15: loaded == value, 0x35: loaded >= value, 0x45: bool(loaded & value)}[code]
        at += if_true if truth else if_false


def refusal(code: int) -> int:
    return 0x00050000 | code


@pytest.mark.parametrize("machine", list(_ARCHITECTURES))
def test_the_filter_decides_as_documented_on_both_architectures(machine: str) -> None:
    program, own = filter_program(machine), _ARCHITECTURES[machine]
    allow, column = 0x7FFF0000, list(_ARCHITECTURES).index(machine)
    assert len(program) // 8 < 4096
    for foreign in (0x40000003, 0x40000028, *(each for each in _ARCHITECTURES.values() if each != own)):
        assert decide(program, 0, foreign) == 0x80000000, (
            "i386, 32-bit ARM and other processors' numbers mean other calls"
        )
    read, execve, keyctl = [(0, 63), (59, 221), (250, 219)][0][column], (59, 221)[column], (250, 219)[column]
    clone, socket, ioctl = (56, 220)[column], (41, 198)[column], (16, 29)[column]
    assert decide(program, read, own) == decide(program, execve, own) == allow
    assert decide(program, 0x40000000 | read, own) == refusal(errno.ENOSYS), "x32"
    assert decide(program, keyctl, own, 1, 0) == allow
    assert decide(program, keyctl, own, 1, 1 << 32) == decide(program, keyctl, own, 0, 0) == refusal(errno.EPERM)
    assert decide(program, clone, own, 0x003D0F00) == allow, "a thread"
    assert decide(program, clone, own, 0x10000000) == refusal(errno.EPERM)
    assert decide(program, socket, own, 2, 1, 0) == allow
    assert decide(program, socket, own, 40, 1, 0) == refusal(errno.EPERM)
    assert decide(program, ioctl, own, 1, 0x5413) == allow, "TIOCGWINSZ"
    assert decide(program, ioctl, own, 1, 0x5412) == refusal(errno.EPERM)


@given(
    st.sampled_from(list(_ARCHITECTURES)), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 2**64 - 1), max_size=6)
)
def test_the_filter_returns_a_valid_action_for_every_call(machine: str, number: int, arguments: list[int]) -> None:
    decided = decide(filter_program(machine), number, _ARCHITECTURES[machine], *arguments)
    assert decided in {0x7FFF0000, refusal(errno.EPERM), refusal(errno.ENOSYS)}
    assert decided == refusal(errno.ENOSYS) or number < 457
