"""A conversation that survives its connection: frames are numbered, kept until acknowledged, and never heard twice.

Pure bookkeeping without I/O. When a connection breaks and another one takes its place, each side says which frame it has
heard last and the other repeats what came after it; so a call is carried out once although it may be sent twice.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError
from paragent.remote.protocol import Assembler, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["Conversation"]

_ACK_FRAMES = 32
_ACK_BYTES = 4 << 20
"""After so many frames or bytes an acknowledgement is due although there is nothing else to say: what is kept for
repetition stays small, and a frame each way is not needed for every frame."""
_KEPT_BYTES = 64 << 20
"""What may be kept for repetition before the other side must acknowledge: sixteen of its acknowledgements."""


class Conversation:
    """One side's memory of what was said and heard. Belongs to one thread."""

    def __init__(self, frame_limit: int, *, hears_data: bool = False) -> None:
        self._frame_limit, self._hears_data = frame_limit, hears_data
        self.says_data = False
        """Whether the other side reads frames that are data only; known before anything is said to it."""
        self._said = 0
        self._kept: deque[tuple[int, list[bytes]]] = deque()
        self._kept_bytes = 0
        self.heard = 0
        """The number of the last frame that was heard."""
        self._heard_frames = 0
        self._heard_bytes = 0
        self.ack_late = False
        """Set by a timer: acknowledge now."""
        self._assembler = Assembler(frame_limit, as_data=hears_data)

    @property
    def ack_due(self) -> bool:
        """Whether an acknowledgement should go out even without anything else to say."""
        return self.ack_late or self._heard_frames >= _ACK_FRAMES or self._heard_bytes >= _ACK_BYTES

    @property
    def choked(self) -> bool:
        """Whether nothing but acknowledgements may be said until the other side has acknowledged what it was told."""
        return self._kept_bytes >= _KEPT_BYTES

    @property
    def ack_owed(self) -> bool:
        """Whether something was heard that has not been acknowledged."""
        return self._heard_frames > 0

    def say(self, items: Sequence[Any], attachments: Sequence[Any] = ()) -> list[bytes]:
        """Return the messages of the next frame, and keep them until they are acknowledged.

        Raises:
            Exception: an item cannot be encoded; nothing was said then.
        """
        # A bare acknowledgement has no number and is not repeated.
        number = self._said + 1 if items else 0
        messages = encode(number, self.heard, items, attachments, as_data=self.says_data)
        self._heard_frames = self._heard_bytes = 0
        self.ack_late = False
        if not items:
            return messages
        self._said = number
        self._kept.append((self._said, messages))
        self._kept_bytes += sum(map(len, messages))
        return messages

    def hear(self, message: bytes) -> tuple[int, list[Any], list[bytes]] | None:
        """Take a message in; return `(acknowledged, items, attachments)` of a frame that is complete and new.

        The caller handles the items first and then calls `forget(acknowledged)`.

        Raises:
            ProtocolError: a frame is missing or malformed.
        """
        self._heard_bytes += len(message)
        frame = self._assembler.feed(message)
        if frame is None:
            return None
        number, acknowledged, items, attachments = frame
        if not 0 <= acknowledged <= self._said:
            raise ProtocolError("a frame was acknowledged that was never sent")
        if number == 0:
            return acknowledged, [], []
        if number <= self.heard:
            return None
        if number != self.heard + 1:
            raise ProtocolError(f"frame {number} came after frame {self.heard}")
        self.heard = number
        self._heard_frames += 1
        return acknowledged, items, attachments

    def forget(self, acknowledged: int) -> None:
        """Let go of the frames that the other side has."""
        while self._kept and self._kept[0][0] <= acknowledged:
            self._kept_bytes -= sum(map(len, self._kept.popleft()[1]))

    def resume(self, their_heard: int) -> list[list[bytes]]:
        """Return the frames that the other side has not heard, for a connection that takes the place of another.

        Raises:
            ProtocolError: they claim to have heard what was never said, or miss what was let go.
        """
        self._assembler = Assembler(self._frame_limit, as_data=self._hears_data)
        if not 0 <= their_heard <= self._said:
            raise ProtocolError("the other side heard frames that were never sent")
        self.forget(their_heard)
        if self._kept and self._kept[0][0] != their_heard + 1:
            raise ProtocolError("the other side misses frames that are gone")
        return [messages for _, messages in self._kept]

    def unacknowledged(self) -> Iterator[tuple[list[Any], list[bytes]]]:
        """Yield the items and attachments of every frame that is kept."""
        for _, messages in self._kept:
            assembler = Assembler(self._frame_limit, as_data=self.says_data)
            for message in messages:
                if (frame := assembler.feed(message)) is not None:
                    yield frame[2], frame[3]
