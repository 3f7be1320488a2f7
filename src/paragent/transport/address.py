"""Where a server listens and how to connect to it: addresses and TLS settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent.errors import ConfigError

if TYPE_CHECKING:
    import grpc

__all__ = ["Address", "TlsConf"]

_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "ip6-localhost"})


class Address(NamedTuple):
    """A host and a port, or the path of a Unix socket (`host` is then empty and `port` 0)."""

    host: str
    port: int
    path: str = ""

    @classmethod
    def of(cls, host: str, port: Any) -> Address:
        """Return a checked address; the port may be a number or its digits, an IPv6 address may be in brackets.

        Raises:
            ConfigError: the host is empty or a URL, or the port is not a number between 0 and 65535.
        """
        try:
            number = int(port)
        except (TypeError, ValueError):
            raise ConfigError(f"port must be a number between 0 and 65535, not {port!r}") from None
        if isinstance(port, bool) or not 0 <= number <= 65535:
            raise ConfigError(f"port must be a number between 0 and 65535, not {port!r}")
        if not isinstance(host, str) or not host:
            raise ConfigError(f"host must be a name or an IP address, not {host!r}")
        if "/" in host:
            from urllib.parse import urlsplit  # not at the top: it is used only for this message

            bare = urlsplit(host if "://" in host else f"//{host}").hostname or "localhost"
            raise ConfigError(f"host must be a name or an IP address: write {bare!r} instead of {host!r}")
        bare = host.removeprefix("[").removesuffix("]")
        # Names are case-insensitive, and addresses are compared; the part after % is the name of a network interface.
        return cls(bare if "%" in bare else bare.lower(), number)

    @property
    def target(self) -> str:
        """The address in the form that gRPC expects."""
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether only programs on this host can connect to it."""
        if self.path or self.host in _LOOPBACK_NAMES:
            return True
        import ipaddress  # not at the top: every child server loads this module, and none needs `ipaddress`

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return self.path or self.target


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConf:
    """TLS configuration: the paths of PEM files.

    A server needs `cert` and `key`. With `ca` it also requires a client certificate that was signed by this authority
    (mutual TLS). A client needs `ca` if the system does not trust the server's authority, and `cert` and `key` if the server
    requires a client certificate.

    Raises:
        ConfigError: (when used) a file is missing, or `cert` and `key` are not given together.
    """

    ca: str | None = None
    """PEM file with the CA that signed the peer's certificate."""
    cert: str | None = None
    """PEM file with the own certificate."""
    key: str | None = None
    """PEM file with the private key of `cert`."""
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the host to connect to."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for a gRPC server."""
        import grpc

        pair = self._pair()
        if pair is None:
            raise ConfigError("a TLS server needs a certificate: TlsConf(cert=..., key=...)")
        ca = _authority(self.ca)
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for a gRPC client."""
        import grpc

        key, cert = self._pair() or (None, None)
        return grpc.ssl_channel_credentials(_authority(self.ca), key, cert)

    def _pair(self) -> tuple[bytes, bytes] | None:
        key, cert = _contents("key", self.key), _contents("cert", self.cert)
        if key is None and cert is None:
            return None
        if self.key is None or key is None or self.cert is None or cert is None:
            raise ConfigError("TLS needs both cert= and key= (--tls-cert and --tls-key), or neither")
        import ssl

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.cert, self.key, password="")
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(
                f"TLS: cert={self.cert!r} and key={self.key!r} must be PEM files with a certificate and its private key, "
                f"without a password: {error}"
            ) from error
        return key, cert


def _contents(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS: {name}={path!r} cannot be read: {error.strerror}; correct the path") from error


def _authority(path: str | None) -> bytes | None:
    contents = _contents("ca", path)
    if contents is not None:
        import ssl

        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError as error:
            raise ConfigError(
                f"TLS: ca={path!r} must be a PEM file with the certificate of an authority: {error}"
            ) from error
    return contents
