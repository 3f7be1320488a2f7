"""The contract of providers, and classes for providers whose machines are processes or programs of this host."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import stat
import subprocess
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from paragent._internal.clock import monotonic
from paragent._internal.processes import bound_to_parent, describe_exit, plain_environment
from paragent._internal.validation import at_least, check_fields, optional, port, reject_unknown, seconds
from paragent.errors import MachineFailed, UsageError
from paragent.machines.cleanup import find_program, kill_owned, owned_processes
from paragent.machines.guest_client import GuestRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence

    from paragent.machines.cleanup import Owner
    from paragent.machines.machine import Machine

__all__ = [
    "AGENT_PORT",
    "LOG_BYTES",
    "SCREENSHOT_BYTES",
    "SCREENSHOT_SECONDS",
    "CommandLineTool",
    "LocalProcesses",
    "MachineSettings",
    "Provider",
    "check_file",
    "complete_or_undo",
    "parse_option",
    "read_logs",
]

AGENT_PORT = 5000
"""The port of the guest agent, paragent's or OSWorld's."""
_ATTEMPT_SECONDS = 0.3
"""For one attempt to reach a machine that boots: QEMU's network accepts a connection before the guest agent listens, and such a
connection never gets an answer."""
_ATTEMPT_PAUSE = 0.05
_KILL_SECONDS = 10.0
"""For a killed program or machine to end."""
_LOG = "machine.log"
LOG_BYTES = 64 << 10
"""The part of a log that is shown: about a thousand lines."""
SCREENSHOT_SECONDS = 5.0
"""For one screenshot; a busy machine under emulation takes up to some seconds."""
SCREENSHOT_BYTES = 16 << 20
"""Largest screenshot: 1920x1080 pixels of noise have 6 MB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineSettings:
    """The settings of machines. Each provider uses those that it supports and rejects unknown `options`.

    Raises:
        ConfigError: a number is out of range.
    """

    path_to_vm: str | None = None
    """The image: a disk (`.qcow2`, `.vmx`, `.vbox`), the name of a built image, a container image or an AMI."""
    snapshot_name: str | None = None
    """The snapshot that a reset restores."""
    headless: bool = True
    """Whether machines run without a visible display."""
    memory_mib: int | None = None
    """Memory of a machine; None: the default of the provider or the image."""
    cores: int | None = None
    """Virtual processors of a machine; None: the provider's default."""
    desktop: bool = False
    """Whether the holder needs a desktop; `qemu` and `process` use it as the default of their options."""
    internet: bool = False
    """Whether the holder needs the Internet in the machine; `qemu` uses it as the default of its option."""
    screen: tuple[int, int] = (1920, 1080)
    """Width and height of the screen in pixels."""
    forwards: tuple[int, ...] = ()
    """Ports of the machine that must be reachable, besides the guest agent's."""
    host: str = "127.0.0.1"
    """The address of this host at which machines that run here are reached. Workers on other hosts need an address that they
    can reach. Requests are not encrypted: use it only in a trusted network."""
    region: str | None = None
    """The region of a cloud provider."""
    boot_seconds: float = 300.0
    """How long a machine may take until it answers."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of single providers; docs/guide/machines.md lists them."""

    def __post_init__(self) -> None:
        check_fields(
            self, {"memory_mib": optional(at_least(1)), "cores": optional(at_least(1)), "boot_seconds": seconds}
        )
        for number in self.forwards:
            port(number, "forwards")

    def check_options(self, provider: str, *known: str) -> None:
        """Check that `options` contains only known names.

        Raises:
            ConfigError: an option is unknown.
        """
        reject_unknown(provider, "option", self.options, known)


def check_file(path_to_vm: str | None) -> None:
    """Check that the image, if it is set, is a file.

    Raises:
        UsageError: it is not.
    """
    if path_to_vm and not Path(path_to_vm).is_file():
        raise UsageError(f"path_to_vm (--path-to-vm): {str(path_to_vm)!r} is not a file; correct the path")


def parse_option(text: Any) -> Any:
    """Return the value of an option that a user wrote as text: parsed as JSON if possible, otherwise unchanged."""
    try:
        return json.loads(text)
    except (TypeError, ValueError):
        return text


class Provider(ABC):
    """Creates machines. All methods run on the pool's event loop, must not block it, and end in bounded time.

    A provider labels everything that it creates with `owner.id`, in a way that survives this process.
    """

    default_spares: ClassVar[int] = 0
    """Spares of a pool that does not set them: more than 0 only if a spare needs few resources."""
    health_check_seconds: ClassVar[float] = 1.0
    """Time between calls of `alive` for each machine. A dead machine that is assigned in the meantime costs its next holder
    one more assignment."""
    listing_delay_seconds: ClassVar[float] = 0.0
    """How long after the death of a pool `list_owned` may miss machines that the pool had just requested."""

    def __init__(self, settings: MachineSettings, owner: Owner) -> None:
        self.settings, self.owner = settings, owner

    @classmethod  # noqa: B027 - optional
    def check_image(cls, settings: MachineSettings) -> None:
        """Check that the image exists, quickly and without starting anything; a dry run calls it too.

        Raises:
            UsageError: there is no such image.
        """

    @property
    def host_memory_mib(self) -> int | None:
        """How much memory of this host one machine may use, in MiB; None: unknown, or the memory of another host."""
        return None

    async def prepare(self) -> None:  # noqa: B027 - optional
        """Prepare what all machines share; called once, before any other method.

        Raises:
            UsageError: the settings cannot work on this host.
            MachineFailed: the image cannot be used.
        """

    @abstractmethod
    async def create(self, machine_id: str) -> Machine:
        """Start a machine and return as soon as its address is known.

        If it is cancelled, nothing of the machine may be left: use `complete_or_undo` for requests that continue in a thread.

        Args:
            machine_id: the pool's id. The returned machine has an id of the provider, for `stop` and `list_owned`, and the
                machine's secret as its token, if it has one.

        Raises:
            MachineFailed: the machine cannot be started; nothing of it is left.
        """

    async def wait_until_ready(self, machine: Machine) -> None:
        """Return when the guest agent answers.

        Raises:
            MachineFailed: it did not answer within `boot_seconds`, or the machine has ended.
        """
        deadline = monotonic() + self.settings.boot_seconds
        request = GuestRequest(
            machine.host, machine.port, "GET", "/platform", token=machine.token, timeout=_ATTEMPT_SECONDS
        )
        while True:
            try:
                await request.send_async()
            except MachineFailed as error:
                if not await self.alive(machine):
                    raise MachineFailed(f"{machine.id} ended before it answered") from error
                if monotonic() > deadline:
                    limit = self.settings.boot_seconds
                    raise MachineFailed(f"{machine.id} did not answer within {limit:.0f} s") from error
                await asyncio.sleep(_ATTEMPT_PAUSE)
            else:
                return

    @abstractmethod
    async def reset(self, machine: Machine) -> Machine:
        """Reset a machine and return it with its current address and id; its earlier holder can no longer reach it.

        Raises:
            MachineFailed: the reset failed; the caller stops the machine.
        """

    async def pause(self, machine: Machine) -> None:  # noqa: B027 - optional
        """Pause a machine that is not in use, if the provider can."""

    async def resume(self, machine: Machine) -> None:  # noqa: B027 - optional
        """Resume a paused machine.

        Raises:
            MachineFailed: the machine has ended.
        """

    def set_holder_token(self, machine: Machine, token: str) -> None:  # noqa: B027 - optional
        """Use the token of the new lease for services that the provider itself runs for this machine, such as screenshots."""

    @abstractmethod
    async def stop(self, machine_id: str) -> None:
        """Stop a machine and remove all that belongs to it; it is not an error if the machine is gone.

        Args:
            machine_id: the provider's id of the machine.

        Raises:
            MachineFailed: the machine still exists.
        """

    @abstractmethod
    async def list_owned(self, owners: Collection[str]) -> list[str]:
        """Return the provider's ids of all existing machines that belong to these owners.

        Raises:
            MachineFailed: the machines cannot be listed now.
        """

    async def alive(self, machine: Machine) -> bool:  # noqa: ARG002 - optional
        """Return whether the machine is running, as far as a cheap check can tell."""
        return True

    def logs(self, machine_id: str) -> list[Path]:  # noqa: ARG002 - optional
        """Return log files of a machine; `machine_id` is the provider's id."""
        return []

    def has_log(self, machine: Machine) -> bool:
        """Return whether `read_log` has something to read."""
        return bool(self.logs(machine.id))

    async def read_log(self, machine: Machine) -> str:
        """Return the end of a machine's log, at most `LOG_BYTES` bytes; by default that of its log files.

        Raises:
            MachineFailed: it cannot be read now.
        """
        return await asyncio.to_thread(read_logs, self.logs(machine.id))

    def has_screen(self, machine: Machine) -> bool:  # noqa: ARG002 - optional
        """Return whether a machine has a screen; by default its guest agent is expected to serve `/screenshot`."""
        return True

    async def screenshot(self, machine: Machine) -> bytes:
        """Return the screen of a machine as PNG, by default from its guest agent.

        Args:
            machine: the machine, with a token that its guest agent accepts now.

        Raises:
            MachineFailed, LeaseLost: it cannot be shown now.
        """
        request = GuestRequest(
            machine.host,
            machine.port,
            "GET",
            "/screenshot",
            token=machine.token,
            timeout=SCREENSHOT_SECONDS,
            limit=SCREENSHOT_BYTES,
        )
        return (await request.send_async()).check("screenshot").body

    async def close(self) -> None:  # noqa: B027 - optional
        """Release what `prepare` acquired."""


def read_logs(files: Sequence[Path]) -> str:
    """Return the ends of log files, at most `LOG_BYTES` bytes in all. Files that cannot be read are left out."""
    found: list[tuple[str, bytes]] = []
    for path in files:
        with contextlib.suppress(OSError):
            found.append((path.name, _read_end(path, LOG_BYTES // len(files))))
    found = [(name, content) for name, content in found if content]
    texts = [content.decode(errors="replace") for _, content in found]
    if len(found) > 1:
        texts = [f"== {name} ==\n{text.rstrip()}\n" for (name, _), text in zip(found, texts, strict=True)]
    return "\n".join(texts)


def _read_end(path: Path, size: int) -> bytes:
    """Return the last bytes of a regular file; a machine may have replaced it by something that blocks or is not its own."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            return b""
        return os.pread(descriptor, size, max(0, status.st_size - size))
    finally:
        os.close(descriptor)


_Result = TypeVar("_Result")


async def complete_or_undo(
    work: Coroutine[Any, Any, _Result], undo: Callable[[_Result], Coroutine[Any, Any, None]] | None = None
) -> _Result:
    """Wait for work that cannot be interrupted, such as a request in a thread, and return its result.

    If the caller is cancelled, the work is awaited to its end, its result is undone, and then the cancellation continues.

    Raises:
        MachineFailed: `work` failed; or the caller was cancelled and `undo` failed.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        ending = asyncio.ensure_future(_undo_result(task, undo))
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):  # a second cancellation does not interrupt it either
                await asyncio.wait([ending])
        ending.result()
        raise


async def _undo_result(
    task: asyncio.Future[_Result], undo: Callable[[_Result], Coroutine[Any, Any, None]] | None
) -> None:
    await asyncio.wait([task])
    if undo is not None and not task.cancelled() and task.exception() is None:
        await undo(task.result())


class CommandLineTool:
    """A program of this host. It is searched when it is first run, so that a provider can be created without it."""

    def __init__(self, name: str) -> None:
        self._name = name

    async def run(self, *arguments: str, timeout: float) -> str:
        """Run the program and return its output.

        Raises:
            UsageError: the program is not installed.
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


class LocalProcesses:
    """Processes of this host that are machines. Each has a folder below the owner's folder.

    They are started in the thread of the pool's event loop, which lives as long as the pool: the kernel ends them with it.
    Processes of a dead owner are found by their environment.
    """

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._helpers: dict[str, subprocess.Popen[bytes]] = {}
        """Second processes of machines, which end with the first ones."""
        self._endings: dict[str, asyncio.Task[None]] = {}

    def folder(self, machine_id: str) -> Path:
        """Return the folder of a machine."""
        return self._owner.folder / machine_id

    def logs(self, machine_id: str) -> list[Path]:
        """Return the log file of a machine's processes."""
        return [self.folder(machine_id) / _LOG]

    def start(
        self,
        machine_id: str,
        command: Sequence[str],
        descriptors: Collection[int] = (),
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
    ) -> None:
        """Start the process of a machine in its folder.

        Args:
            machine_id: the provider's id of the machine.
            command: the command line.
            descriptors: file descriptors that the process inherits.
            environment: variables beyond a plain environment without API keys.
            stdin: the standard input.

        Raises:
            MachineFailed: the program cannot be run.
        """
        self._processes[machine_id] = self._start(machine_id, command, descriptors, environment or {}, stdin)

    def start_helper(self, machine_id: str, command: Sequence[str], descriptors: Collection[int] = ()) -> None:
        """Start a second process of a machine; raises the same errors as `start`."""
        self._helpers[machine_id] = self._start(machine_id, command, descriptors, {}, subprocess.DEVNULL)

    def _start(
        self,
        machine_id: str,
        command: Sequence[str],
        descriptors: Collection[int],
        environment: Mapping[str, str],
        stdin: int,
    ) -> subprocess.Popen[bytes]:
        folder = self.folder(machine_id)
        folder.mkdir(exist_ok=True)
        with (folder / _LOG).open("ab") as log:
            try:
                return subprocess.Popen(
                    bound_to_parent(command),
                    stdin=stdin,
                    stdout=log,
                    stderr=log,
                    cwd=folder,
                    env={**plain_environment(), **environment, **self._owner.environment(machine_id)},
                    pass_fds=tuple(descriptors),
                    start_new_session=True,
                )
            except OSError as error:
                raise MachineFailed(f"{command[0]} cannot be started: {error}") from error

    def pid(self, machine_id: str) -> int | None:
        """Return the process id of a machine that was started here."""
        process = self._processes.get(machine_id)
        return None if process is None else process.pid

    def alive(self, machine_id: str) -> bool:
        """Return whether the process of a machine is running, and its helper if it has one."""
        process, helper = self._processes.get(machine_id), self._helpers.get(machine_id)
        return process is not None and process.poll() is None and (helper is None or helper.poll() is None)

    def describe_end(self, machine_id: str) -> str:
        """Return how the process of a machine ended, and the end of its log."""
        process = self._processes.get(machine_id)
        how = describe_exit(process.poll() if process else None)
        try:
            output = (self.folder(machine_id) / _LOG).read_bytes()[-500:].decode(errors="replace").strip()
        except OSError:
            output = ""
        return f"{how}: {output}" if output else how

    async def stop(self, machine_id: str, *, descendants: bool = False) -> None:
        """Kill a machine and remove its folder; with `descendants` also all processes that it started.

        It continues to its end if the caller is cancelled.
        """
        ending = self._endings.get(machine_id)
        if ending is None:
            ending = asyncio.get_running_loop().create_task(self._stop(machine_id, descendants))
            self._endings[machine_id] = ending
            ending.add_done_callback(lambda _: self._endings.pop(machine_id, None))
        await asyncio.shield(ending)

    async def close(self) -> None:
        """Wait until all machines that are being stopped have ended."""
        if self._endings:
            await asyncio.wait(list(self._endings.values()))

    async def _stop(self, machine_id: str, descendants: bool) -> None:
        process = self._processes.pop(machine_id, None)
        both = [each for each in (process, self._helpers.pop(machine_id, None)) if each is not None]
        for each in both:
            if each.poll() is None:
                each.kill()
        owner = self._owner_of(machine_id)
        if process is None or descendants:
            await asyncio.to_thread(kill_owned, owner, machine_id)
        for each in both:
            await asyncio.to_thread(each.wait, _KILL_SECONDS)
        await asyncio.to_thread(shutil.rmtree, self._owner.folder.parent / owner / machine_id, True)

    def _owner_of(self, machine_id: str) -> str:
        """Return the id of a machine's owner: leftovers belong to others, whose folders are next to ours."""
        for folder in self._owner.folder.parent.iterdir():
            if (folder / machine_id).is_dir():
                return folder.name
        return self._owner.id

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        """Return the ids of machines of these owners that still have a process or a folder."""
        found = set((await asyncio.to_thread(owned_processes, owners)).values())
        for owner in owners:
            folder = self._owner.folder.parent / owner
            if folder.is_dir():
                found |= {path.name for path in folder.iterdir() if path.is_dir()}
        return sorted(found)
