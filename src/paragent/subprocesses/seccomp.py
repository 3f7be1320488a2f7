"""Seccomp filter of sandboxes, compiled to BPF: it denies system calls with which code could leave a sandbox."""

from __future__ import annotations

import errno
import os
import platform
import struct

__all__ = ["JOIN_SESSION_KEYRING", "UnsupportedMachine", "filter_file", "filter_program", "keyctl_number"]

JOIN_SESSION_KEYRING = 1
"""The only allowed operation of keyctl. Called without a name, it replaces the session keyring by a new, empty one."""

# Offsets in `struct seccomp_data`: the number of the call, the architecture, six arguments of 64 bits in little endian.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

# From <linux/bpf_common.h>: load a word, jump if equal, greater or equal, any bit set; return.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06

_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000
"""SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS and SECCOMP_RET_ERRNO of <linux/seccomp.h>."""

_FIRST_UNKNOWN = 457
"""System calls newer than Linux 6.7 were not reviewed; in the sandbox they do not exist. Numbers of the x32 ABI are larger
(bit 30)."""
_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX insert characters into the input of a terminal."""
_FAMILIES = (1, 2, 10, 16)
"""Sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Some others, such as AF_VSOCK, are not bound to a network namespace."""
_PERSONALITIES = (0, 0xFFFFFFFF)
"""The default, and the query of the current one. Others disable address randomisation or the protection of the zero page."""

# Name: number on x86_64, number on aarch64 (None: does not exist there).
_DENIED: dict[str, tuple[int, int | None]] = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "move_pages": (279, 239),
    "migrate_pages": (256, 238),
    "unshare": (272, 97),
    "setns": (308, 268),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "query_module": (178, None),
    "get_kernel_syms": (177, None),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
    "sysfs": (139, None),
    "ustat": (136, None),
    "nfsservctl": (180, 42),
}
_CHECKED: dict[str, tuple[int, int]] = {
    "keyctl": (250, 219),
    "clone": (56, 220),
    "clone3": (435, 435),
    "personality": (135, 92),
    "ioctl": (16, 29),
    "socket": (41, 198),
}
"""System calls that are allowed depending on their arguments."""
_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Machine name: its column in the tables above, and its AUDIT_ARCH number from <linux/audit.h>."""


class UnsupportedMachine(Exception):
    """There is no filter for this CPU architecture."""


def filter_program(machine: str | None = None) -> bytes:
    """Return the compiled filter for a CPU architecture; default: that of this host.

    Raises:
        UnsupportedMachine: there is no filter for it.
    """
    column, architecture = _machine(machine)
    calls = {name: numbers[column] for name, numbers in _CHECKED.items()}
    code = [
        _load(_ARCHITECTURE),
        *_unless(_EQUAL, architecture, [_return(_KILL)]),  # other ABIs of the CPU number the calls differently
        _load(_NUMBER),
        *_where(_AT_LEAST, _FIRST_UNKNOWN, [_fail(errno.ENOSYS)]),
    ]
    for numbers in _DENIED.values():
        if (number := numbers[column]) is not None:
            code += _where(_EQUAL, number, [_fail(errno.EPERM)])
    # The C library falls back to clone, whose flags are in a register and can be checked.
    code += _where(_EQUAL, calls["clone3"], [_fail(errno.ENOSYS)])
    code += _where(
        _EQUAL,
        calls["clone"],
        [_load(_argument(0)), *_where(_ANY_BIT, _NEW_NAMESPACES, [_fail(errno.EPERM)]), _allow()],
    )
    code += _where(_EQUAL, calls["ioctl"], _only(1, _TERMINAL_INPUT, listed=False))
    code += _where(_EQUAL, calls["socket"], _only(0, _FAMILIES, listed=True))
    code += _where(_EQUAL, calls["personality"], _only(0, _PERSONALITIES, listed=True))
    code += _where(_EQUAL, calls["keyctl"], _new_session_keyring())
    return b"".join([*code, _allow()])


def keyctl_number() -> int:
    """Return the number of the system call keyctl on this host.

    Raises:
        UnsupportedMachine: it is not known for this CPU architecture.
    """
    column, _ = _machine(None)
    return _CHECKED["keyctl"][column]


def filter_file() -> int:
    """Return a new file descriptor from which the filter can be read; the caller closes it. Raises like `filter_program`."""
    program = filter_program()
    descriptor = os.memfd_create("seccomp filter")
    os.write(descriptor, program)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _machine(name: str | None) -> tuple[int, int]:
    name = name or platform.machine()
    if name not in _MACHINES:
        raise UnsupportedMachine(f"there is no seccomp filter for {name}; there is for {' and '.join(_MACHINES)}")
    return _MACHINES[name]


# --- a small assembler: each function returns encoded instructions --------------------------------------------------------


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _load(offset: int) -> bytes:
    return _instruction(_LOAD, offset)


def _argument(index: int, *, high: bool = False) -> int:
    """Return the offset of the low or high word of an argument."""
    return _ARGUMENTS + 8 * index + (4 if high else 0)


def _return(value: int) -> bytes:
    return _instruction(_RETURN, value)


def _allow() -> bytes:
    return _return(_ALLOW)


def _fail(code: int) -> bytes:
    return _return(_ERROR | code)


def _where(test: int, value: int, then: list[bytes]) -> list[bytes]:
    """Run `then` if the loaded value passes the test; otherwise skip it."""
    return [_instruction(test, value, 0, len(then)), *then]


def _unless(test: int, value: int, then: list[bytes]) -> list[bytes]:
    return [_instruction(test, value, len(then), 0), *then]


def _only(argument: int, values: tuple[int, ...], *, listed: bool) -> list[bytes]:
    """Allow a call only if a 32-bit argument is one of `values`, or with `listed=False` only if it is not."""
    found, other = (_allow(), _fail(errno.EPERM)) if listed else (_fail(errno.EPERM), _allow())
    tests = [instruction for value in values for instruction in _where(_EQUAL, value, [found])]
    return [_load(_argument(argument)), *tests, other]


def _new_session_keyring() -> list[bytes]:
    """Allow only keyctl(JOIN_SESSION_KEYRING, NULL): with a name, it would join an existing keyring."""
    code = [_load(_argument(0)), *_unless(_EQUAL, JOIN_SESSION_KEYRING, [_fail(errno.EPERM)])]
    for high in (False, True):
        code += [_load(_argument(1, high=high)), *_unless(_EQUAL, 0, [_fail(errno.EPERM)])]
    return [*code, _allow()]
