"""Connection to an agent server, on the I/O loop: connects, sends and receives frames, and reconnects after a break.

If reconnecting does not succeed within the time limit of the client, the server counts as lost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any, Protocol

from paragent._internal.processes import program
from paragent.errors import AccessDenied, LimitExceeded, ParagentError, ProtocolError, ServerLost
from paragent.remote.protocol import Goodbye
from paragent.remote.reliable_stream import ACK_SECONDS, ReliableStream
from paragent.transport.client import ClientStream, ConnectionClosed, connect
from paragent.transport.limits import Limits, TimeBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.pending_calls import Outbox, PendingCalls
    from paragent.transport.address import Address, TlsConf
    from paragent.transport.auth import Token

__all__ = ["Connection", "ExternalServer", "ServerEndpoint"]

_FIRST_CONNECT = 2.0
"""Seconds to connect for the first time: a server that is starting at the same time may take that long."""
_NOTICING = 0.65
"""Seconds by which that limit is shorter after the server stopped answering. Noticing that takes up to 1.55 s (see
`transport.client`), and both together must take less than 2 s with the default limit."""
_ATTEMPT = 5.0
"""Longest attempt to reconnect: over a network that works again, a new attempt succeeds before an old one is repeated."""
_CLOSED_WORDS = ("closed", "reset", "cancel")
"""Words in gRPC's errors for a connection that was closed or reset. Any other error means that the server stopped answering."""
_RETRY = 0.05
"""Seconds between two attempts to connect."""


class ServerEndpoint(Protocol):
    """An agent server that a link connects to."""

    address: Address

    async def ready(self) -> None:
        """Return when the server accepts connections.

        Raises:
            ServerLost: it could not start.
        """

    async def gone(self) -> str:
        """Return a message when the server has ended; never return if only the connection shows that."""

    def unreachable(self, trouble: ParagentError, *, first: bool) -> str:
        """Return the error message for a server that cannot be reached; `first`: it has never been reached."""


class ExternalServer:
    """An agent server that this program did not start."""

    def __init__(self, address: Address, tls: TlsConf | None) -> None:
        self.address = address
        self._tls = tls

    async def ready(self) -> None:
        """Return at once: connecting shows whether the server is there."""

    async def gone(self) -> str:
        """Never return."""
        await asyncio.Event().wait()
        raise AssertionError

    def unreachable(self, trouble: ParagentError, *, first: bool) -> str:
        """Return the error message; if the server was never reached, it says how to start one."""
        reason = str(trouble).removeprefix(f"server {self.address}: ")
        if not first:
            return (
                f"agent server {self.address} is gone: it died, was stopped or cannot be reached ({reason}). Its agents count as "
                "lost: create new ones when it answers again. To wait for a server that froze, use "
                "to_dist(reconnect_timeout=...) or start the restricted server whose agent calls it with --reconnect-timeout"
            )
        if self.address.path:
            return f"no agent server listens at {self.address} any more"
        start = f"paragent agent-server --host {self.address.host} --port {self.address.port}"
        if isinstance(trouble, ConnectionClosed) and self._tls is not None:
            return (
                f"the server at {self.address} closed the connection after the TLS handshake: it may require a certificate of "
                "its clients; name yours with TlsConf(cert=..., key=...) or --tls-cert and --tls-key"
            )
        if isinstance(trouble, ConnectionClosed):
            return (
                f"the server at {self.address} closes connections without TLS: if it uses TLS, connect with "
                f"to_dist(tls=TlsConf(ca=...)) or --tls-ca FILE; if it is not an agent server, start one with: {start}"
            )
        return f"no agent server answers at {self.address}; start one there with: {start} ({reason})"


class Connection:
    """Sends the messages of an outbox to a server and settles pending calls with the answers.

    `notify` and `retire` may be called from any thread. Everything else belongs to the I/O loop.

    Args:
        endpoint: the server.
        token: the secret that both sides know.
        tls: how to use TLS, or None.
        pending: the calls to settle, and to fail when the server is lost.
        outbox: the messages to send.
        loop: the I/O loop.
        reconnect_timeout: seconds to reconnect after the connection broke.
        data_only: whether to unpickle nothing that the server sends.
    """

    def __init__(
        self,
        endpoint: ServerEndpoint,
        token: Token,
        tls: TlsConf | None,
        pending: PendingCalls,
        outbox: Outbox,
        loop: asyncio.AbstractEventLoop,
        *,
        reconnect_timeout: float,
        data_only: bool,
    ) -> None:
        self.session = secrets.token_hex(16)
        """Name under which the server knows this client, over all its connections."""
        self.broken = False
        """Whether the connection broke and has not been made again."""
        self.peer_tls = False
        """Whether the server can connect to other servers that use TLS."""
        self._endpoint, self._token, self._tls, self._data_only = endpoint, token, tls, data_only
        self._pending, self._outbox, self._loop = pending, outbox, loop
        self._reconnect_timeout = reconnect_timeout
        limits = Limits()
        frame_limit = 2 * limits.window_bytes if data_only else limits.frame_bytes
        self._frames = ReliableStream(frame_limit, reads_data=data_only)
        self._stream: ClientStream | None = None
        self._runner: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._instance: str | None = None
        """The server process that this was first connected to."""
        self._ack_timer: asyncio.TimerHandle | None = None
        self._retired: Callable[[], None] | None = None
        self._closing = False

    @property
    def connected(self) -> bool:
        """Whether a connection has been made and not closed."""
        return self._stream is not None

    def notify(self) -> None:
        """Have the I/O loop look for messages to send. The first time, this connects."""
        if not self._closing or self._runner is not None:
            self._loop.call_soon_threadsafe(self._start_or_wake)

    def retire(self, then: Callable[[], None]) -> None:
        """Have `then` called, on the I/O loop, when no call is pending and the server keeps no result."""
        self._retired = then
        self.notify()

    def _start_or_wake(self) -> None:
        if self._runner is None:
            self._runner = self._loop.create_task(self._run())
        self._wake.set()

    async def _run(self) -> None:
        watch = self._loop.create_task(self._watch_endpoint())
        try:
            await self._keep_connected()
        except ParagentError as error:
            self._pending.lose(error)
        except asyncio.CancelledError:
            self._pending.lose(ServerLost(f"the link to agent server {self._endpoint.address} was closed"))
        except Exception as error:  # noqa: BLE001 - after any error, no caller may be left waiting
            self._pending.lose(ServerLost(f"agent server {self._endpoint.address}: {type(error).__name__}: {error}"))
        finally:
            watch.cancel()
            if self._stream is not None:
                await self._stream.close()
                self._stream = None

    async def _watch_endpoint(self) -> None:
        reason = await self._endpoint.gone()
        self._pending.lose(ServerLost(reason))
        assert self._runner is not None
        self._runner.cancel()

    # --- connecting -----------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        await self._endpoint.ready()
        budget = TimeBudget(_FIRST_CONNECT)
        while True:
            welcome = await self._reach(budget)
            self._apply(welcome)
            try:
                await self._exchange(welcome)
            except (AccessDenied, LimitExceeded, ProtocolError):
                raise
            except ParagentError as error:
                self.broken = True
                closed = any(word in str(error).lower() for word in _CLOSED_WORDS)
                budget = TimeBudget(
                    self._reconnect_timeout if closed else max(self._reconnect_timeout - _NOTICING, _RETRY)
                )

    async def _reach(self, budget: TimeBudget) -> dict[str, Any]:
        """Connect; try again until the time budget is used up."""
        trouble: ServerLost | LimitExceeded | None = None
        while True:
            left = budget.left
            attempt = TimeBudget(min(left, _ATTEMPT))
            hello = {
                "session": self.session,
                "program": program(),
                "received": self._frames.received,
                "reconnect": self._instance is not None,
                "data_only": self._data_only,
            }
            try:
                self._stream, welcome = await connect(
                    self._endpoint.address, "agents", self._token, self._tls, hello, attempt
                )
            except (ServerLost, LimitExceeded) as error:
                budget.left -= min(left, _ATTEMPT) - attempt.left
                if trouble is None or left > 1.0:  # the last attempts have too little time to tell the reason
                    trouble = error
                if budget.left <= _RETRY:
                    if isinstance(error, LimitExceeded):
                        raise
                    raise ServerLost(self._endpoint.unreachable(trouble, first=self._instance is None)) from None
                await asyncio.sleep(_RETRY)
                budget.left -= _RETRY
                continue
            except (AccessDenied, ProtocolError) as error:
                if self._instance is None:
                    raise
                raise ServerLost(
                    f"agent server {self._endpoint.address} is gone, and another program answers at its address ({error}). Its "
                    "agents are lost: create new ones"
                ) from error
            return welcome

    def _apply(self, welcome: dict[str, Any]) -> None:
        """Apply what the server says about itself.

        Raises:
            ServerLost: it is not the server process that this was connected to before.
        """
        if self._instance is not None and (welcome["instance"] != self._instance or not welcome["resumed"]):
            raise ServerLost(
                f"agent server {self._endpoint.address} was restarted, or this client was disconnected for longer than its "
                "lease; the agents there are gone: create new ones"
            )
        self._instance = welcome["instance"]
        self._pending.set_window(int(welcome["window"]))
        self.peer_tls = bool(welcome["peer_tls"])
        if not welcome["accepts_code"]:
            from paragent.remote.restricted import translated  # not at the top: few servers need it

            self._frames.writes_data = True
            self._outbox.send_only_data(translated)
        self.broken = False

    # --- frames ---------------------------------------------------------------------------------------------------------

    async def _exchange(self, welcome: dict[str, Any]) -> None:
        assert self._stream is not None
        stream = self._stream
        for parts in self._frames.resume(int(welcome["received"])):
            for part in parts:
                await stream.write(part)
        writer = self._loop.create_task(self._write(stream))
        writer.add_done_callback(lambda _: stream.cancel())  # nothing can be sent any more: end the reader too
        try:
            while True:
                self._receive(await stream.read())
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            await stream.close()
            error = None if writer.cancelled() else writer.exception()
            if error is not None and not isinstance(error, ParagentError):
                raise error  # not an error of the connection: messages taken from the outbox are lost

    async def _write(self, stream: ClientStream) -> None:
        frames, wake, outbox = self._frames, self._wake, self._outbox
        while True:
            await wake.wait()
            wake.clear()
            outbox.begin_reading()
            while (outbox and not frames.window_full) or frames.ack_due:
                taken = ([], []) if frames.window_full else outbox.take()
                for part in self._frame(*taken):
                    await stream.write(part)
            if self._retired is not None and self._pending.idle:
                self._retired()

    def _frame(self, messages: list[Any], attachments: list[Any]) -> list[bytes]:
        """Return the parts of a frame. If it cannot be encoded, the server counts as lost: callers would wait for ever."""
        try:
            return self._frames.next_frame(messages, attachments)
        except Exception as error:
            self._pending.lose(
                ProtocolError(f"a message to agent server {self._endpoint.address} cannot be encoded: {error}")
            )
            assert self._runner is not None
            self._runner.cancel()
            raise

    def _receive(self, part: bytes) -> None:
        frames = self._frames
        frame = frames.receive(part)
        if frame is None:
            return
        acknowledged, messages, attachments = frame
        if messages:
            self._pending.settle(messages, attachments)
        window_full = frames.window_full
        frames.drop_acknowledged(acknowledged)
        if frames.ack_due or self._retired is not None or window_full:
            self._wake.set()
        elif messages and self._ack_timer is None:
            self._ack_timer = self._loop.call_later(ACK_SECONDS, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        if self._frames.ack_owed:
            self._frames.ack_late = True
            self._wake.set()

    # --- the end --------------------------------------------------------------------------------------------------------

    async def reconnect(self) -> None:
        """Close the connection and make a new one, over which both sides repeat what the other has not received."""
        if self._stream is not None:
            await self._stream.close()

    async def close(self, timeout: float) -> None:
        """Close the session and the connection; pending calls fail with `ServerLost`."""
        self._closing = True
        runner = self._runner
        if runner is None or runner.done():
            return
        if self._stream is not None and self._pending.lost is None:
            self._outbox.put(Goodbye())
            until = time.monotonic() + timeout
            while self._outbox and time.monotonic() < until and not runner.done():
                await asyncio.sleep(0.002)
        runner.cancel()
        await asyncio.wait([runner], timeout=timeout)
