"""Handles of workers: the engine's side of one worker. `ProcessHandle` is the handle of a worker process on this host.

A handle belongs to one thread, which selects on `filenos()` and calls `poll()` when one of them is ready or the `deadline` is
reached.
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
from typing import TYPE_CHECKING, NamedTuple, Protocol

import paragent
from paragent._internal.ids import new_id
from paragent._internal.processes import describe_exit, kill_group
from paragent._internal.worker_ids import announce_end
from paragent.execution import Ending, Outcome
from paragent.serialization import Payload
from paragent.serialization.code_cache import SentCode
from paragent.transport.framing import READ_BUDGET, FramedSocket
from paragent.worker.call_times import CallTimes, Overdue
from paragent.worker.output import log_levels
from paragent.worker.protocol import CallBatch, OutcomeBatch, WorkerCommand, WorkerSetup, WorkerUpdate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import IO

    from paragent.engines.base import Call
    from paragent.worker.output import Line

__all__ = ["BatchWriter", "ProcessHandle", "WorkerHandle", "WorkerReport", "WorkerSettings"]

_CHECK_INTERVAL = 1.0
"""Seconds between two checks of calls that enforce their own limit."""
CANCEL_GRACE = 1.0
"""Seconds that async code has after its limit to clean up before its worker is killed."""


class WorkerReport:
    """What happened in a worker since the last report."""

    __slots__ = ("crashed", "ended", "lines", "never_ready", "outcomes")

    crashed: str
    """How a worker ended unexpectedly; empty if none did. A node agent has replaced it, unless `ended` is set."""
    ended: str | None
    """Set when the worker is gone: how it ended. Every call that it held has an outcome."""
    never_ready: bool
    """With `ended`: it ended by itself before it could accept a call, so another worker may end in the same way."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.lines: list[Line] = []
        self.crashed = ""
        self.ended = None
        self.never_ready = False


class WorkerHandle(Protocol):
    """The engine's side of one worker."""

    location: str
    """Where the worker runs, as `host:pid`."""
    recalling: bool
    """A recall was sent and not answered."""
    answered: bool
    """Whether the worker has sent anything or was killed by the engine."""
    deadline: float | None
    """When `poll` must be called even if no file descriptor is ready."""

    @property
    def in_flight(self) -> int:
        """The number of calls that were sent and have no outcome."""
        ...

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the worker to read; then call `poll` when the first file descriptor is writable."""
        ...

    def filenos(self) -> list[int]:
        """Return the file descriptors that become readable when there is something to report."""
        ...

    def send(self, calls: Sequence[Call]) -> None:
        """Send calls to the worker."""
        ...

    def recall(self) -> None:
        """Ask for the calls that have not started; they come back as DISPLACED outcomes."""
        ...

    def cancel(self) -> None:
        """Ask the worker to cancel async calls and calls that have not started."""
        ...

    def kill(self, cause: str, *, cancelled: bool = False) -> WorkerReport:
        """Kill the worker."""
        ...

    def restart(self) -> bool:
        """Replace an idle worker by a fresh one; return False if the engine must start the new one."""
        ...

    def stop(self) -> None:
        """Ask an idle worker to end; `close` waits for it."""
        ...

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the worker to end, then kill it, and free all resources."""
        ...

    def poll(self) -> WorkerReport:
        """Move bytes in both directions without blocking, enforce time limits, and return what happened."""
        ...


# --- messages to one worker -------------------------------------------------------------------------------------------


_TARGETS_KEPT = 128
"""Targets that a worker keeps; the least recently used one is sent again when it is needed again."""


class BatchWriter:
    """Builds the `CallBatch` messages for one receiver, without the code and targets that it already has."""

    def __init__(self) -> None:
        self._targets: OrderedDict[int, tuple[int, Payload]] = OrderedDict()
        self._next_key = 0
        self._last_target: tuple[int, Payload] | None = None
        """The most recently used entry of `_targets`."""
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
                if type(call.argument) is Payload:
                    digests.update(call.argument.code)
            return digests

        for digest in self._sent.evict(needed):
            self._code.pop(digest, None)
            self._forgotten.append(digest)

    def batch(self, numbers: Sequence[int], calls: Sequence[Call]) -> CallBatch:
        """Return the message with `calls`, each under its number from `numbers`."""
        targets: dict[int, bytes] = {}
        dropped: list[int] = []
        keys = [self._target_key(call.target, targets, dropped) for call in calls]
        arguments = [
            self._without_code(call.argument) if type(call.argument) is Payload else call.argument for call in calls
        ]
        code, self._code = self._code, {}
        forgotten, self._forgotten = self._forgotten, []
        return CallBatch(
            numbers=list(numbers),
            target_keys=keys,
            arguments=arguments,
            labels=[call.label for call in calls],
            limits=[call.limit for call in calls],
            async_flags=[call.is_async for call in calls],
            targets=targets,
            code=code,
            dropped_targets=dropped,
            dropped_code=forgotten,
        )

    def _target_key(self, target: Payload, new: dict[int, bytes], dropped: list[int]) -> int:
        known = self._targets.get(id(target))
        if known is not None:
            if known is not self._last_target:
                self._targets.move_to_end(id(target))
                self._last_target = known
            return known[0]
        key = self._next_key
        self._next_key += 1
        self._last_target = self._targets[id(target)] = (key, target)
        new[key] = self._without_code(target).body
        if len(self._targets) > _TARGETS_KEPT:
            dropped.append(self._targets.popitem(last=False)[1][0])
        return key

    def _without_code(self, payload: Payload) -> Payload:
        """Return the payload without its code, which goes with the message if the receiver does not have it."""
        if not payload.code:
            return payload
        self.add_code(payload.code)
        return Payload(payload.body, {})


# --- worker processes -------------------------------------------------------------------------------------------------

_SOURCE_ROOT = os.path.dirname(paragent.__path__[0])  # noqa: PTH120 - pathlib would be imported for this alone
_WORKER = (
    "import gc, sys; gc.disable(); sys.path.insert(0, sys.argv[1]); from paragent.worker.main import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)
"""Starts a worker with this copy of paragent, and leaves its `__main__` empty for the user's. Imports create no garbage, so
collection is off until `main` enables it."""
_EXIT_POLL = 5
"""Milliseconds between two checks whether a process has ended, where there is no pidfd."""
_LAST_WORDS = 1.0
"""Seconds for a worker that failed before it was ready to write its traceback and to end. Killed, it has no exit status."""
_EXIT_TIMEOUT = 5.0
"""Seconds to wait for the kernel to report the end of a process that was killed or has closed its socket."""


class WorkerSettings(NamedTuple):
    """The settings that all workers of an engine share."""

    sync_limit: int
    async_limit: int
    shared_limit: bool
    slots: int
    """The largest number of calls that a worker ever holds."""
    command: tuple[str, ...] = (sys.executable,)
    """The command that starts a Python interpreter."""
    sys_path: tuple[str, ...] | None = None
    """The worker's `sys.path`; None: that of this process."""
    log_levels: dict[str, int] | None = None
    """The levels of loggers by name; None: those of this process."""
    directory: str | None = None
    """The worker's working directory; None: that of this process."""
    environment: Mapping[str, str] | None = None
    """The worker's environment variables; None: those of this process."""
    evicts_code: bool = True
    """Whether the handle decides which code the worker forgets; False: the owner of the handle does, by `forget_code`."""


class ProcessHandle:
    """Starts a worker process and provides an outcome for every call that it is sent, even if the process dies."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._slots: list[Call | None] = [None] * settings.slots
        self._free = list(range(settings.slots))
        self._limited: dict[int, float] = {}
        """The slots of calls with a time limit, and the seconds after which the process is killed."""
        self.in_flight = 0
        self.recalling = False
        self.answered = False
        self.deadline: float | None = None
        self._writer = BatchWriter()
        self._evicts_code = settings.evicts_code
        self._overdue: Overdue | None = None
        """The calls that were overdue at the last check."""
        self._cause: str | None = None
        self._exit_status: int | None = None
        self.id = new_id("worker")
        """The id of the worker, which no other worker has."""
        self._start(settings)

    def _start(self, settings: WorkerSettings) -> None:
        ours, theirs = socket.socketpair()
        with theirs, _shared_memory(8 * CallTimes.cells(settings.slots)) as shared:
            self._times = CallTimes.of_memory(memoryview(mmap.mmap(shared.fileno(), 0)).cast("d"))
            self._starts = self._times.starts
            self._process = subprocess.Popen(
                [*settings.command, "-c", _WORKER, _SOURCE_ROOT, str(theirs.fileno()), str(shared.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(), shared.fileno()),
                process_group=0,
                cwd=settings.directory,
                env=settings.environment,
            )
        self._connection = FramedSocket(ours)
        self._pidfd = os.pidfd_open(self._process.pid) if hasattr(os, "pidfd_open") else None
        self.location = f"{os.uname().nodename}:{self._process.pid}"
        levels = log_levels() if settings.log_levels is None else settings.log_levels
        sys_path = list(sys.path if settings.sys_path is None else settings.sys_path)
        self._connection.post(
            WorkerSetup(sys_path, settings.sync_limit, settings.async_limit, settings.shared_limit, levels, self.id)
        )

    @property
    def pid(self) -> int:
        """The process id of the worker, which is also the id of its process group."""
        return self._process.pid

    def filenos(self) -> list[int]:
        """Return the socket and, if there is one, the pidfd."""
        return [self._connection.fileno(), *([] if self._pidfd is None else [self._pidfd])]

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the worker to read."""
        return self._connection.wants_to_write

    def send(self, calls: Sequence[Call]) -> None:
        """Send calls to the worker; at most as many as it has free slots."""
        if self._evicts_code:
            self._writer.evict(call for call in self._slots if call is not None)
        first = len(self._free) - len(calls)
        slots = self._free[first:]
        del self._free[first:]
        for slot, call in zip(slots, calls, strict=True):
            self._slots[slot] = call
        limits = [call.limit for call in calls if call.limit is not None]
        if limits:
            self._limited |= {
                slot: call.limit + (CANCEL_GRACE if call.is_async else 0.0)
                for slot, call in zip(slots, calls, strict=True)
                if call.limit is not None
            }
        self.in_flight += len(calls)
        self._connection.post(self._writer.batch(slots, calls))
        if any(call.is_async for call in calls):
            limits.append(_CHECK_INTERVAL)  # one of them may enforce its own limit
        if limits:
            earliest = time.monotonic() + min(limits)
            self.deadline = earliest if self.deadline is None else min(self.deadline, earliest)

    def add_code(self, code: Mapping[str, bytes]) -> None:
        """Send code with the next calls, whose payloads need it and do not contain it."""
        self._writer.add_code(code)

    def forget_code(self, digests: Sequence[str]) -> None:
        """Tell the worker with the next calls to forget code."""
        self._writer.forget_code(digests)

    def recall(self) -> None:
        """Ask for the calls that have not started."""
        self.recalling = True
        self._connection.post(WorkerCommand.RECALL)

    def cancel(self) -> None:
        """Ask the worker to cancel async calls and calls that have not started."""
        self._connection.post(WorkerCommand.CANCEL)

    def kill(self, cause: str, *, cancelled: bool = False) -> WorkerReport:
        """Kill the worker now and return an outcome for every call that it held."""
        self._cause = cause
        self.answered = True
        report = WorkerReport()
        self._finish(report, Ending.CANCELLED if cancelled else None)
        return report

    def restart(self) -> bool:
        """Return False: the engine closes this handle and starts another process."""
        return False

    def stop(self) -> None:
        """Ask an idle worker to end by itself."""
        self._connection.post(WorkerCommand.STOP)

    def close(self, timeout: float) -> None:
        """Wait up to `timeout` seconds for the process to end, then kill it, and free all resources."""
        self._wait_for_exit(timeout)
        self._free_resources()

    def poll(self) -> WorkerReport:
        """Move bytes in both directions without blocking, enforce time limits, and return what happened."""
        report = WorkerReport()
        self._connection.flush()
        exited = self._exited()
        closed = self._read(report, READ_BUDGET)
        if closed and not exited and not self.answered:
            self._wait_for_exit(_LAST_WORDS)
        if exited or closed:
            self._finish(report, None)
        elif self.deadline is not None and time.monotonic() >= self.deadline:
            self._enforce_limits(report)
        return report

    def _exited(self) -> bool:
        """Return whether the process has ended, without reaping it: the kernel does not reuse its group id until then.

        If the program ignores SIGCHLD or waits for any child, it may have reaped the process; its exit status is lost then.
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
        """Wait up to `seconds` until the process has ended."""
        poll = select.poll()
        if self._pidfd is not None:
            poll.register(self._pidfd, select.POLLIN)
        deadline = time.monotonic() + seconds
        while not self._exited() and time.monotonic() < deadline:
            self._connection.flush()
            poll.poll(_EXIT_POLL)

    def _read(self, report: WorkerReport, budget: float = math.inf) -> bool:
        """Read up to about `budget` bytes into `report`; return whether the worker closed its end."""
        for message in self._connection.messages(budget):
            self._add_update(message, report)
        return self._connection.closed

    def _add_update(self, update: WorkerUpdate, report: WorkerReport) -> None:
        self.answered = True
        report.lines += update.lines
        if update.outcomes.numbers:
            report.outcomes += self._ended(update.outcomes)
        if update.returned is not None:
            self.recalling = False
            report.outcomes += [
                Outcome(self._close_slot(slot), Ending.DISPLACED, worker=self.location) for slot in update.returned
            ]

    def _ended(self, batch: OutcomeBatch) -> list[Outcome]:
        """Free the slots of calls that ended; return their outcomes."""
        outcomes = batch.outcomes(self.location)
        slots, starts = self._slots, self._starts
        for outcome in outcomes:
            slot = outcome.number
            call = slots[slot]
            assert call is not None
            outcome.number = call.number
            slots[slot] = None
            starts[slot] = 0.0
        if self._limited:
            for slot in batch.numbers:
                self._limited.pop(slot, None)
        self._free += batch.numbers
        self.in_flight -= len(outcomes)
        return outcomes

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

    def _enforce_limits(self, report: WorkerReport) -> None:
        """Kill the process if the limit of a call has passed; set the next deadline."""
        now = time.monotonic()
        expired = self._expired(now)
        asynchronous = [slot for slot, call in enumerate(self._slots) if call is not None and call.is_async]
        if asynchronous:
            check = now + _CHECK_INTERVAL
            self.deadline = check if self.deadline is None else min(self.deadline, check)
        running = [slot for slot in asynchronous if self._starts[slot]]
        before, self._overdue = self._overdue, self._times.overdue(running, now)
        if expired:
            self._finish(report, None, dict.fromkeys(expired, Ending.TIMED_OUT))
        elif self._overdue is not None and self._overdue == before:  # twice: this host may have been frozen in between
            self._finish(report, None, *self._overdue)

    def _expired(self, now: float) -> list[int]:
        """Return the slots whose limit has passed, and set the next deadline.

        Time in which an async call could not continue because of others does not count.
        """
        expired: list[int] = []
        self.deadline = None
        blocking = self._times.blocking
        held_up = self._times.held_up(self._limited, now)
        for slot, limit in self._limited.items():
            started = self._starts[slot]
            due = (started or now) + limit
            if slot != blocking and self._is_async(slot):
                due += held_up
            if due <= now:
                expired.append(slot)
            elif self.deadline is None or due < self.deadline:
                self.deadline = due
        return expired

    def _is_async(self, slot: int) -> bool:
        call = self._slots[slot]
        return call is not None and call.is_async

    def _finish(
        self,
        report: WorkerReport,
        ending: Ending | None,
        guilty: dict[int, Ending] | None = None,
        reason: str = "",
    ) -> None:
        """End the process group and add an outcome for every call that the worker held.

        Args:
            report: receives the outcomes.
            ending: how all of them ended, or None to decide for each.
            guilty: the slots for which the process is killed, and how they end; the other calls are displaced. None: the
                process ended by itself.
            reason: why the guilty calls could not be ended in another way.
        """
        self._end_group()
        self._read(report)
        report.never_ready = not self.answered
        if guilty is None and self._times.replaced:
            guilty, self._cause = (
                {},
                self._cause or f"worker {self.location} was replaced: a call blocked its event loop",
            )
        elif guilty is not None:
            self._cause = f"worker {self.location} was killed because of a time limit"
        report.ended = self._cause or f"worker {self.location} {self._exit_description()}"
        report.crashed = "" if self._cause else report.ended
        now = time.monotonic()
        held = [slot for slot, call in enumerate(self._slots) if call is not None]
        if guilty is None:
            guilty = {slot: Ending.LOST for slot in held if self._starts[slot]}
        lost = sum(one is Ending.LOST for one in guilty.values())
        for slot in held:
            seconds = now - self._starts[slot] if self._starts[slot] else 0.0
            slot_ending = ending or guilty.get(slot, Ending.DISPLACED)
            outcome = Outcome(self._close_slot(slot), slot_ending, seconds=seconds, worker=self.location)
            outcome.alone = lost <= 1
            if slot_ending is Ending.LOST or (slot_ending is Ending.TIMED_OUT and reason):
                from paragent.tasks import ErrorInfo

                kind = "WorkerLost" if slot_ending is Ending.LOST else "TimeoutError"
                outcome.error = ErrorInfo(kind, reason or report.ended, retryable=True)
            report.outcomes.append(outcome)
        self._free_resources()

    def _end_group(self) -> None:
        """Kill the process and its process group, reap it, and announce its end."""
        kill_group(self._process.pid)
        self._wait_for_exit(_EXIT_TIMEOUT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(0.0)
        announce_end(self.id)

    def _exit_description(self) -> str:
        if self._exit_status is None and self._process.returncode is not None:
            return (
                "ended; its exit status is unknown, because this program ignores SIGCHLD or waits for any child process"
            )
        return describe_exit(self._exit_status)

    def _free_resources(self) -> None:
        if self._process.returncode is None:
            self._end_group()
        self._connection.close()
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None


def _shared_memory(size: int) -> IO[bytes]:
    """Return an anonymous file of this size that a worker can map too."""
    if hasattr(os, "memfd_create"):
        shared: IO[bytes] = os.fdopen(os.memfd_create("paragent-times"), "r+b")
    else:
        import tempfile

        shared = tempfile.TemporaryFile(prefix="paragent-times-")  # noqa: SIM115 - the caller closes it
    shared.truncate(size)
    return shared
