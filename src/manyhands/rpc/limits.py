"""What a server accepts before it says no."""

from __future__ import annotations

from dataclasses import dataclass

from manyhands.errors import ConfigError

__all__ = ["MESSAGE_BYTES", "Limits"]

MESSAGE_BYTES = 1 << 20
"""The largest piece sent at a time. Larger things travel in pieces, so that one of them does not hold a connection's
memory many times over; at 1 MiB the cost of a message (about 0.1 ms) is small against copying its bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of one server. Every one can be changed; none can be switched off.

    Raises:
        ConfigError: a bound is not a whole number of at least 1.
    """

    frame_bytes: int = 4 << 30
    """The largest single argument or result."""
    window_bytes: int = 512 << 20
    """Arguments of calls that one client may have under way; beyond that its callers wait. A small call counts as 256
    bytes, so this is two million small calls."""
    nesting: int = 100
    """Levels of containers within containers that a server which accepts no code reads."""
    sessions: int = 1_000
    """Clients at a time."""
    agents: int = 20_000_000
    """Agents at a time."""
    handshakes: int = 64
    """Peers at a time that have not yet proved who they are."""
    threads: int = 2_000
    """Sync methods at a time: each occupies a thread while it runs."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise ConfigError(f"the limit {name} must be a whole number of at least 1, not {value!r}")
