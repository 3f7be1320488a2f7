"""Where the interpreters of the environment `py` run: in a sandbox of bubblewrap, or without protection."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.errors import EnvironmentFailed, MissingProgram
from paragent.subprocesses import Child, ChildLost, ProcessLimits, child_main
from paragent.subprocesses.bubblewrap import (
    TMP,
    SandboxFiles,
    bubblewrap_command,
    privilege_settings,
    reported_problem,
)
from paragent.subprocesses.installations import own_python

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

__all__ = ["SANDBOXES", "start_in_bubblewrap", "start_unprotected"]

_START_LIMIT = 60.0
"""Seconds for an interpreter to start; it takes 0.1 on an idle host."""
_CHILD_MAIN = Path(child_main.__file__)
_INSIDE = "/run/child_main.py"
_VARIABLES = {
    "PATH": "/usr/bin:/bin",
    "HOME": TMP,
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
_USER = "the sandbox of the environment 'py'"
_ADVICE = (
    "install the package `bubblewrap` (0.8 or later) on a kernel that allows user namespaces, use --sandbox vm, "
    "or use --sandbox none to run programs without protection"
)


async def start_in_bubblewrap(limits: ProcessLimits) -> Child:
    """Start an interpreter without network, with a read-only system, its own empty /tmp, and no view of other processes.

    It replaces the session keyring before it runs code. A seccomp filter denies dangerous system calls.

    Raises:
        MissingProgram: bubblewrap is missing or does not work here, or there is no seccomp filter for this CPU.
        EnvironmentFailed: the interpreter does not start for another reason.
    """
    files = SandboxFiles(readable=(sys.base_prefix, sys.prefix), inside={_INSIDE: str(_CHILD_MAIN)})
    main = [own_python(), "-I", _INSIDE]
    with bubblewrap_command(files, main, user=_USER, advice=_ADVICE) as (command, descriptors):
        settings = json.dumps(privilege_settings(limits))
        child = await Child.start([*command, settings], limits, environment=_VARIABLES, pass_fds=descriptors)
    try:
        await child.request({"code": "", "limit": _START_LIMIT}, _START_LIMIT)
    except ChildLost as lost:
        if (problem := reported_problem(lost.output)) is not None:
            raise MissingProgram(_USER, f"bubblewrap does not work here ({problem})", _ADVICE) from None
        raise EnvironmentFailed(f"the interpreter {lost.reason}: {lost.output[-500:]}") from None
    return child


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
