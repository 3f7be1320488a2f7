"""Inspection of machines: the end of a machine's log, and what its screen shows now."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from typing import TYPE_CHECKING

from paragent.errors import LeaseLost, MachineFailed
from paragent.machines.cleanup import cache_folder
from paragent.machines.providers.base import SCREENSHOT_SECONDS, read_logs

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from paragent.machines.machine import Machine
    from paragent.machines.providers.base import Provider

__all__ = ["MachineInspector"]

_LOGS_KEPT = 50
"""Log files of quarantined machines that are kept for one pool, the newest ones."""
_PNG = b"\x89PNG\r\n\x1a\n"


class MachineInspector:
    """Reads logs and screens of the machines of one provider. Belongs to the pool's event loop, except `keep_logs`."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider
        self._kept: dict[str, list[Path]] = {}
        """Copies of the logs of quarantined machines, by the pool's id."""
        self._screenshots: dict[str, asyncio.Task[bytes]] = {}
        """Screenshots in progress, by the pool's id: at most one for each machine."""

    def has_log(self, machine_id: str, machine: Machine | None) -> bool:
        """Return whether `log` has something to return."""
        return machine_id in self._kept or (machine is not None and self._provider.has_log(machine))

    async def log(self, machine_id: str, machine: Machine | None) -> str:
        """Return the end of a log; empty if there is none.

        Args:
            machine_id: the pool's id of the machine.
            machine: the machine as its provider returned it; None if it is gone, or not created yet.

        Raises:
            MachineFailed: the log cannot be read now.
        """
        if machine is not None:
            return await self._provider.read_log(machine)
        return await asyncio.to_thread(read_logs, self._kept.get(machine_id, []))

    def keep_logs(self, machine_id: str, provider_id: str) -> list[Path]:
        """Copy the log files of a machine that will be removed; return the copies. Runs in a thread."""
        owner = self._provider.owner
        home = cache_folder("logs", owner.pool)
        copies = []
        for log in self._provider.logs(provider_id):
            with contextlib.suppress(OSError):
                target = home / f"{owner.id}-{machine_id}-{log.name}"
                shutil.copyfile(log, target)
                copies.append(target)
        kept = sorted(home.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in kept[:-_LOGS_KEPT]:
            old.unlink(missing_ok=True)
        if copies:
            self._kept[machine_id] = copies
        return copies

    def forget_except(self, known: Collection[str]) -> None:
        """Forget the logs of machines that are not in the pool's table any more; the files stay."""
        for machine_id in [each for each in self._kept if each not in known]:
            del self._kept[machine_id]

    def has_screen(self, machine: Machine) -> bool:
        """Return whether a machine has a screen."""
        return self._provider.has_screen(machine)

    async def screenshot(self, machine_id: str, machine: Machine) -> bytes:
        """Return the screen as PNG. Concurrent calls for one machine share one request to it.

        Args:
            machine_id: the pool's id of the machine.
            machine: the machine, with a token that its guest agent accepts now.

        Raises:
            MachineFailed: it does not answer in time, or sends something else.
        """
        task = self._screenshots.get(machine_id)
        if task is None:
            task = self._screenshots[machine_id] = asyncio.get_running_loop().create_task(self._take(machine))
            task.add_done_callback(lambda done: self._taken(machine_id, done))
        return await asyncio.shield(task)

    async def _take(self, machine: Machine) -> bytes:
        try:
            async with asyncio.timeout(SCREENSHOT_SECONDS):
                image = await self._provider.screenshot(machine)
        except TimeoutError:
            raise MachineFailed(f"the machine sent no screenshot within {SCREENSHOT_SECONDS:.0f} s") from None
        except LeaseLost:
            raise MachineFailed("the machine is being given to another holder") from None
        if not image.startswith(_PNG):
            raise MachineFailed("the machine sent a screenshot that is not a PNG image")
        return image

    def _taken(self, machine_id: str, task: asyncio.Task[bytes]) -> None:
        del self._screenshots[machine_id]
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the callers may have stopped waiting
