"""Pool state machine: decides who gets which machine, without I/O.

The owner reports events (a machine booted, a holder asks, a lease is released, time passed). The state machine updates its
records and appends to `commands` what the owner has to do next. It belongs to one thread.

::

    booting -> free -> leased -> resetting -> free ...
    any live state -> quarantined (the machine failed) or stopped (retired, or the pool ends)
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from paragent._internal.clock import monotonic
from paragent._internal.text import counted
from paragent._internal.validation import integer, seconds
from paragent.errors import LeaseLost, PoolFailed, PoolStopped, UsageError

if TYPE_CHECKING:
    from paragent._internal.clock import Clock

__all__ = [
    "FINAL",
    "LIVE",
    "Command",
    "CommandKind",
    "FailureKind",
    "LeaseRecord",
    "MachineChange",
    "MachineRecord",
    "MachineState",
    "PoolStateMachine",
]


class MachineState(StrEnum):
    """The state of a machine. Only the state machine changes it."""

    BOOTING = "booting"
    """The provider was asked to create it, and it has not answered yet."""
    FREE = "free"
    """It answered, is clean and waits for a holder. The provider may have paused it."""
    LEASED = "leased"
    """It has exactly one holder, from the pool's decision until the lease is released, expires or is revoked."""
    RESETTING = "resetting"
    """Its lease ended and it is being reset. It becomes free only after the reset was verified."""
    QUARANTINED = "quarantined"
    """It did not boot, did not answer, or was not clean after a reset. Its logs are kept; it is never leased again."""
    STOPPED = "stopped"
    """It was stopped on purpose."""


FINAL = frozenset({MachineState.QUARANTINED, MachineState.STOPPED})
"""States that a machine never leaves."""
LIVE = frozenset(set(MachineState) - FINAL)
"""States of machines that count towards the pool's size and spares."""

_ENDED_KEPT = 10_000
"""Request ids that are remembered after their lease ended, to recognize a late copy of a request. A copy arrives within
seconds, in which a pool ends at most some thousands of leases."""
_CHANGES_KEPT = 10_000
"""State changes that are kept for sessions to record: they ask about once a second, in which a pool has some hundreds."""
_FINAL_KEPT = 50
"""Quarantined and stopped machines that stay in the table for users to see."""


class CommandKind(StrEnum):
    """What the owner of the state machine has to do with a machine."""

    BOOT = "boot"
    """Create it, then report `machine_booted` or `machine_failed`."""
    ACTIVATE = "activate"
    """Give it to the holder of `lease`, then report `lease_activated` or `machine_failed`."""
    RESET = "reset"
    """Reset it and verify that it is clean, then report `machine_reset` or `machine_failed`."""
    DISCARD = "discard"
    """Stop it. There is nothing to report."""


class FailureKind(StrEnum):
    """During which operation a machine failed. One success of an operation clears its count of failures."""

    BOOT = "did not boot"
    RESET = "could not be reset"
    ACTIVATE = "could not be given to its holder"
    HEALTH = "stopped answering"


@dataclass(slots=True)
class LeaseRecord:
    """A request for a machine and, once a machine is assigned, the lease."""

    request_id: str
    holder: str
    duration: float
    """Seconds after the last heartbeat at which the lease expires."""
    limit: float | None
    """Seconds after which the lease ends even if heartbeats arrive."""
    token: int = 0
    """The fencing token, larger than that of every earlier lease. It identifies the lease; 0: no machine is assigned yet."""
    machine_id: str = ""
    deadline: float = 0.0
    """When the lease expires unless a heartbeat moves it."""
    final_deadline: float | None = None
    """The time beyond which heartbeats do not move the deadline."""
    active: bool = False
    """Whether the holder has got the machine."""
    since: float = 0.0
    """When it became active."""
    worker: str = ""
    """The id of the worker process that requested it; empty if another process did."""

    def move_deadline(self, now: float) -> None:
        """Set the deadline to `duration` from now, at most to the final one."""
        self.deadline = now + self.duration
        if self.final_deadline is not None:
            self.deadline = min(self.deadline, self.final_deadline)


@dataclass(slots=True)
class MachineRecord:
    """One machine of the pool."""

    id: str
    state: MachineState
    since: float
    """When it entered this state."""
    lease: LeaseRecord | None = None
    uses: int = 0
    """Number of leases that have ended on it."""
    resets: int = 0
    """Number of resets that succeeded, without those that a holder asked for."""
    failures: int = 0
    """How often it failed; a machine is quarantined at its first failure."""
    reason: str = ""
    """Why it is in a final state."""
    retiring: bool = False
    """Whether it is stopped instead of reset when its lease ends."""


@dataclass(frozen=True, slots=True)
class MachineChange:
    """A machine entered a state."""

    number: int
    """Counts the changes of a pool, from 1."""
    at: float
    """When, in seconds of the state machine's clock."""
    machine: str
    """The pool's id of the machine."""
    state: MachineState
    holder: str = ""
    """The holder of the lease, for LEASED, and for QUARANTINED if the machine failed during a lease."""
    detail: str = ""
    """Why the machine is in a final state."""


@dataclass(frozen=True, slots=True)
class Command:
    """One operation that the owner has to execute."""

    kind: CommandKind
    machine_id: str
    lease: LeaseRecord | None = None
    quarantined: bool = False
    """For DISCARD: whether the machine failed. Its record may be gone by the time that the command is executed."""


class PoolStateMachine:
    """Machines, requests and leases of one pool.

    At most `size` machines are leased at a time. `size + spares` are kept alive, so that a spare machine is free while others
    are being reset.

    Args:
        size: maximum number of leases at a time.
        spares: additional machines that are kept ready.
        clock: returns the time in seconds.
        max_failures: consecutive failures of one kind after which the pool fails.
        first_token: the token of the first lease.

    Raises:
        ConfigError: `size` or `max_failures` is less than 1, or `spares` is negative.
    """

    def __init__(
        self, size: int, spares: int = 0, *, clock: Clock = monotonic, max_failures: int = 3, first_token: int = 1
    ) -> None:
        integer(size, "the size of a pool", least=1)
        integer(spares, "the spares of a pool", least=0)
        integer(max_failures, "max_failures of a pool", least=1)
        self.size, self.spares, self.max_failures = size, spares, max_failures
        self.machines: dict[str, MachineRecord] = {}
        self.leases: dict[int, LeaseRecord] = {}
        self.commands: deque[Command] = deque()
        """Operations to execute, oldest first; the owner removes them."""
        self.rejected: deque[str] = deque()
        """Ids of requests that were pending when the pool was drained or failed; the owner removes them."""
        self.draining = False
        self.failure: str | None = None
        """Why the pool failed, or None."""
        self.changes: deque[MachineChange] = deque(maxlen=_CHANGES_KEPT)
        """The last state changes, oldest first."""
        self.change_count = 0
        """How many state changes there were."""
        self.leases_granted = 0
        """Leases that became active."""
        self._clock = clock
        self._opened = clock()
        self._leased_seconds = 0.0
        self._token = first_token
        self._next_machine = 0
        self._free: OrderedDict[str, None] = OrderedDict()
        self._pending: OrderedDict[str, LeaseRecord] = OrderedDict()
        self._granted: dict[str, LeaseRecord] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._final: deque[str] = deque()
        self._failures = dict.fromkeys(FailureKind, 0)

    # --- machines ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Request all machines; to be called once."""
        self._opened = self._clock()
        self._boot_missing()

    def machine_booted(self, machine_id: str) -> None:
        """Report that a booting machine answers and is clean."""
        self._failures[FailureKind.BOOT] = 0
        self._make_free(machine_id, MachineState.BOOTING)

    def machine_reset(self, machine_id: str) -> None:
        """Report that a machine was reset and verified to be clean."""
        self._failures[FailureKind.RESET] = 0
        if (machine := self.machines.get(machine_id)) is not None:
            machine.resets += 1
        self._make_free(machine_id, MachineState.RESETTING)

    def lease_activated(self, token: int) -> bool:
        """Report that a holder has got its machine; return False if the lease ended in the meantime."""
        lease = self.leases.get(token)
        if lease is None:
            return False
        self._failures[FailureKind.ACTIVATE] = self._failures[FailureKind.HEALTH] = 0
        lease.active, lease.since = True, self._clock()
        lease.move_deadline(lease.since)
        self.leases_granted += 1
        return True

    def machine_failed(self, machine_id: str, kind: FailureKind, reason: str) -> None:
        """Report that a machine is unusable: quarantine and replace it, and revoke its lease.

        If the lease was not active yet, its request returns to the head of the queue. After `max_failures` consecutive
        failures of one kind the pool fails, because replacing machines would not help.
        """
        machine = self.machines.get(machine_id)
        if machine is None or machine.state in FINAL:
            return
        lease = machine.lease
        machine.failures += 1
        self._end_machine(machine, MachineState.QUARANTINED, f"{kind}: {reason}")
        if lease is not None:
            self._end_lease(lease)
            if not lease.active:
                self._requeue(lease)
        self._failures[kind] += 1
        if self._failures[kind] >= self.max_failures:
            self._fail(f"{counted(self._failures[kind], 'machine')} in a row {kind}; the last one: {reason}")
        self._boot_missing()
        self._assign()

    def retire(self, machine_id: str) -> None:
        """Replace a machine by a new one: now, or when its lease ends.

        Raises:
            UsageError: there is no such live machine.
        """
        machine = self.machines.get(machine_id)
        if machine is None or machine.state in FINAL:
            live = ", ".join(sorted(m.id for m in self.machines.values() if m.state in LIVE)) or "none"
            raise UsageError(f"there is no live machine {machine_id!r}; live machines: {live}")
        if machine.state is MachineState.LEASED:
            machine.retiring = True
            return
        self._end_machine(machine, MachineState.STOPPED, "retired")
        self._boot_missing()

    def drain(self) -> None:
        """Grant no more leases and boot no more machines. Leased machines stop when their leases end."""
        self.draining = True
        self._reject_pending()
        self._stop_unleased("the pool was drained")

    def reason(self, machine_id: str) -> str:
        """Return why a machine is in a final state; empty if it is not, or if its record was dropped."""
        machine = self.machines.get(machine_id)
        return machine.reason if machine is not None else ""

    def add_reason(self, machine_id: str, text: str) -> None:
        """Append to the reason of a machine, if it still has a record."""
        if (machine := self.machines.get(machine_id)) is not None:
            machine.reason += text

    @property
    def drained(self) -> bool:
        """Whether no machine is alive."""
        return self.live == 0

    @property
    def live(self) -> int:
        """Number of machines that are alive."""
        return sum(1 for machine in self.machines.values() if machine.state in LIVE)

    @property
    def usable(self) -> int:
        """Number of machines that are free or leased."""
        usable = {MachineState.FREE, MachineState.LEASED}
        return sum(1 for machine in self.machines.values() if machine.state in usable)

    @property
    def waiting(self) -> int:
        """Number of requests that wait for a machine."""
        return len(self._pending)

    @property
    def seconds(self) -> float:
        """Seconds since `open`."""
        return self._clock() - self._opened

    @property
    def leased_seconds(self) -> float:
        """Total time for which holders had machines."""
        now = self._clock()
        return self._leased_seconds + sum(now - lease.since for lease in self.leases.values() if lease.active)

    # --- leases -----------------------------------------------------------------------------------------------------

    def request(
        self, request_id: str, holder: str, duration: float, limit: float | None = None, worker: str = ""
    ) -> LeaseRecord | None:
        """Request a machine; return the lease if one is assigned, else None: it follows with an ACTIVATE command.

        Repeating an id repeats the same request: it keeps its place in the queue, or returns the same lease.

        Raises:
            LeaseLost: the lease of this request, or the worker, has ended.
            PoolFailed: the pool failed.
            PoolStopped: the pool is being drained.
            ConfigError: `duration` or `limit` is not a positive number of seconds.
        """
        if lease := self._granted.get(request_id):
            return lease
        if request_id in self._ended:
            raise LeaseLost(f"the lease of request {request_id} has ended; send a request with a new id")
        if worker in self._ended:
            raise LeaseLost("the worker that sent the request has ended")
        self._check_open()
        seconds(duration, "the duration of a lease")
        if limit is not None:
            seconds(limit, "the limit of a lease", none=True)
        if request_id not in self._pending:
            self._pending[request_id] = LeaseRecord(request_id, holder, duration, limit, worker=worker)
            self._assign()
        return self._granted.get(request_id)

    def is_granted(self, request_id: str) -> bool:
        """Return whether a machine is assigned to a request."""
        return request_id in self._granted

    def end_worker(self, worker: str) -> list[LeaseRecord]:
        """Withdraw the requests of a worker process that has ended, and return them; reject those that arrive late."""
        self._remember_ended(worker)
        requests = (
            *self._pending.values(),
            *self._granted.values(),
        )  # first those that wait, so that they get no machine
        ended = [request for request in requests if request.worker == worker]
        for request in ended:
            self.withdraw(request.request_id)
        return ended

    def withdraw(self, request_id: str) -> None:
        """Cancel a request. If a machine was assigned in the meantime, its lease is released."""
        if self._pending.pop(request_id, None) is not None:
            self._remember_ended(request_id)
        elif lease := self._granted.get(request_id):
            self.release(lease.token)

    def renew(self, token: int) -> float:
        """Move the deadline of a lease; return the seconds until the deadline.

        Raises:
            LeaseLost: the lease was released, has expired or was revoked.
        """
        now = self._clock()
        lease = self.leases.get(token)
        if lease is None or now >= lease.deadline:
            raise LeaseLost(
                f"lease {token} has ended: it was released, its heartbeat was late, or its machine failed. "
                "The machine rejects further requests of this holder"
            )
        lease.move_deadline(now)
        return lease.deadline - now

    def release(self, token: int) -> bool:
        """End a lease and reset its machine; return False if the lease has already ended."""
        lease = self.leases.get(token)
        if lease is None:
            return False
        machine = self.machines[lease.machine_id]
        self._end_lease(lease)
        machine.lease = None
        machine.uses += 1
        if self.draining or self.failure or machine.retiring:
            reason = "retired" if machine.retiring else "the pool is stopping"
            self._end_machine(machine, MachineState.STOPPED, reason)
            self._boot_missing()
            self._assign()
        else:
            self._set_state(machine, MachineState.RESETTING)
            self._assign()  # before the reset: a request may be waiting for a free machine
            self.commands.append(Command(CommandKind.RESET, machine.id))
        return True

    def expire(self) -> list[LeaseRecord]:
        """End the leases whose deadline has passed and return them."""
        now = self._clock()
        late = [lease for lease in self.leases.values() if lease.deadline <= now]
        for lease in late:
            self.release(lease.token)
        return late

    @property
    def next_deadline(self) -> float | None:
        """When `expire` will have something to do unless leases are renewed; None: there are no leases."""
        return min((lease.deadline for lease in self.leases.values()), default=None)

    # --- transitions ------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.failure:
            raise PoolFailed(self.failure)
        if self.draining:
            raise PoolStopped("the pool is being drained and grants no more leases")

    def _boot_missing(self) -> None:
        if self.draining or self.failure:
            return
        for _ in range(self.size + self.spares - self.live):
            machine = MachineRecord(f"m{self._next_machine}", MachineState.BOOTING, self._clock())
            self._next_machine += 1
            self.machines[machine.id] = machine
            self._note_change(machine)
            self.commands.append(Command(CommandKind.BOOT, machine.id))

    def _make_free(self, machine_id: str, before: MachineState) -> None:
        machine = self.machines.get(machine_id)
        if machine is None or machine.state is not before:
            return  # it was retired, or the pool was drained, during the operation
        self._set_state(machine, MachineState.FREE)
        self._free[machine_id] = None
        self._assign()

    def _assign(self) -> None:
        """Assign free machines to pending requests, first come first served."""
        while self._pending and self._free and len(self.leases) < self.size and not (self.draining or self.failure):
            _, lease = self._pending.popitem(last=False)
            lease.machine_id, _ = self._free.popitem(last=False)
            now = self._clock()
            if lease.limit is not None:
                lease.final_deadline = now + max(lease.limit, 0.0)
            lease.move_deadline(now)
            lease.token = self._token
            self._token += 1
            machine = self.machines[lease.machine_id]
            machine.lease = lease
            self._set_state(machine, MachineState.LEASED)
            self.leases[lease.token] = self._granted[lease.request_id] = lease
            self.commands.append(Command(CommandKind.ACTIVATE, machine.id, lease))

    def _requeue(self, lease: LeaseRecord) -> None:
        """Put the request of a lease that never became active at the head of the queue, with a new record."""
        limit = None if lease.final_deadline is None else lease.final_deadline - self._clock()
        self._ended.pop(lease.request_id, None)
        again = LeaseRecord(lease.request_id, lease.holder, lease.duration, limit, worker=lease.worker)
        self._pending[lease.request_id] = again
        self._pending.move_to_end(lease.request_id, last=False)
        if self.draining or self.failure:
            self._reject_pending()

    def _set_state(self, machine: MachineRecord, state: MachineState) -> None:
        machine.state, machine.since = state, self._clock()
        self._note_change(machine)

    def _note_change(self, machine: MachineRecord) -> None:
        self.change_count += 1
        holder = machine.lease.holder if machine.lease else ""
        change = MachineChange(self.change_count, machine.since, machine.id, machine.state, holder, machine.reason)
        self.changes.append(change)

    def _end_machine(self, machine: MachineRecord, state: MachineState, reason: str) -> None:
        self._free.pop(machine.id, None)
        machine.reason = reason
        self._set_state(machine, state)
        machine.lease = None
        quarantined = state is MachineState.QUARANTINED
        self.commands.append(Command(CommandKind.DISCARD, machine.id, quarantined=quarantined))
        self._final.append(machine.id)
        if len(self._final) > _FINAL_KEPT:
            del self.machines[self._final.popleft()]

    def _end_lease(self, lease: LeaseRecord) -> None:
        del self.leases[lease.token]
        if lease.active:
            self._leased_seconds += self._clock() - lease.since
        del self._granted[lease.request_id]
        self._remember_ended(lease.request_id)

    def _remember_ended(self, request_id: str) -> None:
        self._ended[request_id] = None
        if len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    def _reject_pending(self) -> None:
        self.rejected.extend(self._pending)
        self._pending.clear()

    def _fail(self, reason: str) -> None:
        self.failure = reason
        self._reject_pending()
        self._stop_unleased("the pool failed")

    def _stop_unleased(self, reason: str) -> None:
        for machine in list(self.machines.values()):
            if machine.state in LIVE and machine.state is not MachineState.LEASED:
                self._end_machine(machine, MachineState.STOPPED, reason)
