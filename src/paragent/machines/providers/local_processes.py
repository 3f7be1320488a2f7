"""Machines that are processes of this host: started so that they end with the pool, found again by their mark."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from typing import TYPE_CHECKING

from paragent._internal.processes import bound_to_parent, describe_exit, plain_environment
from paragent.errors import MachineFailed
from paragent.machines.cleanup import end_marked, marked_processes

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from paragent.machines.cleanup import Run

__all__ = ["LocalProcesses"]

_LOG = "machine.log"


class LocalProcesses:
    """The processes of one run, each with a folder of its own below the run's.

    They are started on the thread of the pool's event loop, which lives as long as the pool: the kernel ends them with it.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._helpers: dict[str, subprocess.Popen[bytes]] = {}
        """What serves the process of an instance and ends with it."""
        self._endings: dict[str, asyncio.Task[None]] = {}

    def folder(self, instance_id: str) -> Path:
        """Return the folder of an instance."""
        return self._run.folder / instance_id

    def logs(self, instance_id: str) -> list[Path]:
        """Return what the process said."""
        return [self.folder(instance_id) / _LOG]

    def start(
        self,
        instance_id: str,
        command: Sequence[str],
        descriptors: Collection[int] = (),
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start the process of an instance, in its folder, with a plain environment and what is given in addition.

        Raises:
            MachineFailed: the program cannot be run.
        """
        self._processes[instance_id] = self._start(instance_id, command, descriptors, environment or {}, stdin)

    def start_helper(self, instance_id: str, command: Sequence[str], descriptors: Collection[int] = ()) -> None:
        """Start a second process of an instance; raises as `start`."""
        self._helpers[instance_id] = self._start(instance_id, command, descriptors, {}, subprocess.DEVNULL)

    def _start(
        self,
        instance_id: str,
        command: Sequence[str],
        descriptors: Collection[int],
        environment: Mapping[str, str],
        stdin: int,
    ) -> subprocess.Popen[bytes]:
        folder = self.folder(instance_id)
        folder.mkdir(exist_ok=True)
        with (folder / _LOG).open("ab") as log:
            try:
                return subprocess.Popen(
                    bound_to_parent(command),
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env={**plain_environment(), **environment, **self._run.mark(instance_id)},
                    pass_fds=tuple(descriptors),
                    start_new_session=True,
                )
            except OSError as error:
                raise MachineFailed(f"{command[0]} cannot be started: {error}") from error

    def pid(self, instance_id: str) -> int | None:
        """Return the process id of an instance that was started here."""
        process = self._processes.get(instance_id)
        return None if process is None else process.pid

    def alive(self, instance_id: str) -> bool:
        """Return whether the process of an instance runs, and its helper if it has one."""
        process, helper = self._processes.get(instance_id), self._helpers.get(instance_id)
        return process is not None and process.poll() is None and (helper is None or helper.poll() is None)

    def ending(self, instance_id: str) -> str:
        """Say how the process of an instance ended, and its last words."""
        process = self._processes.get(instance_id)
        how = describe_exit(process.poll() if process else None)
        try:
            words = (self.folder(instance_id) / _LOG).read_bytes()[-500:].decode(errors="replace").strip()
        except OSError:
            words = ""
        return f"{how}: {words}" if words else how

    async def end(self, instance_id: str, *, whole_mark: bool = False) -> None:
        """End an instance and remove its folder; with `whole_mark` also processes that it started itself.

        It goes on to its end even if whoever waits for it is cancelled.
        """
        ending = self._endings.get(instance_id)
        if ending is None:
            ending = asyncio.get_running_loop().create_task(self._end(instance_id, whole_mark))
            self._endings[instance_id] = ending
            ending.add_done_callback(lambda _: self._endings.pop(instance_id, None))
        await asyncio.shield(ending)

    async def close(self) -> None:
        """Wait for all that is being ended."""
        if self._endings:
            await asyncio.wait(list(self._endings.values()))

    async def _end(self, instance_id: str, whole_mark: bool) -> None:
        process = self._processes.pop(instance_id, None)
        both = [each for each in (process, self._helpers.pop(instance_id, None)) if each is not None]
        for each in both:
            if each.poll() is None:
                each.kill()
        run = self._owner_of(instance_id)
        if process is None or whole_mark:
            await asyncio.to_thread(end_marked, run, instance_id)
        for each in both:
            await asyncio.to_thread(each.wait, 10.0)
        await asyncio.to_thread(shutil.rmtree, self._run.folder.parent / run / instance_id, True)

    def _owner_of(self, instance_id: str) -> str:
        """Ids of leftovers are of another run, whose folder is beside ours."""
        for folder in self._run.folder.parent.iterdir():
            if (folder / instance_id).is_dir():
                return folder.name
        return self._run.id

    async def list_own(self, runs: Collection[str]) -> list[str]:
        """Return the instances of `runs` of which a process or a folder is left."""
        found = set((await asyncio.to_thread(marked_processes, runs)).values())
        for run in runs:
            folder = self._run.folder.parent / run
            if folder.is_dir():
                found |= {path.name for path in folder.iterdir() if path.is_dir()}
        return sorted(found)
