"""Calls under way on one server: the messages to send, the pending calls and their weight, and results that the server keeps."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from paragent.errors import AgentStopped, ParagentError, ProtocolError
from paragent.remote.protocol import (
    CallError,
    CallMethod,
    CallResult,
    CreateAgent,
    DefineClass,
    PinResult,
    PushValue,
    ReleaseResult,
    RequestValue,
    ResultHeld,
    StreamItems,
)
from paragent.remote.reliable_stream import FRAME_BYTES, FRAME_MESSAGES
from paragent.remote.result import ENCODED, FAILED, HELD, RAISED, wake_loops
from paragent.remote.values import attach, restore
from paragent.transport.limits import CALL_BYTES, Limits, TimeBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.link import Link
    from paragent.remote.result import RemoteCall, Wakeups

__all__ = ["SMALL", "HardStop", "Outbox", "PendingCalls", "ResultPin"]

SMALL = 4096
"""Smaller messages do not count towards the size of their frame; 4,000 of them have at most 16 MB."""


class _Sized:
    """A message that counts towards the size of its frame."""

    __slots__ = ("message", "size")

    def __init__(self, message: Any, size: int) -> None:
        self.message, self.size = message, size


class Outbox:
    """Messages that wait to be sent.

    Any thread may call `put`, `wake`, `clear` and `close`, which never block. The other methods belong to the I/O loop.

    Args:
        notify: tells the I/O loop that there are messages; called once until `begin_reading`.
    """

    __slots__ = ("_awake", "_messages", "_notify", "_translate")

    def __init__(self, notify: Callable[[], None]) -> None:
        self._notify = notify
        self._messages: deque[Any] = deque()
        self._awake = False
        """Whether the I/O loop knows that there are messages."""
        self._translate: Callable[[Any], Any | None] | None = None

    def __len__(self) -> int:
        return len(self._messages)

    def put(self, message: Any, size: int = 0) -> None:
        """Add a message; `size` is the number of bytes of the packed objects in it."""
        self._messages.append(message if size < SMALL else _Sized(message, size))
        if not self._awake:
            self.wake()

    def wake(self) -> None:
        """Have the I/O loop look."""
        self._awake = True
        self._notify()

    def clear(self) -> None:
        """Drop all messages."""
        self._messages.clear()

    def close(self) -> None:
        """Drop all messages, and never notify the I/O loop again."""
        self._awake = True
        self._messages.clear()

    @property
    def sends_data(self) -> bool:
        """Whether the server is known to accept data only."""
        return self._translate is not None

    def send_only_data(self, translate: Callable[[Any], Any | None]) -> None:
        """From now on, pass each message to `translate`, which returns it as data, or None if there is nothing to send."""
        self._translate = translate

    def begin_reading(self) -> None:
        """Have the next `put` notify the I/O loop again."""
        self._awake = False

    def take(self) -> tuple[list[Any], list[Any]]:
        """Return the messages of the next frame and their attachments."""
        if self._translate is not None:
            return self._take_data(self._translate)
        taken: list[Any] = []
        attachments: list[Any] = []
        waiting, room = self._messages, FRAME_BYTES
        for _ in range(min(len(waiting), FRAME_MESSAGES)):
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
        room = FRAME_BYTES
        while self._messages and len(taken) < FRAME_MESSAGES and room >= 0:
            waiting = self._messages.popleft()
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


# --- results that the server keeps --------------------------------------------------------------------------------------


class _ResultPins:
    """The results that the server keeps for this process. Any thread may use it; its methods never block."""

    __slots__ = ("_numbers", "_outbox")

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self._numbers: dict[int, int] = {}
        """Number of the call by identity of the pin."""

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, pin: ResultPin, number: int) -> None:
        """Record that `pin` keeps the result of a call."""
        self._numbers[id(pin)] = number

    def remove(self, pin: ResultPin) -> None:
        """Have the server free the result; called by finalizers."""
        number = self._numbers.pop(id(pin), None)
        if number is not None:
            self._outbox.put(ReleaseResult(number))


class ResultPin:
    """Keeps one result on the server for as long as the pin lives."""

    __slots__ = ("_pins",)

    def __init__(self, pins: _ResultPins, number: int) -> None:
        self._pins = pins
        pins.add(self, number)

    def __del__(self) -> None:
        self._pins.remove(self)


# --- pending calls ------------------------------------------------------------------------------------------------------


class _Pending(Protocol):
    """What `PendingCalls` needs of a call or a stream."""

    number: int
    size: int

    def settle(self, state: int, value: Any, wakeups: Wakeups) -> None: ...


class PendingCalls:
    """Calls and streams that the server has not answered, and their weight.

    The server says how many bytes of calls may be under way, the window. Callers that exceed it wait in `send`.

    Any thread may call all methods but `settle` and `set_window`, which belong to the I/O loop.

    Args:
        outbox: where messages to the server go.
        may_wait: whether the current thread may block in `send`; the I/O loop must not.
        push: called with the key of a value that the server requests.
    """

    __slots__ = (
        *("_calls", "_crowded", "_load", "_lock", "_may_wait", "_outbox", "_pins", "_push", "_room", "_window"),
        "lost",
    )

    def __init__(self, outbox: Outbox, may_wait: Callable[[], bool], push: Callable[[int], None]) -> None:
        self._outbox, self._may_wait, self._push = outbox, may_wait, push
        self._pins = _ResultPins(outbox)
        self._calls: dict[int, Any] = {}
        """By number. Adding and removing one is atomic, so the lock is not needed for it."""
        self.lost: ParagentError | None = None
        """Why the server is lost; None while it is not."""
        self._window = Limits().window_bytes
        self._lock = threading.RLock()
        """Protects `_load` and `_crowded`. Also held by `pin`, from finding a call until its message is in the outbox, and by
        `settle` before its frame is acknowledged. So the server has a result that was pinned in time. Reentrant, because the
        finalizer of a stream calls `forget`, and the garbage collector may run it while the same thread holds the lock."""
        self._room = threading.Condition(self._lock)
        """Notified when the load has fallen below the window."""
        self._load = 0
        self._crowded = False
        """Whether a caller waits for room."""

    # --- any thread -----------------------------------------------------------------------------------------------------

    def add(self, call: _Pending) -> None:
        """Add a call that has no weight."""
        self._calls[call.number] = call

    def send(self, call: _Pending, message: CallMethod, size: int) -> None:
        """Add a call and send its message; blocks while the window is full, unless the thread must not wait."""
        weight = size + CALL_BYTES
        call.size = weight
        self._calls[call.number] = call
        with self._lock:
            # One call may always be under way, however large it is.
            while self._load + weight > self._window and self._load and self.lost is None and self._may_wait():
                self._crowded = True
                self._room.wait(1.0)
            self._load += weight
        self._outbox.put(message, size)

    def forget(self, number: int) -> None:
        """Ignore what still arrives for a call."""
        dropped = self._calls.pop(number, None)
        if dropped is not None:
            with self._lock:
                self._free(dropped.size)

    def pin(self, call: RemoteCall) -> ResultPin | None:
        """Have the server keep the result of a pending call for another call; return None if it has already arrived."""
        with self._lock:
            if call.number not in self._calls:
                return None
            self._outbox.put(PinResult(call.number))
        return ResultPin(self._pins, call.number)

    def is_pending(self, call: RemoteCall) -> bool:
        """Return whether a call has not ended."""
        return self._calls.get(call.number) is call

    def numbers(self) -> list[int]:
        """Return the numbers of all pending calls."""
        return list(self._calls)

    @property
    def idle(self) -> bool:
        """Whether no call is pending and the server keeps no result for this process."""
        return not self._calls and not self._pins

    def abort(self, call: RemoteCall, error: BaseException) -> bool:
        """End a pending call with an error; return False if it had already ended."""
        wakeups: Wakeups = {}
        with self._lock:
            if not self.is_pending(call):
                return False
            del self._calls[call.number]
            call.settle(RAISED, error, wakeups)
            self._free(call.size)
        wake_loops(wakeups)
        return True

    def lose(self, error: ParagentError) -> None:
        """Record why the server is lost, and end all pending calls with that error."""
        if self.lost is None:
            self.lost = error
        self.fail_if_lost()

    def fail_if_lost(self) -> None:
        """End all pending calls if the server is lost: for calls that were added while it was being lost."""
        if self.lost is None:
            return
        wakeups: Wakeups = {}
        with self._lock:
            while self._calls:
                _, call = self._calls.popitem()
                call.settle(RAISED, self.loss(), wakeups)
            self._load = 0
            self._outbox.clear()
            self._room.notify_all()
        wake_loops(wakeups)

    def abandon(self, error: ParagentError) -> None:
        """In a forked process: have `fail_if_lost` end all calls with this error.

        It does not end them itself: programs fork to start other programs, and there may be a million calls.
        """
        self._lock = threading.RLock()  # another thread of the parent may have held it
        self._room = threading.Condition(self._lock)
        # The traceback of an earlier error may be all that keeps a channel of gRPC; freeing that may block in this process.
        self.lost = self.lost or error

    def loss(self) -> ParagentError:
        """Return a new error that says why the server is lost."""
        assert self.lost is not None
        return type(self.lost)(*self.lost.args)

    def _free(self, weight: int) -> None:
        self._load -= weight
        if self._crowded and self._load < self._window:
            self._crowded = False
            self._room.notify_all()

    # --- the I/O loop ---------------------------------------------------------------------------------------------------

    def set_window(self, size: int) -> None:
        """Set how many bytes of calls may be under way, as the server has announced it."""
        self._window = size

    def settle(self, messages: list[Any], attachments: list[bytes]) -> None:
        """Handle the answers of one frame.

        Raises:
            ProtocolError: a message is not an answer.
        """
        wakeups: Wakeups = {}
        freed = 0
        for message in messages:
            if type(message) is not CallResult or attachments:
                freed += self._settle_one(message, attachments, wakeups)
                continue
            call = self._calls.pop(message.number, None)  # the most frequent kind, without further checks
            if call is not None:
                call.settle(ENCODED, message.value, wakeups)
                freed += call.size
        with self._lock:
            self._free(freed)
        wake_loops(wakeups)

    def _settle_one(self, message: Any, attachments: list[bytes], wakeups: Wakeups) -> int:
        """Handle one answer; return the weight of the call that has ended, or 0."""
        kind = type(message)
        if kind not in (CallResult, CallError, RequestValue, ResultHeld, StreamItems):
            raise ProtocolError(f"servers do not send {kind.__name__} messages")
        number = message.number
        if kind is RequestValue:
            self._push(number)
            return 0
        if kind is StreamItems:
            buffer = self._calls.get(number)
            if buffer is not None:
                buffer.add([restore(value, attachments) for value in message.values], wakeups)
            return 0
        call = self._calls.pop(number, None)
        if call is None:
            if kind is ResultHeld:
                ResultPin(self._pins, number)  # dropped at once: the server frees the result
            return 0
        if kind is ResultHeld:
            call.settle(HELD, ResultPin(self._pins, number), wakeups)
        else:
            state = ENCODED if kind is CallResult else FAILED
            call.settle(state, restore(message.value, attachments), wakeups)
        return int(call.size)


# --- cancelled calls that do not end ------------------------------------------------------------------------------------

_ANSWER = 5.0
"""Seconds in which a server must say which calls run. A server that does not answer is blocked by native code that holds the
interpreter, which nothing inside the process can stop."""


class HardStop:
    """Kills the process of an agent that has its own process, if a cancelled call does not end there. Belongs to the I/O loop.

    Args:
        link: the link to the process.
        kill: ends the process and everything that it started.
        grace: seconds that a call has to end after it was cancelled.
    """

    def __init__(self, link: Link, kill: Callable[[], None], grace: float) -> None:
        self._link, self._kill, self._grace = link, kill, grace
        self._watched: dict[int, str] = {}
        """Calls that were cancelled since the last check: number, and why."""
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        """Whether cancelled calls are being watched."""
        return self._task is not None

    def watch(self, number: int, reason: str) -> None:
        """Kill the process if this call, which has just been cancelled, still runs after the grace period."""
        self._watched[number] = reason
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._enforce())

    async def _enforce(self) -> None:
        try:
            while self._watched:
                watched, self._watched = self._watched, {}
                await asyncio.sleep(self._grace)
                if (running := await self._running(list(watched))) is not None:
                    self._end(watched[running])
        finally:
            self._task = None

    async def _running(self, numbers: list[int]) -> int | None:
        """Return the number of a call that still runs, or None; the first number if the process does not answer."""
        if self._link.lost is not None or not self._link.connected:
            return None  # no call runs in a process that is gone or that has not started
        try:
            running = await TimeBudget(_ANSWER).run(_value(self._link.control("running", numbers)))
        except TimeoutError:
            return numbers[0] if self._link.lost is None else None
        except ParagentError:
            return None  # the process has ended
        return running[0] if running else None

    def _end(self, reason: str) -> None:
        self._link.lose(
            AgentStopped(
                f"the process of the agent was ended: a call {reason} and did not end within {self._grace:g} s"
            )
        )
        self._kill()


async def _value(result: Any) -> Any:
    return await result
