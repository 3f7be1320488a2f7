"""Ending calls before they end by themselves: cancelled, past their deadline, or of an agent that is stopped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paragent._internal.clock import monotonic
from paragent.errors import AgentStopped, CallCancelled, CallTimedOut
from paragent.remote.server.actors import interrupt, under_way
from paragent.remote.server.executor import fail

if TYPE_CHECKING:
    import asyncio

    from paragent.remote.server.actors import Agent, Call
    from paragent.remote.server.registry import Residents
    from paragent.remote.server.scheduler import Schedule
    from paragent.remote.server.session import Session

__all__ = ["Ending"]


_LOOK = 0.01
"""Seconds between two looks at a stream, at least, whatever limit a client sets."""


class Ending:
    """Stops what runs and answers what waits. Belongs to the I/O loop."""

    def __init__(
        self,
        schedule: Schedule,
        residents: Residents,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._schedule, self._residents, self._loop = schedule, residents, loop

    def cancel(self, session: Session, number: int) -> None:
        """End a call because its caller says so."""
        call = session.active.get(number)
        if call is not None:
            self.interrupt(call, CallCancelled("the call was cancelled"))

    def is_running(self, session: Session, number: int) -> bool:
        """Return whether a call of this client is being carried out; one that waits for its turn is not."""
        call = session.active.get(number)
        return call is not None and (call.begun or type(call.runs) is int)

    def interrupt(self, call: Call, why: BaseException) -> None:
        """End a call: a thread meets an exception, a task is cancelled, one that waits is answered when its turn comes."""
        with self._schedule.mutex:
            call.cancelled = why
            if type(call.runs) is int:
                interrupt(call.runs)
        if call.credit is not None:
            call.credit.close()
        self._schedule.player.cancel(call)

    def at(self, call: Call, seconds: float) -> None:
        """End a call after `seconds`, whether or not its caller is still there to ask for it.

        Raises:
            ValueError: `seconds` is NaN.
        """
        call.timer = self._loop.call_later(_checked(seconds), self._expire, call, seconds)

    def _expire(self, call: Call, seconds: float) -> None:
        call.timer = None
        if call.session.active.get(call.number) is call:
            self.interrupt(call, CallTimedOut(f"no answer within {seconds} s"))

    def late(self, call: Call, seconds: float) -> None:
        """End a stream as soon as making one item takes longer than `seconds`; waiting for its reader does not count.

        Raises:
            ValueError: `seconds` is NaN.
        """
        call.timer = self._loop.call_later(max(_checked(seconds), _LOOK), self._look, call, seconds)

    def _look(self, call: Call, seconds: float) -> None:
        call.timer = None
        if call.session.active.get(call.number) is not call:
            return
        assert call.credit is not None
        since = call.credit.since
        left = seconds if since is None else since + seconds - monotonic()
        if left > 0 or since is None:
            call.timer = self._loop.call_later(max(left, _LOOK), self._look, call, seconds)
        else:
            self.interrupt(call, CallTimedOut(f"no item within {seconds} s"))

    def stop(self, agent: Agent, why: BaseException) -> None:
        """Stop an agent now: what waits for it fails, what runs is cancelled."""
        with self._schedule.mutex:
            agent.stopped = True
            waiting, agent.queue = agent.queue, None
        for call in waiting or ():
            fail(call, why)
        for call in under_way(agent):
            self.interrupt(call, why)
        agent.owner.agents.pop(agent.number, None)
        self._residents.free(agent)

    def session(self, session: Session) -> None:
        """End everything of a client that is gone: its calls are cancelled, its agents freed unless others hold them."""
        gone = AgentStopped("the owner of the agent is gone")
        for call in list(session.active.values()):
            self.interrupt(call, CallCancelled("the caller is gone"))
        for agent in [*session.borrowed.values(), *session.agents.values()]:
            agent.holders -= 1
            if agent.holders <= 0:
                self.stop(agent, gone)
        self._schedule.unpark(session.end())


def _checked(seconds: float) -> float:
    if math.isnan(seconds):
        raise ValueError("a time limit must be a number of seconds, not NaN")
    return seconds
