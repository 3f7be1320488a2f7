"""The server itself: takes what clients say, a frame at a time, and has it done."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

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
from paragent.remote.server.actors import Call, overlap
from paragent.remote.server.cancellation import Ending
from paragent.remote.server.flow_control import Credit
from paragent.remote.server.policy import check_shape
from paragent.remote.server.references import References
from paragent.remote.server.registry import Residents, gone
from paragent.remote.server.report import describe
from paragent.remote.server.scheduler import CONSTRUCT, FREE, Schedule
from paragent.remote.server.session import Session
from paragent.remote.values import encode_error, encode_result, is_reference, restore, size_of
from paragent.serialization import add_code

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.transport.limits import Limits

__all__ = ["Host"]

_MOST_CLASSES = 100_000
"""Of one client: one that makes classes all the time is mistaken."""


class Host:
    """Everything that lives on one server. Made on the I/O loop, to which it belongs.

    Args:
        policy: what clients may send.
        limits: how much of it.
        loop: the I/O loop.
        stop: ends the server, when a client asks for it.
        failed: called if a thread ends that carries out calls; the default ends the process.
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
        self.sessions: dict[str, Session] = {}
        self.served = 0
        """Calls of sessions that are over."""
        self._loop, self._stop = loop, stop
        self.residents = Residents(policy, limits.agents, self.sessions)
        self.schedule = Schedule(policy, limits, loop, self.residents.construct, self.residents.free, failed)
        self._references = References(self.sessions, loop, self.schedule.stir, policy)
        self._ending = Ending(self.schedule, self.residents, loop)
        self._handlers: dict[type, Callable[[Session, Any], None]] = {
            AddCode: self._add_code,
            CallMethod: self._call,
            CancelCall: lambda session, message: self._ending.cancel(session, message.number),
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
        """Those of the frame that is being handled."""

    def handle(self, session: Session, messages: list[Any], attachments: list[bytes]) -> None:
        """Handle the messages of a frame.

        Raises:
            ProtocolError: a message is malformed.
        """
        self._attachments = attachments
        handlers = self._handlers
        if not self.policy.accept_code:
            for message in messages:
                check_shape(message)
        self.schedule.begin_batch()
        try:
            for message in messages:
                try:
                    handlers[type(message)](session, message)
                except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                    raise ProtocolError(f"a malformed {type(message).__name__} message: {error}") from error
        finally:
            self._attachments = []
            self.schedule.end_batch()

    # --- calls ----------------------------------------------------------------------------------------------------------

    def _call(self, session: Session, message: CallMethod) -> None:
        """Take a call; the common one, of a free agent and without options, straight to whoever does it."""
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
            or self._references.early
            or self._attachments
            or session.load > session.most_load
        ):
            self._call_any(session, message)
            return
        method = target.methods.get(message.method)
        simple = method is not None
        for value in args:
            if type(value) is tuple and is_reference(value):
                simple = False
        if method is None or not simple:
            self._call_any(session, message)
            return
        number = message.number
        call = Call(session, number, target, message.method, args)
        session.active[number] = call
        session.last_call = number
        call.size = session.share
        session.load += session.share
        call.method = method
        if not method.concurrent:
            target.busy = call
        else:
            overlap(target, call, self.schedule.mutex)
        assert self.schedule.batch is not None
        self.schedule.batch[method.on_loop].append(call)

    def _call_any(self, session: Session, message: CallMethod) -> None:
        """Take a call of any kind; names that are not public are the server's own, for making and freeing agents."""
        name = message.method
        if name.startswith(("_", "?")) and name != "__call__":
            session.tell(message.number, CallError, encode_error(AttributeError(f"{name!r} is not public")))
        else:
            self._enter(session, message)

    def _enter(self, session: Session, message: CallMethod) -> None:
        number, args, kwargs, seconds = message.number, message.args, message.kwargs, message.seconds
        # NaN would upset every timer.
        if type(message.credit) is not int or (seconds is not None and not float(seconds) > 0):
            raise ProtocolError("a call with an invalid credit or deadline")
        target = self.residents.find(session, message.agent)
        if target is None:
            self._absent(session, message)
            return
        if session.load > session.most_load:
            session.tell(number, CallError, encode_error(_too_much(session.load)))
            return
        if self._attachments:
            args, kwargs = self._restored(args, kwargs)
        call = Call(session, number, target, message.method, args, kwargs)
        if message.credit:
            call.credit = Credit(message.credit)
        session.active[number] = call
        session.last_call = number
        call.size = session.share + (self._weight(call) if self._attachments else 0)
        session.load += call.size
        self._await_arguments(call)
        if seconds is not None:
            (self._ending.late if message.credit else self._ending.at)(call, float(seconds))
        if self._references.early:
            self._references.heard_of(session.identity, number)
        self.schedule.offer(call)

    def _restored(self, args: Any, kwargs: Any) -> tuple[Any, Any]:
        attachments = self._attachments
        return (
            tuple([restore(value, attachments) for value in args]),
            {key: restore(value, attachments) for key, value in kwargs.items()} if kwargs else None,
        )

    def _weight(self, call: Call) -> int:
        return sum(map(size_of, call.args)) + (sum(map(size_of, call.kwargs.values())) if call.kwargs else 0)

    def _await_arguments(self, call: Call) -> None:
        for value in call.args:
            if type(value) is tuple and is_reference(value):
                self._references.await_arguments(call, self._attachments)
                return
        if call.kwargs and any(map(is_reference, call.kwargs.values())):
            self._references.await_arguments(call, self._attachments)

    def _absent(self, session: Session, message: CallMethod) -> None:
        """Answer for an agent that is not here: not yet, if it is somebody else's, or not any more."""
        agent = message.agent
        if not self.residents.may_come(session, agent):
            session.tell(message.number, CallError, gone())
            return
        attachments = self._attachments

        def retry() -> None:
            # Those of a frame that is being handled, perhaps, are needed again afterwards.
            others, self._attachments = self._attachments, attachments
            if self.residents.find(session, agent) is None:
                session.tell(message.number, CallError, gone())
            else:
                self._enter(session, message)
            self._attachments = others

        self._references.expect((str(agent[0]), -int(agent[1])), retry)

    def _read_attribute(self, session: Session, message: ReadAttribute) -> None:
        number, name = message.number, message.attribute
        if name.startswith("_") and name != "__class__":
            session.tell(number, CallError, encode_error(AttributeError(f"{name!r} is not public")))
            return
        self._enter(session, CallMethod(number, message.agent, f"?{name}", ()))

    def _grant_credit(self, session: Session, message: GrantCredit) -> None:
        call = session.active.get(message.number)
        if call is not None and call.credit is not None:
            call.credit.grant(message.count)

    def _push_value(self, session: Session, message: PushValue) -> None:
        self._references.push(session, message, self._attachments)

    # --- agents ---------------------------------------------------------------------------------------------------------

    def _define_class(self, session: Session, message: DefineClass) -> None:
        if len(session.classes) >= _MOST_CLASSES and message.number not in session.classes:
            raise ProtocolError(f"a client with more than {_MOST_CLASSES} classes")
        value = restore(message.value, self._attachments)
        session.classes[message.number] = [None, message.module, message.qualname, value]

    def _add_code(self, _: Session, message: AddCode) -> None:
        if self.policy.accept_code:
            add_code(message.code)

    def _create_agent(self, session: Session, message: CreateAgent) -> None:
        args, kwargs = message.args, message.kwargs
        agent = self.residents.admit(session, message.agent)
        if agent.failed is not None:
            return
        if self._attachments:
            args, kwargs = self._restored(args, kwargs)
        call = Call(session, 0, agent, CONSTRUCT, args, kwargs)
        call.creation = (session.classes[message.cls], message.how)
        self._await_arguments(call)
        if call.missing:
            self.schedule.offer(call)
        else:
            self.schedule.begin(call)
        if self._references.early:
            self._references.heard_of(session.identity, -message.agent)

    def _drop_agent(self, session: Session, message: DropAgent) -> None:
        unheld = self.residents.dropped(session, message.agent)
        if unheld is not None:
            self.schedule.offer(Call(session, 0, unheld, FREE, ()))

    def _stop_agent(self, session: Session, message: StopAgent) -> None:
        target = self.residents.find(session, message.agent)
        if target is not None:
            self._ending.stop(target, AgentStopped("the agent was stopped"))
        session.tell(message.number, CallResult, target is not None)

    # --- sessions -------------------------------------------------------------------------------------------------------

    def open_session(self, identity: str) -> tuple[Session, bool]:
        """Return the session of a client, and whether there was one already.

        Raises:
            LimitExceeded: there are too many.
        """
        session = self.sessions.get(identity)
        if session is not None:
            return session, True
        if len(self.sessions) >= self.limits.sessions:
            raise LimitExceeded(f"this server has {counted(len(self.sessions), 'client')}, which is its limit")
        session = self.sessions[identity] = Session(
            identity, self.limits, self._loop, self.schedule.unpark, hears_data=not self.policy.accept_code
        )
        session.plain_errors = not self.policy.accept_code
        return session, False

    def end_session(self, session: Session) -> None:
        """Free everything of a client that is gone."""
        if self.sessions.pop(session.identity, None) is not None:
            self.served += session.served
            self._ending.session(session)

    # --- about the server -----------------------------------------------------------------------------------------------

    def _query_server(self, session: Session, message: QueryServer) -> None:
        number, what, argument = message.number, message.what, message.argument
        if what == "stop":
            session.tell(number, CallResult, True)
            self._loop.call_later(0.05, self._stop)
        elif what == "running":
            running = [call for call in argument if self._ending.is_running(session, call)]
            session.tell(number, CallResult, encode_result(running, "a report"))
        else:
            session.tell(number, CallResult, encode_result(describe(self, what, argument), "a report"))

    def close(self) -> None:
        """Let every thread end."""
        self.schedule.close()


def _too_much(load: int) -> LimitExceeded:
    return LimitExceeded(
        f"this client has calls of {load >> 20} MiB under way, more than twice the server's window; wait for answers"
    )
