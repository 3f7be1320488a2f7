"""How a station and the driver show each other that they belong to one run, before either reads a pickle of the other.

Both know a secret that travelled inside the cluster's own task payload. Each sends a random challenge and answers the
other's with an HMAC over the challenge, its own role and the name of the station; a proof cannot be played back, nor be
reflected to the one who asked for it. Everything is of fixed or bounded length until then.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

__all__ = ["CHALLENGE", "NotProven", "admit", "introduce"]

CHALLENGE = 32
"""Bytes of a challenge and of a proof: as long as the digest, SHA-256."""
_NAME = struct.Struct("!H")
_LONGEST_NAME = 256
_GREETING = b"paragent-station-1\n"


class NotProven(Exception):
    """The other end does not know the secret, or does not speak this language."""


def introduce(connection: socket.socket, name: str, secret: bytes) -> None:
    """As a station called `name`: prove the secret to the driver, and have the driver prove it.

    Raises:
        NotProven: the driver could not, or turned this station away.
        OSError: the connection broke or took too long.
    """
    encoded = name.encode()
    ours = os.urandom(CHALLENGE)
    connection.sendall(_GREETING + _NAME.pack(len(encoded)) + encoded + ours)
    theirs = _read(connection, CHALLENGE)
    proof = _read(connection, CHALLENGE)
    if not hmac.compare_digest(proof, _proof(secret, b"driver", encoded, ours)):
        raise NotProven("the driver does not know the secret of this run")
    connection.sendall(_proof(secret, b"station", encoded, theirs))


def admit(connection: socket.socket, secret: bytes) -> str:
    """As the driver: have whoever connected prove the secret, prove it in turn, and return the station's name.

    Raises:
        NotProven: it could not.
        OSError: the connection broke or took too long.
    """
    if _read(connection, len(_GREETING)) != _GREETING:
        raise NotProven("no station speaks like this")
    (length,) = _NAME.unpack(_read(connection, _NAME.size))
    if length > _LONGEST_NAME:
        raise NotProven("no station has a name this long")
    encoded = _read(connection, length)
    theirs = _read(connection, CHALLENGE)
    ours = os.urandom(CHALLENGE)
    connection.sendall(ours + _proof(secret, b"driver", encoded, theirs))
    if not hmac.compare_digest(_read(connection, CHALLENGE), _proof(secret, b"station", encoded, ours)):
        raise NotProven("the station does not know the secret of this run")
    return encoded.decode()


def _proof(secret: bytes, role: bytes, name: bytes, challenge: bytes) -> bytes:
    return hmac.digest(secret, role + b"\0" + name + b"\0" + challenge, hashlib.sha256)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = connection.recv(size - len(data))
        if not piece:
            raise NotProven("the other end hung up")
        data += piece
    return data
