"""Reliable stream: frames that survive a broken connection. They are numbered, kept until acknowledged, and delivered once.

This is bookkeeping without I/O. After a reconnect each side says which frame it received last, and the other side repeats the
frames after it. So a call is executed once although it may be sent twice.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from paragent.errors import ProtocolError
from paragent.remote.protocol import Assembler, encode

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ACK_SECONDS", "FRAME_BYTES", "FRAME_MESSAGES", "ReliableStream"]

FRAME_MESSAGES = 4_000
FRAME_BYTES = 1 << 20
"""A frame ends after this many messages or bytes, so that the receiver can begin while the next frame is made."""
ACK_SECONDS = 0.2
"""Seconds after which a received frame is acknowledged even if there is nothing else to send."""
_ACK_FRAMES = 32
_ACK_BYTES = 4 << 20
"""After this many frames or bytes an acknowledgement is due even if there is nothing else to send. This bounds what the sender
keeps without an acknowledgement for each frame."""
_UNACKNOWLEDGED_BYTES = 64 << 20
"""Bytes that may be sent and not acknowledged: sixteen times `_ACK_BYTES`."""


class ReliableStream:
    """One side of a stream. Not thread-safe: one thread owns it.

    Args:
        frame_limit: the largest frame to receive, in bytes.
        reads_data: whether received frames are data, so that nothing is unpickled.
    """

    def __init__(self, frame_limit: int, *, reads_data: bool = False) -> None:
        self._frame_limit, self._reads_data = frame_limit, reads_data
        self.writes_data = False
        """Whether the peer reads data only. Must be set before the first frame."""
        self._sent = 0
        """Number of the last frame that was sent."""
        self._kept: deque[tuple[int, list[bytes]]] = deque()
        """Frames that the peer has not acknowledged: number and parts."""
        self._kept_bytes = 0
        self.received = 0
        """Number of the last frame that was received."""
        self._unacknowledged_frames = 0
        self._unacknowledged_bytes = 0
        self.ack_late = False
        """Set by a timer to have an acknowledgement sent now."""
        self._assembler = Assembler(frame_limit, as_data=reads_data)

    @property
    def ack_due(self) -> bool:
        """Whether to send an acknowledgement even if there is nothing else to send."""
        return self.ack_late or self._unacknowledged_frames >= _ACK_FRAMES or self._unacknowledged_bytes >= _ACK_BYTES

    @property
    def ack_owed(self) -> bool:
        """Whether a frame was received that has not been acknowledged."""
        return self._unacknowledged_frames > 0

    @property
    def window_full(self) -> bool:
        """Whether only acknowledgements may be sent until the peer has acknowledged earlier frames."""
        return self._kept_bytes >= _UNACKNOWLEDGED_BYTES

    def next_frame(self, messages: Sequence[Any], attachments: Sequence[Any] = ()) -> list[bytes]:
        """Return the parts of the next frame, and keep them until the peer acknowledges them.

        Without messages the frame is an acknowledgement, which has no number and is not repeated.

        Raises:
            Exception: a message cannot be encoded; the frame is then not counted as sent.
        """
        number = self._sent + 1 if messages else 0
        parts = encode(number, self.received, messages, attachments, as_data=self.writes_data)
        self._unacknowledged_frames = self._unacknowledged_bytes = 0
        self.ack_late = False
        if not messages:
            return parts
        self._sent = number
        self._kept.append((number, parts))
        self._kept_bytes += sum(map(len, parts))
        return parts

    def receive(self, part: bytes) -> tuple[int, list[Any], list[bytes]] | None:
        """Take a part; return `(acknowledged, messages, attachments)` if it completes a new frame.

        The caller handles the messages first and then calls `drop_acknowledged(acknowledged)`.

        Raises:
            ProtocolError: a frame is missing or malformed.
        """
        self._unacknowledged_bytes += len(part)
        frame = self._assembler.feed(part)
        if frame is None:
            return None
        number, acknowledged, messages, attachments = frame
        if not 0 <= acknowledged <= self._sent:
            raise ProtocolError("a frame was acknowledged that was never sent")
        if number == 0:
            return acknowledged, [], []
        if number <= self.received:
            return None
        if number != self.received + 1:
            raise ProtocolError(f"frame {number} came after frame {self.received}")
        self.received = number
        self._unacknowledged_frames += 1
        return acknowledged, messages, attachments

    def drop_acknowledged(self, acknowledged: int) -> None:
        """Drop the kept frames up to a number."""
        while self._kept and self._kept[0][0] <= acknowledged:
            self._kept_bytes -= sum(map(len, self._kept.popleft()[1]))

    def resume(self, peer_received: int) -> list[list[bytes]]:
        """Continue on a new connection; return the frames to repeat, those after `peer_received`.

        Raises:
            ProtocolError: the peer claims frames that were never sent, or needs frames that were dropped.
        """
        self._assembler = Assembler(self._frame_limit, as_data=self._reads_data)
        if not 0 <= peer_received <= self._sent:
            raise ProtocolError("the peer claims to have received frames that were never sent")
        self.drop_acknowledged(peer_received)
        if self._kept and self._kept[0][0] != peer_received + 1:
            raise ProtocolError("the peer needs frames that were dropped")
        return [parts for _, parts in self._kept]

    def unacknowledged(self) -> Iterator[tuple[list[Any], list[bytes]]]:
        """Yield the messages and attachments of every kept frame."""
        for _, parts in self._kept:
            assembler = Assembler(self._frame_limit, as_data=self.writes_data)
            for part in parts:
                if (frame := assembler.feed(part)) is not None:
                    yield frame[2], frame[3]
