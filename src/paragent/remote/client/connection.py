"""The connection under a link, on the I/O loop: made, used, made again when it breaks, and given up in the end.

A connection that breaks is made again within a fraction of a second, or the server counts as lost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from typing import TYPE_CHECKING, Any

from paragent._internal.processes import program
from paragent.errors import AccessDenied, LimitExceeded, ParagentError, ProtocolError, ServerLost
from paragent.remote.protocol import Goodbye
from paragent.remote.reliable_stream import ReliableStream
from paragent.transport.client import ClientStream, connect
from paragent.transport.limits import Limits, TimeBudget

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.client.calls import Ledger
    from paragent.remote.client.links import Place
    from paragent.transport.auth import Token
    from paragent.transport.tls import TlsConf

__all__ = ["Connection"]

_FIRST_CONNECT = 2.0
"""Seconds to find a server at first: one that is starting at the same time may take that long."""
_RECONNECT = 1.0
"""Seconds to find a server again whose connection broke at once, before our eyes."""
_RECONNECT_SILENT = 0.35
"""The same after a silence, which alone takes up to 1.55 s to be noticed (see `rpc.client`): the promise is 2 s for both."""
_SEEN = ("closed", "reset", "cancel")
"""Words by which gRPC says that a connection ended before our eyes; whatever else it says counts as a silence."""
_RETRY = 0.05
_ACK_AFTER = 0.2
"""Seconds after which a frame is acknowledged although there is nothing else to say."""


class Connection:
    """Carries what is in an outbox to a server and settles what comes back. Everything but `notify` is the I/O loop's."""

    def __init__(
        self,
        place: Place,
        token: Token,
        tls: TlsConf | None,
        ledger: Ledger,
        loop: asyncio.AbstractEventLoop,
        *,
        data_only: bool = False,
    ) -> None:
        self.session = secrets.token_hex(16)
        """The name under which the server knows this client, through all its connections."""
        self.stream: ClientStream | None = None
        self.retirement: Callable[[], None] | None = None
        """What to do when nothing is under way or held any more."""
        self.broken = False
        """Whether the connection broke, until it is made again."""
        self.peer_tls = False
        """Whether the server said that it can connect to others with TLS."""
        self._data_only = data_only
        self._place, self._token, self._tls = place, token, tls
        self._ledger, self._outbox = ledger, ledger.outbox
        self._loop = loop
        self._runner: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        limits = Limits()
        self._frames = ReliableStream(
            2 * limits.window_bytes if data_only else limits.frame_bytes, reads_data=data_only
        )
        self._instance: str | None = None
        self._ack_timer: asyncio.TimerHandle | None = None
        self._closing = False

    def notify(self) -> None:
        """Have the loop look for something to say; from any thread. The first time, this connects."""
        if not self._closing or self._runner is not None:
            self._loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        if self._runner is None:
            self._runner = self._loop.create_task(self._run())
        self._wake.set()

    async def _run(self) -> None:
        watch = self._loop.create_task(self._watch_place())
        try:
            await self._keep_connected()
        except ParagentError as error:
            self._ledger.lose(error)
        except asyncio.CancelledError:
            self._ledger.lose(ServerLost(f"the link to agent server {self._place.address} was closed"))
        except Exception as error:  # noqa: BLE001 - whatever went wrong here, nobody may be left waiting
            self._ledger.lose(ServerLost(f"agent server {self._place.address}: {type(error).__name__}: {error}"))
        finally:
            watch.cancel()
            if self.stream is not None:
                await self.stream.close()
                self.stream = None

    async def _watch_place(self) -> None:
        reason = await self._place.gone()
        self._ledger.lose(ServerLost(reason))
        assert self._runner is not None
        self._runner.cancel()

    # --- connecting -----------------------------------------------------------------------------------------------------

    async def _keep_connected(self) -> None:
        await self._place.ready()
        patience = TimeBudget(_FIRST_CONNECT)
        while True:
            welcome = await self._reach(patience)
            self._take(welcome)
            try:
                await self._converse(welcome)
            except (AccessDenied, LimitExceeded, ProtocolError):
                raise
            except ParagentError as error:
                self.broken = True
                seen = any(word in str(error).lower() for word in _SEEN)
                patience = TimeBudget(_RECONNECT if seen else _RECONNECT_SILENT)

    async def _reach(self, patience: TimeBudget) -> dict[str, Any]:
        """Connect, trying again until the patience is over."""
        while True:
            hello: dict[str, Any] = {"session": self.session, "program": program()}
            hello |= {"heard": self._frames.received, "again": self._instance is not None}
            hello["data_only"] = self._data_only
            try:
                self.stream, welcome = await connect(
                    self._place.address, "agents", self._token, self._tls, hello, patience
                )
            except (ServerLost, LimitExceeded) as error:
                if patience.left <= _RETRY:
                    if isinstance(error, LimitExceeded):
                        raise
                    raise ServerLost(self._place.advice(str(error), first=self._instance is None)) from None
                await asyncio.sleep(_RETRY)
                patience.left -= _RETRY
                continue
            return welcome

    def _take(self, welcome: dict[str, Any]) -> None:
        """Take note of what the server says of itself.

        Raises:
            ServerLost: it is not the server that this was connected to before.
        """
        if self._instance is not None and (welcome["instance"] != self._instance or not welcome["resumed"]):
            raise ServerLost(f"agent server {self._place.address} was started anew; its agents are gone")
        self._instance = welcome["instance"]
        self._ledger.window = int(welcome["window"])
        self.peer_tls = bool(welcome["peer_tls"])
        if not welcome["accepts_code"]:
            from paragent.remote.restricted import translated  # not at the top: few servers need it

            self._frames.writes_data = True
            self._outbox.translate = translated
        self.broken = False

    # --- speaking -------------------------------------------------------------------------------------------------------

    async def _converse(self, welcome: dict[str, Any]) -> None:
        assert self.stream is not None
        stream = self.stream
        for parts in self._frames.resume(int(welcome["heard"])):
            for part in parts:
                await stream.write(part)
        writer = self._loop.create_task(self._write(stream))
        writer.add_done_callback(lambda _: stream.cancel())  # nothing can be asked any more: let the reader end too
        try:
            while True:
                self._hear(await stream.read())
        finally:
            writer.cancel()
            await asyncio.wait([writer])
            await stream.close()
            error = None if writer.cancelled() else writer.exception()
            if error is not None and not isinstance(error, ParagentError):
                raise error  # not the connection's fault: what was taken out of the outbox is lost

    async def _write(self, stream: ClientStream) -> None:
        frames, wake, outbox = self._frames, self._wake, self._outbox
        while True:
            await wake.wait()
            wake.clear()
            outbox.awake = False
            while (outbox.messages and not frames.window_full) or frames.ack_due:
                said = ([], []) if frames.window_full else outbox.take()
                for message in self._frame(*said):
                    await stream.write(message)
            if self.retirement is not None and not self._ledger.pending and not self._ledger.holds:
                self.retirement()

    def _frame(self, messages: list[Any], attachments: list[Any]) -> list[bytes]:
        """Return the messages of a frame; one that cannot be made ends the link, as whoever waits would wait for ever."""
        try:
            return self._frames.next_frame(messages, attachments)
        except Exception as error:
            self._ledger.lose(ProtocolError(f"what was to be said to agent server {self._place.address}: {error}"))
            assert self._runner is not None
            self._runner.cancel()
            raise

    def _hear(self, message: bytes) -> None:
        frames = self._frames
        heard = frames.receive(message)
        if heard is None:
            return
        acknowledged, messages, attachments = heard
        if messages:
            self._ledger.settle(messages, attachments)
        window_full = frames.window_full
        frames.drop_acknowledged(acknowledged)
        if frames.ack_due or self.retirement is not None or window_full:
            self._wake.set()
        elif messages and self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_AFTER, self._acknowledge)

    def _acknowledge(self) -> None:
        self._ack_timer = None
        if self._frames.ack_owed:
            self._frames.ack_late = True
            self._wake.set()

    # --- the end --------------------------------------------------------------------------------------------------------

    async def close(self, patience: float) -> None:
        """Say goodbye and end; what is still under way fails with `ServerLost`."""
        self._closing = True
        runner = self._runner
        if runner is None or runner.done():
            return
        if self.stream is not None and self._ledger.lost is None:
            self._outbox.put(Goodbye())
            until = time.monotonic() + patience
            while self._outbox.messages and time.monotonic() < until and not runner.done():
                await asyncio.sleep(0.002)
        runner.cancel()
        await asyncio.wait([runner], timeout=patience)
