"""The agents that live on a server: made, lent to other clients, dropped, stopped."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.errors import AccessDenied, AgentStopped, LimitExceeded
from paragent.remote.methods import MOVES, methods_of
from paragent.remote.server.actors import Agent
from paragent.remote.server.executor import arguments_of
from paragent.remote.values import encode_error

if TYPE_CHECKING:
    from paragent.remote.server.actors import Call
    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import Session

__all__ = ["Residents"]

GONE = "the agent is not there any more: it was stopped, or its owner dropped it"


class Residents:
    """Makes agents and finds them. Belongs to the I/O loop, except `construct` and `free`, which lanes call."""

    def __init__(self, policy: Policy, limit: int, sessions: dict[str, Session]) -> None:
        self._policy, self._limit, self._sessions = policy, limit, sessions
        self.count = 0

    def admit(self, session: Session, number: int) -> Agent:
        """Enter an agent that is about to be made; one too many is entered as one that failed, for its callers to see."""
        agent = session.agents[number] = Agent(session, number)
        session.last_agent = number
        if self.count >= self._limit:
            agent.failed = encode_error(
                LimitExceeded(f"this server has {counted(self.count, 'agent')}, which is its limit")
            )
            agent.freed = True
        else:
            self.count += 1
        return agent

    def construct(self, call: Call) -> None:
        """Make the agent, in a lane: its constructor may block, and loading its class may import anything."""
        agent = call.agent
        assert call.creation is not None
        entry, how = call.creation
        try:
            if call.error is not None:
                agent.failed = call.error
                return
            cls = entry[0]
            if cls is None:
                cls = entry[0] = self._policy.resolve(*entry[1:])
            agent.thing = self._make(cls, how, call)
            made: type = type(agent.thing)
            agent.methods = methods_of(made)
        except BaseException as error:  # noqa: BLE001 - whatever the constructor raises is what every call then meets
            agent.failed = encode_error(error, plain=not self._policy.accept_code)

    def _make(self, cls: type, how: str, call: Call) -> Any:
        args, kwargs = arguments_of(call, self._policy)
        if how == "init":
            return _construct(cls, args, kwargs)
        if how == "state":
            self._policy.check_state(cls, args[0])
            return _with_state(cls, args[0])
        if self._policy.accept_code:
            return args[0]
        raise AccessDenied(f"{cls.__name__} has its own way of travelling, which needs a server that accepts code")

    def find(self, session: Session, agent: Any) -> Agent | None:
        """Return the agent that a client means, by its number or as that of another session, which it then holds too."""
        if type(agent) is int:
            return session.agents.get(agent)
        key = (str(agent[0]), int(agent[1]))
        if key[0] == session.identity:
            return session.agents.get(key[1])
        known = session.borrowed.get(key)
        if known is not None:
            return known
        owner = self._sessions.get(key[0])
        found = owner.agents.get(key[1]) if owner is not None else None
        if found is not None:
            found.holders += 1
            session.borrowed[key] = found
        return found

    def may_come(self, session: Session, agent: Any) -> bool:
        """Return whether an agent that is not here may yet be heard of: somebody else's, over another connection."""
        if type(agent) is int:
            return False
        owner = self._sessions.get(str(agent[0])) if agent[0] != session.identity else session
        return owner is None or int(agent[1]) > owner.last_agent

    def dropped(self, session: Session, agent: Any) -> Agent | None:
        """Take away a client's proxy of an agent; return the agent if that was the last one."""
        if type(agent) is not int:
            target = session.borrowed.pop((str(agent[0]), int(agent[1])), None)
        else:
            target = session.agents.pop(agent, None)
        if target is None:
            return None
        target.holders -= 1
        return target if target.holders <= 0 else None

    def free(self, agent: Agent) -> None:
        """Let go of an agent's object."""
        if not agent.freed:
            agent.freed = agent.stopped = True
            agent.thing = None
            self.count -= 1


def gone() -> Any:
    """Return the encoded error of a call to an agent that is not there."""
    return encode_error(AgentStopped(GONE))


def _construct(cls: type, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return an object of a class, made in this process.

    Raises:
        AccessDenied: a client asks for an agent that lives elsewhere, whose results this server would then load.
        Exception: what the constructor raises.
    """
    if MOVES in kwargs:
        raise AccessDenied(
            f"a server makes agents in its own process only: leave {MOVES}= out of the constructor's call"
        )
    here = getattr(type(cls), "construct_here", None)
    return cls(*args, **kwargs) if here is None else here(cls, args, kwargs)


def _with_state(cls: type, state: Any) -> Any:
    """Return an object of a class with a state, without its constructor: what `pickle` does."""
    thing: Any = object.__new__(cls)
    if hasattr(thing, "__setstate__"):
        thing.__setstate__(state)
        return thing
    attributes, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if attributes:
        vars(thing).update(attributes)
    for name, value in (slots or {}).items():
        setattr(thing, name, value)
    return thing
