"""Runs `program_main` in a machine and carries its streams, and connections to a local port, through files to the host.

A machine without a network cannot connect to its host, but its guest agent runs commands and writes files for the host. So
messages pass through named pipes in one folder, each of which is used once: the host reads `out.0`, `out.1`, ... with `cat` and
writes `in.0`, `in.1`, ... as uploaded files. Both block until the other side is there.

A message is a JSON list of frames. A frame has the number of a stream (`id`) and one of `data` (base64), `open` or `end`.
Stream 0 is stdin and stdout of the process, the others are connections to the port. The first frame has `port`, `folder` and
`variables`.

This file runs alone inside machines, so it imports only the standard library: `python3 tunnel_main.py FOLDER COMMAND ...`.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import json
import os
import queue
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Tunnel", "main"]

_CHUNK = 1 << 16
_MOST_FRAMES = 16
"""Frames in one message and in the queue: 1 MiB of data."""
_IDLE = 5.0
"""Seconds after which an empty message is written, so that no request of the host waits longer."""


class Tunnel:
    """The pipes in one folder, and the streams that they carry."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._frames: queue.Queue[dict[str, Any]] = queue.Queue(_MOST_FRAMES)
        self._writers: dict[int, queue.Queue[bytes | None]] = {}
        self._next = 1

    def run(self, command: list[str]) -> None:
        """Run a command and carry its streams until it has ended and the host has its whole output."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        home = {"port": listener.getsockname()[1], "folder": os.getcwd(), "variables": dict(os.environ)}  # noqa: PTH109 - one import less
        self._frames.put(home)
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
        assert process.stdin is not None
        assert process.stdout is not None
        self._add_writer(0, process.stdin.write, process.stdin.close)
        self._start(self._accept, listener)
        self._start(self._receive)
        self._start(self._pump, 0, process.stdout.read)
        self._send()

    def _start(self, target: Any, *arguments: Any) -> None:
        threading.Thread(target=target, args=arguments, daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            connection, _ = listener.accept()
            number, self._next = self._next, self._next + 1
            self._add_writer(number, connection.sendall, functools.partial(_shut_down, connection))
            self._frames.put({"id": number, "open": True})
            self._start(self._pump, number, connection.recv)

    def _pump(self, number: int, read: Callable[[int], bytes | None]) -> None:
        """Send everything that is read from a stream."""
        with contextlib.suppress(OSError):
            while data := read(_CHUNK):
                self._frames.put({"id": number, "data": base64.b64encode(data).decode()})
        self._frames.put({"id": number, "end": True})

    def _add_writer(self, number: int, write: Callable[[bytes], Any], close: Callable[[], None]) -> None:
        waiting: queue.Queue[bytes | None] = queue.Queue()
        self._writers[number] = waiting
        self._start(self._write, waiting, write, close)

    def _write(
        self, waiting: queue.Queue[bytes | None], write: Callable[[bytes], Any], close: Callable[[], None]
    ) -> None:
        with contextlib.suppress(OSError):
            while (data := waiting.get()) is not None:
                write(data)
        with contextlib.suppress(OSError):
            close()

    def _send(self) -> None:
        """Write messages until the output of the command has ended. The host reads each of them with one command."""
        ended, number = False, 0
        while not ended:
            self._make(f"out.{number + 1}")
            path = f"{self._folder}/out.{number}"
            with open(path, "w") as pipe:  # noqa: PTH123 - as above; it waits for a reader
                frames = self._waiting_frames()
                ended = any(frame.get("id") == 0 and frame.get("end") for frame in frames)
                pipe.write(json.dumps(frames))
            os.unlink(path)  # noqa: PTH108 - as above
            number += 1

    def _waiting_frames(self) -> list[dict[str, Any]]:
        frames: list[dict[str, Any]] = []
        with contextlib.suppress(queue.Empty):
            frames.append(self._frames.get(timeout=_IDLE))
            while len(frames) < _MOST_FRAMES:
                frames.append(self._frames.get_nowait())
        return frames

    def _receive(self) -> None:
        number = 0
        while True:
            self._make(f"in.{number + 1}")
            path = f"{self._folder}/in.{number}"
            with open(path) as pipe:  # noqa: PTH123 - as above; it waits for a writer
                frames = json.load(pipe)
            os.unlink(path)  # noqa: PTH108 - as above
            number += 1
            for frame in frames:
                if (waiting := self._writers.get(frame["id"])) is not None:
                    waiting.put(base64.b64decode(frame["data"]) if "data" in frame else None)

    def _make(self, name: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(f"{self._folder}/{name}", 0o600)


def _shut_down(connection: socket.socket) -> None:
    with connection:
        connection.shutdown(socket.SHUT_RDWR)


def main() -> None:
    """Run the tunnel of the command line."""
    Tunnel(sys.argv[1]).run(sys.argv[2:])
    os._exit(0)  # threads that wait for pipes would delay the end of the interpreter


if __name__ == "__main__":
    main()
