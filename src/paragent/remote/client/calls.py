"""What was asked of a server and not yet answered: the calls under way, how much they weigh, and settling them."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError
from paragent.remote.client import result as states
from paragent.remote.protocol import CALL_MORE, ERROR, HELD, NEW, PIN, RELEASE, RESULT, STREAMED
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
            self._outbox.put((RELEASE, number))


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
    """An item that is large enough to count."""

    __slots__ = ("item", "size")

    def __init__(self, item: tuple[Any, ...], size: int) -> None:
        self.item, self.size = item, size


class Outbox:
    """Items on their way out. `put` may be called from any thread and never blocks; `take` is the I/O loop's.

    Args:
        notify: tells the I/O loop that there is something; called once until `take` has begun again.
    """

    __slots__ = ("_notify", "awake", "items", "translate")

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self.items: deque[Any] = deque()
        self.awake = False
        """Whether the I/O loop knows that there is something to send."""
        self.translate: Callable[[tuple[Any, ...]], tuple[Any, ...] | None] | None = None
        """Where the server accepts data only: returns an item as data, or None where nothing of it is left."""

    def put(self, item: tuple[Any, ...], size: int = 0) -> None:
        """Put an item on its way; `size` is that of what is packed in it."""
        self.items.append(_Sized(item, size) if size >= SMALL else item)
        if not self.awake:
            self.wake()

    def wake(self) -> None:
        """Have the I/O loop look."""
        self.awake = True
        self._notify()

    def take(self) -> tuple[list[Any], list[Any]]:
        """Return the items of the next frame and their attachments."""
        if self.translate is not None:
            return self._take_data(self.translate)
        items: list[Any] = []
        attachments: list[Any] = []
        waiting, room = self.items, _FRAME_BYTES
        for _ in range(min(len(waiting), _FRAME_ITEMS)):
            item = waiting.popleft()
            if type(item) is _Sized:
                room -= item.size
                item = _attached(item.item, attachments)
            items.append(item)
            if room < 0:
                break
        return items, attachments

    def _take_data(self, translate: Callable[[tuple[Any, ...]], tuple[Any, ...] | None]) -> tuple[list[Any], list[Any]]:
        items: list[Any] = []
        attachments: list[Any] = []
        room = _FRAME_BYTES
        while self.items and len(items) < _FRAME_ITEMS and room >= 0:
            waiting = self.items.popleft()
            sized = type(waiting) is _Sized
            item = translate(waiting.item if sized else waiting)
            if item is not None:
                room -= waiting.size if sized else 0
                items.append(_attached(item, attachments) if sized else item)
        return items, attachments


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

    def send(
        self, number: int, result: Any, item: tuple[Any, ...], size: int, must_not_wait: Callable[[], bool]
    ) -> None:
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
            outbox.items.append(item)
            if not outbox.awake:
                outbox.wake()
        else:
            outbox.put(item, size)

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
            self.outbox.items.append((PIN, result._number))
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

    def settle(self, items: list[Any], attachments: list[bytes]) -> None:
        """Take the answers of one frame.

        Raises:
            ProtocolError: an answer is of no known kind.
        """
        wakes: dict[Any, list[Any]] = {}
        freed = 0
        for item in items:
            if item[0] != RESULT or attachments:
                freed += self._note(item, attachments, wakes)
                continue
            result = self.pending.pop(item[1], None)  # the common one, short
            if result is not None:
                result._settle(states.ENCODED, item[2], wakes)
                freed += result._size
        with self.lock:
            self._free(freed)
        _wake_loops(wakes)

    def _free(self, weight: int) -> None:
        self._load -= weight
        if self._crowded and self._load < self.window:
            self._crowded = False
            self._room.notify_all()

    def _note(self, item: Any, attachments: list[bytes], wakes: Any) -> int:
        """Settle one result; return what its call weighed."""
        kind, number = item[0], item[1]
        if kind == STREAMED:
            stream = self.pending.get(number)
            if stream is not None:
                stream._take([restore(value, attachments) for value in item[2]], wakes)
            return 0
        result = self.pending.pop(number, None)
        if result is None:
            if kind == HELD:
                Hold(self.holds, number)  # nobody waits any more: let the server free it
            return 0
        if kind == RESULT:
            result._settle(states.ENCODED, restore(item[2], attachments) if attachments else item[2], wakes)
        elif kind == HELD:
            result._settle(states.HELD, Hold(self.holds, number), wakes)
        elif kind == ERROR:
            result._settle(states.FAILED, restore(item[2], attachments) if attachments else item[2], wakes)
        else:
            raise ProtocolError(f"an answer of unknown kind {kind!r}")
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
            self.outbox.items.clear()
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
