"""Cancellation: ends calls that were cancelled, that exceeded their deadline, or whose agent was stopped."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from paragent._internal.clock import monotonic
from paragent.errors import AgentStopped, CallCancelled, CallTimedOut
from paragent.remote.server.actors import interrupt, running_calls
from paragent.remote.server.executor import fail

if TYPE_CHECKING:
    import asyncio

    from paragent.remote.server.actors import Actor, ActorCall
    from paragent.remote.server.registry import AgentRegistry
    from paragent.remote.server.scheduler import Scheduler
    from paragent.remote.server.session import Session

__all__ = ["Canceller"]


_LEAST_INTERVAL = 0.01
"""Minimum seconds between two checks of a stream's deadline."""


class Canceller:
    """Cancels calls and stops agents. Belongs to the I/O loop."""

    def __init__(
        self,
        scheduler: Scheduler,
        registry: AgentRegistry,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._scheduler, self._registry, self._loop = scheduler, registry, loop

    def cancel(self, session: Session, number: int) -> None:
        """Cancel a call at its caller's request."""
        call = session.active.get(number)
        if call is not None:
            self.interrupt(call, CallCancelled("the call was cancelled"))

    def is_running(self, session: Session, number: int) -> bool:
        """Return whether a call of this client is executing; a queued call is not."""
        call = session.active.get(number)
        return call is not None and (call.started or type(call.runner) is int)

    def interrupt(self, call: ActorCall, error: BaseException) -> None:
        """End a call with an error. A thread gets an exception, a task is cancelled, a queued call fails when it would start."""
        with self._scheduler.mutex:
            call.cancelled = error
            if type(call.runner) is int:
                interrupt(call.runner)
        if call.credit is not None:
            call.credit.close()
        self._scheduler.async_executor.cancel(call)

    def set_deadline(self, call: ActorCall, seconds: float) -> None:
        """End a call after `seconds`, even if its client is disconnected by then.

        Raises:
            ValueError: `seconds` is NaN.
        """
        call.timer = self._loop.call_later(_checked(seconds), self._expire, call, seconds)

    def _expire(self, call: ActorCall, seconds: float) -> None:
        call.timer = None
        if call.session.active.get(call.number) is call:
            self.interrupt(call, CallTimedOut(f"no answer within {seconds} s"))

    def set_item_deadline(self, call: ActorCall, seconds: float) -> None:
        """End a stream when producing an item takes longer than `seconds`; time spent waiting for the reader does not count.

        Raises:
            ValueError: `seconds` is NaN.
        """
        call.timer = self._loop.call_later(max(_checked(seconds), _LEAST_INTERVAL), self._check_item, call, seconds)

    def _check_item(self, call: ActorCall, seconds: float) -> None:
        call.timer = None
        if call.session.active.get(call.number) is not call:
            return
        assert call.credit is not None
        since = call.credit.since
        left = seconds if since is None else since + seconds - monotonic()
        if left > 0 or since is None:
            call.timer = self._loop.call_later(max(left, _LEAST_INTERVAL), self._check_item, call, seconds)
        else:
            self.interrupt(call, CallTimedOut(f"no item within {seconds} s"))

    def stop_agent(self, agent: Actor, error: BaseException) -> None:
        """Stop an agent now: queued calls fail, running calls are cancelled."""
        with self._scheduler.mutex:
            agent.stopped = True
            waiting, agent.queue = agent.queue, None
        for call in waiting or ():
            fail(call, error)
        for call in running_calls(agent):
            self.interrupt(call, error)
        agent.owner.agents.pop(agent.number, None)
        self._registry.free(agent)

    def end_session(self, session: Session) -> None:
        """Free everything of a session that ended: cancel its calls, stop its agents unless other sessions hold them."""
        gone = AgentStopped("the client that owned the agent is gone")
        for call in list(session.active.values()):
            self.interrupt(call, CallCancelled("the client is gone"))
        for agent in [*session.borrowed.values(), *session.agents.values()]:
            agent.holders -= 1
            if agent.holders <= 0:
                self.stop_agent(agent, gone)
        self._scheduler.unpark(session.end())


def _checked(seconds: float) -> float:
    if math.isnan(seconds):
        raise ValueError("a time limit must be a number of seconds, not NaN")
    return seconds
