"""Tokens and the mutual handshake: both sides prove that they know the same secret without sending it.

Programs of one user on one host read the token from a file that only this user can read. Across hosts it is set by the
environment variable `PARAGENT_TOKEN`. Each side sends a random number, and the other side returns a keyed hash (HMAC) of both
numbers, so a recorded handshake cannot be replayed.

::

    client                                      server
    {service, nonce}                      ->
                                          <-    {nonce, proof}
    {proof, hello}                        ->
                                          <-    {welcome}
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
    "MESSAGE_LIMIT",
    "ClientSide",
    "ServerSide",
    "Token",
    "accept_with_proof",
    "connect_with_proof",
    "decode_message",
    "encode_message",
    "load_token",
    "read_secret_file",
    "token_file",
    "write_secret_file",
]


_SHORTEST = 16
"""Characters; a random token has 43, which are 256 bits."""


class Token:
    """A secret that `repr`, and so tracebacks with local variables, do not show."""

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
    """Return the token of this user: `PARAGENT_TOKEN`, else the content of the token file, which is created if it is missing.

    Raises:
        AccessDenied: the file can be read by other users, belongs to another user, or is a link.
        ConfigError: the token is too short.
    """
    if given := os.environ.get("PARAGENT_TOKEN"):
        return Token(given)
    path = token_file()
    with contextlib.suppress(FileNotFoundError):
        return Token(read_secret_file(path))
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _create(path)
    return Token(read_secret_file(path))


def token_file() -> Path:
    """Return the path of this user's token file."""
    configured = os.environ.get("XDG_CONFIG_HOME")
    return (Path(configured) if configured else Path.home() / ".config") / "paragent" / "token"


def read_secret_file(path: Path) -> str:
    """Return the content of a file with a secret.

    Raises:
        AccessDenied: the file can be read by other users, belongs to another user, or is a link.
        OSError: the file does not exist or cannot be read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a named pipe must not block
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise AccessDenied(f"{path} must be a regular file, not a link") from error
        raise
    with os.fdopen(descriptor) as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise AccessDenied(f"{path} must be a regular file")
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
            raise AccessDenied(f"{path} must belong to you and be readable by you alone: chmod 600 {path}")
        return file.read().strip()


def write_secret_file(path: Path, content: str) -> None:
    """Replace a file that only this user can read; it never exists with other permissions.

    Raises:
        OSError: it cannot be written.
    """
    draft = path.with_name(f".{path.name}.draft")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(content)
    draft.replace(path)


def _create(path: Path) -> None:
    """Write a new token atomically: other programs see the whole file or no file. If several programs write, the first wins."""
    draft = path.with_name(f".token-{os.getpid()}-{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(32))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


MESSAGE_LIMIT = 4096
"""Largest message of a handshake in bytes; normal ones have a few hundred."""
_NONCE_DIGITS = 64
_NONCE = re.compile(rf"[0-9a-f]{{{_NONCE_DIGITS}}}")


def encode_message(fields: dict[str, Any]) -> bytes:
    """Return one message of a handshake as bytes."""
    return json.dumps(fields).encode()


def decode_message(data: bytes) -> dict[str, Any]:
    """Return the fields of one message of a handshake.

    Raises:
        ProtocolError: the message is too long or not a JSON object.
    """
    if len(data) > MESSAGE_LIMIT:
        raise ProtocolError(f"a handshake message of {len(data)} bytes; the limit is {MESSAGE_LIMIT}")
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise ProtocolError("the peer does not speak the protocol of paragent") from None
    if not isinstance(fields, dict):
        raise ProtocolError("the peer does not speak the protocol of paragent")
    return fields


class ClientSide:
    """The client's part of the handshake: send `begin()`, then `answer(challenge)`."""

    def __init__(self, token: Token, service: str) -> None:
        self._token, self._service = token, service
        self._nonce = secrets.token_hex(_NONCE_DIGITS // 2)

    def begin(self) -> bytes:
        """Return the first message."""
        return encode_message({"service": self._service, "nonce": self._nonce})

    def answer(self, challenge: bytes, hello: dict[str, Any]) -> bytes:
        """Return the second message.

        Raises:
            AccessDenied: the server does not know the token. The client then sends no proof and no hello.
            ProtocolError: the peer is not a paragent server.
        """
        fields = decode_message(challenge)
        theirs = _nonce_in(fields)
        if not self._token.proves(fields.get("proof"), "server", self._service, theirs, self._nonce):
            raise AccessDenied(
                "the server has a different token; give both sides the same one in PARAGENT_TOKEN "
                "(programs of one user on one host share a token file)"
            )
        return encode_message(
            {"proof": self._token.proof("client", self._service, self._nonce, theirs), "hello": hello}
        )


class ServerSide:
    """The server's part of the handshake: send `challenge(opening)`, then check the second message with `admit`."""

    def __init__(self, token: Token) -> None:
        self._token = token
        self._nonce = secrets.token_hex(_NONCE_DIGITS // 2)
        self._theirs = ""
        self.service = ""

    def challenge(self, opening: bytes) -> bytes:
        """Return the answer to the client's first message.

        Raises:
            ProtocolError: the message is malformed.
        """
        fields = decode_message(opening)
        self._theirs = _nonce_in(fields)
        service = fields.get("service")
        if not isinstance(service, str):
            raise ProtocolError("the handshake does not name a service")
        self.service = service
        proof = self._token.proof("server", service, self._nonce, self._theirs)
        return encode_message({"nonce": self._nonce, "proof": proof})

    def admit(self, second: bytes) -> dict[str, Any]:
        """Check the client's second message and return its hello.

        Raises:
            AccessDenied: the proof is wrong.
            ProtocolError: the message is malformed.
        """
        fields = decode_message(second)
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
    connection.sendall(frame(side.answer(receive(connection, MESSAGE_LIMIT), {})))


def accept_with_proof(connection: socket.socket, token: Token) -> str:
    """Run the server's part of the handshake over a blocking socket; return the service that the client asked for.

    Raises:
        AccessDenied: the client does not know the token.
        ProtocolError: the client does not speak the protocol, or closed the connection.
        OSError: the connection broke or timed out.
    """
    side = ServerSide(token)
    connection.sendall(frame(side.challenge(receive(connection, MESSAGE_LIMIT))))
    side.admit(receive(connection, MESSAGE_LIMIT))
    return side.service
