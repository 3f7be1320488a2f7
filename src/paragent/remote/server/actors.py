"""An agent on its server, the calls that wait for it, and which of them comes next."""

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
    from paragent.remote.server.flow_control import Credit
    from paragent.remote.server.session import Session

__all__ = [
    "Agent",
    "Call",
    "Interruption",
    "claim",
    "interrupt",
    "next_call",
    "offer",
    "overlap",
    "overlapping",
    "under_way",
]


class Interruption(SystemExit):
    """Raised inside a sync method whose call was cancelled; not an `Exception`, so that it is not caught by mistake."""


def interrupt(thread: int) -> None:
    """Have Python code in another thread meet an `Interruption` at its next step; native code meets it on return."""
    raise_in_thread(thread, Interruption)


class Call:
    """One call on its way through the server."""

    __slots__ = (
        "agent",
        "args",
        "begun",
        "cancelled",
        "creation",
        "credit",
        "error",
        "kwargs",
        "method",
        "missing",
        "name",
        "number",
        "runs",
        "session",
        "size",
        "timer",
        "told",
        "watchers",
    )

    def __init__(self, session: Session, number: int, agent: Agent, name: str, args: Any, kwargs: Any = None) -> None:
        self.session, self.number, self.agent = session, number, agent
        self.name, self.args, self.kwargs = name, args, kwargs
        self.credit: Credit | None = None
        """How many items the stream may send; None for a call that is not a stream."""
        self.creation: tuple[list[Any], str] | None = None
        """For the call that creates the agent: the entry of its class, and how it is created."""
        self.method: Method | None = None
        self.missing = 0
        """Arguments that are still somewhere else."""
        self.error: Any = None
        """Why it cannot start: the error of an argument, as it came."""
        self.runs: int | asyncio.Task[None] | None = None
        """The thread or task that carries it out, while it does."""
        self.begun = False
        """Whether the first step of an async method was taken."""
        self.cancelled: BaseException | None = None
        self.watchers: list[Callable[[OutcomeKind, Any], None]] | None = None
        """Who else wants its outcome."""
        self.told = False
        """Whether its outcome is on its way to the client: an interruption that comes later makes another, which is dropped."""
        self.size = 0
        """What it weighs in the window of its caller."""
        self.timer: asyncio.TimerHandle | None = None
        """Ends it at its deadline."""


class Agent:
    """An agent on its server. It does one thing at a time; what comes meanwhile waits in its queue."""

    __slots__ = (
        "busy",
        "failed",
        "freed",
        "holders",
        "methods",
        "number",
        "overlaps",
        "owner",
        "queue",
        "served",
        "stopped",
        "thing",
    )

    def __init__(self, owner: Session, number: int) -> None:
        self.owner, self.number = owner, number
        self.thing: Any = None
        self.methods: dict[str, Method] | None = None
        """Known once it is constructed."""
        self.failed: Any = None
        """The error of its constructor, as it goes into a frame."""
        self.busy: Call | None = None
        """The call that it carries out, or is about to; calls of `@concurrent` methods do not count."""
        self.overlaps: set[Call] | None = None
        """Calls of `@concurrent` methods that it carries out, or is about to; made when it is needed."""
        self.queue: deque[Call] | None = None
        """Made when it is needed: most agents of a crowd never have two calls at a time."""
        self.holders = 1
        """Sessions that have a proxy of it."""
        self.stopped = self.freed = False
        self.served = 0


def offer(agent: Agent, call: Call, mutex: threading.Lock) -> Call | None:
    """Give a call to an agent; return the call that the agent begins with now, if it does. Only the I/O loop does this.

    The common case takes no lock. An agent becomes busy here, or under the lock; it becomes free in `next_call`, which looks
    at the queue once more afterwards, as this does at the flag. So a call is never left in the queue of a free agent.
    """
    if _may_overlap(agent, call):
        return call
    if not agent.busy and not call.missing and not agent.queue:
        agent.busy = call
        return call
    with mutex:
        if _may_overlap(agent, call):
            return call
        if agent.queue is None:
            agent.queue = deque()
        agent.queue.append(call)
    return claim(agent, mutex)


def overlapping(agent: Agent, mutex: threading.Lock) -> list[Call]:
    """Take out of the queue the calls that need not wait there: of `@concurrent` methods, with their arguments there.

    They are in the queue because the agent was not yet made, or because an argument was missing, when they came.
    """
    if not agent.queue:
        return []
    chosen: list[Call] = []
    with mutex:
        others: deque[Call] = deque()
        for call in agent.queue or ():
            (chosen if _may_overlap(agent, call) else others).append(call)
        agent.queue = others
    return chosen


def overlap(agent: Agent, call: Call, mutex: threading.Lock) -> None:
    """Note that a call of a `@concurrent` method is carried out from now on; `agent.overlaps` lets go of it at its end."""
    if agent.overlaps is None:
        with mutex:
            if agent.overlaps is None:
                agent.overlaps = set()
    agent.overlaps.add(call)


def under_way(agent: Agent) -> list[Call]:
    """Return the calls that an agent carries out, or is about to, and that have not ended."""
    calls = [] if agent.busy is None else [agent.busy]
    calls += agent.overlaps or ()
    return [call for call in calls if call.session.active.get(call.number) is call]


def _may_overlap(agent: Agent, call: Call) -> bool:
    if agent.methods is None or call.missing:
        return False
    call.method = agent.methods.get(call.name)
    return call.method is not None and call.method.concurrent


def claim(agent: Agent, mutex: threading.Lock) -> Call | None:
    """Return what an agent that may be free does next, or None."""
    if agent.busy:
        return None
    with mutex:
        return None if agent.busy else choose(agent)


def next_call(agent: Agent, mutex: threading.Lock) -> Call | None:
    """Return what an agent that has finished a call does next; with None it is free."""
    if not agent.queue:
        agent.busy = None
        return claim(agent, mutex) if agent.queue else None
    with mutex:
        return choose(agent)


def choose(agent: Agent) -> Call | None:
    """Return what an agent that does nothing does next, or None; it is then busy or not accordingly. Needs the lock.

    The calls of one caller keep their order: one that waits for an argument keeps back those that its caller sent later,
    and nobody else's. The making of the agent, if it is what waits, keeps back everybody's.
    """
    queue = agent.queue
    if not queue:
        agent.busy = None
        return None
    if not queue[0].missing:
        agent.busy = queue.popleft()
        return agent.busy
    made = agent.methods is not None or agent.failed is not None
    held_back: set[int] = set()
    for position, call in enumerate(queue if made else ()):
        if call.missing:
            held_back.add(id(call.session))
        elif id(call.session) not in held_back:
            del queue[position]
            agent.busy = call
            return call
    agent.busy = None
    return None
