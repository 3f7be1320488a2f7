"""One worker process seen from outside: it is given calls, watched, killed when it must be, and accounted for.

A supervisor belongs to one thread, which selects on `sources()` and calls `news()` when one is ready or `alarm` has come.
"""

from __future__ import annotations

import contextlib
import math
import mmap
import os
import select
import socket
import subprocess
import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

import paragent
from paragent._internal.processes import describe_exit, kill_group
from paragent.serialization import Parcel
from paragent.serialization.code_cache import SentCode
from paragent.tasks import Ending, Outcome
from paragent.transport.framing import READ_BUDGET, FramedSocket
from paragent.worker.protocol import CANCEL, RECALL, STOP, Hello, News, Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

    from paragent.engines.base import Call
    from paragent.worker.output import Line
    from paragent.worker.protocol import WireOutcome

__all__ = ["Supervisor", "Tidings", "WorkWriter", "WorkerSettings"]


_TARGETS_KEPT = 128
"""Targets that a worker keeps; the least recently used one is sent again when it is needed again."""


class WorkWriter:
    """Builds the `Work` messages for one receiver; leaves out code and targets that the receiver already has."""

    def __init__(self) -> None:
        self._targets: OrderedDict[int, tuple[int, Parcel]] = OrderedDict()
        self._next_target = 0
        self._sent = SentCode()
        self._code: dict[str, bytes] = {}
        """Code to send with the next message."""
        self._forgotten: list[str] = []
        """Digests that the receiver may forget, to send with the next message."""

    def add_code(self, code: Mapping[str, bytes]) -> None:
        """Send code with the next message, unless the receiver has it."""
        self._code |= self._sent.missing(code)

    def forget_code(self, digests: Iterable[str]) -> None:
        """Tell the receiver with the next message to forget code that no call in flight needs."""
        for digest in self._sent.remove(digests):
            self._code.pop(digest, None)
            self._forgotten.append(digest)

    def evict(self, in_flight: Iterable[Call]) -> None:
        """Forget the least recently used code if there is much: a program may make a new function for every task."""

        def needed() -> set[str]:
            digests: set[str] = set()
            for _, target in self._targets.values():
                digests.update(target.code)
            for call in in_flight:
                digests.update(call.target.code)
                if type(call.argument) is Parcel:
                    digests.update(call.argument.code)
            return digests

        for digest in self._sent.evict(needed):
            self._code.pop(digest, None)
            self._forgotten.append(digest)

    def work(self, calls: Iterable[tuple[int, Call]]) -> Work:
        """Return the frame that gives the receiver `calls`, each under the number it is paired with."""
        targets: dict[int, bytes] = {}
        forget: list[int] = []
        wire = []
        for number, call in calls:
            key = self._target(call.target, targets, forget)
            argument = call.argument
            if type(argument) is Parcel and argument.code:
                argument = self._slim(argument)
            wire.append((number, key, argument, call.label, call.limit, call.is_async))
        code, self._code = self._code, {}
        forget_code, self._forgotten = self._forgotten, []
        return Work(code, targets, forget, wire, forget_code)

    def _target(self, target: Parcel, bodies: dict[int, bytes], forget: list[int]) -> int:
        known = self._targets.get(id(target))
        if known is not None:
            self._targets.move_to_end(id(target))
            return known[0]
        key = self._next_target
        self._next_target += 1
        self._targets[id(target)] = (key, target)
        bodies[key] = self._slim(target).body
        if len(self._targets) > _TARGETS_KEPT:
            forget.append(self._targets.popitem(last=False)[1][0])
        return key

    def _slim(self, parcel: Parcel) -> Parcel:
        """Return the parcel without its code, which goes with the frame where the receiver does not have it."""
        self.add_code(parcel.code)
        return Parcel(parcel.body, {})


CANCEL_GRACE = 1.0
"""Seconds that async code may use, after its limit, to clean up before its worker is killed."""
_HOME = os.path.dirname(paragent.__path__[0])  # noqa: PTH120 - pathlib would be loaded for this alone
_WORKER = (
    "import gc, sys; gc.disable(); sys.path.insert(0, sys.argv[1]); from paragent.worker.main import work; "
    "work(int(sys.argv[2]), int(sys.argv[3]))"
)
"""Works wherever this copy of paragent came from, and leaves `__main__` of the worker empty for the user's. Nothing that is
loaded becomes garbage, so looking for some waits until `work` allows it."""
_WARNING = 30
"""`logging.WARNING`, the level of a root logger that nobody has set up."""
_LOOK = 5
"""Milliseconds between two looks at whether a process has ended, where the kernel does not tell."""
_EXIT_WAIT = 5.0
"""Seconds to wait for the kernel to report a process that was killed or has closed its socket."""


class WorkerSettings(NamedTuple):
    """What every worker of an engine has in common."""

    sync_limit: int
    async_limit: int
    shared_limit: bool
    slots: int
    """The most calls that a worker is ever given at a time."""
    command: tuple[str, ...] = (sys.executable,)
    """What starts a Python interpreter for the worker."""
    sys_path: tuple[str, ...] | None = None
    """Where the worker looks for modules; None: where this process does."""
    log_level: int | None = None
    """From which level log records are sent; None: from that of this process's root logger."""
    directory: str | None = None
    """The directory the worker starts in; None: that of this process."""
    environment: Mapping[str, str] | None = None
    """The worker's environment variables; None: those of this process."""
    tidies: bool = True
    """Whether the supervisor decides which code the worker forgets; False: its owner, which knows what calls need, does."""


class Tidings:
    """What a supervisor has to tell."""

    __slots__ = ("died", "lines", "never_ready", "outcomes")

    died: str | None
    """Set when the process is gone: how it ended. Every call it held has an outcome by then."""
    never_ready: bool
    """With `died`: it ended by itself before it could take a call, so that another one may well end the same way."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.lines: list[Line] = []
        self.died = None
        self.never_ready = False


class Supervisor:
    """Starts a worker process and answers for every call that is given to it, until the process ends."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._slots: list[Call | None] = [None] * settings.slots
        self._free = list(range(settings.slots))
        self._limited: dict[int, float] = {}
        """Slots whose calls have a time limit, and the seconds after which the process is killed for it."""
        self.in_flight = 0
        """Calls given and not accounted for."""
        self.recalling = False
        self.answered = False
        """Whether the worker has said anything or was killed by us: one that dies before could not even start."""
        self.alarm: float | None = None
        """When `news()` must be called even if no source is ready."""
        self._writer = WorkWriter()
        self._tidies = settings.tidies
        self._cause: str | None = None
        self._exit_status: int | None = None
        self._start(settings)

    def _start(self, settings: WorkerSettings) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _shared_memory(8 * max(settings.slots, 1)) as shared:
            self._starts = memoryview(mmap.mmap(shared.fileno(), 0)).cast("d")
            self._process = subprocess.Popen(
                [*settings.command, "-c", _WORKER, _HOME, str(theirs.fileno()), str(shared.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), shared.fileno()),
                process_group=0,
                cwd=settings.directory,
                env=settings.environment,
            )
        self._link = FramedSocket(ours)
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self.place = f"{os.uname().nodename}:{self._process.pid}"
        level = _log_level() if settings.log_level is None else settings.log_level
        sys_path = list(sys.path if settings.sys_path is None else settings.sys_path)
        self._link.post(Hello(sys_path, settings.sync_limit, settings.async_limit, settings.shared_limit, level))

    # --- what the owner asks ------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id of the worker, which also leads the process group of all it starts."""
        return self._process.pid

    def sources(self) -> list[int]:
        """Return the file descriptors that become readable when there is news."""
        return [self._link.fileno(), *([] if self._pidfd is None else [self._pidfd])]

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the worker to read; call `news()` when the first source is writable."""
        return self._link.wants_to_write

    def give(self, calls: Sequence[Call]) -> None:
        """Send calls to the worker; no more than it has free slots."""
        if self._tidies:
            self._writer.evict(call for call in self._slots if call is not None)
        numbered = []
        for call in calls:
            slot = self._free.pop()
            self._slots[slot] = call
            if call.limit is not None:
                self._limited[slot] = call.limit + (CANCEL_GRACE if call.is_async else 0.0)
            numbered.append((slot, call))
        self.in_flight += len(calls)
        self._link.post(self._writer.work(numbered))
        if limits := [limit for call in calls if (limit := call.limit) is not None]:
            soonest = time.monotonic() + min(limits)
            self.alarm = soonest if self.alarm is None else min(self.alarm, soonest)

    def teach(self, code: Mapping[str, bytes]) -> None:
        """Have code sent with the next calls, whose parcels need it and do not carry it."""
        self._writer.add_code(code)

    def unteach(self, digests: Sequence[str]) -> None:
        """Have the worker forget code, with the next calls."""
        self._writer.forget_code(digests)

    def recall(self) -> None:
        """Ask for the calls that have not started; they come back as DISPLACED outcomes."""
        self.recalling = True
        self._link.post(RECALL)

    def cancel(self) -> None:
        """Ask the worker to cancel what it can: async code, and what has not started."""
        self._link.post(CANCEL)

    def kill(self, cause: str, *, cancelled: bool = False) -> Tidings:
        """Kill the worker now and account for every call it held."""
        self._cause = cause
        self.answered = True
        tidings = Tidings()
        self._bury(tidings, Ending.CANCELLED if cancelled else None)
        return tidings

    def renew(self) -> bool:
        """A process is not renewed but released, and another one started in its place."""
        return False

    def stop(self) -> None:
        """Ask an idle worker to end by itself; `release` waits for it."""
        self._link.post(STOP)

    def release(self, patience: float) -> None:
        """Wait up to `patience` seconds for the process to end, then kill it, and free everything."""
        self._wait_for_exit(patience)
        self._free_resources()

    # --- what happened ------------------------------------------------------------------------------------------------

    def news(self) -> Tidings:
        """Move bytes in both directions without blocking, enforce limits, and return what happened."""
        tidings = Tidings()
        self._link.flush()
        exited = self._exited()
        closed = self._drain(tidings, READ_BUDGET)
        if exited or closed:
            self._bury(tidings, None)
        elif self.alarm is not None and time.monotonic() >= self.alarm and (expired := self._expired()):
            self._bury(tidings, None, expired)
        return tidings

    def _exited(self) -> bool:
        """Return whether the process has ended, without reaping it: until then its group id cannot be used again.

        Where something else has reaped it, because the program ignores SIGCHLD or waits for any child, its exit status is lost.
        """
        try:
            ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        except ChildProcessError:
            return True
        if ended is None:
            return False
        self._exit_status = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
        return True

    def _wait_for_exit(self, seconds: float) -> None:
        """Wait until the process has ended, but no longer than `seconds`."""
        poll = select.poll()
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not self._exited() and time.monotonic() < deadline:
            self._link.flush()
            poll.poll(_LOOK)

    def _drain(self, tidings: Tidings, most: float = math.inf) -> bool:
        """Read what there is, up to about `most` bytes; return whether the worker closed its end."""
        for message in self._link.messages(most):
            self._note(message, tidings)
        return self._link.closed

    def _note(self, message: News, tidings: Tidings) -> None:
        self.answered = True
        tidings.lines += message.lines
        self._settle(message.outcomes, tidings.outcomes)
        if message.returned is not None:
            self.recalling = False
            tidings.outcomes += [
                Outcome(self._close_slot(slot), Ending.DISPLACED, worker=self.place) for slot in message.returned
            ]

    def _settle(self, ended: Sequence[WireOutcome], outcomes: list[Outcome]) -> None:
        """Close the slots of calls that ended and append what became of them."""
        for slot, ending, value, error, seconds, usage, trajectory in ended:
            number = self._close_slot(slot)
            outcomes.append(Outcome(number, ending, value, error, seconds, self.place, True, usage, trajectory))

    def _close_slot(self, slot: int) -> int:
        """Free a slot; return the number of the call that it held."""
        call = self._slots[slot]
        assert call is not None
        self._slots[slot] = None
        self._starts[slot] = 0.0
        if call.limit is not None:
            del self._limited[slot]
        self._free.append(slot)
        self.in_flight -= 1
        return call.number

    def _expired(self) -> dict[int, float]:
        """Return the slots whose limit has passed with the seconds they worked, and set the next alarm."""
        now = time.monotonic()
        expired: dict[int, float] = {}
        self.alarm = None
        for slot, limit in self._limited.items():
            started = self._starts[slot]
            due = (started or now) + limit
            if due <= now:
                expired[slot] = now - started
            elif self.alarm is None or due < self.alarm:
                self.alarm = due
        return expired

    def _bury(self, tidings: Tidings, ending: Ending | None, expired: dict[int, float] | None = None) -> None:
        """End the process group and give every call it held an outcome.

        Args:
            tidings: where the outcomes go.
            ending: what to say of all of them, or None to judge each.
            expired: slots that are the reason for killing the process, with the seconds they worked.
        """
        self._end_group()
        self._drain(tidings)
        tidings.never_ready = not self.answered
        tidings.died = self._cause or f"worker {self.place} {self._exit_description()}"
        now = time.monotonic()
        held = [slot for slot, call in enumerate(self._slots) if call is not None]
        running = [slot for slot in held if self._starts[slot]]
        for slot in held:
            seconds = now - self._starts[slot] if self._starts[slot] else 0.0
            verdict = ending or _verdict(slot, running, expired)
            outcome = Outcome(self._close_slot(slot), verdict, seconds=seconds, worker=self.place)
            outcome.alone = len(running) == 1
            if verdict is Ending.LOST:
                from paragent.tasks import ErrorInfo

                outcome.error = ErrorInfo("WorkerLost", tidings.died, retryable=True)
            tidings.outcomes.append(outcome)
        self._free_resources()

    def _end_group(self) -> None:
        """Kill the process and all that it started, and reap it."""
        kill_group(self._process.pid)
        self._wait_for_exit(_EXIT_WAIT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0)

    def _exit_description(self) -> str:
        if self._exit_status is None and self._process.returncode is not None:
            return (
                "ended; its exit status is unknown, because this program ignores SIGCHLD or waits for any child process"
            )
        return describe_exit(self._exit_status)

    def _free_resources(self) -> None:
        if self._process.returncode is None:
            self._end_group()
        self._link.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _verdict(slot: int, running: list[int], expired: dict[int, float] | None) -> Ending:
    """Say what became of a call whose worker ended."""
    if expired is not None:
        return Ending.TIMED_OUT if slot in expired else Ending.DISPLACED
    return Ending.LOST if slot in running else Ending.DISPLACED


def _shared_memory(size: int) -> IO[bytes]:
    """Return a file of this size, without a name, that a worker can map too."""
    if hasattr(os, "memfd_create"):
        shared: IO[bytes] = os.fdopen(os.memfd_create("paragent-starts"), "r+b")
    else:
        import tempfile

        shared = tempfile.TemporaryFile(prefix="paragent-starts-")  # noqa: SIM115 - the caller closes it
    shared.truncate(size)
    return shared


def _log_level() -> int:
    """Return the level of this process's root logger, without loading `logging` for it.

    Another thread may be loading it: then it is there in part, and its root logger, if it has one, is as it was made.
    """
    root = getattr(sys.modules.get("logging"), "root", None)
    return _WARNING if root is None else root.getEffectiveLevel()
