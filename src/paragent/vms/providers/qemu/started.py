"""A QEMU process with what belongs to it: its folder, the secret that its guest is told, its network."""

from __future__ import annotations

import os
import secrets
from typing import TYPE_CHECKING

from paragent.vms.providers.qemu.network import Namespace

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from paragent.vms.providers.local_processes import LocalProcesses
    from paragent.vms.providers.qemu.hardware import Hardware

__all__ = ["Started"]

_PASSWORD_CHARACTERS = 8
"""As many as VNC looks at."""


class Started:
    """One process of QEMU; whoever made it ends it with its folder, by its name."""

    def __init__(self, local: LocalProcesses, name: str, hardware: Hardware) -> None:
        self._local, self._name, self._host = local, name, hardware.host
        self.folder = local.folder(name)
        self.folder.mkdir(exist_ok=True)
        self._network = Namespace(local, name) if hardware.network == "internet" else None

    @property
    def secret_file(self) -> Path:
        """What QEMU shows the guest."""
        return self.folder / "secret"

    @property
    def password_file(self) -> Path:
        """Has the password of the display."""
        return self.folder / "password"

    def make_secret(self) -> str:
        """Choose what the guest is told, and return it; always of one length, as clones take over each other's devices."""
        secret = secrets.token_urlsafe(32)
        _write(self.secret_file, secret)
        return secret

    def make_password(self) -> str:
        """Choose a password for the display, and return it."""
        password = secrets.token_urlsafe(_PASSWORD_CHARACTERS)[:_PASSWORD_CHARACTERS]
        _write(self.password_file, password)
        return password

    async def start(self, command: Sequence[str], descriptors: Collection[int]) -> None:
        """Start the process.

        Raises:
            MachineFailed: it cannot be started.
        """
        if self._network is None:
            self._local.start(self._name, command, descriptors)
        else:
            await self._network.start(command, descriptors)

    async def reachable(self, ports: Mapping[int, int]) -> dict[int, int]:
        """Return where ports of the guest are reached on this host, given where QEMU says that they are.

        Raises:
            MachineFailed: they cannot be reached.
        """
        return dict(ports) if self._network is None else await self._network.forward(self._host, ports)


def _write(path: Path, text: str) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)
