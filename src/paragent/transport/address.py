"""Address of a server: host and port, or the path of a Unix socket."""

from __future__ import annotations

from typing import Any, NamedTuple

from paragent.errors import ConfigError

__all__ = ["Address"]

_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class Address(NamedTuple):
    """A host and a port, or the path of a Unix socket (`host` is then empty and `port` 0)."""

    host: str
    port: int
    path: str = ""

    @classmethod
    def of(cls, host: str, port: Any) -> Address:
        """Return a checked address; the port may be a number or its digits.

        Raises:
            ConfigError: the host is empty or the port is not a number between 0 and 65535.
        """
        try:
            number = int(port)
        except (TypeError, ValueError):
            raise ConfigError(f"port must be a number between 0 and 65535, not {port!r}") from None
        if isinstance(port, bool) or not 0 <= number <= 65535:
            raise ConfigError(f"port must be a number between 0 and 65535, not {port!r}")
        if not isinstance(host, str) or not host:
            raise ConfigError(f"host must be a name or an IP address, not {host!r}")
        return cls(host, number)

    @property
    def target(self) -> str:
        """The address in the form that gRPC expects."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only programs on this machine can connect to it."""
        if self.path or self.host in _LOOPBACK_NAMES:
            return True
        import ipaddress  # not at the top: every child server loads this module, and none needs `ipaddress`

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return self.path or self.target
