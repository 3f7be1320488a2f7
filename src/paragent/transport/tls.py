"""Settings for TLS and mutual TLS: paths of PEM files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paragent.errors import ConfigError

if TYPE_CHECKING:
    import grpc

__all__ = ["TlsConf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsConf:
    """Paths of PEM files.

    A server needs `cert` and `key`. With `ca` it also requires a client certificate that was signed by this authority
    (mutual TLS). A client needs `ca` if the system does not trust the server's authority, and `cert` and `key` if the server
    requires a client certificate.

    Raises:
        ConfigError: (when used) a file is missing, or `cert` and `key` are not given together.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None
    """The name in the server's certificate, if it differs from the host to connect to."""

    def server_credentials(self) -> grpc.ServerCredentials:
        """Return the credentials for a gRPC server."""
        import grpc

        pair = self._pair()
        if pair is None:
            raise ConfigError("a TLS server needs a certificate: TlsConf(cert=..., key=...)")
        ca = _contents("ca", self.ca)
        return grpc.ssl_server_credentials([pair], root_certificates=ca, require_client_auth=ca is not None)

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials for a gRPC client."""
        import grpc

        key, cert = self._pair() or (None, None)
        return grpc.ssl_channel_credentials(_contents("ca", self.ca), key, cert)

    def _pair(self) -> tuple[bytes, bytes] | None:
        key, cert = _contents("key", self.key), _contents("cert", self.cert)
        if key is None and cert is None:
            return None
        if key is None or cert is None:
            raise ConfigError("TLS needs both cert= and key=, or neither")
        return key, cert


def _contents(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"TLS: {name}={path!r} cannot be read: {error.strerror}") from error
