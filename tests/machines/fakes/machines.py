"""Machines of the fakes: our agent as a local process. A JSON file has the state of all machines."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

_PACKAGE = find_spec("paragent")
assert _PACKAGE is not None
assert _PACKAGE.origin is not None
_AGENT = Path(_PACKAGE.origin).parent / "guest/agent.py"
"""Found without importing it, because the fakes are started many times."""
STATE = Path(os.environ.get("FAKE_STATE", "/nonexistent"))

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""Processes that this process started. A fake that is a program starts processes that another call of it stops."""


def record_call(name: str, arguments: list[str]) -> None:
    """Append a call to a file that the test compares."""
    with (STATE / f"{name}.calls").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")


def load() -> dict[str, Any]:
    path = STATE / "machines.json"
    machines: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return machines


def save(machines: dict[str, Any]) -> None:
    (STATE / "machines.json").write_text(json.dumps(machines))


def start(name: str, listener: socket.socket) -> int:
    """Start a machine whose disk is a folder and whose agent listens at `listener`; return its process id."""
    home = STATE / "disks" / name
    home.mkdir(parents=True, exist_ok=True)
    descriptor = listener.fileno()
    process = subprocess.Popen(
        [sys.executable, "-I", str(_AGENT), "--fd", str(descriptor), "--folder", str(home)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _CHILDREN[process.pid] = process
    return process.pid


def stop(pid: int) -> None:
    """Kill a machine and return when its port is free."""
    with contextlib.suppress(ProcessLookupError):
        ending = os.pidfd_open(pid)
        try:
            os.killpg(pid, signal.SIGKILL)
            select.select([ending], [], [], 20)
        finally:
            os.close(ending)
    if process := _CHILDREN.pop(pid, None):
        process.wait(20)


def delete_disk(name: str) -> None:
    shutil.rmtree(STATE / "disks" / name, ignore_errors=True)
