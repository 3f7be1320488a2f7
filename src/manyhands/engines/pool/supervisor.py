"""One worker process seen from outside: it is given calls, watched, killed when it must be, and accounted for.

A supervisor belongs to one thread, which selects on `sources()` and calls `news()` when one is ready or `alarm` has come.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import manyhands
from manyhands._processes import describe_exit, kill_group
from manyhands.engines.wire import CANCEL, RECALL, STOP, FrameReader, Hello, News, Work, encode
from manyhands.parcels import Parcel
from manyhands.tasks import Ending, ErrorInfo, Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from manyhands.engines.base import Call
    from manyhands.engines.wire import WireOutcome
    from manyhands.engines.worker.output import Line

__all__ = ["Supervisor", "Tidings", "WorkerSettings"]

CANCEL_GRACE = 1.0
"""Seconds that async code may use, after its limit, to clean up before its worker is killed."""
_TARGETS_KEPT = 128
"""Targets that a worker keeps; the one not used for longest is sent again when it is needed again."""
_CHUNK = 1 << 20
_HOME = str(Path(manyhands.__file__).parents[1])
_WORKER = (
    "import sys; sys.path.insert(0, sys.argv[1]); from manyhands.engines.worker.process import work; "
    "work(int(sys.argv[2]), int(sys.argv[3]))"
)
"""Works wherever this copy of manyhands came from, and leaves `__main__` of the worker empty for the user's."""
_EXIT_WAIT = 5.0
"""Seconds to wait for the kernel to report a process that was killed or has closed its socket."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What every worker of an engine has in common."""

    sync_limit: int
    async_limit: int
    shared_limit: bool
    slots: int
    """The most calls that a worker is ever given at a time."""
    command: tuple[str, ...] = (sys.executable,)
    """What starts a Python interpreter for the worker."""


@dataclass(slots=True)
class Tidings:
    """What a supervisor has to tell."""

    outcomes: list[Outcome] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    died: str | None = None
    """Set when the process is gone: how it ended. Every call it held has an outcome by then."""


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
        self._targets: OrderedDict[int, tuple[int, Parcel]] = OrderedDict()
        self._next_target = 0
        self._code_sent: set[str] = set()
        self._reader = FrameReader()
        self._unsent: deque[memoryview] = deque()
        self._cause: str | None = None
        self._start(settings)

    def _start(self, settings: WorkerSettings) -> None:
        ours, theirs = socket.socketpair()
        with theirs, tempfile.TemporaryFile(prefix="manyhands-starts-") as shared:
            shared.truncate(8 * max(settings.slots, 1))
            self._starts = memoryview(mmap.mmap(shared.fileno(), 0)).cast("d")
            self._process = subprocess.Popen(
                [*settings.command, "-c", _WORKER, _HOME, str(theirs.fileno()), str(shared.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), shared.fileno()),
                process_group=0,
            )
        self._socket = ours
        self._socket.setblocking(False)
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self.place = f"{socket.gethostname()}:{self._process.pid}"
        level = logging.getLogger().getEffectiveLevel()
        hello = Hello(list(sys.path), settings.sync_limit, settings.async_limit, settings.shared_limit, level)
        self._post(hello)

    # --- what the owner asks ------------------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        """The process id of the worker, which also leads the process group of all it starts."""
        return self._process.pid

    def sources(self) -> list[int]:
        """Return the file descriptors that become readable when there is news."""
        return [self._socket.fileno(), *([] if self._pidfd is None else [self._pidfd])]

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the worker to read; call `news()` when the first source is writable."""
        return bool(self._unsent)

    def give(self, calls: Sequence[Call]) -> None:
        """Send calls to the worker; no more than it has free slots."""
        code: dict[str, bytes] = {}
        targets: dict[int, bytes] = {}
        forget: list[int] = []
        wire = []
        for call in calls:
            slot = self._free.pop()
            self._slots[slot] = call
            if call.limit is not None:
                self._limited[slot] = call.limit + (CANCEL_GRACE if call.is_async else 0.0)
            key = self._target(call.target, code, targets, forget)
            argument = call.argument
            if type(argument) is Parcel and argument.code:
                argument = self._slim(argument, code)
            wire.append((slot, key, argument, call.label, call.limit, call.is_async))
        self.in_flight += len(calls)
        self._post(Work(code, targets, forget, wire))
        if limits := [limit for call in calls if (limit := call.limit) is not None]:
            soonest = time.monotonic() + min(limits)
            self.alarm = soonest if self.alarm is None else min(self.alarm, soonest)

    def recall(self) -> None:
        """Ask for the calls that have not started; they come back as DISPLACED outcomes."""
        self.recalling = True
        self._post(RECALL)

    def cancel(self) -> None:
        """Ask the worker to cancel what it can: async code, and what has not started."""
        self._post(CANCEL)

    def kill(self, cause: str, *, cancelled: bool = False) -> Tidings:
        """Kill the worker now and account for every call it held."""
        self._cause = cause
        self.answered = True
        tidings = Tidings()
        self._bury(tidings, Ending.CANCELLED if cancelled else None)
        return tidings

    def stop(self) -> None:
        """Ask an idle worker to end by itself; `release` waits for it."""
        self._post(STOP)

    def release(self, patience: float) -> None:
        """Wait up to `patience` seconds for the process to end, then kill it, and free everything."""
        deadline = time.monotonic() + patience
        while not self._exited() and time.monotonic() < deadline:
            self._flush()
            select.select([fd for fd in (self._pidfd,) if fd is not None], [], [], 0.005)
        self._free_resources()

    # --- what happened ------------------------------------------------------------------------------------------------

    def news(self) -> Tidings:
        """Move bytes in both directions without blocking, enforce limits, and return what happened."""
        tidings = Tidings()
        self._flush()
        exited = self._exited()
        closed = self._drain(tidings)
        if exited or closed:
            self._bury(tidings, None)
        elif self.alarm is not None and time.monotonic() >= self.alarm and (expired := self._expired()):
            self._bury(tidings, None, expired)
        return tidings

    def _exited(self) -> bool:
        """Return whether the process has ended, without reaping it: until then its group id cannot be used again."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _drain(self, tidings: Tidings) -> bool:
        """Read everything there is; return whether the worker closed its end."""
        while True:
            try:
                data = self._socket.recv(_CHUNK)
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                return True
            if not data:
                return True
            for message in self._reader.feed(data):
                self._note(message, tidings)

    def _note(self, message: News, tidings: Tidings) -> None:
        self.answered = True
        tidings.lines += message.lines
        tidings.outcomes += [self._settled(outcome) for outcome in message.outcomes]
        if message.returned is not None:
            self.recalling = False
            tidings.outcomes += [self._close_slot(slot, Ending.DISPLACED) for slot in message.returned]

    def _settled(self, outcome: WireOutcome) -> Outcome:
        slot, ending, value, error, seconds, usage, trajectory = outcome
        settled = self._close_slot(slot, ending)
        settled.value, settled.error, settled.seconds = value, error, seconds
        settled.usage, settled.trajectory = usage, trajectory
        return settled

    def _close_slot(self, slot: int, ending: Ending) -> Outcome:
        call = self._slots[slot]
        assert call is not None
        self._slots[slot] = None
        self._starts[slot] = 0.0
        self._limited.pop(slot, None)
        self._free.append(slot)
        self.in_flight -= 1
        return Outcome(call.number, ending, worker=self.place)

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
        kill_group(self._process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_WAIT)
        self._drain(tidings)
        tidings.died = self._cause or f"worker {self.place} {describe_exit(self._process.returncode)}"
        now = time.monotonic()
        held = [slot for slot, call in enumerate(self._slots) if call is not None]
        running = [slot for slot in held if self._starts[slot]]
        for slot in held:
            seconds = now - self._starts[slot] if self._starts[slot] else 0.0
            verdict = ending or _verdict(slot, running, expired)
            outcome = self._close_slot(slot, verdict)
            outcome.seconds = seconds
            outcome.alone = len(running) == 1
            if verdict is Ending.LOST:
                outcome.error = ErrorInfo("WorkerLost", tidings.died, retryable=True)
            tidings.outcomes.append(outcome)
        self._free_resources()

    # --- bytes --------------------------------------------------------------------------------------------------------

    def _target(self, target: Parcel, code: dict[str, bytes], bodies: dict[int, bytes], forget: list[int]) -> int:
        known = self._targets.get(id(target))
        if known is not None:
            self._targets.move_to_end(id(target))
            return known[0]
        key = self._next_target
        self._next_target += 1
        self._targets[id(target)] = (key, target)
        bodies[key] = self._slim(target, code).body
        if len(self._targets) > _TARGETS_KEPT:
            forget.append(self._targets.popitem(last=False)[1][0])
        return key

    def _slim(self, parcel: Parcel, code: dict[str, bytes]) -> Parcel:
        """Return the parcel without its code, which is added to `code` where the worker does not have it."""
        for digest, blob in parcel.code.items():
            if digest not in self._code_sent:
                self._code_sent.add(digest)
                code[digest] = blob
        return Parcel(parcel.body, {})

    def _post(self, message: Any) -> None:
        self._unsent.append(memoryview(encode(message)))
        self._flush()

    def _flush(self) -> None:
        while self._unsent:
            try:
                sent = self._socket.send(self._unsent[0])
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._unsent.clear()  # the worker is gone; reading will find that out
                return
            if sent == len(self._unsent[0]):
                self._unsent.popleft()
            else:
                self._unsent[0] = self._unsent[0][sent:]

    def _free_resources(self) -> None:
        if self._process.returncode is None:
            kill_group(self._process.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_EXIT_WAIT)
        self._socket.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _verdict(slot: int, running: list[int], expired: dict[int, float] | None) -> Ending:
    """Say what became of a call whose worker ended."""
    if expired is not None:
        return Ending.TIMED_OUT if slot in expired else Ending.DISPLACED
    return Ending.LOST if slot in running else Ending.DISPLACED
