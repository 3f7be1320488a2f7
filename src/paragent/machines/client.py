"""`PoolClient`: a pool that another process serves, with the interface of a pool in this process."""

from __future__ import annotations

import asyncio
import base64
from typing import TYPE_CHECKING, Any, Self

from paragent import errors
from paragent._internal.clock import monotonic
from paragent.errors import ConfigError, MachineFailed, PoolStopped, ServerLost
from paragent.machines.lease import Pool
from paragent.machines.machine import Machine, MachineStatus, PoolStatus
from paragent.machines.state_machine import MachineChange, MachineState
from paragent.transport.address import Address
from paragent.transport.auth import Token, load_token
from paragent.transport.client import ClientStream, connect
from paragent.transport.json_calls import JsonClient
from paragent.transport.loop import io_loop, is_running

if TYPE_CHECKING:
    from paragent.transport.address import TlsConf

__all__ = ["SERVICE", "PoolClient", "RemotePool"]

SERVICE = "pool"
"""The name of the service in the handshake."""
_POOL_ERRORS = (
    errors.ConfigError,
    errors.LeaseLost,
    errors.LeaseTimeout,
    errors.MachineFailed,
    errors.PoolFailed,
    errors.PoolStopped,
    errors.UsageError,
)
"""Errors of a pool that a client raises with their own type; all others become `MachineFailed`."""
_CONNECT_SECONDS = 5.0
_RETRY_PAUSE = 0.2
_RECONNECT_SECONDS = 30.0
"""How long a request for a machine survives a pool that cannot be reached: long enough to restart the service."""
_RELEASE_SECONDS = 5.0
"""How long a release is retried; after that the lease ends by its deadline."""


class PoolClient(Pool):
    """A pool at `host:port`. The constructor does not connect. A client can be pickled and used from any thread.

    Args:
        address: `host:port`, as `paragent pool serve` prints it.
        token: proves that this client may use the pool; the default is the user's own token, as in `PARAGENT_TOKEN`.
        tls: for a pool that is served with TLS.
        reconnect: seconds after which a request for a machine fails if the pool cannot be reached.

    Raises:
        ConfigError: `address` is not a valid address.
    """

    def __init__(
        self,
        address: str,
        *,
        token: Token | None = None,
        tls: TlsConf | None = None,
        reconnect: float = _RECONNECT_SECONDS,
    ) -> None:
        super().__init__()
        host, separator, port = address.rpartition(":")
        if not separator:
            raise ConfigError(f"the address of a pool has the form host:port, not {address!r}")
        self.address = Address.of(host.strip("[]"), port)
        """The address of the pool."""
        self._token, self._tls, self._reconnect = token, tls, reconnect
        self._remote = RemotePool(self.address, token, tls, reconnect)

    def __reduce__(self) -> tuple[Any, ...]:
        if self._token is not None:
            raise ConfigError(
                "a PoolClient with its own token cannot be pickled; let the other process use PARAGENT_TOKEN"
            )
        return (_rebuild, (str(self.address), self._tls, self._reconnect))

    def close(self) -> None:
        """Close the connection; leases that are still held end at their deadline."""
        self._remote.reject_calls()
        if is_running():  # without the I/O loop there is no connection
            self.bridge.wait(self._remote.disconnect(), _CONNECT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def drain(self) -> None:
        """Ask the pool to grant no more leases and to stop when all leases have ended."""
        self.bridge.wait(self._remote.drain(), _CONNECT_SECONDS * 2)

    @property
    def async_pool(self) -> RemotePool:
        return self._remote

    def _event_loop(self) -> asyncio.AbstractEventLoop:
        return io_loop()


def _rebuild(address: str, tls: TlsConf | None, reconnect: float) -> PoolClient:
    return PoolClient(address, tls=tls, reconnect=reconnect)


class RemotePool:
    """The operations of a pool as calls to its service. Everything runs on the I/O loop."""

    def __init__(self, address: Address, token: Token | None, tls: TlsConf | None, reconnect: float) -> None:
        self._address, self._token, self._tls, self._reconnect = address, token, tls, reconnect
        self._calls = JsonClient(self._connect, errors=_POOL_ERRORS, other_errors=MachineFailed)
        self._closed = False

    async def acquire(
        self, request_id: str, holder: str, duration: float, limit: float | None, worker: str = ""
    ) -> tuple[int, Machine]:
        answer = await self._call_until(self._reconnect, "acquire", request_id, holder, duration, limit, worker)
        token, machine = answer
        return int(token), _machine(machine)

    async def withdraw(self, request_id: str) -> None:
        await self.call("withdraw", request_id)

    async def renew(self, token: int) -> float:
        return float(await self.call("renew", token))

    async def release(self, token: int) -> bool:
        try:
            return bool(await self._call_until(_RELEASE_SECONDS, "release", token))
        except ServerLost:
            return False

    async def reset(self, token: int) -> Machine:
        return _machine(await self.call("reset", token))

    async def pause(self, token: int, paused: bool) -> None:
        await self.call("pause", token, paused)

    async def status(self) -> PoolStatus:
        fields = await self.call("status")
        rows = tuple(MachineStatus(**row | {"state": MachineState(row["state"])}) for row in fields["machines"])
        return PoolStatus(**fields | {"machines": rows})

    async def changes(self, after: int) -> list[MachineChange]:
        rows = await self.call("changes", after)
        return [MachineChange(**row | {"state": MachineState(row["state"])}) for row in rows]

    async def retire(self, machine_id: str) -> None:
        await self.call("retire", machine_id)

    async def machine_log(self, machine_id: str) -> str:
        return str(await self.call("machine_log", machine_id))

    async def machine_screenshot(self, machine_id: str) -> bytes:
        return base64.b64decode(await self.call("machine_screenshot", machine_id))

    async def drain(self) -> None:
        """Ask the pool to drain."""
        await self.call("drain")

    async def call(self, method: str, *args: Any) -> Any:
        """Call a method of the service.

        Raises:
            PoolStopped: this client was closed.
            ServerLost: the pool cannot be reached.
            ParagentError: the error that the pool raised.
        """
        if self._closed:
            raise PoolStopped("this client was closed; create a new one")
        return await self._calls.call(method, *args)

    def reject_calls(self) -> None:
        """Let every later call raise `PoolStopped`; may be called from any thread."""
        self._closed = True

    async def disconnect(self) -> None:
        """Close the connection, if there is one."""
        await self._calls.close()

    async def _call_until(self, seconds: float, method: str, *args: Any) -> Any:
        """Call a method, and repeat the call while the pool cannot be reached; for calls that may be executed twice.

        `seconds` counts from the moment at which the pool was last reached, so that a long wait for a machine does not count.
        """
        lost_since: float | None = None
        while True:
            try:
                await self._connected()
                lost_since = None
                return await self.call(method, *args)
            except ServerLost:
                now = monotonic()
                lost_since = now if lost_since is None else lost_since
                if now - lost_since >= seconds or self._closed:
                    raise
            await asyncio.sleep(_RETRY_PAUSE)

    async def _connected(self) -> None:
        if self._closed:
            raise PoolStopped("this client was closed; create a new one")
        await self._calls.connection()

    async def _connect(self) -> ClientStream:
        try:
            stream, _ = await connect(
                self._address, SERVICE, self._token or load_token(), self._tls, {}, _CONNECT_SECONDS
            )
        except ServerLost as error:
            host, port, _ = self._address
            advice = f"start one there with: paragent pool serve --host {host} --port {port}"
            if self._tls is None:
                advice += ", or connect with TLS (--tls-ca) if the pool is served with it"
            reason = str(error).removeprefix(f"server {self._address}: ")
            raise ServerLost(f"no pool answers at {self._address}; {advice} ({reason})") from None
        return stream


def _machine(fields: dict[str, Any]) -> Machine:
    ports = {int(inside): outside for inside, outside in fields["ports"].items()}
    return Machine(**fields | {"ports": ports})
