"""What callers of any thread want to say to a server, in order, until the I/O loop takes it, a frame at a time."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from paragent.remote.values import attach
from paragent.remote.wire import CALL_MORE, NEW

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SMALL", "Outbox"]

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
