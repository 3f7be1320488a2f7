"""Agent registry: creates agents, finds them for clients, and frees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.errors import AccessDenied, AgentStopped, LimitExceeded
from paragent.remote.methods import MOVES, methods_of
from paragent.remote.server.actors import Actor
from paragent.remote.server.executor import arguments_of
from paragent.remote.values import encode_error

if TYPE_CHECKING:
    from paragent.remote.server.actors import ActorCall
    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import ClientSession

__all__ = ["AgentRegistry", "gone"]


class AgentRegistry:
    """Creates and finds agents. Belongs to the I/O loop, except `construct` and `free`, which run in the thread pool."""

    def __init__(self, policy: Policy, limit: int, sessions: dict[str, ClientSession]) -> None:
        self._policy, self._limit, self._sessions = policy, limit, sessions
        self.count = 0

    def admit(self, session: ClientSession, number: int) -> Actor:
        """Register an agent before its constructor runs. Beyond the limit it is registered as failed, so that its calls fail."""
        agent = session.agents[number] = Actor(session, number)
        session.last_agent = number
        if self.count >= self._limit:
            agents = counted(self.count, "agent")
            problem = f"this server has {agents}, which is its limit; drop some, or raise Limits(agents=...) there"
            agent.failed = encode_error(LimitExceeded(problem))
            agent.freed = True
        else:
            self.count += 1
        return agent

    def construct(self, call: ActorCall) -> None:
        """Create the agent. Runs in the thread pool: the constructor may block, and loading the class may import modules."""
        agent = call.agent
        assert call.creation is not None
        entry, how = call.creation
        try:
            if call.error is not None:
                _record_failure(call, entry[2], call.error)
                return
            cls = entry[0]
            if cls is None:
                try:
                    cls = self._policy.resolve(*entry[1:])
                finally:  # as in `arguments_of`
                    call.session.check_modules()
                entry[0] = cls
            agent.instance = self._create(cls, how, call)
            made: type = type(agent.instance)
            agent.methods = methods_of(made)
        except BaseException as error:  # noqa: BLE001 - every call of the agent raises the error of its constructor
            _record_failure(call, entry[2], encode_error(error, plain=not self._policy.accept_code))

    def _create(self, cls: type, how: str, call: ActorCall) -> Any:
        args, kwargs = arguments_of(call, self._policy)
        if how == "init":
            return _construct(cls, args, kwargs)
        if how == "state":
            self._policy.check_state(cls, args[0])
            return _with_state(cls, args[0])
        if self._policy.accept_code:
            return args[0]
        raise AccessDenied(f"{cls.__name__} has its own pickling methods, which need a server that accepts code")

    def find(self, session: ClientSession, agent: Any) -> Actor | None:
        """Return an agent by its number, or by session and number: the client has a copy of its proxy, which also holds it."""
        if type(agent) is int:
            return session.agents.get(agent)
        key = (str(agent[0]), int(agent[1]))
        known = session.borrowed.get(key)
        if known is not None:
            return known
        owner = self._sessions.get(key[0])
        found = owner.agents.get(key[1]) if owner is not None else None
        if found is not None:
            found.holders += 1
            session.borrowed[key] = found
        return found

    def may_arrive(self, session: ClientSession, agent: Any) -> bool:
        """Return whether an unknown agent may still be created: by another client, over another connection."""
        if type(agent) is int:
            return False
        owner = self._sessions.get(str(agent[0])) if agent[0] != session.identity else session
        return owner is None or int(agent[1]) > owner.last_agent

    def drop(self, session: ClientSession, agent: Any) -> Actor | None:
        """Remove a client's hold on an agent; return the agent, or None if the client does not hold it."""
        if type(agent) is not int:
            target = session.borrowed.pop((str(agent[0]), int(agent[1])), None)
        else:
            target = session.agents.pop(agent, None)
        if target is not None:
            target.holders -= 1
        return target

    def free(self, agent: Actor) -> None:
        """Release the agent's object."""
        if not agent.freed:
            agent.freed = agent.stopped = True
            agent.instance = None
            self.count -= 1


def _record_failure(call: ActorCall, wanted: str, error: Any) -> None:
    """Record why an agent could not be constructed, and what its client asked for."""
    agent = call.agent
    name = call.args[0] if call.args else (call.kwargs or {}).get("name")
    agent.wanted = wanted, name if type(name) is str else ""
    agent.failed = error


def gone() -> Any:
    """Return the encoded error for a call of an agent that does not exist."""
    return encode_error(AgentStopped("the agent does not exist any more: it was stopped, or its owner dropped it"))


def _construct(cls: type, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return a new object of a class.

    Raises:
        AccessDenied: the client asks for an agent in another process, whose results this server would then load.
        Exception: the error of the constructor.
    """
    if MOVES in kwargs:
        raise AccessDenied(f"a server creates agents in its own process only: call the constructor without {MOVES}=")
    here = getattr(type(cls), "construct_here", None)
    return cls(*args, **kwargs) if here is None else here(cls, args, kwargs)


def _with_state(cls: type, state: Any) -> Any:
    """Return an object of a class with the given state, without calling its constructor, as `pickle` does."""
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
