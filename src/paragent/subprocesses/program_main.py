"""Runs one program for a parent process: stdin, captured output, SIGTERM before SIGKILL, no process left behind.

This file also runs alone, inside sandboxes and machines, so it imports only the standard library.

The parent writes one line of JSON, the settings, to stdin and keeps it open. A line `{"stop": seconds}` sends SIGTERM to the
program and SIGKILL to everything that is left after that time. When stdin ends, the parent has ended: everything is killed.
When the program has ended, its remaining descendants are killed, and the report is written to stdout as one line of JSON.

Settings:
    command, environment, folder, stdin: what to run, with which variables, where, and its input as text.
    prefix: words before the command, and before the command that reads the answer: a program that gives up privileges.
    output: bytes of stdout and of stderr that are kept, half of them from the beginning.
    answer, answer_bytes: the path of the answer file, and how much of it is read.
    remove: a folder that is removed at the end, also if the parent has ended; empty: none.
    forward: `{"port": ..., "socket": ...}`: forward connections to this port of 127.0.0.1 to a Unix socket.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from typing import Any

__all__ = ["Capture", "Supervisor", "forward", "main"]

_CHUNK = 1 << 16
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36  # of <linux/prctl.h>
_POLL = 0.01
"""Seconds between two rounds of SIGKILL, while processes that were killed are still starting others."""
_START_TIME = 60.0
"""Seconds to start the program; it takes milliseconds."""
_AFTER_END = 2.0
"""Seconds for output to end, and for the answer to be read, after all processes were killed; it takes milliseconds."""


class Capture:
    """The beginning and the end of a stream, `limit` bytes at most; the middle is discarded."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head, self._tail = bytearray(), bytearray()
        self.omitted = 0
        """Bytes in the middle that were discarded."""

    def add(self, data: bytes) -> None:
        """Add the next bytes of the stream."""
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[max(room, 0) :]
        if (extra := len(self._tail) - self._half) > 0:
            del self._tail[:extra]
            self.omitted += extra

    def text(self) -> str:
        """Return what was kept, with a line in the place of what was discarded."""
        head, tail = self._head.decode("utf-8", "replace"), self._tail.decode("utf-8", "replace")
        if not self.omitted:
            return (self._head + self._tail).decode("utf-8", "replace")
        return f"{head}\n... {self.omitted} bytes omitted ...\n{tail}"


class Supervisor:
    """One program and all processes that it starts."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._prefix: list[str] = settings.get("prefix") or []
        self._captures = {name: Capture(settings["output"]) for name in ("stdout", "stderr")}
        self._process: subprocess.Popen[bytes] | None = None
        self._started, self._ended = threading.Event(), threading.Event()

    def run(self) -> dict[str, Any]:
        """Run the program and return the report."""
        began = time.monotonic()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        try:
            process = self._process = subprocess.Popen(
                [*self._prefix, *self._settings["command"]],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd=self._settings["folder"],
                env=self._settings["environment"],
                start_new_session=True,
            )
        except OSError as error:
            self._ended.set()
            return {"error": f"{error.filename or self._settings['command'][0]}: {error.strerror}"}
        finally:
            self._started.set()
        streams = {"stdout": process.stdout, "stderr": process.stderr}
        readers = [self._thread(self._read, streams[name], name) for name in streams]
        self._thread(self._write, process.stdin)
        exit_code = _wait_for(process.pid)
        seconds = time.monotonic() - began
        process.returncode = exit_code  # it was reaped here; Popen must not wait for another process with its id
        self._ended.set()
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        _kill_descendants()
        deadline = time.monotonic() + _AFTER_END
        for reader in readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        report: dict[str, Any] = {"exit_code": exit_code, "seconds": round(seconds, 3), **self._answer()}
        for name, capture in self._captures.items():
            report |= {name: capture.text(), f"{name}_omitted": capture.omitted}
        return report

    def stop(self, grace: float) -> None:
        """Ask the program to end; kill all processes after `grace` seconds."""
        self._started.wait(_START_TIME)  # an order may come before the program is started
        if self._process is None or self._ended.is_set():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        self._ended.wait(grace)
        while not self._ended.is_set():  # the thread that waits for the program kills what is left then
            _kill_children()
            self._ended.wait(_POLL)

    def _thread(self, target: Any, *arguments: Any) -> threading.Thread:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        thread.start()
        return thread

    def _write(self, stream: Any) -> None:
        with contextlib.suppress(OSError), stream:  # a program need not read its input
            stream.write(self._settings["stdin"].encode())

    def _read(self, stream: Any, name: str) -> None:
        while data := os.read(stream.fileno(), _CHUNK):
            self._captures[name].add(data)

    def _answer(self) -> dict[str, Any]:
        """Return the content of the answer file. It is read with the rights of the program, which may have made it a link."""
        path, limit = self._settings["answer"], self._settings["answer_bytes"]
        if not os.path.lexists(path):
            return {"answer": None}
        try:
            command = [*self._prefix, "head", "-c", str(limit + 1), path]
            found = subprocess.run(command, capture_output=True, timeout=_AFTER_END, check=True, cwd="/").stdout
        except (OSError, subprocess.SubprocessError):  # a folder, a link to nowhere, a pipe without a writer
            return {"answer": None, "unreadable": True}
        return {"answer": found[:limit].decode("utf-8", "replace"), "answer_cut": len(found) > limit}


def _prctl(option: int, value: int) -> None:
    """Change an attribute of this process.

    - PR_SET_DUMPABLE 0: a program of the same user cannot open the streams of this process in /proc, nor trace it.
    - PR_SET_CHILD_SUBREAPER 1: orphaned descendants become children of this process, so that it can find and end them.

    Without ctypes, which small images lack, nothing changes. Processes that leave the program's session end with the machine.
    """
    with contextlib.suppress(ImportError, OSError, AttributeError):
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _wait_for(pid: int) -> int:
    """Wait for a child and return its exit code, negative for a signal; other children that end are reaped."""
    while True:
        ended, status = os.waitpid(-1, 0)
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _kill_descendants() -> None:
    """Kill and reap all children; their children become children of this process, and are killed next."""
    while _kill_children():
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill_children() -> bool:
    """Kill all children; return whether there were any."""
    children = _children()
    for pid in children:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(children)


def _children() -> list[int]:
    """Return the children of this process that have not ended."""
    found: list[int] = []
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208 - one import less
        with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:  # noqa: PTH123 - as above
            found += map(int, file.read().split())
    return found


def forward(port: int, path: str) -> None:
    """Accept connections at a port of 127.0.0.1 in the background and connect each of them to a Unix socket."""
    listener = socket.create_server(("127.0.0.1", port), backlog=128)

    def accept() -> None:
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_connect, args=(client, path), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def _connect(client: socket.socket, path: str) -> None:
    with client, socket.socket(socket.AF_UNIX) as server:
        try:
            server.connect(path)
        except OSError:
            return  # the client sees a connection that was closed
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _obey(supervisor: Supervisor, control: Any, folder: str) -> None:
    """Follow the parent's orders; when it has ended, kill everything and remove the folder."""
    for line in control:
        with contextlib.suppress(ValueError, TypeError, LookupError, RecursionError):  # not an order of the parent
            supervisor.stop(float(json.loads(line)["stop"]))
    while _kill_children():  # the main thread reaps them
        time.sleep(_POLL)
    _remove(folder)
    os._exit(1)


def _remove(folder: str) -> None:
    if folder:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Read the settings from stdin, run the program, write the report to stdout."""
    _prctl(_PR_SET_DUMPABLE, 0)
    control = sys.stdin.buffer
    settings = json.loads(control.readline())
    if settings.get("forward"):
        forward(settings["forward"]["port"], settings["forward"]["socket"])
    supervisor, folder = Supervisor(settings), settings.get("remove") or ""
    threading.Thread(target=_obey, args=(supervisor, control, folder), daemon=True).start()
    report = supervisor.run()
    _remove(folder)
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the thread that reads stdin would delay the end of the interpreter


if __name__ == "__main__":
    main()
