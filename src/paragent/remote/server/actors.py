"""Actors: agents on a server with their queued calls, and the rules for which call runs next."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from paragent._internal.threads import raise_in_thread

if TYPE_CHECKING:
    import asyncio
    import threading
    from collections.abc import Callable

    from paragent.remote.methods import Method
    from paragent.remote.protocol import OutcomeKind
    from paragent.remote.server.flow_control import StreamCredit
    from paragent.remote.server.session import ClientSession

__all__ = [
    "Actor",
    "ActorCall",
    "CallInterrupted",
    "add_concurrent",
    "claim",
    "claim_to_free",
    "enqueue",
    "interrupt",
    "next_call",
    "running_calls",
    "take_concurrent",
]


class CallInterrupted(SystemExit):
    """Raised inside a sync method whose call was cancelled. It is not an `Exception`, so `except Exception` does not catch it."""


def interrupt(thread: int) -> None:
    """Raise `CallInterrupted` in another thread, at the next Python instruction; native code is not interrupted."""
    raise_in_thread(thread, CallInterrupted)


class ActorCall:
    """A call of an agent on its server."""

    __slots__ = (
        "agent",
        "answered",
        "args",
        "cancelled",
        "creation",
        "credit",
        "error",
        "kwargs",
        "method",
        "missing_args",
        "name",
        "number",
        "runner",
        "session",
        "size",
        "started",
        "timer",
        "watchers",
    )

    def __init__(
        self, session: ClientSession, number: int, agent: Actor, name: str, args: Any, kwargs: Any = None
    ) -> None:
        self.session, self.number, self.agent = session, number, agent
        self.name, self.args, self.kwargs = name, args, kwargs
        self.credit: StreamCredit | None = None
        """How many items the stream may send; None for a call that is not a stream."""
        self.creation: tuple[list[Any], str] | None = None
        """For the call that creates the agent: the entry of its class, and how it is created."""
        self.method: Method | None = None
        self.missing_args = 0
        """Number of arguments that are references without a value yet."""
        self.error: Any = None
        """Encoded error of an argument; the call cannot run."""
        self.runner: int | asyncio.Task[None] | None = None
        """The thread or task that executes it, while it runs."""
        self.started = False
        """Whether the async method has run its first step."""
        self.cancelled: BaseException | None = None
        self.watchers: list[Callable[[OutcomeKind, Any], None]] | None = None
        """Called with the outcome when the call ends."""
        self.answered = False
        """Whether its outcome has been sent. A later interruption produces a second outcome, which is dropped."""
        self.size = 0
        """Bytes that it counts in the window of its client."""
        self.timer: asyncio.TimerHandle | None = None
        """Cancels it at its deadline."""


class Actor:
    """An agent on its server. It executes one call at a time; further calls wait in its queue."""

    __slots__ = (
        "busy",
        "concurrent_calls",
        "failed",
        "failed_calls",
        "freed",
        "freeing",
        "holders",
        "instance",
        "methods",
        "number",
        "owner",
        "queue",
        "seconds",
        "served",
        "stopped",
        "wanted",
    )

    def __init__(self, owner: ClientSession, number: int) -> None:
        self.owner, self.number = owner, number
        self.instance: Any = None
        self.methods: dict[str, Method] | None = None
        """Public methods by name; None until the constructor has run."""
        self.failed: Any = None
        """Encoded error of the constructor."""
        self.wanted = ("", "")
        """Class and name that the client asked for, if the agent could not be constructed."""
        self.busy: ActorCall | None = None
        """The running call, or the one about to start; without calls of `@concurrent` methods."""
        self.concurrent_calls: set[ActorCall] | None = None
        """Calls of `@concurrent` methods that run or are about to; created when needed."""
        self.queue: deque[ActorCall] | None = None
        """Created when needed: most of many agents never have two calls at a time."""
        self.holders = 1
        """Number of sessions that have a proxy of the agent."""
        self.stopped = self.freed = False
        self.freeing = False
        """Whether it was claimed to be freed: nobody holds it, and no call is pending."""
        # Counted without a lock: calls of `@concurrent` methods that end at the same moment may be counted once.
        self.served = self.failed_calls = 0
        self.seconds = 0.0
        """Duration of its constructor and of all calls that have ended, without async methods that never await."""


def enqueue(agent: Actor, call: ActorCall, mutex: threading.Lock) -> ActorCall | None:
    """Give a call to an agent; return it if it must start now. None: it is in the queue. Only the I/O loop calls this.

    A pending call is in the queue, `busy` or one of the concurrent calls, from here until it ends.

    The common case takes no lock. An agent becomes busy here or under the lock. It becomes free in `next_call`, which checks the
    queue again afterwards; after this function has queued a call, `claim` checks the flag again. So no call stays in the queue
    of a free agent.
    """
    if _is_concurrent(agent, call):
        add_concurrent(agent, call, mutex)
        return call
    if not agent.busy and not call.missing_args and not agent.queue:
        agent.busy = call
        return call
    with mutex:
        if agent.queue is None:
            agent.queue = deque()
        agent.queue.append(call)
    return None


def take_concurrent(agent: Actor, mutex: threading.Lock) -> list[ActorCall]:
    """Move the queued calls of `@concurrent` methods whose arguments are complete to the concurrent calls; return them.

    They were queued because the constructor had not run yet or an argument was missing.
    """
    if not agent.queue or agent.methods is None:
        return []
    chosen: list[ActorCall] = []
    with mutex:
        others: deque[ActorCall] = deque()
        for call in agent.queue or ():
            (chosen if _is_concurrent(agent, call) else others).append(call)
        if agent.concurrent_calls is None:
            agent.concurrent_calls = set()
        agent.concurrent_calls.update(chosen)
        agent.queue = others
    return chosen


def add_concurrent(agent: Actor, call: ActorCall, mutex: threading.Lock) -> None:
    """Record that a call of a `@concurrent` method is about to run; the scheduler removes it when it ends."""
    if agent.concurrent_calls is None:
        with mutex:
            if agent.concurrent_calls is None:
                agent.concurrent_calls = set()
    agent.concurrent_calls.add(call)


def running_calls(agent: Actor) -> list[ActorCall]:
    """Return the calls of an agent that run or are about to, and have not ended."""
    calls = [] if agent.busy is None else [agent.busy]
    calls += agent.concurrent_calls or ()
    return [call for call in calls if call.session.active.get(call.number) is call]


def _is_concurrent(agent: Actor, call: ActorCall) -> bool:
    if agent.methods is None or call.missing_args:
        return False
    call.method = agent.methods.get(call.name)
    return call.method is not None and call.method.concurrent


def claim(agent: Actor, mutex: threading.Lock) -> ActorCall | None:
    """Return the call that an agent must start now if it is free, or None."""
    if agent.busy:
        return None
    with mutex:
        return None if agent.busy else _choose(agent)


def claim_to_free(agent: Actor, mutex: threading.Lock) -> bool:
    """Return whether to free an agent now, because no client holds it and no call is pending. Returns True once.

    To be called after the last holder has dropped it and after each call that has ended. Nobody can call an agent without
    holders, so the last of these sees that nothing is pending.
    """
    if agent.holders > 0 or agent.freeing:
        return False
    with mutex:
        if agent.freeing or agent.busy or agent.queue or agent.concurrent_calls:
            return False
        agent.freeing = True
        return True


def next_call(agent: Actor, mutex: threading.Lock) -> ActorCall | None:
    """Return the next call of an agent that has finished one; None: the agent is free."""
    if not agent.queue:
        agent.busy = None
        return claim(agent, mutex) if agent.queue else None
    with mutex:
        return _choose(agent)


def _choose(agent: Actor) -> ActorCall | None:
    """Return the next call of an idle agent, or None, and update `busy`. The caller holds the lock.

    Calls of one client keep their order: a call that waits for an argument also delays later calls of the same client, but no
    calls of other clients. A constructor that waits for an argument delays all calls.
    """
    queue = agent.queue
    if not queue:
        agent.busy = None
        return None
    if not queue[0].missing_args:
        agent.busy = queue.popleft()
        return agent.busy
    constructed = agent.methods is not None or agent.failed is not None
    delayed: set[int] = set()
    for position, call in enumerate(queue if constructed else ()):
        if call.missing_args:
            delayed.add(id(call.session))
        elif id(call.session) not in delayed:
            del queue[position]
            agent.busy = call
            return call
    agent.busy = None
    return None
