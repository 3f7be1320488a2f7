"""The link of this process to one agent server: numbers the calls, keeps what is under way, matches the answers.

Callers of any thread put items into `_outgoing`; the I/O loop groups whatever is there into frames, sends them, and
settles results as they come. A broken connection is made again within a fraction of a second or the server counts as lost.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from manyhands.errors import AccessDenied, CallTimedOut, LimitExceeded, ManyhandsError, ProtocolError, ServerLost
from manyhands.remote.client import result as states
from manyhands.remote.client.arguments import Argued
from manyhands.remote.client.result import Result, cancelled, failed
from manyhands.remote.client.stream import Inbox, RemoteStream
from manyhands.remote.conversation import Conversation
from manyhands.remote.values import attach, encode_argument, restore
from manyhands.remote.wire import (
    BYE,
    CALL,
    CALL_MORE,
    CANCEL,
    CLASS,
    CODE,
    CONTROL,
    ERROR,
    FETCH,
    HELD,
    NEW,
    PIN,
    READ,
    RELEASE,
    RESULT,
    STOP,
    STREAMED,
)
from manyhands.rpc.client import ClientStream, connect
from manyhands.rpc.limits import Limits
from manyhands.rpc.loop import io_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.remote.client.place import Place
    from manyhands.rpc.tls import TlsConf
    from manyhands.rpc.token import Token

__all__ = ["Link"]

_FIRST_CONNECT = 2.0
"""Seconds to find a server at first: one that is starting at the same time may take that long."""
_RECONNECT = 0.6
"""Seconds to find a server again; with the keep-alive's 1.1 s a loss is known within the promised 2 s."""
_RETRY = 0.05
_ACK_AFTER = 0.2
"""Seconds after which a frame is acknowledged although there is nothing else to say."""
_FRAME_ITEMS = 4_000
_FRAME_BYTES = 1 << 20
"""A frame ends after so many items or bytes, so that the far side can begin while the next is made."""
_CALL_BYTES = 256
"""What a call counts for in the window besides its arguments: about what both sides keep of it."""


class _Hold:
    """Keeps a result alive on the server; dropped together with whatever wanted it."""

    __slots__ = ("_link", "_number")

    def __init__(self, link: Link, number: int) -> None:
        self._link, self._number = link, number
        link.holds[id(self)] = number

    def __del__(self) -> None:
        self._link.holds.pop(id(self), None)
        self._link.post((RELEASE, self._number))


class Link:
    """One server as this process sees it.

    Nothing is sent by the constructor: the connection is made when there is something to say, and errors of connecting
    are what the first results end with.
    """

    def __init__(self, place: Place, token: Token, tls: TlsConf | None) -> None:
        self.place, self._token, self.tls = place, token, tls
        self.session = secrets.token_hex(16)
        self.far = not place.address.is_local
        """Whether the server is on another machine."""
        self.lost: ManyhandsError | None = None
        """Why nothing more can be asked of this server; None while it can."""
        self.numbers = itertools.count(1)
        self._agent_numbers = itertools.count(1)
        self._pending: dict[int, Any] = {}
        """Results and streams under way, by call."""
        self._outgoing: deque[Any] = deque()
        self._awake = False
        """Whether the I/O loop knows that there is something to send."""
        self._load = 0
        self._window = Limits().window_bytes
        self._lock = threading.Lock()
        """Protects `_load`, `_classes`, `_code_sent`, `_runner`, and that a result is pinned before it is settled."""
        self._room = threading.Condition(self._lock)
        """Notified when `_load` has fallen below the window."""
        self._crowded = False
        self.holds: dict[int, int] = {}
        """Results that are kept on the server for this process, by the identity of what holds them."""
        self._retirement: Any = None
        """What to do when nothing is under way or held any more."""
        self._classes: dict[int, tuple[int, type]] = {}
        self._code_sent: set[str] = set()
        self._loop = io_loop()
        self._runner: Any = None
        self._started = False
        self._wake = asyncio.Event()
        self._conversation = Conversation(Limits().frame_bytes)
        self._instance: str | None = None
        self._stream: ClientStream | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._closing = False

    # --- what callers of any thread ask -------------------------------------------------------------------------------

    def new(self, cls: type, how: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """Have the server make an agent; return its number, which can be used at once.

        Raises:
            Unserialisable: an argument, or the agent's state, cannot travel.
        """
        argued = Argued(self, args, kwargs, f"the arguments of {cls.__name__}")
        known = self._classes.get(id(cls))
        number = known[0] if known else self._introduce(cls)
        agent = next(self._agent_numbers)
        self._send_code(argued.code)
        self.post((NEW, agent, number, how, argued.args, argued.kwargs), argued.size)
        if argued.keeps:
            # The constructor's arguments live as long as the agent may need them: until its first answer.
            self.read(agent, "__class__")._keeps = argued.keeps
        return agent

    def call(
        self, agent: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None
    ) -> Result:
        """Send a call and return its lazy result, at once unless the window is full.

        Raises:
            Unserialisable: an argument cannot travel.
        """
        if self.lost is not None:
            return failed(self._loss())
        argued = Argued(self, args, kwargs, method)
        number = next(self.numbers)
        size = argued.size + _CALL_BYTES
        result = Result(self, number, size)
        result._keeps = argued.keeps
        self._pending[number] = result
        if argued.code:
            self._send_code(argued.code)
        if self._load + size > self._window and self._load:
            self._wait_for_room()
        with self._lock:
            self._load += size
        if argued.simple:
            self._outgoing.append((CALL, number, agent, method, argued.args))
        else:
            self._outgoing.append(
                _sized((CALL_MORE, number, agent, method, argued.args, argued.kwargs, 0), argued.size)
            )
        if not self._awake:
            self._notify()
        if timeout is not None:
            self._loop.call_soon_threadsafe(self._set_deadline, result, timeout)
        self._look_again()
        return result

    def stream(
        self, agent: Any, method: str, args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float | None
    ) -> RemoteStream:
        """Send a call to a generator method and return the stream of what it yields."""
        argued = Argued(self, args, kwargs, method)
        number = next(self.numbers)
        inbox = Inbox()
        stream = RemoteStream(self, number, inbox, timeout)
        self._pending[number] = inbox
        self._send_code(argued.code)
        item = (CALL_MORE, number, agent, method, argued.args, argued.kwargs, stream.CREDIT)
        self.post(item, argued.size)
        self._look_again()
        return stream

    def read(self, agent: Any, attribute: str) -> Result:
        """Ask for an attribute of an agent."""
        return self._ask(READ, agent, attribute)

    def stop(self, agent: Any) -> Result:
        """Have an agent freed now; the result comes when it is."""
        return self._ask(STOP, agent)

    def control(self, what: str, argument: Any = None) -> Result:
        """Ask the server about itself."""
        return self._ask(CONTROL, what, argument)

    def fetch(self, session: str | None, number: int) -> Result:
        """Ask for the result of a call, of this session or of another one."""
        return self._ask(FETCH, session, number)

    def cancel(self, result: Result) -> bool:
        """Cancel a call: its result is settled now, and the remote code is told."""
        with self._lock:
            if not self._is_pending(result):
                return False
        self._loop.call_soon_threadsafe(self._abort, result, cancelled())
        if not self._on_loop():
            result._wait(1.0)
        return True

    def _is_pending(self, result: Any) -> bool:
        return self._pending.get(result._number) is result

    def retire(self, then: Callable[[], None]) -> None:
        """Have `then` called, on the I/O loop, when every call has ended and no result is kept on the server."""
        self._retirement = then
        self._notify()

    def pin(self, result: Result) -> _Hold | None:
        """Have the server keep the result of a call under way for somebody else; None if it has already come."""
        with self._lock:
            if result._number not in self._pending:
                return None
            self._outgoing.append((PIN, result._number))
        self._notify()
        return _Hold(self, result._number)

    def forget(self, number: int) -> None:
        """Drop whatever still comes for a call."""
        self._pending.pop(number, None)

    def post(self, item: tuple[Any, ...], size: int = 0) -> None:
        """Put an item on its way; never blocks, so that it may be used where an object is dropped."""
        self._outgoing.append(_sized(item, size))
        if not self._awake:
            self._notify()

    def _ask(self, kind: str, *fields: Any) -> Result:
        if self.lost is not None:
            return failed(self._loss())
        number = next(self.numbers)
        result = Result(self, number)
        self._pending[number] = result
        self.post((kind, number, *fields))
        self._look_again()
        return result

    def _look_again(self) -> None:
        """Settle what was added after the link was lost but before anybody could see that it was."""
        if self.lost is not None:
            self._loop.call_soon_threadsafe(self._fail_all)

    def _introduce(self, cls: type) -> int:
        value, size, code = encode_argument(cls, f"the class {cls.__name__}", far=self.far)
        self._send_code(code)
        module = getattr(cls, "__module__", "")
        with self._lock:
            known = self._classes.get(id(cls))
            if known is None:
                known = self._classes[id(cls)] = (len(self._classes) + 1, cls)
                self._outgoing.append(_sized((CLASS, known[0], module, cls.__qualname__, value), size))
        return known[0]

    def _send_code(self, code: dict[str, bytes]) -> None:
        if code:
            with self._lock:
                if missing := {digest: blob for digest, blob in code.items() if digest not in self._code_sent}:
                    self._code_sent.update(missing)
                    self._outgoing.append((CODE, missing))

    def _wait_for_room(self) -> None:
        if self._on_loop():
            return
        with self._room:
            while self._load >= self._window and self.lost is None:
                self._crowded = True
                self._room.wait(1.0)

    def _on_loop(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def _notify(self) -> None:
        self._awake = True
        if not self._closing or self._started:
            self._loop.call_soon_threadsafe(self._woken)

    def _loss(self) -> ManyhandsError:
        assert self.lost is not None
        return type(self.lost)(*self.lost.args)

    # --- the conversation, on the I/O loop ----------------------------------------------------------------------------

    def _woken(self) -> None:
        if not self._started:
            self._started = True
            self._runner = self._loop.create_task(self._run())
        self._wake.set()

    async def _run(self) -> None:
        watch = self._loop.create_task(self._watch_place())
        try:
            await self._keep_connected()
        except ManyhandsError as error:
            self._lose(error)
        except asyncio.CancelledError:
            self._lose(ServerLost(f"the link to agent server {self.place.address} was closed"))
        except Exception as error:  # noqa: BLE001 - whatever went wrong here, nobody may be left waiting
            self._lose(ServerLost(f"agent server {self.place.address}: {type(error).__name__}: {error}"))
        finally:
            watch.cancel()
            if self._stream is not None:
                await self._stream.close()
                self._stream = None

    async def _watch_place(self) -> None:
        reason = await self.place.gone()
        self._lose(ServerLost(reason))
        self._runner.cancel()

    async def _keep_connected(self) -> None:
        await self.place.ready()
        patience = time.monotonic() + _FIRST_CONNECT
        while True:
            welcome = await self._reach(patience)
            try:
                await self._converse(welcome)
            except (AccessDenied, LimitExceeded, ProtocolError):
                raise
            except ManyhandsError:
                patience = time.monotonic() + _RECONNECT

    async def _reach(self, patience: float) -> dict[str, Any]:
        """Connect, trying again until `patience` is over."""
        while True:
            left = patience - time.monotonic()
            hello = {"session": self.session, "heard": self._conversation.heard, "again": self._instance is not None}
            try:
                self._stream, welcome = await connect(
                    self.place.address, "agents", self._token, self.tls, hello, max(left, _RETRY)
                )
            except ServerLost as error:
                if time.monotonic() + _RETRY >= patience:
                    raise ServerLost(self.place.advice(str(error), first=self._instance is None)) from None
                await asyncio.sleep(_RETRY)
                continue
            return welcome

    async def _converse(self, welcome: dict[str, Any]) -> None:
        assert self._stream is not None
        if self._instance is not None and (welcome["instance"] != self._instance or not welcome["resumed"]):
            raise ProtocolError(f"agent server {self.place.address} was started anew; its agents are gone")
        self._instance = welcome["instance"]
        self._window = int(welcome["window"])
        stream = self._stream
        for messages in self._conversation.resume(int(welcome["heard"])):
            for message in messages:
                await stream.write(message)
        writer = self._loop.create_task(self._write(stream))
        try:
            while True:
                self._hear(await stream.read())
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            if not writer.cancelled():
                writer.exception()
            await stream.close()

    async def _write(self, stream: ClientStream) -> None:
        conversation, wake = self._conversation, self._wake
        while True:
            await wake.wait()
            wake.clear()
            self._awake = False
            while self._outgoing or conversation.ack_due:
                for message in conversation.say(*self._take()):
                    await stream.write(message)
            if self._retirement is not None and not self._pending and not self.holds:
                self._retirement()

    def _take(self) -> tuple[list[Any], list[Any]]:
        """Return the items of the next frame and their attachments."""
        items: list[Any] = []
        attachments: list[Any] = []
        outgoing, room = self._outgoing, _FRAME_BYTES
        for _ in range(min(len(outgoing), _FRAME_ITEMS)):
            item = outgoing.popleft()
            if type(item) is _Sized:
                room -= item.size
                item = _attached(item.item, attachments)
            items.append(item)
            if room < 0:
                break
        return items, attachments

    def _hear(self, message: bytes) -> None:
        heard = self._conversation.hear(message)
        if heard is None:
            return
        acknowledged, items, attachments = heard
        wakes: dict[Any, list[Any]] = {}
        freed = 0
        with self._lock:
            for item in items:
                freed += self._note(item, attachments, wakes)
            self._load -= freed
            if self._crowded and self._load < self._window:
                self._crowded = False
                self._room.notify_all()
        self._conversation.forget(acknowledged)
        _wake_loops(wakes)
        if self._conversation.ack_due or self._retirement is not None:
            self._wake.set()
        elif items and self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_AFTER, self._acknowledge)

    def _note(self, item: Any, attachments: list[bytes], wakes: Any) -> int:
        """Settle one result; return what its call counted for."""
        kind, number = item[0], item[1]
        if kind == STREAMED:
            stream = self._pending.get(number)
            if stream is not None:
                stream._take([restore(value, attachments) for value in item[2]], wakes)
            return 0
        result = self._pending.pop(number, None)
        if result is None:
            if kind == HELD:
                _Hold(self, number)  # nobody waits any more: let the server free it
            return 0
        if kind == RESULT:
            result._settle(states.ENCODED, restore(item[2], attachments) if attachments else item[2], wakes)
        elif kind == HELD:
            result._settle(states.HELD, _Hold(self, number), wakes)
        elif kind == ERROR:
            result._settle(states.FAILED, restore(item[2], attachments) if attachments else item[2], wakes)
        else:
            raise ProtocolError(f"an answer of unknown kind {kind!r}")
        return int(result._size)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        if self._conversation.ack_owed:
            self._conversation.ack_late = True
            self._wake.set()

    # --- ends -----------------------------------------------------------------------------------------------------------

    def _set_deadline(self, result: Any, seconds: float) -> None:
        if result._number in self._pending:
            self._loop.call_later(seconds, self._abort, result, CallTimedOut(f"no answer within {seconds} s"))

    def _abort(self, result: Result, error: BaseException) -> None:
        wakes: dict[Any, list[Any]] = {}
        with self._lock:
            if not self._is_pending(result):
                return
            del self._pending[result._number]
            result._settle(states.RAISED, error, wakes)
            self._load -= result._size
        self.post((CANCEL, result._number))
        _wake_loops(wakes)

    def _lose(self, error: ManyhandsError) -> None:
        if self.lost is None:
            self.lost = error
        self._fail_all()

    def _fail_all(self) -> None:
        wakes: dict[Any, list[Any]] = {}
        with self._lock:
            while self._pending:
                _, result = self._pending.popitem()
                result._settle(states.RAISED, self._loss(), wakes)
            self._load = 0
            self._outgoing.clear()
            self._room.notify_all()
        _wake_loops(wakes)

    async def close(self, patience: float) -> None:
        """Say goodbye and end; what is still under way fails with `ServerLost`."""
        self._closing = True
        if self._runner is None or self._runner.done():
            return
        if self._stream is not None and self.lost is None:
            self.post((BYE,))
            until = time.monotonic() + patience
            while self._outgoing and time.monotonic() < until and not self._runner.done():
                await asyncio.sleep(0.002)
        self._runner.cancel()
        await asyncio.wait([self._runner], timeout=patience)


class _Sized:
    """An item that is large enough to count."""

    __slots__ = ("item", "size")

    def __init__(self, item: tuple[Any, ...], size: int) -> None:
        self.item, self.size = item, size


_COUNTED = 4096
"""Bytes from which on an item counts towards the size of its frame; 4,000 smaller ones are at most 16 MB."""


def _sized(item: tuple[Any, ...], size: int) -> Any:
    return _Sized(item, size) if size >= _COUNTED else item


def _attached(item: tuple[Any, ...], attachments: list[Any]) -> tuple[Any, ...]:
    """Return the item with what is large in it moved to the attachments."""
    return tuple(
        tuple(attach(value, attachments) for value in part)
        if type(part) is tuple and index >= 3 and item[0] in (CALL_MORE, NEW)
        else {key: attach(value, attachments) for key, value in part.items()}
        if type(part) is dict
        else attach(part, attachments)
        for index, part in enumerate(item)
    )


def _wake_loops(wakes: dict[Any, list[Any]]) -> None:
    for loop, futures in wakes.items():
        try:
            loop.call_soon_threadsafe(_finish, futures)
        except RuntimeError:
            continue  # the loop was closed meanwhile; nobody waits there


def _finish(futures: list[Any]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)
