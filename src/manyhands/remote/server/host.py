"""The server itself: takes what clients say, gives calls to agents, and frees what nobody holds any more."""

from __future__ import annotations

import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

from manyhands.errors import AccessDenied, AgentStopped, CallCancelled, LimitExceeded, ProtocolError
from manyhands.parcels import learn
from manyhands.remote import wire
from manyhands.remote.faults import encode_error
from manyhands.remote.methods import methods_of
from manyhands.remote.server.interruption import Interruption, interrupt
from manyhands.remote.server.lanes import Lanes
from manyhands.remote.server.mailbox import Agent, Call, claim, next_call, offer, overlapping
from manyhands.remote.server.performing import Player, credit_of, fail, perform_sync
from manyhands.remote.server.report import describe
from manyhands.remote.server.session import Session
from manyhands.remote.values import encode_result, is_reference, restore
from manyhands.remote.wire import ERROR, RESULT

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from manyhands.remote.server.policy import Policy
    from manyhands.rpc.limits import Limits

__all__ = ["Host"]

_CONSTRUCT = "__init__"
"""The name of the call that makes an agent; clients cannot use it, as it is not public."""
_FREE = "__del__"
"""The name of the call that frees an agent after everything it was asked before."""
_EARLY = 5.0
"""Seconds that something may be asked for before it is heard of: it comes over another connection."""


class Host:
    """Everything that lives on one server. Made on the I/O loop, on which the handlers run."""

    def __init__(
        self, policy: Policy, limits: Limits, loop: asyncio.AbstractEventLoop, stop: Callable[[], None]
    ) -> None:
        self.instance = secrets.token_hex(8)
        self.started = time.time()
        self.sessions: dict[str, Session] = {}
        self.policy, self.limits = policy, limits
        self.agents = 0
        self.served = 0
        """Calls of sessions that are over."""
        self._loop = loop
        self._io_thread = threading.get_ident()
        self._stop = stop
        self._mutex = threading.Lock()
        """Protects the queues and the `busy` flags of agents, and what a call `runs` in."""
        self.lanes = Lanes(self._perform, limits.threads, loop)
        self.player = Player(policy, self._after)
        self._early: dict[tuple[str, int], list[Callable[[], None]]] = {}
        """What to do when a call or an agent is heard of that somebody asked for already; agents are negative."""
        self._handlers: dict[str, Callable[..., None]] = {
            wire.BYE: self._bye,
            wire.CALL: self._call,
            wire.CALL_MORE: self._call_more,
            wire.CANCEL: self._cancel,
            wire.CLASS: self._class,
            wire.CODE: self._code,
            wire.CONTROL: self._control,
            wire.DROP: self._drop,
            wire.FETCH: self._fetch,
            wire.GRANT: self._grant,
            wire.NEW: self._new,
            wire.PIN: self._pin,
            wire.PUSH: self._push,
            wire.READ: self._read,
            wire.RELEASE: self._release,
            wire.STOP: self._stop_agent,
        }
        self._batch: tuple[list[Call], list[Call]] | None = None
        self._attachments: list[bytes] = []

    # --- frames -------------------------------------------------------------------------------------------------------

    def handle(self, session: Session, items: list[Any], attachments: list[bytes]) -> None:
        """Do what the items of a frame say.

        Raises:
            ProtocolError: an item is malformed.
        """
        to_lanes: list[Call] = []
        to_loop: list[Call] = []
        self._batch = (to_lanes, to_loop)
        self._attachments = attachments
        handlers = self._handlers
        try:
            for item in items:
                try:
                    handlers[item[0]](session, *item[1:])
                except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                    raise ProtocolError(f"an item of kind {item[0]!r} that makes no sense: {error}") from error
        finally:
            self._batch = None
            self._attachments = []
            if to_lanes:
                self.lanes.submit(to_lanes)
            if to_loop:
                self.player.submit(to_loop)

    def _launch(self, call: Call) -> None:
        """Give a call to whoever carries out its kind, together with the others of this frame if there is one."""
        on_loop = call.method is not None and call.method.on_loop
        if self._batch is not None and threading.get_ident() == self._io_thread:
            self._batch[on_loop].append(call)
        elif on_loop:
            self.player.submit([call])
        else:
            self.lanes.submit([call])

    # --- calls --------------------------------------------------------------------------------------------------------

    def _call(self, session: Session, number: int, agent: Any, name: str, args: Any) -> None:
        """Take a call without keywords and streams; the common one, of a free agent, straight to whoever does it."""
        target = session.agents.get(agent) if type(agent) is int else None
        if target is None or target.busy or target.queue or not target.methods or self._early or self._attachments:
            self._call_more(session, number, agent, name, args, None, 0)
            return
        method = target.methods.get(name)
        if method is None or target.stopped or any(type(value) is tuple and is_reference(value) for value in args):
            self._call_more(session, number, agent, name, args, None, 0)
            return
        call = Call(session, number, target, name, args)
        session.active[number] = call
        session.last_call = number
        call.method = method
        if not method.concurrent:
            target.busy = True
        assert self._batch is not None
        self._batch[method.on_loop].append(call)

    def _call_more(
        self, session: Session, number: int, agent: Any, name: str, args: Any, kwargs: Any, credit: int
    ) -> None:
        target = session.agents.get(agent) if type(agent) is int else self._foreign(session, agent)
        if target is None:
            self._absent(session, number, agent, (name, args, kwargs, credit))
            return
        if self._attachments:
            args = tuple([restore(value, self._attachments) for value in args])
            kwargs = {key: restore(value, self._attachments) for key, value in kwargs.items()} if kwargs else None
        call = Call(session, number, target, name, args, kwargs, credit)
        session.active[number] = call
        session.last_call = number
        for value in args:
            if type(value) is tuple and is_reference(value):
                self._await_arguments(call)
                break
        else:
            if kwargs and any(map(is_reference, kwargs.values())):
                self._await_arguments(call)
        if self._early:
            self._heard_of(session.identity, number)
        self._offer(call)

    def _offer(self, call: Call) -> None:
        ready = offer(call.agent, call, self._mutex)
        if ready is not None:
            self._start(ready)

    def _start(self, call: Call) -> None:
        """Begin with a call that its agent is free for, or answer it if it cannot be carried out."""
        ready = self._after(call) if self._refused(call) else call
        if ready is not None:
            self._launch(ready)

    def _stir(self, agent: Agent) -> None:
        """Begin with what an agent can do now that could not be done before."""
        for call in overlapping(agent, self._mutex):
            self._start(call)
        ready = claim(agent, self._mutex)
        if ready is not None:
            self._start(ready)

    def _refused(self, call: Call) -> bool:
        """Answer a call that cannot be carried out; return whether that was so."""
        agent = call.agent
        if call.name in (_CONSTRUCT, _FREE) or (agent.methods is None and agent.failed is None and not agent.stopped):
            return False
        if call.method is None and agent.methods is not None:
            call.method = agent.methods.get(call.name)
        if call.error is not None:
            call.session.tell(call, ERROR, call.error)
        elif call.cancelled is not None:
            fail(call, call.cancelled)
        elif agent.stopped:
            fail(call, AgentStopped("the agent was stopped"))
        elif agent.failed is not None:
            call.session.tell(call, ERROR, agent.failed)
        elif call.method is None:
            if not call.name.startswith("?"):
                fail(call, AttributeError(f"{type(agent.thing).__name__!r} agent has no public method {call.name!r}"))
                return True
            return False
        else:
            return False
        return True

    def _after(self, call: Call) -> Call | None:
        """Free the agent of a call that has ended; return its next call if the same kind of thread carries it out."""
        agent = call.agent
        agent.served += 1
        if call.method is not None and call.method.concurrent:
            return None
        while True:
            following = next_call(agent, self._mutex)
            if following is None:
                return None
            if self._refused(following):
                continue
            method = following.method
            if method is not None and method.concurrent:
                self._launch(following)
                continue
            here = call.method is not None and call.method.on_loop
            if (method is not None and method.on_loop) is here:
                return following
            self._launch(following)
            return None

    def _perform(self, call: Call | None) -> None:
        """Carry out a call, and those that follow it, in a lane."""
        while call is not None:
            call.runs = threading.get_ident()
            try:
                if call.cancelled is not None:
                    fail(call, call.cancelled)
                elif call.name == _CONSTRUCT:
                    self._construct(call)
                    self._stir(call.agent)
                elif call.name == _FREE:
                    self._free(call.agent)
                elif call.name.startswith("?"):
                    self._read_attribute(call)
                else:
                    perform_sync(call, self.policy)
            except Interruption:
                fail(call, call.cancelled or CallCancelled("the call was cancelled"))
            self._leave(call)
            call = self._after(call)

    def _leave(self, call: Call) -> None:
        """Note that no thread runs the call any more, and let an interruption that came too late pass."""
        try:
            with self._mutex:
                call.runs = None
            if call.cancelled is not None:
                for _ in range(100):
                    time.sleep(0)
        except Interruption:
            call.runs = None

    # --- arguments that are elsewhere ---------------------------------------------------------------------------------

    def _await_arguments(self, call: Call) -> None:
        call.args = list(call.args)
        places: list[tuple[Any, Any]] = [(call.args, index) for index in range(len(call.args))]
        places += [(call.kwargs, key) for key in call.kwargs or ()]
        for container, key in places:
            value = container[key]
            if not is_reference(value):
                continue
            if value[0] == "f":
                call.error = restore(value[1], self._attachments)
                continue
            call.missing += 1
            self._obtain(call.session, value, self._filler(call, container, key))

    def _filler(self, call: Call, container: Any, key: Any) -> Callable[[str, Any], None]:
        def fill(kind: str, value: Any) -> None:
            if kind == RESULT:
                container[key] = value
            else:
                call.error = value
            call.missing -= 1
            if not call.missing:
                self._stir(call.agent)

        return fill

    def _obtain(self, session: Session, reference: Any, then: Callable[[str, Any], None]) -> None:
        """Have `then` called, on this loop and not before this returns, with the outcome that a reference names."""
        if reference[0] == "v":
            session.pushed[reference[1]] = then
            return
        _, address, identity, number = reference
        if address is None:
            self._loop.call_soon(self._want, session.identity, number, then)
        else:
            from manyhands.remote.server.peers import fetch_from

            self._loop.call_soon(fetch_from, address, identity, number, then)

    def _want(self, identity: str, number: int, then: Callable[[str, Any], None], *, early: bool = True) -> None:
        """Have `then` called with the outcome of a call of this server, when there is one."""
        session = self.sessions.get(identity)
        if session is not None:
            kind, value = session.outcome(number)
            if kind is not None:
                then(kind, value)
                return
            call = session.active.get(number)
            if call is not None:
                if call.watchers is None:
                    call.watchers = []
                call.watchers.append(then)
                return
        if early and (session is None or number > session.last_call):
            self._expect((identity, number), lambda: self._want(identity, number, then, early=False))
        else:
            then(ERROR, encode_error(AgentStopped("the result is not kept any more: whoever held it dropped it")))

    def _expect(self, key: tuple[str, int], then: Callable[[], None]) -> None:
        """Have `then` called when something is heard of, or after a while in any case."""
        self._early.setdefault(key, []).append(then)
        self._loop.call_later(_EARLY, self._heard_of, *key)

    def _heard_of(self, identity: str, number: int) -> None:
        for then in self._early.pop((identity, number), ()):
            then()

    def _fetch(self, session: Session, number: int, identity: str | None, wanted: int) -> None:
        self._want(identity or session.identity, wanted, lambda kind, value: session.tell(number, kind, value))

    def _push(self, session: Session, key: int, kind: str, value: Any) -> None:
        then = session.pushed.pop(key, None)
        if then is not None:
            then(kind, restore(value, self._attachments))

    def _pin(self, session: Session, number: int) -> None:
        session.keep(number)

    def _release(self, session: Session, number: int) -> None:
        session.release(number)

    # --- agents -------------------------------------------------------------------------------------------------------

    def _class(self, session: Session, number: int, module: str, qualname: str, value: Any) -> None:
        session.classes[number] = [None, module, qualname, restore(value, self._attachments)]

    def _code(self, _: Session, code: dict[str, bytes]) -> None:
        if self.policy.accept_code:
            learn(code)

    def _new(self, session: Session, number: int, cls: int, how: str, args: Any, kwargs: Any) -> None:
        if self.agents >= self.limits.agents:
            raise LimitExceeded(f"this server has {self.agents} agents, which is its limit")
        agent = Agent(session, number)
        session.agents[number] = agent
        session.last_agent = number
        self.agents += 1
        if self._attachments:
            args = tuple([restore(value, self._attachments) for value in args])
            kwargs = {key: restore(value, self._attachments) for key, value in kwargs.items()} if kwargs else None
        call = Call(session, 0, agent, _CONSTRUCT, args, kwargs)
        call.credit = (session.classes[cls], how)
        if any(map(is_reference, args)) or (kwargs and any(map(is_reference, kwargs.values()))):
            self._await_arguments(call)
        if self._early:
            self._heard_of(session.identity, -number)
        self._offer(call)

    def _construct(self, call: Call) -> None:
        """Make the agent, in a lane: its constructor may block, and loading its class may import anything."""
        agent = call.agent
        entry, how = call.credit
        try:
            if call.error is not None:
                agent.failed = call.error
                return
            cls = entry[0]
            if cls is None:
                cls = entry[0] = self.policy.resolve(*entry[1:])
            args = [self.policy.decode(value) for value in call.args]
            if how == "init":
                kwargs = {key: self.policy.decode(value) for key, value in call.kwargs.items()} if call.kwargs else {}
                agent.thing = cls(*args, **kwargs)
            elif how == "state":
                agent.thing = _with_state(cls, args[0])
            elif self.policy.accept_code:
                agent.thing = args[0]
            else:
                raise AccessDenied(
                    f"{cls.__name__} has its own way of travelling, which needs a server that accepts code"
                )
            made: type = type(agent.thing)
            agent.methods = methods_of(made)
        except BaseException as error:  # noqa: BLE001 - whatever the constructor raises is what every call then meets
            agent.failed = encode_error(error)

    def _foreign(self, session: Session, agent: Any) -> Agent | None:
        """Return the agent of another session, which this one holds from now on."""
        key = (str(agent[0]), int(agent[1]))
        if key[0] == session.identity:
            return session.agents.get(key[1])
        known = session.borrowed.get(key)
        if known is not None:
            return known
        owner = self.sessions.get(key[0])
        found = owner.agents.get(key[1]) if owner is not None else None
        if found is not None:
            found.holders += 1
            session.borrowed[key] = found
        return found

    def _absent(self, session: Session, number: int, agent: Any, rest: tuple[Any, ...]) -> None:
        """Answer for an agent that is not here: not yet, if it is somebody else's, or not any more."""
        gone = encode_error(AgentStopped("the agent is not there any more: it was stopped, or its owner dropped it"))
        owner = self.sessions.get(str(agent[0])) if type(agent) is tuple else session
        if type(agent) is int or (owner is not None and int(agent[1]) <= owner.last_agent):
            session.tell(number, ERROR, gone)
            return
        attachments = self._attachments

        def retry() -> None:
            self._attachments = attachments
            if self._foreign(session, agent) is None:
                session.tell(number, ERROR, gone)
            else:
                self._call_more(session, number, agent, *rest)
            self._attachments = []

        self._expect((str(agent[0]), -int(agent[1])), retry)

    def _drop(self, session: Session, agent: Any) -> None:
        if type(agent) is not int:
            target = session.borrowed.pop((str(agent[0]), int(agent[1])), None)
        else:
            target = session.agents.pop(agent, None)
        if target is not None:
            target.holders -= 1
            if target.holders <= 0:
                self._offer(Call(session, 0, target, _FREE, ()))

    def _stop_agent(self, session: Session, number: int, agent: Any) -> None:
        target = session.agents.get(agent) if type(agent) is int else self._foreign(session, agent)
        if target is not None:
            self._end_agent(target, AgentStopped("the agent was stopped"))
        session.tell(number, RESULT, target is not None)

    def _end_agent(self, agent: Agent, why: BaseException) -> None:
        """Stop an agent now: what waits for it fails, what runs is cancelled."""
        with self._mutex:
            agent.stopped = True
            waiting, agent.queue = agent.queue, None
        for call in waiting or ():
            fail(call, why)
        if agent.busy:
            for session in self.sessions.values():
                for call in [call for call in session.active.values() if call.agent is agent]:
                    self._interrupt(call, why)
        agent.owner.agents.pop(agent.number, None)
        self._free(agent)

    def _free(self, agent: Agent) -> None:
        if not agent.freed:
            agent.freed = agent.stopped = True
            agent.thing = None
            self.agents -= 1

    def _read(self, session: Session, number: int, agent: Any, name: str) -> None:
        if name.startswith("_") and name != "__class__":
            session.tell(number, ERROR, encode_error(AttributeError(f"{name!r} is not public")))
            return
        self._call_more(session, number, agent, f"?{name}", (), None, 0)

    def _read_attribute(self, call: Call) -> None:
        name = call.name[1:]
        try:
            if name == "__class__":
                value: Any = type(call.agent.thing).__qualname__
            else:
                value = getattr(call.agent.thing, name)
            encoded = encode_result(value, f"the attribute {name}")
        except Exception as error:  # noqa: BLE001 - a property may raise anything
            fail(call, error)
        else:
            call.session.tell(call, RESULT, encoded)

    # --- cancelling ---------------------------------------------------------------------------------------------------

    def _cancel(self, session: Session, number: int) -> None:
        call = session.active.get(number)
        if call is not None:
            self._interrupt(call, CallCancelled("the call was cancelled"))

    def _interrupt(self, call: Call, why: BaseException) -> None:
        with self._mutex:
            call.cancelled = why
            if type(call.runs) is int:
                interrupt(call.runs)
        if call.credit and call.name != _CONSTRUCT:
            credit_of(call).close()
        self.player.cancel(call)

    def _grant(self, session: Session, number: int, count: int) -> None:
        call = session.active.get(number)
        if call is not None and call.credit:
            credit_of(call).grant(count)

    # --- sessions -----------------------------------------------------------------------------------------------------

    def open_session(self, identity: str) -> tuple[Session, bool]:
        """Return the session of a client, and whether there was one already."""
        session = self.sessions.get(identity)
        if session is not None:
            return session, True
        if len(self.sessions) >= self.limits.sessions:
            raise LimitExceeded(f"this server has {len(self.sessions)} clients, which is its limit")
        session = self.sessions[identity] = Session(identity, self.limits, self._loop)
        return session, False

    def _bye(self, session: Session) -> None:
        self.end_session(session)

    def end_session(self, session: Session) -> None:
        """Free everything of a client that is gone: its calls are cancelled, its agents freed unless others hold them."""
        if self.sessions.pop(session.identity, None) is None:
            return
        self.served += session.served
        gone = AgentStopped("the owner of the agent is gone")
        for call in list(session.active.values()):
            self._interrupt(call, CallCancelled("the caller is gone"))
        for agent in [*session.borrowed.values(), *session.agents.values()]:
            agent.holders -= 1
            if agent.holders <= 0:
                self._end_agent(agent, gone)
        session.end()

    # --- about the server ---------------------------------------------------------------------------------------------

    def _control(self, session: Session, number: int, what: str, argument: Any) -> None:
        if what == "stop":
            session.tell(number, RESULT, True)
            self._loop.call_later(0.05, self._stop)
        else:
            session.tell(number, RESULT, encode_result(describe(self, what, argument), "a report"))

    def close(self) -> None:
        """Let every thread end."""
        self.lanes.close()


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
