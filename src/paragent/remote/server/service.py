"""Agent service: connects sessions to gRPC streams, and ends sessions whose client does not reconnect."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from paragent._internal.threads import fatal, write_traceback
from paragent.errors import ParagentError, ProtocolError
from paragent.remote.protocol import SESSION
from paragent.remote.server.dispatcher import MessageDispatcher
from paragent.transport.server import RpcServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import ClientSession
    from paragent.transport.address import Address, TlsConf
    from paragent.transport.auth import Token
    from paragent.transport.limits import Limits
    from paragent.transport.server import ServerStream

__all__ = ["AgentService", "open_server"]


class AgentService:
    """The gRPC service `agents`."""

    def __init__(self, dispatcher: MessageDispatcher, lease: float, window: int) -> None:
        self._dispatcher, self._lease, self._window = dispatcher, lease, window

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], tuple[ClientSession, int]]:
        """Find or create the client's session."""
        identity, received, reconnecting = hello.get("session"), hello.get("received"), hello.get("reconnect")
        if not isinstance(identity, str) or not SESSION.fullmatch(identity) or not isinstance(received, int):
            raise ProtocolError("the hello must name a session of 32 hexadecimal digits")
        session, known = self._dispatcher.open_session(identity)
        session.client.data_only = hello.get("data_only") is True
        session.client.program = str(hello.get("program") or "").encode(errors="replace").decode()
        if reconnecting and not known:
            # Its lease has expired, or this is another server: the client must learn that its agents are gone.
            self._dispatcher.end_session(session)
        elif session.stream is None:
            self._start_lease(session)  # it may disconnect before it is served
        welcome = {
            "instance": self._dispatcher.instance,
            "resumed": known,
            "received": session.received,
            "window": self._window,
            "accepts_code": self._dispatcher.policy.accept_code,
            "peer_tls": self._dispatcher.policy.peer_tls is not None,
        }
        return welcome, (session, received)

    async def serve(self, stream: ServerStream, admitted: tuple[ClientSession, int]) -> None:
        """Read the client's messages and send results until either side ends the stream."""
        session, received = admitted
        if session.identity not in self._dispatcher.sessions:
            return  # the client reconnects to a session that has ended, which the welcome says
        if session.writer is not None:
            session.writer.cancel()
        try:
            unread = session.begin(stream, received)
        except ProtocolError:
            self._dispatcher.end_session(session)
            raise
        writer = session.writer = asyncio.create_task(session.write(stream, unread))
        serving = asyncio.current_task()
        writer.add_done_callback(lambda writer: self._writer_ended(writer, session, serving))
        try:
            while session.stream is stream:
                message = await stream.read()
                if session.stream is not stream:
                    break  # the client has reconnected and sends this message again
                self._receive(session, message)
                if session.pause:
                    await asyncio.sleep(session.pause)
        except asyncio.CancelledError:
            if not _failure_of(writer):
                raise
            raise ProtocolError("the server could not encode its messages to this client") from None
        except ProtocolError:
            self._dispatcher.end_session(session)
            raise
        finally:
            writer.cancel()
            if session.stream is stream:
                self._detach(session)

    def _receive(self, session: ClientSession, message: bytes) -> None:
        try:
            session.receive(message, self._dispatcher.handle)
        except ParagentError:
            raise
        except Exception as error:
            # The rest of the frame is lost. Its calls would never be answered, so the session ends.
            write_traceback("a frame could not be handled, so the session of its client ends", error)
            raise ProtocolError(f"the server could not handle a frame: {type(error).__name__}") from error

    def _writer_ended(
        self, writer: asyncio.Task[None], session: ClientSession, serving: asyncio.Task[None] | None
    ) -> None:
        """End the session of a client if sending its results failed, since it would wait forever. Other sessions continue."""
        if error := _failure_of(writer):
            write_traceback("the results of a client could not be sent, so its session ends", error)
            self._dispatcher.end_session(session)
            if serving is not None:
                serving.cancel()

    def _detach(self, session: ClientSession) -> None:
        """Handle the end of a connection: the client may reconnect until the lease expires."""
        session.stream = None
        session.writer = None
        if session.identity in self._dispatcher.sessions:
            self._start_lease(session)

    def _start_lease(self, session: ClientSession) -> None:
        """End a session after the lease unless its client reconnects; every session without a stream has a lease."""
        if session.lease is not None:
            session.lease.cancel()
        loop = asyncio.get_running_loop()
        session.lease = loop.call_later(self._lease, self._dispatcher.end_session, session)


def _failure_of(writer: asyncio.Task[None]) -> BaseException | None:
    return writer.exception() if writer.done() and not writer.cancelled() else None


async def open_server(
    address: Address,
    policy: Policy,
    token: Token,
    *,
    tls: TlsConf | None,
    limits: Limits,
    lease: float,
    stop: Callable[[], None],
    failed: Callable[[str, BaseException], object] = fatal,
) -> tuple[MessageDispatcher, RpcServer, int]:
    """Start a server on the running loop; return its dispatcher, its listener and its port.

    `failed` is called with the name and the error of a thread that ended unexpectedly and without which calls hang.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    dispatcher = MessageDispatcher(policy, limits, asyncio.get_running_loop(), stop, failed)
    service = AgentService(dispatcher, lease, limits.window_bytes)
    server = RpcServer(address, {"agents": service}, token, tls=tls, limits=limits)
    return dispatcher, server, await server.start()
