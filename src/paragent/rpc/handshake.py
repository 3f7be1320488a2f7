"""How two strangers become a client and a server: four short JSON texts, before anything else is read.

::

    client                                            server
      {"service", "nonce"}                      ->
                                                <-    {"nonce", "proof"}       the server knows the token
      {"proof", "hello"}                        ->                             the client knows it too
                                                <-    {"welcome"}

Both proofs cover both nonces, so neither can be used again.
"""

from __future__ import annotations

import json
import re
import secrets
from typing import TYPE_CHECKING, Any

from paragent.errors import AccessDenied, ProtocolError

if TYPE_CHECKING:
    from paragent.rpc.token import Token

__all__ = ["LONGEST", "ClientSide", "ServerSide", "as_text", "read_text"]

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
        if not self._token.proves(fields.get("proof"), "server", theirs, self._nonce):
            raise AccessDenied(
                "the server has a different token; give both sides the same one in PARAGENT_TOKEN "
                "(programs of one user on one machine share it without that)"
            )
        return as_text({"proof": self._token.proof("client", self._nonce, theirs), "hello": hello})


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
        return as_text({"nonce": self._nonce, "proof": self._token.proof("server", self._nonce, self._theirs)})

    def admit(self, second: bytes) -> dict[str, Any]:
        """Return the client's hello, now that it is known to come from one who has the token.

        Raises:
            AccessDenied: the proof is wrong.
            ProtocolError: it is no such text.
        """
        fields = read_text(second)
        if not self._token.proves(fields.get("proof"), "client", self._theirs, self._nonce):
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
