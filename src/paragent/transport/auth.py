"""The secret that programs of one user share, and how each side proves that it knows it without showing it.

Programs of one user on one machine find it in a file that only this user can read. Across machines it is given by the
environment variable `PARAGENT_TOKEN`. It never travels: each side sends a random number, and the other returns a keyed
hash of both numbers, so what was overheard is worth nothing the next time.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import hmac
import json
import os
import re
import secrets
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.errors import AccessDenied, ConfigError, ProtocolError
from paragent.transport.framing import frame, receive

if TYPE_CHECKING:
    import socket

__all__ = [
    "LONGEST",
    "ClientSide",
    "ServerSide",
    "Token",
    "accept_with_proof",
    "as_text",
    "connect_with_proof",
    "load_token",
    "read_text",
    "token_file",
]


_SHORTEST = 16
"""Characters; a random token has 43, which are 256 bits."""


class Token:
    """A secret that is never shown by `repr` or in a traceback's locals."""

    __slots__ = ("_secret",)

    def __init__(self, secret: str) -> None:
        if len(secret) < _SHORTEST:
            raise ConfigError(
                f"a token must have at least {_SHORTEST} characters; make one with: "
                "python3 -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        self._secret = secret.encode()

    def __repr__(self) -> str:
        return "Token(...)"

    def proof(self, role: str, service: str, ours: str, theirs: str) -> str:
        """Return the proof that `role` knows the token, bound to the service and to one pair of random numbers."""
        text = f"paragent 2 {role} {service} {ours} {theirs}"
        return hmac.new(self._secret, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

    def proves(self, claim: object, role: str, service: str, ours: str, theirs: str) -> bool:
        """Return whether `claim` is the proof of `role`; the comparison takes constant time."""
        return isinstance(claim, str) and hmac.compare_digest(
            claim.encode(errors="replace"), self.proof(role, service, ours, theirs).encode()
        )


def load_token() -> Token:
    """Return the token of this user: from the environment, else from the user's file, which is made if need be.

    Raises:
        AccessDenied: the file can be read by others, belongs to somebody else, or is a link.
        ConfigError: the token is too short to be a secret.
    """
    if given := os.environ.get("PARAGENT_TOKEN"):
        return Token(given)
    path = token_file()
    with contextlib.suppress(FileNotFoundError):
        return Token(_read(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _create(path)
    return Token(_read(path))


def token_file() -> Path:
    """Return where the token of this user is kept."""
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "paragent" / "token"


def _read(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise AccessDenied(f"{path} must be a file of its own, not a link to another one") from error
        raise
    with os.fdopen(descriptor) as file:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise AccessDenied(f"{path} must belong to you and be readable by nobody else: chmod 600 {path}")
        return file.read().strip()


def _create(path: Path) -> None:
    """Write a fresh token so that other programs see the whole file or none, and the first one to write wins."""
    draft = path.with_name(f".token-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


LONGEST = 4096
"""Bytes of the longest text of a handshake; a real one has a few hundred."""
_NONCE_DIGITS = 64
_NONCE = re.compile(rf"[0-9a-f]{{{_NONCE_DIGITS}}}")


def as_text(fields: dict[str, Any]) -> bytes:
    """Return the bytes of one text."""
    return json.dumps(fields).encode()


def read_text(data: bytes) -> dict[str, Any]:
    """Return the fields of one text.

    Raises:
        ProtocolError: it is too long, no JSON or no object.
    """
    if len(data) > LONGEST:
        raise ProtocolError(f"a handshake of {len(data)} bytes; the longest is {LONGEST}")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("the peer does not speak the protocol of paragent") from None
    if not isinstance(fields, dict):
        raise ProtocolError("the peer does not speak the protocol of paragent")
    return fields


class ClientSide:
    """The client's part: `begin`, then `answer` with what the server said."""

    def __init__(self, token: Token, service: str) -> None:
        self._token, self._service = token, service
        self._nonce = secrets.token_hex(_NONCE_DIGITS // 2)

    def begin(self) -> bytes:
        """Return the first text."""
        return as_text({"service": self._service, "nonce": self._nonce})

    def answer(self, challenge: bytes, hello: dict[str, Any]) -> bytes:
        """Return the second text.

        Raises:
            AccessDenied: the server does not know the token; it is told nothing.
            ProtocolError: what answers is no paragent server.
        """
        fields = read_text(challenge)
        theirs = _nonce_in(fields)
        if not self._token.proves(fields.get("proof"), "server", self._service, theirs, self._nonce):
            raise AccessDenied(
                "the server has a different token; give both sides the same one in PARAGENT_TOKEN "
                "(programs of one user on one machine share it without that)"
            )
        return as_text({"proof": self._token.proof("client", self._service, self._nonce, theirs), "hello": hello})


class ServerSide:
    """The server's part: `challenge` the client's first text, then `admit` its second."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._nonce = secrets.token_hex(_NONCE_DIGITS // 2)
        self._theirs = ""
        self.service = ""

    def challenge(self, opening: bytes) -> bytes:
        """Return the reply to the first text.

        Raises:
            ProtocolError: it is no such text.
        """
        fields = read_text(opening)
        self._theirs = _nonce_in(fields)
        service = fields.get("service")
        if not isinstance(service, str):
            raise ProtocolError("the handshake names no service")
        self.service = service
        proof = self._token.proof("server", service, self._nonce, self._theirs)
        return as_text({"nonce": self._nonce, "proof": proof})

    def admit(self, second: bytes) -> dict[str, Any]:
        """Return the client's hello, now that it is known to come from one who has the token.

        Raises:
            AccessDenied: the proof is wrong.
            ProtocolError: it is no such text.
        """
        fields = read_text(second)
        if not self._token.proves(fields.get("proof"), "client", self.service, self._theirs, self._nonce):
            raise AccessDenied("wrong token")
        hello = fields.get("hello")
        if not isinstance(hello, dict):
            raise ProtocolError("the handshake has no hello")
        return hello


def _nonce_in(fields: dict[str, Any]) -> str:
    nonce = fields.get("nonce")
    if not isinstance(nonce, str) or not _NONCE.fullmatch(nonce):
        raise ProtocolError(f"the handshake has no nonce of {_NONCE_DIGITS} hexadecimal digits")
    return nonce


# --- the handshake over a plain socket --------------------------------------------------------------------------------


def connect_with_proof(connection: socket.socket, token: Token, service: str) -> None:
    """Run the client's part of the handshake over a blocking socket.

    Raises:
        AccessDenied: the server does not know the token.
        ProtocolError: the server does not speak the protocol, or closed the connection.
        OSError: the connection broke or timed out.
    """
    side = ClientSide(token, service)
    connection.sendall(frame(side.begin()))
    connection.sendall(frame(side.answer(receive(connection, LONGEST), {})))


def accept_with_proof(connection: socket.socket, token: Token) -> str:
    """Run the server's part of the handshake over a blocking socket; return the service that the client asked for.

    Raises:
        AccessDenied: the client does not know the token.
        ProtocolError: the client does not speak the protocol, or closed the connection.
        OSError: the connection broke or timed out.
    """
    side = ServerSide(token)
    connection.sendall(frame(side.challenge(receive(connection, LONGEST))))
    side.admit(receive(connection, LONGEST))
    return side.service
