"""Session: what a server keeps for one client, such as its agents, its pending calls and the outcomes to send.

A session belongs to the I/O loop, except `send_outcome` and `backlog`, which any thread may use.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import Unserialisable
from paragent.remote.protocol import CallError, CallResult, ResultHeld, StreamItems, encode
from paragent.remote.reliable_stream import ACK_SECONDS, FRAME_BYTES, FRAME_MESSAGES, ReliableStream
from paragent.remote.server.flow_control import ResultBacklog, ResultCache
from paragent.remote.values import attach, encode_error, restore, size_of, weight_of
from paragent.transport.limits import CALL_BYTES, TokenBucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.protocol import OutcomeKind, RequestValue
    from paragent.remote.server.actors import Actor, ActorCall
    from paragent.remote.server.references import DataPeers
    from paragent.transport.limits import Limits
    from paragent.transport.server import ServerStream

    MessageKind = type[StreamItems | RequestValue] | OutcomeKind

__all__ = ["ClientInfo", "ClientSession"]

_MANY_CALLS = 4_000
"""Pending calls from which on the server waits for more results before it sends the next frame. A frame costs both sides about
0.2 ms whatever it contains. 4,000 calls of 20 µs are 80 ms of work, so a delay of 10 ms adds an eighth."""
_DELAY_PER_CALL = 0.01 / _MANY_CALLS
"""Seconds of that delay for each pending call."""
_MAX_DELAY = 0.1
_FAST_RESULTS = 100
"""If a frame has fewer results than this, results arrive slowly, and the delay is the shortest one."""


@dataclass(slots=True)
class ClientInfo:
    """What a server knows about a client."""

    data_only: bool = False
    """Whether the client is a restricted server, which must get results as data."""
    plain_errors: bool = False
    """Whether errors of agents may contain only builtin values for this client, because it may not run code here."""
    peer: str = ""
    """Address of its last connection."""
    program: str = ""
    """Name of its program; may be empty."""


class _ClientState:
    """Agents, calls and limits of one client."""

    def __init__(self, identity: str, limits: Limits, unpark: Callable[[list[ActorCall]], None]) -> None:
        self.identity = identity
        self.client = ClientInfo()
        self.load = 0
        """Bytes of all pending calls."""
        self.max_load = 2 * limits.window_bytes
        """Limit of `load`. Clients keep to the window, which both sides count alike except for messages that are not calls."""
        self.share = CALL_BYTES
        """Bytes that each call of the current frame counts, without its attachments."""
        self.backlog = ResultBacklog(limits.results_bytes, unpark)
        self.results = ResultCache(limits.kept_bytes)
        self.agents: dict[int, Actor] = {}
        self.borrowed: dict[tuple[str, int], Actor] = {}
        """Agents that this client has a copied proxy of, by session and number."""
        self.classes: dict[int, Any] = {}
        self.modules = ""
        """The digest of the client's own modules; empty if it has sent none."""
        self.active: dict[int, ActorCall] = {}
        """Pending calls by number."""
        self.last_call = 0
        self.last_agent = 0
        self.pushed: dict[int, Callable[[OutcomeKind, Any], None]] = {}
        """Callbacks for values that the client will push, by key."""
        self.peers: DataPeers | None = None
        """Connections to other servers that the client has named; only on restricted servers."""
        self.served = 0
        """Calls that have ended."""

    def check_modules(self) -> None:
        """Check that this process has not loaded other modules under the names of the client's own.

        Raises:
            UsageError: it has.
        """
        if self.modules:
            from paragent.serialization.project_modules import check_loaded  # loaded when the modules arrived

            check_loaded(self.modules)


class ClientSession(_ClientState):
    """State of one client on a server, and its stream. It outlives the connection until the lease expires.

    Args:
        identity: the session identifier that the client chose.
        limits: limits of the server.
        loop: the I/O loop.
        unpark: starts calls that waited until the client had read results.
        reads_data: whether frames of the client are data and not pickles, because the server is restricted.
    """

    def __init__(
        self,
        identity: str,
        limits: Limits,
        loop: asyncio.AbstractEventLoop,
        unpark: Callable[[list[ActorCall]], None],
        *,
        reads_data: bool = False,
    ) -> None:
        super().__init__(identity, limits, unpark)
        self.client.plain_errors = reads_data
        self.frames = ReliableStream(limits.frame_bytes, reads_data=reads_data)
        """Numbers frames and keeps them until they are acknowledged."""
        self.stream: ServerStream | None = None
        self.writer: asyncio.Task[None] | None = None
        self.lease: asyncio.TimerHandle | None = None
        """Timer that ends the session; runs while the client is disconnected."""
        self.pause = 0.0
        """Seconds to wait before reading more from the client, because it exceeds the message rate."""
        self._message_rate = TokenBucket(limits.items_per_second, time.monotonic())
        self._frame_bytes = 0
        self._outgoing: deque[Any] = deque()
        self._loop = loop
        self._awake = False
        self._wake = asyncio.Event()
        self._ack_timer: asyncio.TimerHandle | None = None

    # --- sending ------------------------------------------------------------------------------------------------------

    def send_outcome(self, call: ActorCall | int, kind: MessageKind, value: Any) -> None:
        """Queue the outcome of a call, an item of a stream or a request for a value; may be called from any thread."""
        if type(value) in _SIZED:
            self.backlog.add(_size(value))
        self._outgoing.append((call, kind, value))
        if not self._awake:
            self._awake = True
            self._loop.call_soon_threadsafe(self._wake.set)

    def take_frame(self) -> tuple[list[Any], list[Any]]:
        """Return the messages and attachments of the next frame, and remove the calls that ended."""
        messages: list[Any] = []
        attachments: list[Any] = []
        outgoing, room = self._outgoing, FRAME_BYTES
        for _ in range(min(len(outgoing), FRAME_MESSAGES)):
            call, kind, value = outgoing.popleft()
            size = 0
            if type(value) in _SIZED:
                size = _size(value)
                self.backlog.remove(size)
            if kind is not StreamItems and type(call) is not int:
                if call.answered:
                    continue
                call.answered = True
            if type(value) not in _SIZED and (
                type(call) is not int
                and call.timer is None
                and call.watchers is None
                and call.number not in self.results
            ):
                # The common case: a small value that nothing else waits for.
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

    def _ended(self, call: ActorCall, kind: OutcomeKind, value: Any) -> None:
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
        """Return the message for an outcome. A large result stays here until the client asks for it."""
        kind, value, stays = self.results.settle(number, kind, value)
        packed = size_of(value)
        if stays:
            return ResultHeld(number, packed)
        return kind(number, attach(value, attachments) if packed else value)

    # --- the stream ---------------------------------------------------------------------------------------------------

    def begin(self, stream: ServerStream, received: int) -> list[list[bytes]]:
        """Use a new connection instead of the previous one. Return the frames that the client has not received.

        Raises:
            ProtocolError: the client claims to have received frames that were never sent, or misses frames that are gone.
        """
        unread = self.frames.resume(received)
        self.stream = stream
        self.client.peer = stream.peer
        self._frame_bytes = 0
        if self.lease is not None:
            self.lease.cancel()
            self.lease = None
        return unread

    async def write(self, stream: ServerStream, unread: list[list[bytes]]) -> None:
        """Send frames until the connection ends: first those that the client has not received, then queued outcomes."""
        self.frames.writes_data = self.client.data_only
        for messages in unread:
            if not await _sent(stream, messages):
                return
        frames, wake = self.frames, self._wake
        wake.set()
        while True:
            await wake.wait()
            wake.clear()
            self._awake = False
            while (self._outgoing and not frames.window_full) or frames.ack_due:
                content = ([], []) if frames.window_full else self.take_frame()
                all_sent = not self._outgoing
                if not await _sent(stream, self._frame(*content)):
                    return
                if all_sent and len(self.active) >= _MANY_CALLS:
                    calls = len(self.active) if len(content[0]) >= _FAST_RESULTS else _MANY_CALLS
                    await asyncio.sleep(min(_DELAY_PER_CALL * calls, _MAX_DELAY))

    def _frame(self, messages: list[Any], attachments: list[Any]) -> list[bytes]:
        """Return the parts of a frame; an outcome that cannot be encoded for this client is replaced by an error.

        Raises:
            Exception: another message cannot be encoded.
        """
        try:
            return self.frames.next_frame(messages, attachments)
        except Exception:  # noqa: BLE001 - a result may fail in any way; each message is checked below
            return self.frames.next_frame([self._encodable(message) for message in messages], attachments)

    def _encodable(self, message: Any) -> Any:
        try:
            encode(0, 0, [message], (), as_data=self.client.data_only)
        except Exception as trouble:  # noqa: BLE001 - as above
            error = Unserialisable("the result", "", f"{type(trouble).__name__}: {trouble}")
            if not self.client.data_only:
                return CallError(message.number, encode_error(error))
            from paragent.remote.restricted import described  # not at the top: few servers need it

            return CallError(message.number, described(error))
        return message

    @property
    def received(self) -> int:
        """Number of the last frame that was received from the client."""
        return self.frames.received

    def receive(self, message: bytes, handle: Callable[[ClientSession, list[Any], list[bytes]], None]) -> None:
        """Process a part of a frame; when the frame is complete, pass its messages to `handle`."""
        frames = self.frames
        self._frame_bytes += len(message)
        frame = frames.receive(message)
        if frame is None:
            return
        acknowledged, messages, attachments = frame
        if messages:
            self.share = max(CALL_BYTES, (self._frame_bytes - sum(map(len, attachments))) // len(messages))
            self.pause = self._message_rate.take(len(messages), time.monotonic())
            handle(self, messages, attachments)
        self._frame_bytes = 0
        window_full = frames.window_full
        frames.drop_acknowledged(acknowledged)
        if frames.ack_due or window_full:
            self._wake.set()
        elif messages and self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_SECONDS, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        if self.frames.ack_owed:
            self.frames.ack_late = True
            self._wake.set()

    # --- results that stay on the server -------------------------------------------------------------------------------------

    def keep(self, number: int) -> None:
        """Keep the result of a call on the server until it is released."""
        kept = self.results.get(number)
        if kept is not None:
            kept[0] += 1
            return
        kind, value = self._find(number) if number not in self.active else (None, None)
        self.results.hold(number, kind, value)

    def release(self, number: int) -> None:
        """Release a kept result once."""
        self.results.release(number)

    def outcome(self, number: int) -> tuple[OutcomeKind | None, Any]:
        """Return kind and value of the outcome of a call if it is still here, else (None, None)."""
        kept = self.results.get(number)
        if kept is not None and kept[1] is not None:
            return kept[1], kept[2]
        return self._find(number)

    def _find(self, number: int) -> tuple[OutcomeKind | None, Any]:
        """Search queued outcomes and unacknowledged frames; rarely needed."""
        for call, kind, value in self._outgoing:
            if kind is not StreamItems and (call if type(call) is int else call.number) == number:
                return kind, value
        for messages, attachments in self.frames.unacknowledged():
            for message in messages:
                if type(message) in (CallResult, CallError) and message.number == number:
                    return type(message), restore(message.value, attachments)
        return None, None

    def end(self) -> list[ActorCall]:
        """Drop queued outcomes and stop all timers; return the calls that were parked."""
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
    """Send the parts of a frame; return False if the connection ended. The next connection sends the frame again."""
    try:
        for message in messages:
            await stream.write(message)
    except Exception:  # noqa: BLE001 - gRPC raises several types; the reader of the stream gets the reason
        return False
    return True


_SIZED = frozenset({tuple, str, bytes, list})


def _size(value: Any) -> int:
    """Return the bytes of an outcome, or of a list of stream items."""
    if type(value) is list:
        return sum(map(weight_of, value))
    return weight_of(value)
