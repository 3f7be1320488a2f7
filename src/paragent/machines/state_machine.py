"""Who holds which machine: every decision of the pool, without I/O.

The ledger is told what happened (a machine booted, somebody asks, a lease is released, time passed) and answers by its
state and by `effects`: what its owner has to do next. It belongs to one thread.
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

__all__ = ["FINAL", "LIVE", "Effect", "EffectKind", "LeaseRecord", "Ledger", "MachineRecord", "MachineState", "Trouble"]


class MachineState(StrEnum):
    """The state of a machine; only the ledger changes it."""

    BOOTING = "booting"
    """Was asked of the provider and has not answered yet."""
    FREE = "free"
    """Answered, is clean, and waits for a holder. A provider may have paused it."""
    LEASED = "leased"
    """Has exactly one holder, from the moment the pool decides so until the lease is released, expires or is revoked."""
    RESETTING = "resetting"
    """Had a holder and is being made clean; it is free only after the reset was verified."""
    QUARANTINED = "quarantined"
    """Did not boot, did not answer, or was not clean after a reset. Its logs are kept; it is never handed out again."""
    STOPPED = "stopped"
    """Ended on purpose."""


FINAL = frozenset({MachineState.QUARANTINED, MachineState.STOPPED})
"""States that a machine never leaves."""
LIVE = frozenset(set(MachineState) - FINAL)
"""States of machines that count towards the pool's size and spares."""

_ENDED_KEPT = 10_000
"""Request ids remembered after their lease ended, so that a late copy of a request is known for what it is. A copy comes
within seconds, in which a pool ends at most some thousands of leases."""
_FINAL_KEPT = 50
"""Quarantined and stopped machines that stay in the table, for people to look at."""


class EffectKind(StrEnum):
    """What the owner of the ledger has to do for a machine."""

    BOOT = "boot"
    """Create it; then report `booted` or `broke`."""
    HAND_OUT = "hand out"
    """Give it to the holder of `lease`; then report `handed_out` or `broke`."""
    RESET = "reset"
    """Make it clean and verify that; then report `was_reset` or `broke`."""
    DISCARD = "discard"
    """End it. Nothing has to be reported."""


class Trouble(StrEnum):
    """In which work a machine broke; each kind is forgiven when the same work succeeds once."""

    BOOT = "did not boot"
    RESET = "could not be reset"
    HAND_OUT = "could not be handed out"
    HEALTH = "stopped answering"


@dataclass(slots=True)
class LeaseRecord:
    """One machine for one holder, until a deadline that the holder moves by heartbeats."""

    token: int
    """The fencing token: larger than that of every earlier lease. It also names the lease."""
    request_id: str
    machine_id: str
    holder: str
    duration: float
    deadline: float
    limit: float | None
    """The moment beyond which heartbeats do not move the deadline."""
    handed_out: bool = False
    since: float = 0.0
    """When its holder got the machine."""


@dataclass(slots=True)
class MachineRecord:
    """One machine in the ledger."""

    id: str
    state: MachineState
    since: float
    lease: LeaseRecord | None = None
    uses: int = 0
    """Leases that it has had."""
    reason: str = ""
    """Why it is in a final state."""
    retiring: bool = False
    """Whether it ends, instead of being reset, when its holder is done."""


@dataclass(frozen=True, slots=True)
class Effect:
    """One thing to do."""

    kind: EffectKind
    machine_id: str
    lease: LeaseRecord | None = None
    quarantined: bool = False
    """For DISCARD: whether the machine broke. By the time that it is ended, the table may have forgotten the machine."""


@dataclass(slots=True)
class _Request:
    id: str
    holder: str
    duration: float
    limit: float | None
    """Seconds that it may hold a machine at most."""


class Ledger:
    """The pool's book.

    At most `size` machines are leased at a time. `size + spares` are kept alive, so that with spares a machine is free
    while others are being reset.

    Raises:
        ConfigError: `size` is not at least 1, `spares` is negative or `patience` is not at least 1.
    """

    def __init__(
        self, size: int, spares: int = 0, *, clock: Clock = monotonic, patience: int = 3, first_token: int = 1
    ) -> None:
        for name, number, least in (("size", size, 1), ("spares", spares, 0), ("patience", patience, 1)):
            integer(number, f"the {name} of a pool", least=least)
        self.size, self.spares, self.patience = size, spares, patience
        self.machines: dict[str, MachineRecord] = {}
        self.leases: dict[int, LeaseRecord] = {}
        self.effects: deque[Effect] = deque()
        self.rejected: deque[str] = deque()
        """Ids of requests that were pending when the pool was drained or failed."""
        self.draining = False
        self.failure: str | None = None
        """Why the pool gave up, or None."""
        self.hand_overs = 0
        """Leases whose holders got their machine."""
        self._clock = clock
        self._opened = clock()
        self._leased_seconds = 0.0
        self._token = first_token
        self._next_machine = 0
        self._free: OrderedDict[str, None] = OrderedDict()
        self._pending: OrderedDict[str, _Request] = OrderedDict()
        self._granted: dict[str, LeaseRecord] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()
        self._final: deque[str] = deque()
        self._in_a_row = dict.fromkeys(Trouble, 0)

    # --- machines ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Ask for all machines; once."""
        self._opened = self._clock()
        self._fill()

    def booted(self, machine_id: str) -> None:
        """A machine that was to boot answers."""
        self._in_a_row[Trouble.BOOT] = 0
        self._becomes_free(machine_id, MachineState.BOOTING)

    def was_reset(self, machine_id: str) -> None:
        """A machine that was to be reset is verified to be clean."""
        self._in_a_row[Trouble.RESET] = 0
        self._becomes_free(machine_id, MachineState.RESETTING)

    def handed_out(self, token: int) -> bool:
        """A machine is with its holder; False if the lease ended meanwhile."""
        lease = self.leases.get(token)
        if lease is None:
            return False
        self._in_a_row[Trouble.HAND_OUT] = self._in_a_row[Trouble.HEALTH] = 0
        lease.handed_out, lease.since = True, self._clock()
        lease.deadline = self._bounded(lease, lease.since + lease.duration)
        self.hand_overs += 1
        return True

    def broke(self, machine_id: str, trouble: Trouble, reason: str) -> None:
        """A machine is of no use any more: it is quarantined and replaced, and its lease, if it has one, is revoked.

        A request whose machine broke before its holder got it is served next. After `patience` troubles of one kind in a
        row the pool gives up, because replacing machines again and again would not end.
        """
        machine = self.machines.get(machine_id)
        if machine is None or machine.state in FINAL:
            return
        lease = machine.lease
        self._end(machine, MachineState.QUARANTINED, f"{trouble}: {reason}")
        if lease is not None:
            self._forget(lease)
            if not lease.handed_out:
                self._serve_next(lease)
        self._in_a_row[trouble] += 1
        if self._in_a_row[trouble] >= self.patience:
            self._give_up(f"{counted(self._in_a_row[trouble], 'machine')} in a row {trouble}; the last one: {reason}")
        self._fill()
        self._match()

    def retire(self, machine_id: str) -> None:
        """Replace a machine by a fresh one: now, or when its holder is done.

        Raises:
            UsageError: there is no such live machine.
        """
        machine = self.machines.get(machine_id)
        if machine is None or machine.state in FINAL:
            live = ", ".join(sorted(m.id for m in self.machines.values() if m.state in LIVE)) or "none"
            raise UsageError(f"there is no live machine {machine_id!r}; there are: {live}")
        if machine.state is MachineState.LEASED:
            machine.retiring = True
            return
        self._end(machine, MachineState.STOPPED, "retired")
        self._fill()

    def drain(self) -> None:
        """Grant nothing more and boot nothing more; machines stop as they come back."""
        self.draining = True
        self._reject_pending()
        for machine in list(self.machines.values()):
            if machine.state in LIVE and machine.state is not MachineState.LEASED:
                self._end(machine, MachineState.STOPPED, "the pool was drained")

    def reason(self, machine_id: str) -> str:
        """Return why a machine is in a final state; empty if it is not, or has been forgotten."""
        machine = self.machines.get(machine_id)
        return machine.reason if machine is not None else ""

    def note(self, machine_id: str, text: str) -> None:
        """Add to the reason of a machine that has ended, if it is still remembered."""
        if (machine := self.machines.get(machine_id)) is not None:
            machine.reason += text

    @property
    def drained(self) -> bool:
        """Whether no machine is alive."""
        return self.live == 0

    @property
    def live(self) -> int:
        """How many machines are alive."""
        return sum(1 for machine in self.machines.values() if machine.state in LIVE)

    @property
    def waiting(self) -> int:
        """How many requests wait for a machine."""
        return len(self._pending)

    @property
    def seconds(self) -> float:
        """Since the machines were asked for."""
        return self._clock() - self._opened

    @property
    def leased_seconds(self) -> float:
        """How long machines were with holders, all together."""
        now = self._clock()
        return self._leased_seconds + sum(now - lease.since for lease in self.leases.values() if lease.handed_out)

    # --- leases -----------------------------------------------------------------------------------------------------

    def ask(self, request_id: str, holder: str, duration: float, limit: float | None = None) -> LeaseRecord | None:
        """Ask for a machine; return the lease if there is one already, or None: it will come as a HAND_OUT effect.

        The same id asked again is the same request: it keeps its place, or gets the same lease.

        Raises:
            LeaseLost: this request had a lease which has ended.
            PoolFailed: the pool gave up.
            PoolStopped: the pool is being drained.
            ConfigError: `duration` or `limit` is not a number of seconds above 0.
        """
        if lease := self._granted.get(request_id):
            return lease
        if request_id in self._ended:
            raise LeaseLost(f"the lease of request {request_id} has ended; ask again with a new id")
        self._check_open()
        seconds(duration, "the duration of a lease")
        if limit is not None:
            seconds(limit, "the limit of a lease", none=True)
        if request_id not in self._pending:
            self._pending[request_id] = _Request(request_id, holder, duration, limit)
            self._match()
        return self._granted.get(request_id)

    def has_lease(self, request_id: str) -> bool:
        """Return whether a request has got a machine."""
        return request_id in self._granted

    def withdraw(self, request_id: str) -> None:
        """Nobody waits for this request any more; a machine that it has got meanwhile is released."""
        if self._pending.pop(request_id, None) is not None:
            self._remember(request_id)
        elif lease := self._granted.get(request_id):
            self.release(lease.token)

    def renew(self, token: int) -> float:
        """Move the deadline of a lease; return the seconds until then.

        Raises:
            LeaseLost: the lease was released, has expired or was revoked.
        """
        now = self._clock()
        lease = self.leases.get(token)
        if lease is None or now >= lease.deadline:
            raise LeaseLost(
                f"lease {token} has ended: it was released, its heartbeat was late, or its machine broke. "
                "What it still sends is refused"
            )
        lease.deadline = self._bounded(lease, now + lease.duration)
        return lease.deadline - now

    def release(self, token: int) -> bool:
        """Give a machine back; False if that lease has ended already, which is no error."""
        lease = self.leases.get(token)
        if lease is None:
            return False
        machine = self.machines[lease.machine_id]
        self._forget(lease)
        machine.lease = None
        machine.uses += 1
        if self.draining or self.failure or machine.retiring:
            self._end(machine, MachineState.STOPPED, "retired" if machine.retiring else "the pool ends")
            self._fill()
            self._match()
        else:
            self._set(machine, MachineState.RESETTING)
            self._match()  # before the reset: somebody waits for a machine, nobody for the reset
            self.effects.append(Effect(EffectKind.RESET, machine.id))
        return True

    def expire(self) -> list[LeaseRecord]:
        """End the leases whose deadline has passed and return them."""
        now = self._clock()
        late = [lease for lease in self.leases.values() if lease.deadline <= now]
        for lease in late:
            self.release(lease.token)
        return late

    @property
    def alarm(self) -> float | None:
        """When `expire` has something to do, if nobody renews."""
        return min((lease.deadline for lease in self.leases.values()), default=None)

    # --- inside -----------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self.failure:
            raise PoolFailed(self.failure)
        if self.draining:
            raise PoolStopped("the pool is being drained and grants no more machines")

    def _bounded(self, lease: LeaseRecord, deadline: float) -> float:
        return deadline if lease.limit is None else min(deadline, lease.limit)

    def _fill(self) -> None:
        if self.draining or self.failure:
            return
        for _ in range(self.size + self.spares - self.live):
            machine = MachineRecord(f"m{self._next_machine}", MachineState.BOOTING, self._clock())
            self._next_machine += 1
            self.machines[machine.id] = machine
            self.effects.append(Effect(EffectKind.BOOT, machine.id))

    def _becomes_free(self, machine_id: str, before: MachineState) -> None:
        machine = self.machines.get(machine_id)
        if machine is None or machine.state is not before:
            return  # it was retired, or the pool drained, while the work was under way
        self._set(machine, MachineState.FREE)
        self._free[machine_id] = None
        self._match()

    def _match(self) -> None:
        """Give free machines to those who wait, first come first served."""
        while self._pending and self._free and len(self.leases) < self.size and not (self.draining or self.failure):
            _, request = self._pending.popitem(last=False)
            machine_id, _ = self._free.popitem(last=False)
            now = self._clock()
            limit = None if request.limit is None else now + max(request.limit, 0.0)
            lease = LeaseRecord(
                self._token, request.id, machine_id, request.holder, request.duration, now + request.duration, limit
            )
            lease.deadline = self._bounded(lease, lease.deadline)
            self._token += 1
            machine = self.machines[machine_id]
            machine.lease = lease
            self._set(machine, MachineState.LEASED)
            self.leases[lease.token] = self._granted[request.id] = lease
            self.effects.append(Effect(EffectKind.HAND_OUT, machine_id, lease))

    def _serve_next(self, lease: LeaseRecord) -> None:
        """Put the request of a lease that its holder never got back to the head of the queue."""
        limit = None if lease.limit is None else lease.limit - self._clock()
        self._ended.pop(lease.request_id, None)
        self._pending[lease.request_id] = _Request(lease.request_id, lease.holder, lease.duration, limit)
        self._pending.move_to_end(lease.request_id, last=False)
        if self.draining or self.failure:
            self._reject_pending()

    def _set(self, machine: MachineRecord, state: MachineState) -> None:
        machine.state, machine.since = state, self._clock()

    def _end(self, machine: MachineRecord, state: MachineState, reason: str) -> None:
        self._free.pop(machine.id, None)
        machine.lease, machine.reason = None, reason
        self._set(machine, state)
        self.effects.append(Effect(EffectKind.DISCARD, machine.id, quarantined=state is MachineState.QUARANTINED))
        self._final.append(machine.id)
        if len(self._final) > _FINAL_KEPT:
            del self.machines[self._final.popleft()]

    def _forget(self, lease: LeaseRecord) -> None:
        del self.leases[lease.token]
        if lease.handed_out:
            self._leased_seconds += self._clock() - lease.since
        del self._granted[lease.request_id]
        self._remember(lease.request_id)

    def _remember(self, request_id: str) -> None:
        self._ended[request_id] = None
        if len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    def _reject_pending(self) -> None:
        self.rejected.extend(self._pending)
        self._pending.clear()

    def _give_up(self, reason: str) -> None:
        self.failure = reason
        self._reject_pending()
        for machine in list(self.machines.values()):
            if machine.state in LIVE and machine.state is not MachineState.LEASED:
                self._end(machine, MachineState.STOPPED, "the pool gave up")
