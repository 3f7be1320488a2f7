"""A host behind gRPC: sessions over streams, leases between them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from paragent._threads import fatal
from paragent.errors import ParagentError, ProtocolError
from paragent.remote.server.host import Host
from paragent.rpc.server import RpcServer

if TYPE_CHECKING:
    from collections.abc import Callable

    from paragent.remote.server.policy import Policy
    from paragent.remote.server.session import Session
    from paragent.rpc.address import Address
    from paragent.rpc.limits import Limits
    from paragent.rpc.server import ServerStream
    from paragent.rpc.tls import TlsConf
    from paragent.rpc.token import Token

__all__ = ["AgentService", "open_server"]


class AgentService:
    """The service `agents`."""

    def __init__(self, host: Host, lease: float, window: int) -> None:
        self._host, self._lease, self._window = host, lease, window

    def welcome(self, hello: dict[str, Any]) -> tuple[dict[str, Any], tuple[Session, int]]:
        """Find or make the client's session."""
        identity, heard, again = hello.get("session"), hello.get("heard"), hello.get("again")
        if not isinstance(identity, str) or len(identity) != 32 or not isinstance(heard, int):
            raise ProtocolError("the hello of a client that is none")
        session, known = self._host.open_session(identity)
        session.program = str(hello.get("program") or "")
        if again and not known:
            # Its lease ran out or this is another server: it must not believe that its agents are still here.
            self._host.end_session(session)
        welcome = {
            "instance": self._host.instance,
            "resumed": known,
            "heard": session.heard,
            "window": self._window,
            "accepts_code": self._host.policy.accept_code,
        }
        return welcome, (session, heard)

    async def serve(self, stream: ServerStream, admitted: tuple[Session, int]) -> None:
        """Hear what a client says, and tell it what is ready, until either side ends."""
        session, heard = admitted
        if session.writer is not None:
            session.writer.cancel()
        try:
            unheard = session.begin(stream, heard)
        except ProtocolError:
            self._host.end_session(session)
            raise
        writer = session.writer = asyncio.create_task(session.write(stream, unheard))
        try:
            while session.stream is stream:
                message = await stream.read()
                if session.stream is not stream:
                    break  # the client has connected again meanwhile and repeats what it said here
                session.hear(message, self._host.handle)
                if session.pause:
                    await asyncio.sleep(session.pause)
        except (ProtocolError, ParagentError) as error:
            if isinstance(error, ProtocolError):
                self._host.end_session(session)
            raise
        finally:
            writer.cancel()
            if session.stream is stream:
                self._detach(session)

    def _detach(self, session: Session) -> None:
        """The connection is over; give the client time to come back."""
        session.stream = None
        session.writer = None
        if session.identity in self._host.sessions and session.lease is None:
            loop = asyncio.get_running_loop()
            session.lease = loop.call_later(self._lease, self._host.end_session, session)


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
) -> tuple[Host, RpcServer, int]:
    """Start a server on the running loop; return its host, its listener and its port.

    `failed` is called with its name and the error if a thread ends that carries out calls.

    Raises:
        ConfigError: the address cannot be listened at.
    """
    host = Host(policy, limits, asyncio.get_running_loop(), stop, failed)
    service = AgentService(host, lease, limits.window_bytes)
    server = RpcServer(address, {"agents": service}, token, tls=tls, limits=limits)
    return host, server, await server.start()
