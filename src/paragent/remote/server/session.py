"""One client as the server knows it: its agents, its calls under way, what it has still to be told.

Belongs to the I/O loop, except `tell` and `backlog`, which any thread may use.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from paragent.errors import Unserialisable
from paragent.remote.protocol import CallError, CallResult, ResultHeld, StreamItems, encode
from paragent.remote.reliable_stream import ReliableStream
from paragent.remote.server.flow_control import Backlog, Kept
from paragent.remote.values import ATTACHED, attach, encode_error, restore, size_of
from paragent.transport.limits import CALL_BYTES, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.protocol import OutcomeKind
    from paragent.remote.server.actors import Agent, Call
    from paragent.remote.server.references import DataPeers
    from paragent.transport.limits import Limits
    from paragent.transport.server import ServerStream

__all__ = ["Session"]

_FRAME_ITEMS = 4_000
_FRAME_BYTES = 1 << 20
_CROWD = 4_000
"""Calls under way from which on results are gathered after a frame that held all there were. A frame costs both sides some
0.2 ms whatever is in it; 4,000 calls, 20 µs each, are 80 ms of work, of which a gathering of 10 ms is an eighth."""
_GATHER = 0.01 / _CROWD
"""Seconds of gathering for each call under way."""
_LONGEST_GATHER = 0.1
_FLOW = 100
"""Results in a frame below which others do not come fast: then the gathering is that of the smallest crowd."""
_ACK_AFTER = 0.2
"""As in the client's link."""


class Session:
    """What a server keeps for one client."""

    def __init__(
        self,
        identity: str,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        unpark: Callable[[list[Call]], None],
        *,
        hears_data: bool = False,
    ) -> None:
        self.identity = identity
        self.data_only = False
        """Whether the client is itself a server that accepts no code, and asks for results as data."""
        self.load = 0
        """What the calls under way weigh."""
        self.most_load = 2 * limits.window_bytes
        """What they may weigh at most: a client keeps to the window, as both count it, give or take what is in a frame
        besides calls."""
        self.share = CALL_BYTES
        """What a call of the frame that is being handled weighs, without its attachments."""
        self.backlog = Backlog(limits.results_bytes, unpark)
        self.kept = Kept(limits.kept_bytes)
        self._frame_bytes = 0
        self._pace = TokenBucket(limits.items_per_second, time.monotonic())
        self.pause = 0.0
        """Seconds for which the client must not be read, as it asks for more than the rate allows."""
        self.agents: dict[int, Agent] = {}
        self.borrowed: dict[tuple[str, int], Agent] = {}
        """Agents of other sessions that this one has a proxy of."""
        self.classes: dict[int, Any] = {}
        self.active: dict[int, Call] = {}
        self.last_call = 0
        self.last_agent = 0
        self.pushed: dict[int, Callable[[OutcomeKind, Any], None]] = {}
        """Calls that wait for a value which the client will push, by key."""
        self.peers: DataPeers | None = None
        """Other servers that the client named; only on servers that accept no code."""
        self.served = 0
        self.plain_errors = False
        """Whether the client may see builtin values alone of what agents' errors hold: it may not run code here."""
        self.peer = ""
        self.program = ""
        """What the client calls itself; may be empty."""
        self.lease: asyncio.TimerHandle | None = None
        """Runs while the client is not connected; frees everything when it ends."""
        self._frames = ReliableStream(limits.frame_bytes, reads_data=hears_data)
        self._outgoing: deque[Any] = deque()
        self._loop = loop
        self._awake = False
        self._wake = asyncio.Event()
        self._ack_timer: asyncio.TimerHandle | None = None
        self.stream: ServerStream | None = None
        self.writer: asyncio.Task[None] | None = None

    # --- telling ------------------------------------------------------------------------------------------------------

    def tell(self, call: Call | int, kind: OutcomeKind | type[StreamItems], value: Any) -> None:
        """Have the client told how a call ended, or what a stream yielded; from any thread."""
        if type(value) in _SIZED:
            self.backlog.add(_weight(value))
        self._outgoing.append((call, kind, value))
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._wake.set)

    def _take(self) -> tuple[list[Any], list[Any]]:
        """Return the messages of the next frame and their attachments, and do the bookkeeping of the calls that ended."""
        messages: list[Any] = []
        attachments: list[Any] = []
        outgoing, room = self._outgoing, _FRAME_BYTES
        for _ in range(min(len(outgoing), _FRAME_ITEMS)):
            call, kind, value = outgoing.popleft()
            size = 0
            if type(value) in _SIZED:
                size = _weight(value)
                self.backlog.remove(size)
            if kind is not StreamItems and type(call) is not int:
                if call.told:
                    continue
                call.told = True
            if type(value) not in _SIZED and (
                type(call) is not int and call.timer is None and call.watchers is None and call.number not in self.kept
            ):
                # The common one, short: a number or the like, which nobody else waits for.
                if self.active.pop(call.number, None) is not None:
                    self.load -= call.size
                self.served += 1
                messages.append(kind(call.number, value))
                continue
            if kind is StreamItems:
                messages.append(StreamItems(call.number, [attach(part, attachments) for part in value]))
            elif type(call) is int:
                messages.append(kind(call, attach(value, attachments) if size else value))
            else:
                self._ended(call, kind, value)
                messages.append(self._answer(call.number, kind, value, attachments))
                if type(messages[-1]) is ResultHeld:
                    size = 0
            room -= size
            if room < 0:
                break
        return messages, attachments

    def _ended(self, call: Call, kind: OutcomeKind, value: Any) -> None:
        if self.active.pop(call.number, None) is not None:
            self.load -= call.size
        self.served += 1
        if call.timer is not None:
            call.timer.cancel()
            call.timer = None
        if call.watchers is not None:
            for watcher in call.watchers:
                watcher(kind, value)

    def _answer(
        self, number: int, kind: OutcomeKind, value: Any, attachments: list[Any]
    ) -> CallResult | CallError | ResultHeld:
        """Return the message that tells the client of an outcome; a large one is kept here until it is asked for."""
        kind, value, stays = self.kept.settle(number, kind, value)
        packed = size_of(value)
        if stays:
            return ResultHeld(number, packed)
        return kind(number, attach(value, attachments) if packed else value)

    # --- the stream ---------------------------------------------------------------------------------------------------

    def begin(self, stream: ServerStream, their_heard: int) -> list[list[bytes]]:
        """Take a connection; one that came before is over. Return the frames that the client has not heard.

        Raises:
            ProtocolError: the client claims to have heard what was never said, or misses what was let go.
        """
        unheard = self._frames.resume(their_heard)
        self.stream = stream
        self.peer = stream.peer
        self._frame_bytes = 0
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None
        return unheard

    async def write(self, stream: ServerStream, unheard: list[list[bytes]]) -> None:
        """Send what the client has not heard and whatever else is there, grouped, until the connection ends."""
        self._frames.writes_data = self.data_only
        for messages in unheard:
            if not await _sent(stream, messages):
                return
        frames, wake = self._frames, self._wake
        wake.set()
        while True:
            await wake.wait()
            wake.clear()
            self._awake = False
            while (self._outgoing and not frames.window_full) or frames.ack_due:
                said = ([], []) if frames.window_full else self._take()
                all_said = not self._outgoing
                if not await _sent(stream, self._frame(*said)):
                    return
                if all_said and len(self.active) >= _CROWD:
                    crowd = len(self.active) if len(said[0]) >= _FLOW else _CROWD
                    await asyncio.sleep(min(_GATHER * crowd, _LONGEST_GATHER))

    def _frame(self, messages: list[Any], attachments: list[Any]) -> list[bytes]:
        """Return the messages of a frame; an outcome that cannot be encoded for this client becomes an error.

        Raises:
            Exception: something else cannot be encoded.
        """
        try:
            return self._frames.next_frame(messages, attachments)
        except Exception:  # noqa: BLE001 - an agent's result may fail in any way; found out below, one by one
            return self._frames.next_frame([self._encodable(message) for message in messages], attachments)

    def _encodable(self, message: Any) -> Any:
        try:
            encode(0, 0, [message], (), as_data=self.data_only)
        except Exception as trouble:  # noqa: BLE001 - as above
            error = Unserialisable("the result", "", f"{type(trouble).__name__}: {trouble}")
            if not self.data_only:
                return CallError(message.number, encode_error(error))
            from paragent.remote.restricted import described  # not at the top: few servers need it

            return CallError(message.number, described(error))
        return message

    @property
    def heard(self) -> int:
        """The number of the last frame that came from the client."""
        return self._frames.received

    def hear(self, message: bytes, handle: Callable[[Session, list[Any], list[bytes]], None]) -> None:
        """Take a message; have the messages of a frame that is complete handled."""
        frames = self._frames
        self._frame_bytes += len(message)
        heard = frames.receive(message)
        if heard is None:
            return
        acknowledged, messages, attachments = heard
        if messages:
            self.share = max(CALL_BYTES, (self._frame_bytes - sum(map(len, attachments))) // len(messages))
            self.pause = self._pace.take(len(messages), time.monotonic())
            handle(self, messages, attachments)
        self._frame_bytes = 0
        window_full = frames.window_full
        frames.drop_acknowledged(acknowledged)
        if frames.ack_due or window_full:
            self._wake.set()
        elif messages and self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_AFTER, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        if self._frames.ack_owed:
            self._frames.ack_late = True
            self._wake.set()

    # --- results that others want -------------------------------------------------------------------------------------

    def keep(self, number: int) -> None:
        """Keep the result of a call until it is released."""
        kept = self.kept.get(number)
        if kept is not None:
            kept[0] += 1
            return
        kind, value = self._find(number) if number not in self.active else (None, None)
        self.kept.hold(number, kind, value)

    def release(self, number: int) -> None:
        """Let go of a result that was kept once more than it is needed."""
        self.kept.release(number)

    def outcome(self, number: int) -> tuple[OutcomeKind | None, Any]:
        """Return the kind and value of a call that has ended and whose result is still here, else (None, None)."""
        kept = self.kept.get(number)
        if kept is not None and kept[1] is not None:
            return kept[1], kept[2]
        return self._find(number)

    def _find(self, number: int) -> tuple[OutcomeKind | None, Any]:
        """Look through what was said and not acknowledged, and what is about to be said; rarely needed."""
        for call, kind, value in self._outgoing:
            if kind is not StreamItems and (call if type(call) is int else call.number) == number:
                return kind, value
        for messages, attachments in self._frames.unacknowledged():
            for message in messages:
                if type(message) in (CallResult, CallError) and message.number == number:
                    return type(message), restore(message.value, attachments)
        return None, None

    def end(self) -> list[Call]:
        """Forget everything that was to be said; return the calls that waited for it to be read."""
        self._outgoing.clear()
        if self.peers is not None:
            self.peers.close()
        for call in self.active.values():
            if call.timer is not None:
                call.timer.cancel()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        if self.lease is not None:
            self.lease.cancel()
        if self.writer is not None:
            self.writer.cancel()
        return self.backlog.end()


async def _sent(stream: ServerStream, messages: list[bytes]) -> bool:
    """Send the messages of one frame; return False if the connection is over. They are sent again over the next one."""
    try:
        for message in messages:
            await stream.write(message)
    except Exception:  # noqa: BLE001 - gRPC raises several kinds, and the one who reads learns what happened
        return False
    return True


_SIZED = frozenset({tuple, str, bytes, list})


def _weight(value: Any) -> int:
    """Return the bytes of an outcome, or of what a stream yielded, which is a list."""
    kind = type(value)
    if kind is tuple:
        return len(value[1]) if value[0] in ATTACHED else 0
    if kind is list:
        return sum(_weight(part) for part in value if type(part) in _SIZED)
    return len(value)
