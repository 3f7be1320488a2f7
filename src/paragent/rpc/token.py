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
import os
import secrets
import stat
from pathlib import Path

from paragent.errors import AccessDenied, ConfigError

__all__ = ["Token", "load_token", "token_file"]

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

    def proof(self, role: str, ours: str, theirs: str) -> str:
        """Return what `role` says to prove that it knows the token, for one pair of random numbers."""
        return hmac.new(self._secret, f"paragent 1 {role} {ours} {theirs}".encode(), hashlib.sha256).hexdigest()

    def proves(self, claim: object, role: str, ours: str, theirs: str) -> bool:
        """Return whether `claim` is the proof of `role`, in time that does not depend on where it is wrong."""
        return isinstance(claim, str) and hmac.compare_digest(
            claim.encode(errors="replace"), self.proof(role, ours, theirs).encode()
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
