"""One client as the server knows it: its agents, its calls under way, what it has still to be told.

Belongs to the I/O loop, except `tell`, which any thread may call.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from manyhands.errors import ServerLost
from manyhands.remote.conversation import Conversation
from manyhands.remote.values import attach, restore, size_of
from manyhands.remote.wire import ERROR, HELD, RESULT, STREAMED
from manyhands.rpc.limits import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from manyhands.remote.server.mailbox import Agent, Call
    from manyhands.rpc.limits import Limits
    from manyhands.rpc.server import ServerStream

__all__ = ["Session"]

_HOLD_BYTES = MESSAGE_BYTES
"""Results from this size on stay here until they are asked for."""
_FRAME_ITEMS = 4_000
_FRAME_BYTES = 1 << 20
_ACK_AFTER = 0.2
"""As in the client's link."""


class Session:
    """What a server keeps for one client."""

    def __init__(self, identity: str, limits: Limits, loop: asyncio.AbstractEventLoop) -> None:
        self.identity = identity
        self.agents: dict[int, Agent] = {}
        self.borrowed: dict[tuple[str, int], Agent] = {}
        """Agents of other sessions that this one has a proxy of."""
        self.classes: dict[int, Any] = {}
        self.active: dict[int, Call] = {}
        self.last_call = 0
        self.last_agent = 0
        self.kept: dict[int, list[Any]] = {}
        """Results that somebody holds: `[holders, kind, value]`; kind is None while the call is under way."""
        self.pushed: dict[int, Callable[[str, Any], None]] = {}
        """Calls that wait for a value which the client will push, by key."""
        self.served = 0
        self.peer = ""
        self.lease: asyncio.TimerHandle | None = None
        """Runs while the client is not connected; frees everything when it ends."""
        self._conversation = Conversation(limits.frame_bytes)
        self._outgoing: deque[Any] = deque()
        self._loop = loop
        self._awake = False
        self._wake = asyncio.Event()
        self._ack_timer: asyncio.TimerHandle | None = None
        self.stream: ServerStream | None = None
        self.writer: asyncio.Task[None] | None = None

    # --- telling ------------------------------------------------------------------------------------------------------

    def tell(self, call: Call | int, kind: str, value: Any) -> None:
        """Have the client told how a call ended, or what a stream yielded; from any thread."""
        self._outgoing.append((call, kind, value))
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._wake.set)

    def _take(self) -> tuple[list[Any], list[Any]]:
        """Return the items of the next frame and their attachments, and do the bookkeeping of the calls that ended."""
        items: list[Any] = []
        attachments: list[Any] = []
        outgoing, room = self._outgoing, _FRAME_BYTES
        for _ in range(min(len(outgoing), _FRAME_ITEMS)):
            call, kind, value = outgoing.popleft()
            if kind == STREAMED:
                size = sum(map(size_of, value))
                items.append((STREAMED, call.number, [attach(part, attachments) for part in value] if size else value))
            else:
                number = call if type(call) is int else call.number
                if type(call) is not int:
                    self.active.pop(number, None)
                    self.served += 1
                    if call.watchers is not None:
                        for watcher in call.watchers:
                            watcher(kind, value)
                if number in self.kept:
                    self.kept[number][1:] = kind, value
                size = size_of(value)
                if size >= _HOLD_BYTES and type(call) is not int and kind == RESULT:
                    self.kept.setdefault(number, [0, kind, value])[0] += 1
                    items.append((HELD, number, size))
                    size = 0
                else:
                    items.append((kind, number, attach(value, attachments) if size else value))
            room -= size
            if room < 0:
                break
        return items, attachments

    # --- the stream ---------------------------------------------------------------------------------------------------

    def begin(self, stream: ServerStream) -> None:
        """Take a connection; one that came before is over."""
        self.stream = stream
        self.peer = stream.peer
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None

    async def write(self, stream: ServerStream, their_heard: int) -> None:
        """Send whatever is there, grouped, until the connection ends."""
        for messages in self._conversation.resume(their_heard):
            for message in messages:
                await stream.write(message)
        conversation, wake = self._conversation, self._wake
        wake.set()
        while True:
            await wake.wait()
            wake.clear()
            self._awake = False
            while self._outgoing or conversation.ack_due:
                for message in conversation.say(*self._take()):
                    await stream.write(message)

    @property
    def heard(self) -> int:
        """The number of the last frame that came from the client."""
        return self._conversation.heard

    def hear(self, message: bytes, handle: Callable[[Session, list[Any], list[bytes]], None]) -> None:
        """Take a message; have the items of a frame that is complete handled."""
        heard = self._conversation.hear(message)
        if heard is None:
            return
        acknowledged, items, attachments = heard
        if items:
            handle(self, items, attachments)
        self._conversation.forget(acknowledged)
        if self._conversation.ack_due:
            self._wake.set()
        elif items and self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_AFTER, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        if self._conversation.ack_owed:
            self._conversation.ack_late = True
            self._wake.set()

    # --- results that others want -------------------------------------------------------------------------------------

    def keep(self, number: int) -> None:
        """Keep the result of a call until it is released."""
        kept = self.kept.get(number)
        if kept is not None:
            kept[0] += 1
        else:
            self.kept[number] = [1, *(self._find(number) if number not in self.active else (None, None))]

    def release(self, number: int) -> None:
        """Let go of a result that was kept once more than it is needed."""
        kept = self.kept.get(number)
        if kept is not None:
            kept[0] -= 1
            if kept[0] <= 0:
                del self.kept[number]

    def outcome(self, number: int) -> tuple[str | None, Any]:
        """Return the kind and value of a call that has ended and whose result is still here, else (None, None)."""
        kept = self.kept.get(number)
        if kept is not None and kept[1] is not None:
            return kept[1], kept[2]
        return self._find(number)

    def _find(self, number: int) -> tuple[str | None, Any]:
        """Look through what was said and not acknowledged, and what is about to be said; rarely needed."""
        for call, kind, value in self._outgoing:
            if kind in (RESULT, ERROR) and (call if type(call) is int else call.number) == number:
                return kind, value
        for items, attachments in self._conversation.unacknowledged():
            for item in items:
                if item[1] == number and item[0] in (RESULT, ERROR):
                    return item[0], restore(item[2], attachments)
        return None, None

    def end(self) -> None:
        """Forget everything that was to be said."""
        self._outgoing.clear()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if self.lease is not None:
            self.lease.cancel()
        if self.writer is not None:
            self.writer.cancel()

    def gone(self) -> ServerLost:
        """Return the error for those who wait for a result of this session after its end."""
        return ServerLost("the client that made this call is gone, and its results with it")
