"""What the stand-ins have in common: a guest is our agent as a process, and what is known of it is a JSON file."""

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
from pathlib import Path
from typing import Any

from paragent.guest import agent

STATE = Path(os.environ.get("STAND_IN_STATE", "/nonexistent"))

_CHILDREN: dict[int, subprocess.Popen[bytes]] = {}
"""Guests that this very process started; a stand-in that is a program starts them for others to end."""


def note(name: str, arguments: list[str]) -> None:
    """Write down a call, for the test to compare."""
    with (STATE / f"{name}.calls").open("a") as calls:
        calls.write(json.dumps(arguments) + "\n")


def load() -> dict[str, Any]:
    path = STATE / "machines.json"
    machines: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return machines


def save(machines: dict[str, Any]) -> None:
    (STATE / "machines.json").write_text(json.dumps(machines))


def start_guest(name: str, listener: socket.socket) -> int:
    """Start a guest whose disk is a folder and which answers at `listener`; return its process id."""
    home = STATE / "disks" / name
    home.mkdir(parents=True, exist_ok=True)
    descriptor = listener.fileno()
    guest = subprocess.Popen(
        [sys.executable, "-I", agent.__file__, "--fd", str(descriptor), "--folder", str(home)],
        pass_fds=[descriptor],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    _CHILDREN[guest.pid] = guest
    return guest.pid


def stop_guest(pid: int) -> None:
    """End a guest, and return when it has let go of its port."""
    with contextlib.suppress(ProcessLookupError):
        ending = os.pidfd_open(pid)
        try:
            os.killpg(pid, signal.SIGKILL)
            select.select([ending], [], [], 20)
        finally:
            os.close(ending)
    if guest := _CHILDREN.pop(pid, None):
        guest.wait(20)


def wipe(name: str) -> None:
    shutil.rmtree(STATE / "disks" / name, ignore_errors=True)
