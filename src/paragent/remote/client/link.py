"""The link of this process to one agent server: what callers of any thread can ask of it.

A call is numbered, entered in the ledger and put into the outbox; the connection, on the I/O loop, groups whatever is there
into frames, sends them, and settles results as they come.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import weakref
from typing import TYPE_CHECKING, Any

from paragent.errors import CallTimedOut
from paragent.remote.client.arguments import Argued
from paragent.remote.client.calls import SMALL, Ledger, Outbox
from paragent.remote.client.connection import Connection
from paragent.remote.client.result import Result, cancelled, failed
from paragent.remote.client.stream import Inbox, RemoteStream
from paragent.remote.protocol import (
    AddCode,
    CallMethod,
    CancelCall,
    CreateAgent,
    DefineClass,
    FetchResult,
    QueryServer,
    ReadAttribute,
    StopAgent,
)
from paragent.remote.values import PLAIN, encode_argument
from paragent.serialization.code_cache import SentCode
from paragent.transport.loop import io_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.errors import ParagentError
    from paragent.remote.client.calls import Hold
    from paragent.remote.client.hard_stop import HardStop
    from paragent.remote.client.links import Place
    from paragent.transport.auth import Token
    from paragent.transport.tls import TlsConf

__all__ = ["Link"]


class Link:
    """One server as this process sees it.

    Nothing is sent by the constructor: the connection is made when there is something to say, and errors of connecting
    are what the first results end with.
    """

    def __init__(self, place: Place, token: Token, tls: TlsConf | None, *, data_only: bool = False) -> None:
        self.place, self.tls = place, tls
        self.far = not place.address.is_local
        """Whether the server is on another machine."""
        self.numbers = itertools.count(1)
        self._agent_numbers = itertools.count(1)
        self._loop = io_loop()
        self._outbox = Outbox(lambda: self.connection.notify())
        self.ledger = Ledger(self._outbox)
        self.connection = Connection(place, token, tls, self.ledger, self._loop, data_only=data_only)
        self.hard_stop: HardStop | None = None
        """Ends the process of the server if a cancelled call does not end; None unless an agent has it for itself."""
        self._introducing = threading.Lock()
        """Protects `_classes` and `_code_sent`, and that what they say was put on its way."""
        self._classes: dict[int, tuple[int, type]] = {}
        self._code_sent = SentCode()

    @property
    def session(self) -> str:
        """The name under which the server knows this process."""
        return self.connection.session

    @property
    def lost(self) -> ParagentError | None:
        """Why nothing more can be asked of this server; None while it can."""
        return self.ledger.lost

    @property
    def broken(self) -> bool:
        """Whether the connection broke and is not back: the server may be another one by then."""
        return self.connection.broken

    @property
    def sends_data(self) -> bool:
        """Whether the server is known to accept data only."""
        return self._outbox.translate is not None

    @property
    def peer_tls(self) -> bool:
        """Whether the server is known to be able to connect to other servers that use TLS."""
        return self.connection.peer_tls

    # --- agents ---------------------------------------------------------------------------------------------------------

    def new(self, cls: type, how: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Have the server make an agent; return its number, which can be used at once.

        Raises:
            Unserialisable: an argument, or the agent's state, cannot travel.
        """
        known = self._classes.get(id(cls))
        number = known[0] if known else self._introduce(cls)
        agent = next(self._agent_numbers)
        if not kwargs and _plain(args) is not None:
            self._outbox.put(CreateAgent(agent, number, how, args))
            return agent
        argued = Argued(self, args, kwargs, f"the arguments of {cls.__name__}")
        self._send_code(argued.code)
        self._outbox.put(CreateAgent(agent, number, how, argued.args, argued.kwargs), argued.size)
        if argued.keeps:
            # The constructor's arguments live as long as the agent may need them: until its first answer.
            self.read(agent, "__class__")._keeps = argued.keeps
        return agent

    def _introduce(self, cls: type) -> int:
        value, size, code = encode_argument(cls, f"the class {cls.__name__}", far=self.far)
        self._send_code(code)
        module = getattr(cls, "__module__", "")
        with self._introducing:
            known = self._classes.get(id(cls))
            if known is None:
                self._outbox.put(DefineClass(len(self._classes) + 1, module, cls.__qualname__, value), size)
                known = self._classes[id(cls)] = (len(self._classes) + 1, cls)
        return known[0]

    def _send_code(self, code: dict[str, bytes]) -> None:
        if code:
            with self._introducing:
                if missing := self._code_sent.missing(code):
                    self._outbox.put(AddCode(missing))

    # --- calls ----------------------------------------------------------------------------------------------------------

    def call(
        self, agent: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None
    ) -> Result:
        """Send a call and return its lazy result, at once unless the window is full.

        Raises:
            Unserialisable: an argument cannot travel.
        """
        ledger = self.ledger
        if ledger.lost is not None:
            return failed(ledger.loss())
        number = next(self.numbers)
        result = Result(self, number)
        size = None if kwargs or timeout is not None else _plain(args)
        if size is not None:
            ledger.send(number, result, CallMethod(number, agent, method, args), size, self._on_loop)
        else:
            self._call_more(result, agent, method, args, kwargs, timeout)
        self._look_again()
        return result

    def _call_more(
        self,
        result: Result,
        agent: Any,
        method: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float | None,
    ) -> None:
        argued = Argued(self, args, kwargs, method)
        result._keeps = argued.keeps
        self._send_code(argued.code)
        number = result._number
        timeout = None if timeout is None else float(timeout)  # a frame holds builtin values alone
        message = CallMethod(number, agent, method, argued.args, argued.kwargs, seconds=timeout)
        self.ledger.send(number, result, message, argued.size, self._on_loop)
        if timeout is not None:
            self._loop.call_soon_threadsafe(self._set_deadline, weakref.ref(result), timeout)

    def stream(
        self, agent: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None
    ) -> RemoteStream:
        """Send a call to a generator method and return the stream of what it yields."""
        argued = Argued(self, args, kwargs, method)
        number = next(self.numbers)
        timeout = None if timeout is None else float(timeout)
        inbox = Inbox()
        stream = RemoteStream(self, number, inbox, timeout)
        self._send_code(argued.code)
        message = CallMethod(number, agent, method, argued.args, argued.kwargs, stream.CREDIT, timeout)
        self.ledger.send(number, inbox, message, argued.size, self._on_loop)
        self._look_again()
        return stream

    def read(self, agent: Any, attribute: str) -> Result:
        """Ask for an attribute of an agent."""
        return self._ask(ReadAttribute, agent, attribute)

    def stop(self, agent: Any) -> Result:
        """Have an agent freed now; the result comes when it is."""
        if self.hard_stop is not None:
            self._loop.call_soon_threadsafe(self._watch, list(self.ledger.pending), "was stopped")
        return self._ask(StopAgent, agent)

    def control(self, what: str, argument: Any = None) -> Result:
        """Ask the server about itself."""
        return self._ask(QueryServer, what, argument)

    def fetch(self, session: str | None, number: int) -> Result:
        """Ask for the result of a call, of this session or of another one."""
        return self._ask(FetchResult, session, number)

    def _ask(self, kind: Callable[..., Any], *fields: Any) -> Result:
        if self.lost is not None:
            return failed(self.ledger.loss())
        number = next(self.numbers)
        result = Result(self, number)
        self.ledger.pending[number] = result
        self._outbox.put(kind(number, *fields))
        self._look_again()
        return result

    def post(self, message: Any, size: int = 0) -> None:
        """Send a message; never blocks, so that finalizers may call it."""
        self._outbox.put(message, size)

    def _look_again(self) -> None:
        """Settle what was added after the link was lost but before anybody could see that it was."""
        if self.ledger.lost is not None:
            self.ledger.fail_all()

    def _on_loop(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    # --- the end of a call ----------------------------------------------------------------------------------------------

    def cancel(self, result: Result) -> bool:
        """Cancel a call: its result is settled now, and the remote code is told."""
        if not self.ledger.is_pending(result):
            return False
        self._loop.call_soon_threadsafe(self._abort, result, cancelled())
        if not self._on_loop():
            result._wait(1.0)
        return True

    def _set_deadline(self, result: weakref.ref[Result], seconds: float) -> None:
        # The ledger keeps the result while the call is under way; a timer must not keep it after that.
        self._loop.call_later(seconds, self._expire, result, seconds)

    def _expire(self, result: weakref.ref[Result], seconds: float) -> None:
        late = result()
        if late is not None:
            self._abort(late, CallTimedOut(f"no answer within {seconds} s"))

    def _abort(self, result: Result, error: BaseException) -> None:
        def aborted(number: int) -> None:
            self._outbox.put(CancelCall(number))
            self._watch([number], "timed out" if isinstance(error, CallTimedOut) else "was cancelled")

        self.ledger.abort(result, error, aborted)

    def _watch(self, numbers: list[int], how: str) -> None:
        """On the I/O loop: end the process of the server if calls that were cancelled do not end, where that is agreed."""
        if self.hard_stop is not None:
            for number in numbers:
                self.hard_stop.watch(number, how)

    def pin(self, result: Result) -> Hold | None:
        """Have the server keep the result of a call under way for somebody else; None if it has already come."""
        return self.ledger.pin(result)

    def end_stream(self, number: int) -> None:
        """End a remote generator and drop whatever still comes from it; never blocks, as `post`."""
        self.ledger.forget(number)
        self._outbox.put(CancelCall(number))
        if self.hard_stop is not None:
            self._loop.call_soon_threadsafe(self._watch, [number], "was closed")

    def retire(self, then: Callable[[], None]) -> None:
        """Have `then` called, on the I/O loop, when every call has ended and no result is kept on the server."""
        self.connection.retirement = then
        self.connection.notify()

    async def close(self, patience: float) -> None:
        """Say goodbye and end; what is still under way fails with `ServerLost`."""
        await self.connection.close(patience)


def _plain(args: tuple[Any, ...]) -> int | None:
    """Return what arguments that need no encoding weigh; None if some of them do need it, or are large."""
    size = 0
    for arg in args:
        kind = type(arg)
        if kind not in PLAIN:
            return None
        if kind is str or kind is bytes:
            size += len(arg)
    return size if size < SMALL else None
