"""What was asked of a server and not yet answered: the calls under way, how much they weigh, and settling them."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError
from paragent.remote.client import result as states
from paragent.remote.protocol import (
    CallError,
    CallMethod,
    CallResult,
    CreateAgent,
    DefineClass,
    PinResult,
    PushValue,
    ReleaseResult,
    ResultHeld,
    StreamItems,
)
from paragent.remote.values import attach, restore
from paragent.transport.limits import CALL_BYTES, Limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.errors import ParagentError
    from paragent.remote.client.result import Result

__all__ = ["SMALL", "Hold", "Holds", "Ledger", "Outbox"]


class Holds:
    """The results that a server keeps for this process."""

    __slots__ = ("_numbers", "_outbox")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._numbers: dict[int, int] = {}
        """By the identity of what holds each."""

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, hold: Hold, number: int) -> None:
        """Note that `hold` keeps the result of a call."""
        self._numbers[id(hold)] = number

    def drop(self, hold: Hold) -> None:
        """Let the server free what `hold` kept; never blocks, as it is done where an object is dropped."""
        number = self._numbers.pop(id(hold), None)
        if number is not None:
            self._outbox.put(ReleaseResult(number))


class Hold:
    """Keeps one result alive on the server; dropped together with whatever wanted it."""

    __slots__ = ("_holds",)

    def __init__(self, holds: Holds, number: int) -> None:
        self._holds = holds
        holds.add(self, number)

    def __del__(self) -> None:
        self._holds.drop(self)


_FRAME_ITEMS = 4_000
_FRAME_BYTES = 1 << 20
"""A frame ends after so many items or bytes, so that the far side can begin while the next is made."""
SMALL = 4096
"""Bytes below which an item does not count towards the size of its frame; 4,000 smaller ones are at most 16 MB."""


class _Sized:
    """A message that is large enough to count."""

    __slots__ = ("message", "size")

    def __init__(self, message: Any, size: int) -> None:
        self.message, self.size = message, size


class Outbox:
    """Messages on their way out. `put` may be called from any thread and never blocks; `take` is the I/O loop's.

    Args:
        notify: tells the I/O loop that there is something; called once until `take` has begun again.
    """

    __slots__ = ("_notify", "awake", "messages", "translate")

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.messages: deque[Any] = deque()
        self.awake = False
        """Whether the I/O loop knows that there is something to send."""
        self.translate: Callable[[Any], Any | None] | None = None
        """For a server that accepts data only: returns a message as data, or None if there is nothing to send."""

    def put(self, message: Any, size: int = 0) -> None:
        """Add a message; `size` is that of the packed objects in it."""
        self.messages.append(_Sized(message, size) if size >= SMALL else message)
        if not self.awake:
            self.wake()

    def wake(self) -> None:
        """Have the I/O loop look."""
        self.awake = True
        self._notify()

    def take(self) -> tuple[list[Any], list[Any]]:
        """Return the messages of the next frame and their attachments."""
        if self.translate is not None:
            return self._take_data(self.translate)
        taken: list[Any] = []
        attachments: list[Any] = []
        waiting, room = self.messages, _FRAME_BYTES
        for _ in range(min(len(waiting), _FRAME_ITEMS)):
            message = waiting.popleft()
            if type(message) is _Sized:
                room -= message.size
                message = _attached(message.message, attachments)
            taken.append(message)
            if room < 0:
                break
        return taken, attachments

    def _take_data(self, translate: Callable[[Any], Any | None]) -> tuple[list[Any], list[Any]]:
        taken: list[Any] = []
        attachments: list[Any] = []
        room = _FRAME_BYTES
        while self.messages and len(taken) < _FRAME_ITEMS and room >= 0:
            waiting = self.messages.popleft()
            sized = type(waiting) is _Sized
            message = translate(waiting.message if sized else waiting)
            if message is not None:
                room -= waiting.size if sized else 0
                taken.append(_attached(message, attachments) if sized else message)
        return taken, attachments


def _attached(message: Any, attachments: list[Any]) -> Any:
    """Return the message with the large values in it moved to the attachments."""
    if isinstance(message, CallMethod | CreateAgent):
        args = tuple([attach(value, attachments) for value in message.args])
        kwargs = message.kwargs and {key: attach(value, attachments) for key, value in message.kwargs.items()}
        return replace(message, args=args, kwargs=kwargs)
    if isinstance(message, DefineClass | PushValue):
        return replace(message, value=attach(message.value, attachments))
    return message


class Ledger:
    """Results and streams under way, by call. Callers of any thread add, the I/O loop settles."""

    __slots__ = ("_crowded", "_load", "_room", "holds", "lock", "lost", "outbox", "pending", "window")

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self.holds = Holds(outbox)
        self.pending: dict[int, Any] = {}
        self.lost: ParagentError | None = None
        """Why nothing more can be asked of this server; None while it can."""
        self.window = Limits().window_bytes
        """What calls under way may weigh together; the server says it in welcome and holds its clients to it."""
        self.lock = threading.Lock()
        """Protects the load. Also held by whoever pins a result, from finding its call under way until the server will be told,
        and taken by whoever settles a frame before it is acknowledged: what was pinned in time is still there."""
        self._room = threading.Condition(self.lock)
        """Notified when the load has fallen below the window."""
        self._load = 0
        self._crowded = False

    # --- callers --------------------------------------------------------------------------------------------------------

    def send(self, number: int, result: Any, message: CallMethod, size: int, must_not_wait: Callable[[], bool]) -> None:
        """Enter a call and put it on its way; waits while the window is full, if the caller is one who may."""
        weight = size + CALL_BYTES
        result._size = weight
        self.pending[number] = result
        with self.lock:
            # One call may always be under way, however large it is.
            while self._load + weight > self.window and self._load and self.lost is None and not must_not_wait():
                self._crowded = True
                self._room.wait(1.0)
            self._load += weight
        outbox = self.outbox
        if size < SMALL:
            outbox.messages.append(message)
            if not outbox.awake:
                outbox.wake()
        else:
            outbox.put(message, size)

    def forget(self, number: int) -> None:
        """Drop whatever still comes for a call."""
        dropped = self.pending.pop(number, None)
        if dropped is not None:
            with self.lock:
                self._free(dropped._size)

    def pin(self, result: Result) -> Hold | None:
        """Have the server keep the result of a call under way for somebody else; None if it has already come."""
        with self.lock:
            if result._number not in self.pending:
                return None
            self.outbox.messages.append(PinResult(result._number))
        self.outbox.wake()
        return Hold(self.holds, result._number)

    def is_pending(self, result: Any) -> bool:
        """Return whether the call of a result has not ended."""
        return self.pending.get(result._number) is result

    def loss(self) -> ParagentError:
        """Return a fresh error that says why the server is lost."""
        assert self.lost is not None
        return type(self.lost)(*self.lost.args)

    # --- the I/O loop ---------------------------------------------------------------------------------------------------

    def settle(self, messages: list[Any], attachments: list[bytes]) -> None:
        """Take the answers of one frame.

        Raises:
            ProtocolError: a message is not an answer.
        """
        wakes: dict[Any, list[Any]] = {}
        freed = 0
        for message in messages:
            if type(message) is not CallResult or attachments:
                freed += self._note(message, attachments, wakes)
                continue
            result = self.pending.pop(message.number, None)  # the common one, short
            if result is not None:
                result._settle(states.ENCODED, message.value, wakes)
                freed += result._size
        with self.lock:
            self._free(freed)
        _wake_loops(wakes)

    def _free(self, weight: int) -> None:
        self._load -= weight
        if self._crowded and self._load < self.window:
            self._crowded = False
            self._room.notify_all()

    def _note(self, message: Any, attachments: list[bytes], wakes: Any) -> int:
        """Settle one result; return what its call weighed."""
        kind = type(message)
        if kind not in (CallResult, CallError, ResultHeld, StreamItems):
            raise ProtocolError(f"servers do not send {kind.__name__} messages")
        number = message.number
        if kind is StreamItems:
            stream = self.pending.get(number)
            if stream is not None:
                stream._take([restore(value, attachments) for value in message.values], wakes)
            return 0
        result = self.pending.pop(number, None)
        if result is None:
            if kind is ResultHeld:
                Hold(self.holds, number)  # nobody waits any more: let the server free it
            return 0
        if kind is ResultHeld:
            result._settle(states.HELD, Hold(self.holds, number), wakes)
        else:
            state = states.ENCODED if kind is CallResult else states.FAILED
            result._settle(state, restore(message.value, attachments), wakes)
        return int(result._size)

    def abort(self, result: Result, error: BaseException, then: Callable[[int], None]) -> None:
        """End a call with an error from here, if it has not ended; `then` is called with its number."""
        wakes: dict[Any, list[Any]] = {}
        with self.lock:
            if self.pending.get(result._number) is not result:
                return
            del self.pending[result._number]
            result._settle(states.RAISED, error, wakes)
            self._free(result._size)
        then(result._number)
        _wake_loops(wakes)

    def lose(self, error: ParagentError) -> None:
        """Note that the server is lost, and why; everyone who waits for it is told. Any thread may do it."""
        if self.lost is None:
            self.lost = error
        self.fail_all()

    def fail_all(self) -> None:
        """End everything under way with the error of the loss; from any thread."""
        wakes: dict[Any, list[Any]] = {}
        with self.lock:
            while self.pending:
                _, result = self.pending.popitem()
                result._settle(states.RAISED, self.loss(), wakes)
            self._load = 0
            self.outbox.messages.clear()
            self._room.notify_all()
        _wake_loops(wakes)


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
