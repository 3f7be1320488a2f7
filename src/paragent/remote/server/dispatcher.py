"""Message dispatcher: handles the messages of clients, one frame at a time, and reports the state of the server."""

from __future__ import annotations

import inspect
import itertools
import os
import resource
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import here
from paragent._internal.text import counted
from paragent._internal.threads import fatal
from paragent.errors import AgentStopped, LimitExceeded, ProtocolError
from paragent.remote.protocol import (
    AddCode,
    CallError,
    CallMethod,
    CallResult,
    CancelCall,
    CreateAgent,
    DefineClass,
    DropAgent,
    FetchResult,
    Goodbye,
    GrantCredit,
    PinResult,
    PushValue,
    QueryServer,
    ReadAttribute,
    ReleaseResult,
    StopAgent,
)
from paragent.remote.server.actors import ActorCall, add_concurrent, running_calls
from paragent.remote.server.flow_control import StreamCredit
from paragent.remote.server.policy import check_shape
from paragent.remote.server.references import References
from paragent.remote.server.registry import AgentRegistry, gone
from paragent.remote.server.scheduler import CONSTRUCT, Canceller, Scheduler
from paragent.remote.server.session import ClientSession
from paragent.remote.values import describe_error, encode_error, encode_result, is_reference, restore, size_of
from paragent.serialization import add_code
from paragent.serialization.code_cache import MODULES

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.server.actors import Actor
    from paragent.remote.server.policy import Policy
    from paragent.transport.limits import Limits

__all__ = ["MessageDispatcher"]

_MAX_CLASSES = 100_000
"""Classes of one client; a client that exceeds it probably creates classes by mistake."""
_MAX_LISTED = 1_000
"""Agents in a list; a server may have a million."""
_ERROR_CHARACTERS = 500
"""Characters of an error in a list."""
_MAX_CALLS_READ = 100_000
"""Calls that are looked at to find busy agents, which takes some milliseconds; a server may have millions."""


class MessageDispatcher:
    """Sessions, agents and calls of one server. It must be created on the I/O loop and belongs to it.

    Args:
        policy: what clients may send.
        limits: how much clients may send.
        loop: the I/O loop.
        stop: stops the server at the request of a client.
        failed: called if a thread that executes calls ends unexpectedly; the default ends the process.
    """

    def __init__(
        self,
        policy: Policy,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        stop: Callable[[], None],
        failed: Callable[[str, BaseException], object] = fatal,
    ) -> None:
        self.instance = secrets.token_hex(8)
        self.started = time.time()
        self.policy, self.limits = policy, limits
        self.sessions: dict[str, ClientSession] = {}
        self.served = 0
        """Calls of ended sessions."""
        self._loop, self._stop = loop, stop
        self.registry = AgentRegistry(policy, limits.agents, self.sessions)
        self.scheduler = Scheduler(policy, limits, loop, self.registry.construct, self.registry.free, failed)
        self._references = References(self.sessions, loop, self.scheduler.wake, policy)
        self._canceller = Canceller(self.scheduler, self.registry, loop)
        self._handlers: dict[type, Callable[[ClientSession, Any], None]] = {
            AddCode: self._add_code,
            CallMethod: self._call,
            CancelCall: lambda session, message: self._canceller.cancel(session, message.number),
            CreateAgent: self._create_agent,
            DefineClass: self._define_class,
            DropAgent: self._drop_agent,
            FetchResult: self._references.fetch,
            Goodbye: lambda session, _: self.end_session(session),
            GrantCredit: self._grant_credit,
            PinResult: lambda session, message: session.keep(message.number),
            PushValue: self._push_value,
            QueryServer: self._query_server,
            ReadAttribute: self._read_attribute,
            ReleaseResult: lambda session, message: session.release(message.number),
            StopAgent: self._stop_agent,
        }
        self._attachments: list[bytes] = []
        """Attachments of the current frame."""

    def handle(self, session: ClientSession, messages: list[Any], attachments: list[bytes]) -> None:
        """Handle the messages of a frame.

        Raises:
            ProtocolError: a message is malformed.
        """
        self._attachments = attachments
        handlers = self._handlers
        if not self.policy.accept_code:
            for message in messages:
                check_shape(message)
        self.scheduler.begin_batch()
        try:
            for message in messages:
                try:
                    handlers[type(message)](session, message)
                except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                    raise ProtocolError(f"a malformed {type(message).__name__} message: {error}") from error
        finally:
            self._attachments = []
            self.scheduler.end_batch()

    # --- calls ----------------------------------------------------------------------------------------------------------

    def _call(self, session: ClientSession, message: CallMethod) -> None:
        """Start a call. The common case, a free agent and no options, goes directly to its executor."""
        agent, args = message.agent, message.args
        target = session.agents.get(agent) if type(agent) is int else None
        if (
            target is None
            or message.kwargs is not None
            or message.credit
            or message.seconds is not None
            or target.busy
            or target.queue
            or not target.methods
            or target.stopped
            or self._references.expected
            or self._attachments
            or session.load > session.max_load
        ):
            self._call_public(session, message)
            return
        method = target.methods.get(message.method)
        simple = method is not None
        for value in args:
            if type(value) is tuple and is_reference(value):
                simple = False
        if method is None or not simple:
            self._call_public(session, message)
            return
        number = message.number
        call = ActorCall(session, number, target, message.method, args)
        session.active[number] = call
        session.last_call = number
        call.size = session.share
        session.load += session.share
        call.method = method
        if not method.concurrent:
            target.busy = call
        else:
            add_concurrent(target, call, self.scheduler.mutex)
        assert self.scheduler.batch is not None
        self.scheduler.batch[method.on_loop].append(call)

    def _call_public(self, session: ClientSession, message: CallMethod) -> None:
        """Start any call of a public method; other names are reserved for creating and freeing agents."""
        name = message.method
        if name.startswith(("_", "?")) and name != "__call__":
            session.send_outcome(message.number, CallError, encode_error(AttributeError(f"{name!r} is not public")))
        else:
            self._add_call(session, message)

    def _add_call(self, session: ClientSession, message: CallMethod) -> None:
        number, args, kwargs, seconds = message.number, message.args, message.kwargs, message.seconds
        # NaN would break the order of timers.
        if type(message.credit) is not int or (seconds is not None and not float(seconds) > 0):
            raise ProtocolError("a call with an invalid credit or deadline")
        target = self.registry.find(session, message.agent)
        if target is None:
            self._agent_missing(session, message)
            return
        if session.load > session.max_load:
            session.send_outcome(number, CallError, encode_error(_too_much(session.load)))
            return
        if self._attachments:
            args, kwargs = self._restored(args, kwargs)
        call = ActorCall(session, number, target, message.method, args, kwargs)
        if message.credit:
            call.credit = StreamCredit(message.credit)
        session.active[number] = call
        session.last_call = number
        call.size = session.share + (self._size(call) if self._attachments else 0)
        session.load += call.size
        self._await_arguments(call)
        if seconds is not None:
            (self._canceller.set_item_deadline if message.credit else self._canceller.set_deadline)(
                call, float(seconds)
            )
        if self._references.expected:
            self._references.announce(session.identity, number)
        self.scheduler.enqueue(call)

    def _restored(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        attachments = self._attachments
        return (
            tuple([restore(value, attachments) for value in args]),
            {key: restore(value, attachments) for key, value in kwargs.items()} if kwargs else None,
        )

    def _size(self, call: ActorCall) -> int:
        return sum(map(size_of, call.args)) + (sum(map(size_of, call.kwargs.values())) if call.kwargs else 0)

    def _await_arguments(self, call: ActorCall) -> None:
        for value in call.args:
            if type(value) is tuple and is_reference(value):
                self._references.await_arguments(call, self._attachments)
                return
        if call.kwargs and any(map(is_reference, call.kwargs.values())):
            self._references.await_arguments(call, self._attachments)

    def _agent_missing(self, session: ClientSession, message: CallMethod) -> None:
        """Handle a call of an unknown agent: wait if another client may still create it, else fail."""
        agent = message.agent
        if not self.registry.may_arrive(session, agent):
            session.send_outcome(message.number, CallError, gone())
            return
        attachments = self._attachments

        def retry() -> None:
            # This may run while another frame is handled, which needs its attachments afterwards.
            others, self._attachments = self._attachments, attachments
            if self.registry.find(session, agent) is None:
                session.send_outcome(message.number, CallError, gone())
            else:
                self._add_call(session, message)
            self._attachments = others

        self._references.expect((str(agent[0]), -int(agent[1])), retry)

    def _read_attribute(self, session: ClientSession, message: ReadAttribute) -> None:
        number, name = message.number, message.attribute
        if name.startswith("_") and name != "__class__":
            session.send_outcome(number, CallError, encode_error(AttributeError(f"{name!r} is not public")))
            return
        self._add_call(session, CallMethod(number, message.agent, f"?{name}", ()))

    def _grant_credit(self, session: ClientSession, message: GrantCredit) -> None:
        call = session.active.get(message.number)
        if call is not None and call.credit is not None:
            call.credit.grant(message.count)

    def _push_value(self, session: ClientSession, message: PushValue) -> None:
        self._references.push(session, message, self._attachments)

    # --- agents ---------------------------------------------------------------------------------------------------------

    def _define_class(self, session: ClientSession, message: DefineClass) -> None:
        if len(session.classes) >= _MAX_CLASSES and message.number not in session.classes:
            raise ProtocolError(f"a client has defined more than {_MAX_CLASSES} classes")
        value = restore(message.value, self._attachments)
        session.classes[message.number] = [None, message.module, message.qualname, value]

    def _add_code(self, session: ClientSession, message: AddCode) -> None:
        if self.policy.accept_code:
            add_code(message.code)
            session.modules = next((digest for digest in message.code if digest.startswith(MODULES)), session.modules)

    def _create_agent(self, session: ClientSession, message: CreateAgent) -> None:
        args, kwargs = message.args, message.kwargs
        agent = self.registry.admit(session, message.agent)
        if agent.failed is not None:
            return
        if self._attachments:
            args, kwargs = self._restored(args, kwargs)
        call = ActorCall(session, 0, agent, CONSTRUCT, args, kwargs)
        call.creation = (session.classes[message.cls], message.how)
        self._await_arguments(call)
        if call.missing_args:
            self.scheduler.enqueue(call)
        else:
            self.scheduler.begin(call)
        if self._references.expected:
            self._references.announce(session.identity, -message.agent)

    def _drop_agent(self, session: ClientSession, message: DropAgent) -> None:
        dropped = self.registry.drop(session, message.agent)
        if dropped is not None:
            self.scheduler.free_if_unused(dropped)

    def _stop_agent(self, session: ClientSession, message: StopAgent) -> None:
        target = self.registry.find(session, message.agent)
        if target is not None:
            self._canceller.stop_agent(target, AgentStopped("the agent was stopped"))
        session.send_outcome(message.number, CallResult, target is not None)

    # --- sessions -------------------------------------------------------------------------------------------------------

    def open_session(self, identity: str) -> tuple[ClientSession, bool]:
        """Return the session of a client, and whether it existed before.

        Raises:
            LimitExceeded: there are too many sessions.
        """
        session = self.sessions.get(identity)
        if session is not None:
            return session, True
        if len(self.sessions) >= self.limits.sessions:
            clients = counted(len(self.sessions), "client")
            raise LimitExceeded(f"this server has {clients}, which is its limit; raise Limits(sessions=...) there")
        session = self.sessions[identity] = ClientSession(
            identity, self.limits, self._loop, self.scheduler.unpark, reads_data=not self.policy.accept_code
        )
        return session, False

    def end_session(self, session: ClientSession) -> None:
        """End a session: cancel its calls and free its agents."""
        if self.sessions.pop(session.identity, None) is not None:
            self.served += session.served
            self._canceller.end_session(session)

    # --- the server -----------------------------------------------------------------------------------------------

    def _query_server(self, session: ClientSession, message: QueryServer) -> None:
        number, what, argument = message.number, message.what, message.argument
        if what == "stop":
            session.send_outcome(number, CallResult, True)
            self._loop.call_later(0.05, self._stop)
        elif what == "running":
            running = [call for call in argument if self._canceller.is_running(session, call)]
            session.send_outcome(number, CallResult, encode_result(running, "a report"))
        else:
            session.send_outcome(number, CallResult, encode_result(self.report(what, argument), "a report"))

    def report(self, what: str = "info", argument: Any = None) -> dict[str, Any]:
        """Return a report in builtin values: `info` or `list`; `argument` limits the length of the list.

        The list has the agents with the longest queues first, then those that execute calls, then the others.
        """
        report: dict[str, Any] = {
            "process": here(),
            "instance": self.instance,
            "uptime": time.time() - self.started,
            "agents": self.registry.count,
            "clients": len(self.sessions),
            "calls_under_way": sum(len(session.active) for session in self.sessions.values()),
            "calls_under_way_bytes": sum(session.load for session in self.sessions.values()),
            "calls_waiting": self.scheduler.thread_pool.waiting,
            "calls_served": self.served + sum(session.served for session in self.sessions.values()),
            "results_waiting_bytes": sum(session.backlog.size for session in self.sessions.values()),
            "results_kept": sum(len(session.results) for session in self.sessions.values()),
            "threads": self.scheduler.thread_pool.threads,
            "memory_bytes": _memory_bytes(),
            "accepts_code": self.policy.accept_code,
            "pid": os.getpid(),
        }
        if what == "list":
            limit = argument if type(argument) is int and 0 < argument < _MAX_LISTED else _MAX_LISTED
            busy = _busy_agents(self.sessions)
            report["calls_queued"] = sum(len(agent.queue) for agent in busy if agent.queue)
            holders = _holders(self.sessions)
            agents = _first_agents(busy, self.sessions, limit)
            report["list"] = [_described(agent, holders.get(id(agent), agent.owner)) for agent in agents]
        return report

    def close(self) -> None:
        """End all threads that execute calls."""
        self.scheduler.close()


def _too_much(load: int) -> LimitExceeded:
    return LimitExceeded(
        f"the pending calls of this client have {load >> 20} MiB, more than twice the server's window; wait for answers"
    )


def _busy_agents(sessions: dict[str, ClientSession]) -> list[Actor]:
    """Return the agents that have calls under way, those with the longest queues first."""
    active = itertools.chain.from_iterable(session.active.values() for session in sessions.values())
    busy = {id(call.agent): call.agent for call in itertools.islice(active, _MAX_CALLS_READ)}
    return sorted(busy.values(), key=lambda agent: len(agent.queue) if agent.queue else 0, reverse=True)


def _first_agents(busy: list[Actor], sessions: dict[str, ClientSession], limit: int) -> list[Actor]:
    """Return busy agents, then idle ones, `limit` in all."""
    chosen = {id(agent): agent for agent in busy[:limit]}
    owned = (session.agents.values() for session in sessions.values())
    borrowed = (
        session.borrowed.values() for session in sessions.values()
    )  # they live although their owner dropped them
    for agent in itertools.chain.from_iterable(itertools.chain(owned, borrowed)):
        if len(chosen) >= limit:
            break
        chosen.setdefault(id(agent), agent)
    return list(chosen.values())


def _holders(sessions: dict[str, ClientSession]) -> dict[int, ClientSession]:
    """Return, by identity of the agent, a client that holds an agent which its owner has dropped."""
    return {
        id(agent): session
        for session in sessions.values()
        for agent in session.borrowed.values()
        if agent.owner.identity not in sessions or agent.number not in agent.owner.agents
    }


def _described(agent: Actor, holder: ClientSession) -> dict[str, Any]:
    owner, instance = agent.owner, agent.instance
    # Not getattr: properties and `__getattr__` of users must not run on the I/O loop.
    name = inspect.getattr_static(instance, "name", agent.wanted[1])
    return {
        "id": f"{owner.identity[:8]}-{agent.number}",
        "name": name if isinstance(name, str) else "",
        "class": type(instance).__qualname__ if instance is not None else agent.wanted[0],
        "error": describe_error(agent.failed)[:_ERROR_CHARACTERS] if agent.failed is not None else "",
        "state": "failed" if agent.failed is not None else "busy" if agent.busy else "free",
        "queue": len(agent.queue) if agent.queue else 0,
        "running": len(running_calls(agent)),
        "served": agent.served,
        "failed": agent.failed_calls,
        "seconds": agent.seconds,
        "client": f"{holder.client.program} {holder.client.peer}".strip(),
    }


def _memory_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
