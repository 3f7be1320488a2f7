"""Which call is carried out next, and by whom: from the queue of an agent to a lane or the event loop, and back."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from paragent._internal.threads import start_thread
from paragent.errors import AgentStopped, CallCancelled
from paragent.remote.placement import limit_thread
from paragent.remote.protocol import CallError
from paragent.remote.server.actors import Agent, Call, Interruption, claim, next_call, offer, overlap, overlapping
from paragent.remote.server.executor import Player, fail, perform_sync, read_attribute

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.transport.limits import Limits

__all__ = ["CONSTRUCT", "FREE", "Lanes", "Schedule"]


_log = logging.getLogger("paragent.remote")

_TICK = 0.002
"""Seconds between looks at work that waits: small against any call worth a thread, large against a quick one."""
_IDLE = 10.0
"""Seconds after which a thread without work ends."""
_RETRY = 0.1
"""Seconds until the next look after the system refused another thread."""
_BUSY_SHARE = 0.5
"""A process that used this share of a core or more between two looks is computing, not waiting."""


class Lanes:
    """Runs `perform` on each work item in some thread. `submit` belongs to the I/O loop or any other thread.

    Args:
        perform: carries out one work item; must not raise.
        limit: threads there may be.
        loop: the I/O loop.
        failed: called if a thread ends by an exception all the same.
        prepare: called by each thread at its start.
    """

    def __init__(
        self,
        perform: Callable[[Any], None],
        limit: int,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[str, BaseException], object],
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self._perform, self._prepare = perform, prepare
        self._limit = limit
        self._loop = loop
        self._failed = failed
        self._ready: deque[Any] = deque()
        self._tokens: SimpleQueue[None] = SimpleQueue()
        self._threads = 0
        self._idle = 0
        self._counting = threading.Lock()
        """Protects `_threads` and `_idle`."""
        self.performed = 0
        """Work items that ended; only whether it moves matters, so it is counted without a lock."""
        self._watched = False
        self._seen = (0, 0.0, 0.0)
        self._refused = False
        """Whether the system had no room for another thread when one was last asked for."""
        self._open = True

    @property
    def waiting(self) -> int:
        """Work items that no thread has begun."""
        return len(self._ready)

    @property
    def threads(self) -> int:
        """Threads there are."""
        return self._threads

    def submit(self, work: list[Any]) -> None:
        """Have the work performed, each item by some thread."""
        self._ready.extend(work)
        if self._idle:
            self._tokens.put(None)
        elif not self._threads:
            self._grow(1)
        if not self._watched:
            self._watched = True
            self._loop.call_soon_threadsafe(self._watch)

    def close(self) -> None:
        """Let every thread end after what it is doing."""
        self._open = False
        self._ready.clear()
        for _ in range(self._threads):
            self._tokens.put(None)

    def _watch(self) -> None:
        self._seen = (self.performed, time.process_time(), time.monotonic())
        self._loop.call_later(_RETRY if self._refused else _TICK, self._look)

    def _look(self) -> None:
        performed, used, then = self._seen
        if not self._ready:
            self._watched = False
            if not self._ready:
                return
            self._watched = True
        share = (time.process_time() - used) / (time.monotonic() - then)
        if performed == self.performed or share < _BUSY_SHARE:
            wanted = min(len(self._ready), max(self._threads, 1))
            for _ in range(min(wanted, self._idle)):
                self._tokens.put(None)
            self._grow(min(wanted - self._idle, self._limit - self._threads))
        self._watch()

    def _grow(self, count: int) -> None:
        """Start threads, as many as the system has room for: where it has none, the watch tries again."""
        for _ in range(count):
            with self._counting:
                self._threads += 1
            try:
                start_thread(self._lane, name="paragent-lane", failed=self._failed)
            except (RuntimeError, MemoryError) as error:
                with self._counting:
                    self._threads -= 1
                if not self._refused:
                    _log.warning("%d threads for sync methods, and no more: %s; calls wait", self._threads, error)
                self._refused = True
                return
            self._refused = False

    def _lane(self) -> None:
        self._prepare()
        ready = self._ready
        while self._open:
            try:
                work = ready.popleft()
            except IndexError:
                if not self._rest():
                    break
                continue
            with contextlib.suppress(Interruption):  # meant for a call that has just ended by itself
                self._perform(work)
            self.performed += 1
        with self._counting:
            self._threads -= 1

    def _rest(self) -> bool:
        """Wait for work; return False if none came for long."""
        with self._counting:
            self._idle += 1
        try:
            # Whoever submits looks for idle threads after adding work; so work is looked for after becoming idle.
            if not self._ready:
                self._tokens.get(timeout=_IDLE)
        except Empty:
            return bool(self._ready)
        finally:
            with self._counting:
                self._idle -= 1
        return True


CONSTRUCT = "__init__"
"""The name of the call that makes an agent; clients cannot use it, as it is not public."""
FREE = "__del__"
"""The name of the call that frees an agent after everything it was asked before."""


class Schedule:
    """Gives calls to agents, one at a time each unless they may overlap.

    Args:
        policy: how arguments are read.
        limits: how many threads there may be.
        loop: the I/O loop, on which this is made.
        construct: makes the agent of a call named `CONSTRUCT`.
        free: frees an agent.
        failed: called if a thread ends that carries out calls.
    """

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        construct: Callable[[Call], None],
        free: Callable[[Agent], None],
        failed: Callable[[str, BaseException], object],
    ) -> None:
        self.mutex = threading.Lock()
        """Protects the queues and the `busy` flags of agents, and what a call `runs` in."""
        self.lanes = Lanes(self._perform, limits.threads, loop, failed, lambda: limit_thread(policy.trusted))
        self.player = Player(policy, self._after, failed)
        self.batch: tuple[list[Call], list[Call]] | None = None
        """While a frame is handled: the calls of it that go to the lanes, and to the player, all at once."""
        self._policy = policy
        self._construct, self._free = construct, free
        self._io_thread = threading.get_ident()

    def begin_batch(self) -> None:
        """Collect what is launched until `end_batch`."""
        self.batch = ([], [])

    def end_batch(self) -> None:
        """Launch what was collected."""
        assert self.batch is not None
        to_lanes, to_loop = self.batch
        self.batch = None
        if to_lanes:
            self.lanes.submit(to_lanes)
        if to_loop:
            self.player.submit(to_loop)

    def begin(self, call: Call) -> None:
        """Have an agent made that nobody can have asked anything yet, with the rest of the frame that brought it."""
        assert self.batch is not None
        call.agent.busy = call
        self.batch[False].append(call)

    def offer(self, call: Call) -> None:
        """Give a call to its agent."""
        ready = offer(call.agent, call, self.mutex)
        if ready is not None:
            self._start(ready)

    def stir(self, agent: Agent) -> None:
        """Begin with what an agent can do now that could not be done before."""
        for call in overlapping(agent, self.mutex):
            self._start(call)
        ready = claim(agent, self.mutex)
        if ready is not None:
            self._start(ready)

    def launch(self, call: Call) -> None:
        """Give a call to whoever carries out its kind, together with the others of this frame if there is one."""
        on_loop = call.method is not None and call.method.on_loop
        if call.method is not None and call.method.concurrent:
            overlap(call.agent, call, self.mutex)
        if self.batch is not None and threading.get_ident() == self._io_thread:
            self.batch[on_loop].append(call)
        elif on_loop:
            self.player.submit([call])
        else:
            self.lanes.submit([call])

    def _start(self, call: Call) -> None:
        """Begin with a call that its agent is free for, or answer it if it cannot be carried out."""
        ready = self._after(call) if _refused(call) else call
        if ready is not None:
            self.launch(ready)

    def _after(self, call: Call) -> Call | None:
        """Free the agent of a call that has ended; return its next call if the same kind of thread carries it out."""
        agent = call.agent
        agent.served += 1
        if call.method is not None and call.method.concurrent:
            if agent.overlaps is not None:
                agent.overlaps.discard(call)
            return None
        while True:
            following = next_call(agent, self.mutex)
            if following is None:
                return None
            if _refused(following):
                continue
            method = following.method
            if method is not None and method.concurrent:
                self.launch(following)
                continue
            here = call.method is not None and call.method.on_loop
            if (method is not None and method.on_loop) is here:
                return following
            self.launch(following)
            return None

    def _perform(self, call: Call | None) -> None:
        """Carry out a call, and those that follow it, in a lane."""
        while call is not None:
            if call.session.backlog.full and call.session.backlog.park(call):
                return
            self._run(call)
            call = self._after(call)

    def _run(self, call: Call) -> None:
        """Carry out a call in this thread and answer it, although it is interrupted, even more than once."""
        call.runs = threading.get_ident()
        begun = answered = False
        while True:
            try:
                if not begun:
                    begun = True
                    self._carry_out(call)
                elif not answered:
                    fail(call, call.cancelled or CallCancelled("the call was cancelled"))
                answered = True
                self._leave(call)
            except Interruption:
                continue
            return

    def _carry_out(self, call: Call) -> None:
        if call.cancelled is not None:
            fail(call, call.cancelled)
        elif call.name == CONSTRUCT:
            self._construct(call)
            if call.agent.queue:
                self.stir(call.agent)
        elif call.name == FREE:
            self._free(call.agent)
        elif call.name.startswith("?"):
            read_attribute(call, self._policy)
        else:
            perform_sync(call, self._policy)

    def _leave(self, call: Call) -> None:
        """Note that no thread runs the call any more, and let an interruption that came too late pass."""
        with self.mutex:
            call.runs = None
        if call.cancelled is not None:
            for _ in range(100):
                time.sleep(0)

    def unpark(self, calls: list[Call]) -> None:
        """Go on with calls that waited for their client to read what it was sent."""
        for call in calls:
            self.launch(call)

    def close(self) -> None:
        """Let every thread end."""
        self.lanes.close()


def _refused(call: Call) -> bool:
    """Answer a call that cannot be carried out; return whether that was so."""
    agent: Any = call.agent
    if call.name in (CONSTRUCT, FREE) or (agent.methods is None and agent.failed is None and not agent.stopped):
        return False
    if call.method is None and agent.methods is not None:
        call.method = agent.methods.get(call.name)
    if call.error is not None:
        call.session.tell(call, CallError, call.error)
    elif call.cancelled is not None:
        fail(call, call.cancelled)
    elif agent.stopped:
        fail(call, AgentStopped("the agent was stopped"))
    elif agent.failed is not None:
        call.session.tell(call, CallError, agent.failed)
    elif call.method is None and not call.name.startswith("?"):
        fail(call, AttributeError(f"{type(agent.thing).__name__!r} agent has no public method {call.name!r}"))
    else:
        return False
    return True
