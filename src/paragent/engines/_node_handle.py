"""A station seen from the driver: the member of a pool whose worker is on some node of a cluster."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paragent._internal.clock import Clock, Heartbeat, monotonic
from paragent.engines._node_protocol import HEARTBEAT, KILL, RENEW, SILENCE, Report, from_wire
from paragent.engines._worker_handle import Tidings, WorkWriter
from paragent.tasks import Ending, ErrorInfo, Outcome
from paragent.transport.framing import READ_BUDGET, FramedSocket
from paragent.worker.protocol import CANCEL, RECALL, STOP

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from paragent.engines.base import Call

__all__ = ["StationMember"]

_FAREWELL = 2.0
"""Seconds to wait for a station that was told to end: it kills its worker within milliseconds."""


class StationMember:
    """Gives calls to a station and answers for each of them, until the station is gone.

    A worker that dies is the station's to report and to replace. When the station itself goes, with its node or its
    connection, nothing is known about the calls it held but that each may have started: all are lost, and the driver
    finds out in smaller company whether one of them was the cause.
    """

    def __init__(self, name: str, connection: socket.socket, clock: Clock = monotonic) -> None:
        self.place = name
        self.recalling = False
        self.answered = False
        self._link = FramedSocket(connection)
        self._writer = WorkWriter()
        self._held: dict[int, Call] = {}
        self._clock = clock
        self._heart = Heartbeat(HEARTBEAT, clock)
        self._doomed: set[int] = set()
        """Calls whose worker the station was told to kill, and that it has not accounted for."""
        self._kill_by = math.inf
        """When those are accounted for without its word."""
        self.alarm: float | None = None
        self._set_alarm()

    @property
    def in_flight(self) -> int:
        """Calls given and not accounted for."""
        return len(self._held)

    def sources(self) -> list[int]:
        """The link to the station."""
        return [self._link.fileno()]

    @property
    def wants_to_write(self) -> bool:
        """Whether frames wait for the station to read."""
        return self._link.wants_to_write

    def give(self, calls: Sequence[Call]) -> None:
        """Send calls to the station."""
        self._writer.evict(self._held.values())
        self._held.update((call.number, call) for call in calls)
        self._link.post(self._writer.work((call.number, call) for call in calls))

    def recall(self) -> None:
        """Ask for the calls that have not started."""
        self.recalling = True
        self._link.post(RECALL)

    def cancel(self) -> None:
        """Ask the worker to cancel what it can."""
        self._link.post(CANCEL)

    def kill(self, cause: str, *, cancelled: bool = False) -> Tidings:
        """Have the worker killed and replaced; the station stays.

        Calls that are cancelled follow from `news`, for only the station knows which of them had started and when.
        """
        tidings = Tidings()
        if not cancelled:
            self._account_for(tidings, list(self._held), Ending.LOST, cause)
        elif self._doomed >= self._held.keys():
            return tidings
        self._doomed = set(self._held)
        self._kill_by = self._clock() + _FAREWELL
        self._set_alarm()
        self._link.post(KILL)
        return tidings

    def renew(self) -> bool:
        """Have the idle worker replaced by a fresh one."""
        self._link.post(RENEW)
        return True

    def stop(self) -> None:
        """Ask the station to end."""
        self._link.post(STOP)

    def release(self, patience: float) -> None:
        """End the station; wait until it says that its worker is gone, for a moment."""
        if not patience:
            self._link.post(STOP)
        self._link.finish(max(patience, _FAREWELL), until_closed=True)
        self._link.close()

    def news(self) -> Tidings:
        """Move bytes in both directions without blocking and return what happened."""
        tidings = Tidings()
        self._link.flush()
        ended: str | None = None
        for report in self._link.messages(READ_BUDGET):
            self._heart.beat()
            ended = self._note(report, tidings) or ended
        if self._clock() >= self._kill_by:
            self._account_for(tidings, [number for number in self._doomed if number in self._held], Ending.CANCELLED)
        self._doomed &= self._held.keys()
        self._kill_by = self._kill_by if self._doomed else math.inf
        self._set_alarm()
        tidings.never_ready = (
            ended is not None and not self.answered
        )  # the station says so itself; a broken link does not
        if self._link.closed:
            ended = ended or f"the station with worker {self.place} is gone, with its node or its connection"
        elif self._heart.silence() >= SILENCE:
            ended = f"the station with worker {self.place} has not been heard of for {SILENCE:g} s"
        if ended is not None:
            self._account_for(tidings, list(self._held), Ending.LOST, ended)
            tidings.died = ended
            self._link.close()
        return tidings

    def _note(self, report: Report, tidings: Tidings) -> str | None:
        self.answered = self.answered or report.answered
        self.place = report.place or self.place
        tidings.lines += report.lines
        for wire in report.outcomes:
            if self._held.pop(wire[0], None):  # else it was accounted for without the station's word
                tidings.outcomes.append(from_wire(wire))
        if report.recalled:
            self.recalling = False
        return report.ended

    def _set_alarm(self) -> None:
        self.alarm = min(self._clock() + HEARTBEAT, self._kill_by)

    def _account_for(self, tidings: Tidings, numbers: Sequence[int], ending: Ending, cause: str = "") -> None:
        """Give calls an outcome without the station's word."""
        alone = len(self._held) == 1
        for number in numbers:
            outcome = Outcome(number, ending, worker=self.place, alone=alone)
            if ending is Ending.LOST:
                outcome.error = ErrorInfo("WorkerLost", cause, retryable=True)
            tidings.outcomes.append(outcome)
            del self._held[number]
