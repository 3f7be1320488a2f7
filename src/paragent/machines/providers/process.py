"""`process`: machines are local processes that run the guest agent, for tests and for hosts without virtualization.

It is not a sandbox: commands run as the user of the pool, on the pool's host, with a plain environment without API keys.
Each machine has a folder in which its commands start. A reset kills every process of the machine and creates the folder again.

Options: `desktop` (whether the machine has a screen: Xvfb with a window manager and applications of this host),
`applications` (which of them are open at the start, such as `terminal,editor`).
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import paragent
from paragent._internal.ids import new_id
from paragent.errors import ConfigError
from paragent.guest import agent
from paragent.guest.desktop.session import APPLICATIONS
from paragent.machines.cleanup import find_program
from paragent.machines.machine import Machine
from paragent.machines.providers.base import LocalProcesses, MachineSettings, Provider

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from paragent.machines.cleanup import Owner

__all__ = ["DESKTOP_PROGRAMS", "ProcessProvider"]

DESKTOP_PROGRAMS = ("Xvfb", "openbox", "dbus-daemon")
"""Programs that a desktop needs. Applications are optional."""


class ProcessProvider(Provider):
    """Processes and folders of this host."""

    default_spares: ClassVar[int] = 1

    def __init__(self, settings: MachineSettings, owner: Owner) -> None:
        super().__init__(settings, owner)
        settings.check_options("process", "desktop", "applications")
        self._desktop = bool(settings.options.get("desktop", settings.desktop))
        known = [application.name for application in APPLICATIONS]
        self._applications = str(settings.options.get("applications", ",".join(known)))
        if unknown := sorted(set(self._applications.split(",")) - {"", *known}):
            raise ConfigError(f"a desktop has no application {unknown[0]!r}; applications: {', '.join(known)}")
        self._local = LocalProcesses(owner)

    async def prepare(self) -> None:
        for program in DESKTOP_PROGRAMS if self._desktop else ():
            find_program(program)

    async def create(self, machine_id: str) -> Machine:
        process_id = new_id(machine_id)
        home = self._local.folder(process_id) / "home"
        home.mkdir(parents=True)
        secret = secrets.token_urlsafe(32)
        with socket.create_server((self.settings.host, 0), backlog=128) as listener, _pipe_containing(secret) as pipe:
            descriptor, port = listener.fileno(), listener.getsockname()[1]
            common = ["--fd", str(descriptor), "--folder", str(home), "--secret-fd", str(pipe)]
            if self._desktop:
                command, more = self._desktop_command(home.parent), _desktop_environment(home.parent)
            else:
                command, more = [sys.executable, "-I", agent.__file__], {}
            self._local.start(process_id, [*command, *common], [descriptor, pipe], more)
        details = {"pid": str(self._local.pid(process_id))}
        return Machine(process_id, self.settings.host, port, secret, details=details)

    def _desktop_command(self, folder: Path) -> list[str]:
        width, height = self.settings.screen
        command = [str(folder / "bin/python"), "-m", "paragent.guest.desktop"]
        return [*command, "--screen", f"{width}x{height}", "--applications", self._applications]

    async def reset(self, machine: Machine) -> Machine:
        await self.stop(machine.id)
        return await self.create(machine.id.partition("-")[0])

    async def stop(self, machine_id: str) -> None:
        await self._local.stop(machine_id, descendants=True)

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        return await self._local.list_owned(owners)

    async def close(self) -> None:
        await self._local.close()

    async def alive(self, machine: Machine) -> bool:
        return self._local.alive(machine.id)

    def logs(self, machine_id: str) -> list[Path]:
        return self._local.logs(machine_id)

    def has_screen(self, machine: Machine) -> bool:  # noqa: ARG002 - all machines are alike
        return self._desktop


@contextmanager
def _pipe_containing(text: str) -> Iterator[int]:
    """Yield a file descriptor from which `text` can be read once."""
    reading, writing = os.pipe()
    os.write(writing, text.encode())
    os.close(writing)
    try:
        yield reading
    finally:
        os.close(reading)


def _desktop_environment(folder: Path) -> dict[str, str]:
    """Return variables that make `python` and `python3` in a machine this interpreter, with our pyautogui in its path."""
    programs = folder / "bin"
    programs.mkdir()
    for name in ("python", "python3"):
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n')
        (programs / name).chmod(0o755)
    package = Path(paragent.__file__).parent
    modules = [str(package / "guest/python_path"), str(package.parent), os.environ.get("PYTHONPATH", "")]
    return {
        "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONPATH": ":".join(part for part in modules if part),
    }
