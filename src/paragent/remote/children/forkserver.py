"""The warm parent: a process that has imported what servers need, has opened no connection, and forks servers.

It speaks with its owner over a socket pair. Each request is one datagram of JSON that comes with a socket, the leash of
the server to be forked. When the owner's end of the pair closes, by whatever cause, this process ends, and the kernel
ends its children with it.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys

from paragent.remote.children.pool import LONGEST

__all__ = ["main"]


def main(descriptor: int, modules: list[str]) -> None:
    """Fork servers as asked until the owner is gone."""
    gc.disable()  # what is imported stays: there is nothing to find. A server enables it for itself
    from paragent.remote.children import child_main as nursling

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps: nobody here waits for a child
    control = socket.socket(fileno=descriptor)
    nursling.warm_up(modules)
    gc.freeze()  # a collection in a child must not copy the pages of what is imported
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, LONGEST, 1)
        if not data:
            return
        leash = descriptors[0]
        if os.fork() == 0:
            control.close()
            nursling.live(json.loads(data), leash)
        os.close(leash)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
