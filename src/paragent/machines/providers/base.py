"""The contract of providers: create, wait until ready, reset, stop, list own."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paragent._internal.clock import monotonic
from paragent._internal.processes import bound_to_parent
from paragent._internal.validation import integer, seconds
from paragent.errors import ConfigError, MachineFailed
from paragent.machines.cleanup import find_program
from paragent.machines.guest_client import ask_async

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping
    from pathlib import Path

    from paragent.machines.cleanup import Run

__all__ = ["GUEST_PORT", "Instance", "MachineSettings", "Provider", "Tool", "uncancelled"]


GUEST_PORT = 5000
"""Where OSWorld's guest server and ours listen inside a machine."""
_TRY_SECONDS = 0.3
"""For one try to reach a guest that boots: QEMU's network accepts a connection before the guest listens, and then nobody
ever answers on it."""
_TRY_PAUSE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """What a machine is like. Every provider reads what it can act on and refuses `options` that it does not know.

    Raises:
        ConfigError: a number is out of range.
    """

    path_to_vm: str | None = None
    """The image: a disk (`.qcow2`, `.vmx`, `.vbox`), the name of a built image, a container image or an AMI."""
    snapshot_name: str | None = None
    """The snapshot that a reset goes back to."""
    headless: bool = True
    """Whether machines have no display that a person can look at."""
    memory_mib: int | None = None
    """Memory of a machine; None: what the provider or the image thinks best."""
    cores: int | None = None
    desktop: bool = False
    """Whether whoever leases a machine needs a desktop: decides what `qemu` and `process` offer where nothing else does."""
    internet: bool = False
    """Whether whoever leases a machine needs the Internet in it: decides what `qemu` gives where its option does not."""
    screen: tuple[int, int] = (1920, 1080)
    forwards: tuple[int, ...] = ()
    """Ports of the guest, besides the agent's, that are to be reached."""
    host: str = "127.0.0.1"
    """The address of this host at which machines that run here are reached. Workers on other hosts need one that they can
    reach. Requests are not encrypted, so only in a network that is trusted."""
    region: str | None = None
    boot_seconds: float = 300.0
    """How long a machine may take until it answers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only one provider knows; docs/machines.md lists them."""

    def __post_init__(self) -> None:
        for name in ("memory_mib", "cores"):
            if (value := getattr(self, name)) is not None:
                integer(value, name, least=1, none=True)
        seconds(self.boot_seconds, "boot_seconds")
        if any(not 0 < port < 65536 for port in self.forwards):
            raise ConfigError(f"forwards must be ports, not {self.forwards!r}")

    def only(self, provider: str, *known: str) -> None:
        """Check that `options` has nothing that a provider does not know.

        Raises:
            ConfigError: it has.
        """
        if unknown := sorted(set(self.options) - set(known)):
            raise ConfigError(f"{provider} has no option {unknown[0]!r}; it has: {', '.join(known) or 'none'}")


@dataclass(frozen=True, slots=True)
class Instance:
    """A machine as its provider knows it."""

    id: str
    """What `stop` and `reset` are told; it may be another one after a reset."""
    host: str
    port: int
    """Where the guest agent answers."""
    ports: Mapping[int, int] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    secret: str = field(default="", repr=False)
    """What the guest was given when it was made, so that it knows its pool; empty: it was given nothing."""


_Made = TypeVar("_Made")


async def uncancelled(
    work: Coroutine[Any, Any, _Made], undo: Callable[[_Made], Coroutine[Any, Any, None]] | None = None
) -> _Made:
    """Wait for work that nothing can interrupt, such as a request in a thread, and return its result.

    If the caller is cancelled meanwhile, the work is still waited for, its result is undone, and then the cancellation goes on.

    Raises:
        MachineFailed: as `work` does; or the caller was cancelled, and `undo` failed.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ending = asyncio.ensure_future(_undone(task, undo))
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):  # whoever cancels again has to wait, too
                await asyncio.wait([ending])
        ending.result()
        raise


async def _undone(task: asyncio.Future[_Made], undo: Callable[[_Made], Coroutine[Any, Any, None]] | None) -> None:
    await asyncio.wait([task])
    if undo is not None and not task.cancelled() and task.exception() is None:
        await undo(task.result())


class Provider(ABC):
    """Makes machines. All methods run on the pool's event loop and must not hold it; each ends in bounded time.

    A provider marks all that it makes with `run.id`, in a way that outlives this process.
    """

    default_spares: ClassVar[int] = 0
    """Spares of a pool that does not say how many: more than 0 only where a spare costs next to nothing."""
    health_seconds: ClassVar[float] = 1.0
    """Between calls of `alive` for each machine. A dead machine that is handed out meanwhile costs its next holder one more
    hand-out, no more."""

    late_seconds: ClassVar[float] = 0.0
    """After a pool was killed, `list_own` may miss for so long what it was just having made."""

    def __init__(self, settings: MachineSettings, run: Run) -> None:
        self.settings, self.run = settings, run

    async def prepare(self) -> None:  # noqa: B027 - optional
        """Get ready what all machines share; called once, before anything else.

        Raises:
            UsageError: the settings cannot work here.
            MachineFailed: the image is of no use.
        """

    @abstractmethod
    async def create(self, machine_id: str) -> Instance:
        """Start a machine and return as soon as it is known where it will answer.

        If it is cancelled, nothing of the machine may be left: use `uncancelled` for a request that goes on in a thread.

        Raises:
            MachineFailed: it cannot be started; nothing of it is left.
        """

    async def wait_until_ready(self, instance: Instance) -> None:
        """Return when the guest answers.

        Raises:
            MachineFailed: it did not within `boot_seconds`, or the machine has ended.
        """
        deadline = monotonic() + self.settings.boot_seconds
        while True:
            try:
                token = instance.secret or None
                await ask_async(instance.host, instance.port, "GET", "/platform", token=token, timeout=_TRY_SECONDS)
            except MachineFailed as error:
                if not await self.alive(instance):
                    raise MachineFailed(f"{instance.id} ended before it answered") from error
                if monotonic() > deadline:
                    seconds = self.settings.boot_seconds
                    raise MachineFailed(f"{instance.id} did not answer within {seconds:.0f} s") from error
                await asyncio.sleep(_TRY_PAUSE)
            else:
                return

    @abstractmethod
    async def reset(self, instance: Instance) -> Instance:
        """Make a machine as new and return where it is now; whoever held it before cannot reach it any more.

        Raises:
            MachineFailed: that did not work; the machine is stopped by its owner then.
        """

    async def rest(self, instance: Instance) -> None:  # noqa: B027 - optional
        """The machine waits, for a holder or because its holder wants it to: a provider may pause it."""

    async def wake(self, instance: Instance) -> None:  # noqa: B027 - optional
        """The machine is about to be handed out, or its holder goes on with it.

        Raises:
            MachineFailed: it is not there any more.
        """

    def held_by(self, instance: Instance, token: str) -> None:  # noqa: B027 - optional
        """The machine has this holder now: what a provider serves itself, beside the guest, is for its token alone."""

    @abstractmethod
    async def stop(self, instance_id: str) -> None:
        """End a machine and remove all that belongs to it; one that is gone already is no error.

        Raises:
            MachineFailed: it is still there.
        """

    @abstractmethod
    async def list_own(self, runs: Collection[str]) -> list[str]:
        """Return the ids of everything that exists and bears the mark of one of `runs`.

        Raises:
            MachineFailed: that cannot be found out now.
        """

    async def alive(self, instance: Instance) -> bool:  # noqa: ARG002 - optional
        """Return whether the machine still runs, as far as that can be told cheaply."""
        return True

    def logs(self, instance_id: str) -> list[Path]:  # noqa: ARG002 - optional
        """Return files that help to understand what went wrong with a machine."""
        return []

    async def close(self) -> None:  # noqa: B027 - optional
        """Let go of what `prepare` took."""


_KILL_SECONDS = 10.0


class Tool:
    """One program. `name` is looked for when it is first used, so that making a provider needs nothing installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def run(self, *arguments: str, timeout: float) -> str:
        """Run the program to its end and return what it printed.

        Raises:
            UsageError: it is not installed.
            MachineFailed: it failed, or took longer than `timeout` seconds.
        """
        command = bound_to_parent([find_program(self._name), *arguments])
        process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(timeout):
                output, _ = await process.communicate()
        except TimeoutError:
            raise MachineFailed(f"{self._name} {' '.join(arguments)} took longer than {timeout:.0f} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.wait(), _KILL_SECONDS)
        text = output.decode(errors="replace")
        if process.returncode:
            raise MachineFailed(f"{self._name} {' '.join(arguments)} failed: {text.strip()[-500:]}")
        return text
