"""What only root may do in a machine, for a server that is not root: set the clock and stir the random state.

The process that starts as root splits in two. The one that goes on is the user's; the other one stays root, reads orders
from a pipe, and ends when the first one has ended.
"""

from __future__ import annotations

import os
import sys

from paragent.guest.agent import set_clock
from paragent.guest.desktop.session import become

__all__ = ["order", "split"]


def order(now: float | None, entropy: bytes) -> bytes:
    """Return what is to be written to the pipe."""
    return f"{'' if now is None else now} {entropy.hex()}\n".encode()


def split(user: str) -> int:
    """Return as `user`, with the descriptor to which orders are written; root's part never returns."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        become(user)
        return writing
    os.close(writing)
    with os.fdopen(reading) as orders:
        for line in orders:
            now, _, entropy = line.strip("\n").partition(" ")
            set_clock(float(now) if now else None, bytes.fromhex(entropy))
    _, status = os.waitpid(child, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
