"""The server itself: takes what clients say, a frame at a time, and has it done."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent._internal.threads import fatal
from paragent.errors import AgentStopped, LimitExceeded, ProtocolError
from paragent.remote import protocol as wire
from paragent.remote.protocol import ERROR, RESULT
from paragent.remote.server.actors import Call, overlap
from paragent.remote.server.cancellation import Ending
from paragent.remote.server.executor import credit_of
from paragent.remote.server.policy import check_shape
from paragent.remote.server.references import References
from paragent.remote.server.registry import Residents, gone
from paragent.remote.server.report import describe
from paragent.remote.server.scheduler import CONSTRUCT, FREE, Schedule
from paragent.remote.server.session import Session
from paragent.remote.values import encode_error, encode_result, is_reference, restore, size_of
from paragent.serialization import learn

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
        self._handlers: dict[str, Callable[..., None]] = {
            wire.BYE: self.end_session,
            wire.CALL: self._call,
            wire.CALL_MORE: self._call_more,
            wire.CANCEL: self._ending.cancel,
            wire.CLASS: self._class,
            wire.CODE: self._code,
            wire.CONTROL: self._control,
            wire.DROP: self._drop,
            wire.FETCH: self._references.fetch,
            wire.GRANT: self._grant,
            wire.NEW: self._new,
            wire.PIN: Session.keep,
            wire.PUSH: self._push,
            wire.READ: self._read,
            wire.RELEASE: Session.release,
            wire.STOP: self._stop_agent,
        }
        self._attachments: list[bytes] = []
        """Those of the frame that is being handled."""

    def handle(self, session: Session, items: list[Any], attachments: list[bytes]) -> None:
        """Do what the items of a frame say.

        Raises:
            ProtocolError: an item is malformed.
        """
        self._attachments = attachments
        handlers = self._handlers
        if not self.policy.accept_code:
            for item in items:
                check_shape(item)
        self.schedule.begin_batch()
        try:
            for item in items:
                try:
                    handlers[item[0]](session, *item[1:])
                except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
                    raise ProtocolError(f"an item of kind {item[0]!r} that makes no sense: {error}") from error
        finally:
            self._attachments = []
            self.schedule.end_batch()

    # --- calls ----------------------------------------------------------------------------------------------------------

    def _call(self, session: Session, number: int, agent: Any, name: str, args: Any) -> None:
        """Take a call without keywords and streams; the common one, of a free agent, straight to whoever does it."""
        target = session.agents.get(agent) if type(agent) is int else None
        if (
            target is None
            or target.busy
            or target.queue
            or not target.methods
            or target.stopped
            or self._references.early
            or self._attachments
            or session.load > session.most_load
        ):
            self._call_more(session, number, agent, name, args, None, 0, None)
            return
        method = target.methods.get(name)
        simple = method is not None
        for value in args:
            if type(value) is tuple and is_reference(value):
                simple = False
        if method is None or not simple:
            self._call_more(session, number, agent, name, args, None, 0, None)
            return
        call = Call(session, number, target, name, args)
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

    def _call_more(self, session: Session, number: int, agent: Any, name: str, *rest: Any) -> None:
        """Take a call of any kind; names that are not public are the server's own, for making and freeing agents."""
        if name.startswith(("_", "?")) and name != "__call__":
            session.tell(number, ERROR, encode_error(AttributeError(f"{name!r} is not public")))
        else:
            self._enter(session, number, agent, name, *rest)

    def _enter(
        self,
        session: Session,
        number: int,
        agent: Any,
        name: str,
        args: Any,
        kwargs: Any,
        credit: int,
        seconds: float | None,
    ) -> None:
        if type(credit) is not int or (seconds is not None and not float(seconds) > 0):  # NaN would upset every timer
            raise ProtocolError("a call with a credit or a deadline that is none")
        target = self.residents.find(session, agent)
        if target is None:
            self._absent(session, number, agent, (name, args, kwargs, credit, seconds))
            return
        if session.load > session.most_load:
            session.tell(number, ERROR, encode_error(_too_much(session.load)))
            return
        if self._attachments:
            args, kwargs = self._restored(args, kwargs)
        call = Call(session, number, target, name, args, kwargs, credit)
        session.active[number] = call
        session.last_call = number
        call.size = session.share + (self._weight(call) if self._attachments else 0)
        session.load += call.size
        self._await_arguments(call)
        if seconds is not None:
            (self._ending.late if credit else self._ending.at)(call, float(seconds))
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

    def _absent(self, session: Session, number: int, agent: Any, rest: tuple[Any, ...]) -> None:
        """Answer for an agent that is not here: not yet, if it is somebody else's, or not any more."""
        if not self.residents.may_come(session, agent):
            session.tell(number, ERROR, gone())
            return
        attachments = self._attachments

        def retry() -> None:
            # Those of a frame that is being handled, perhaps, are needed again afterwards.
            others, self._attachments = self._attachments, attachments
            if self.residents.find(session, agent) is None:
                session.tell(number, ERROR, gone())
            else:
                self._enter(session, number, agent, *rest)
            self._attachments = others

        self._references.expect((str(agent[0]), -int(agent[1])), retry)

    def _read(self, session: Session, number: int, agent: Any, name: str) -> None:
        if name.startswith("_") and name != "__class__":
            session.tell(number, ERROR, encode_error(AttributeError(f"{name!r} is not public")))
            return
        self._enter(session, number, agent, f"?{name}", (), None, 0, None)

    def _grant(self, session: Session, number: int, count: int) -> None:
        call = session.active.get(number)
        if call is not None and call.credit:
            credit_of(call).grant(count)

    def _push(self, session: Session, key: int, kind: str, value: Any) -> None:
        self._references.push(session, key, kind, value, self._attachments)

    # --- agents ---------------------------------------------------------------------------------------------------------

    def _class(self, session: Session, number: int, module: str, qualname: str, value: Any) -> None:
        if len(session.classes) >= _MOST_CLASSES and number not in session.classes:
            raise ProtocolError(f"a client with more than {_MOST_CLASSES} classes")
        session.classes[number] = [None, module, qualname, restore(value, self._attachments)]

    def _code(self, _: Session, code: dict[str, bytes]) -> None:
        if self.policy.accept_code:
            learn(code)

    def _new(self, session: Session, number: int, cls: int, how: str, args: Any, kwargs: Any) -> None:
        agent = self.residents.admit(session, number)
        if agent.failed is not None:
            return
        if self._attachments:
            args, kwargs = self._restored(args, kwargs)
        call = Call(session, 0, agent, CONSTRUCT, args, kwargs)
        call.credit = (session.classes[cls], how)
        self._await_arguments(call)
        if call.missing:
            self.schedule.offer(call)
        else:
            self.schedule.begin(call)
        if self._references.early:
            self._references.heard_of(session.identity, -number)

    def _drop(self, session: Session, agent: Any) -> None:
        unheld = self.residents.dropped(session, agent)
        if unheld is not None:
            self.schedule.offer(Call(session, 0, unheld, FREE, ()))

    def _stop_agent(self, session: Session, number: int, agent: Any) -> None:
        target = self.residents.find(session, agent)
        if target is not None:
            self._ending.stop(target, AgentStopped("the agent was stopped"))
        session.tell(number, RESULT, target is not None)

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

    def _control(self, session: Session, number: int, what: str, argument: Any) -> None:
        if what == "stop":
            session.tell(number, RESULT, True)
            self._loop.call_later(0.05, self._stop)
        elif what == "running":
            running = [call for call in argument if self._ending.is_running(session, call)]
            session.tell(number, RESULT, encode_result(running, "a report"))
        else:
            session.tell(number, RESULT, encode_result(describe(self, what, argument), "a report"))

    def close(self) -> None:
        """Let every thread end."""
        self.schedule.close()


def _too_much(load: int) -> LimitExceeded:
    return LimitExceeded(
        f"this client has calls of {load >> 20} MiB under way, more than twice the server's window; wait for answers"
    )
