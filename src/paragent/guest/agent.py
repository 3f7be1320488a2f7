"""The agent inside a machine: an HTTP server that runs commands and transfers files.

It implements the part of OSWorld's guest protocol that needs no screen, and two requests of its own under `/paragent`, with
which the pool verifies a machine and assigns it to a holder. It is a single file that uses the standard library only, because
images contain a copy of it; `python3 agent.py --help` shows its options. It does not use pathlib, which takes long to import
under emulation.

==============================  =============================================================================
GET  /platform                  `Linux`
GET  /terminal                  `{"output": null, "status": "success"}`; a liveness check
POST /execute, /setup/execute   `{"command": list or text, "shell": false}` -> status, output, error, returncode
POST /setup/launch              the same, without waiting for the end
POST /file                      form field `file_path` -> the bytes
POST /setup/upload              multipart `file_path`, `file_data` -> text
POST /list_directory            `{"path"}` -> `{"directory_tree"}`
GET  /paragent/state            `{"held": whether it has a holder, "marker": whether the marker is on disk, "boot"}`
POST /paragent/adopt            `{"token", "time", "entropy"}`: accept only this token from now on; sets the clock,
                                reseeds random numbers, writes a marker that a reset must remove
==============================  =============================================================================

Requests carry a token in the header `X-Paragent-Token`. The pool uses the machine's secret, which the machine got when it
was created: before the machine has a holder, only the secret is accepted, and afterwards it is accepted for `/paragent/` only.
The holder's token is accepted for everything else. A request without a token gets status 401, one with a wrong token 409,
because it may come from an earlier holder.

An agent that was started without a secret serves every client until it gets a holder, as OSWorld's own server does. It can get
a holder once.
"""

from __future__ import annotations

import argparse
import contextlib
import hmac
import json
import os
import platform
import random
import signal
import socket
import subprocess
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "COMMAND_SECONDS",
    "BinaryAnswer",
    "Guest",
    "Handler",
    "Rejected",
    "Server",
    "fields_of",
    "main",
    "parts_of",
    "secret_source",
    "set_clock",
]

COMMAND_SECONDS = 120.0
"""The time limit of a command in OSWorld's guest."""
_RESEED = 0x5207
"""RNDRESEEDCRNG in <linux/random.h>: use what was written to /dev/urandom immediately."""
_TOKEN_LENGTH = 16
_CHUNK_BYTES = 64 << 10
_BODY_LIMIT = 1 << 30
"""Maximum number of bytes of an upload; a machine has less memory."""


class Guest:
    """The state of this machine."""

    def __init__(self, folder: str, owns_machine: bool, secret: Callable[[], str] = str) -> None:
        self.folder, self.owns_machine = folder, owns_machine
        self.secret = secret
        """Returns the machine's secret, or an empty string. A clone has another secret than its original."""
        self.holder: str | None = None
        self.boot = os.urandom(8).hex()
        self.lock = threading.Lock()  # protects holder and the marker

    @property
    def marker(self) -> str:
        """The file that a reset must remove."""
        return os.path.join(self.folder, ".paragent-marker")

    def path(self, given: str) -> str:
        """Return an absolute path; relative paths and `~` are relative to the machine's folder."""
        return os.path.join(self.folder, given.removeprefix("~/"))

    def adopt(self, token: str, now: float | None, entropy: str) -> None:
        """Accept the token of a new holder.

        Raises:
            Rejected: the token is too short, or the machine has a holder and no secret.
        """
        if len(token) < _TOKEN_LENGTH:
            raise Rejected(400, f"a token must have at least {_TOKEN_LENGTH} characters")
        with self.lock:
            if self.holder is not None and not self.secret():
                raise Rejected(403, "this machine has a holder, and no secret with which the pool could change it")
            with open(self.marker, "a") as file:
                file.write("held\n")
            self.holder = token
        if self.owns_machine:
            self.freshen(now, bytes.fromhex(entropy))

    def freshen(self, now: float | None, entropy: bytes) -> None:
        """Set the clock and reseed random numbers, because all clones start with the same state."""
        set_clock(now, entropy)
        random.seed()

    def run(self, fields: dict[str, Any]) -> tuple[str, str, int]:
        """Run a command; return its standard output, its standard error and its exit status.

        Raises:
            Rejected: it cannot be started, or takes too long.
        """
        seconds = float(str(fields.get("timeout") or COMMAND_SECONDS))
        process = self.start(fields, subprocess.PIPE)
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Rejected(500, f"Command timed out after {seconds:g} seconds") from None
        return output.decode(errors="replace"), errors.decode(errors="replace"), process.returncode

    def start(self, fields: dict[str, Any], output: int) -> subprocess.Popen[bytes]:
        """Start a command; raises as `run`."""
        command, shell = fields.get("command"), bool(fields.get("shell", False))
        if isinstance(command, str) and not shell:
            import shlex

            command = shlex.split(command)
        if isinstance(command, list):
            command = " ".join(map(str, command)) if shell else [str(word) for word in command]
        if not command:
            raise Rejected(400, "the command is missing")
        try:
            return subprocess.Popen(
                command,
                shell=shell,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
                start_new_session=True,
            )
        except OSError as error:
            raise Rejected(500, f"{error.strerror}: {error.filename}") from None

    def state(self) -> dict[str, Any]:
        """Return the state with which the pool verifies a reset."""
        return {"held": self.holder is not None, "marker": os.path.exists(self.marker), "boot": self.boot}

    def check(self, token: str | None, path: str) -> None:
        """Check that a client with this token may request `path`.

        Raises:
            Rejected: it may not.
        """
        for_pool = path.startswith("/paragent/")
        wanted = self.holder if self.holder is not None and not for_pool else self.secret()
        if not wanted and (self.holder is None or path == "/paragent/adopt"):
            return  # the agent has no secret; `adopt` rejects a second holder
        if token is None:
            raise Rejected(401, "this machine serves only its holder: send the token of the lease")
        if not _same(token, wanted):
            if for_pool:
                raise Rejected(403, "only the pool, with the secret of this machine, may request this")
            raise Rejected(409, "this machine has another holder now")


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time; an empty `wanted` equals nothing."""
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


def secret_source(path: str | None, descriptor: int | None) -> Callable[[], str]:
    """Return a function that returns the machine's secret: read from a file at each use, or from a pipe once."""
    if descriptor is not None:
        with os.fdopen(descriptor) as pipe:
            given = pipe.read().strip()
        return lambda: given
    if path is None:
        return str

    def read() -> str:
        try:
            with open(path, encoding="ascii") as file:
                return file.read().strip("\0\n")
        except (OSError, ValueError):
            return ""

    return read


def set_clock(now: float | None, entropy: bytes) -> None:
    """Set the machine's clock and reseed its random numbers; it needs root."""
    import fcntl

    if now is not None:
        time.clock_settime(time.CLOCK_REALTIME, now)
    with open("/dev/urandom", "wb") as device:
        device.write(entropy)
        device.flush()
        with contextlib.suppress(OSError):  # a kernel without this request reseeds by itself
            fcntl.ioctl(device, _RESEED)


class BinaryAnswer(NamedTuple):
    """An answer with its own content type."""

    content_type: str
    data: bytes


class Rejected(Exception):
    """A request is answered with an error: a status, a message and optional fields."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.more = status, more


class Handler(BaseHTTPRequestHandler):
    """Handles the requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    get_routes: ClassVar[dict[str, Any]] = {}
    """Paths of GET requests, each with a method that takes the body and returns the answer."""
    post_routes: ClassVar[dict[str, Any]] = {}
    """Paths of POST requests."""

    def do_GET(self) -> None:
        self._answer(self.get_routes)

    def do_POST(self) -> None:
        self._answer(self.post_routes)

    def _answer(self, table: dict[str, Any]) -> None:
        try:
            body = self._body()
            route = table.get(self.path.partition("?")[0])
            if route is None:
                raise Rejected(404, f"unknown request {self.command} {self.path}")
            answer = route(self, body)
        except Rejected as refusal:
            answer = {"status": "error", "message": str(refusal), **refusal.more}
            self._send(refusal.status, answer)
        except Exception as error:  # noqa: BLE001 - no request may end the agent
            self._send(500, {"status": "error", "message": f"{type(error).__name__}: {error}"})
        else:
            self._send(200, answer)

    def _body(self) -> bytes:
        """Return the body of an accepted request; the body of a rejected one is read in pieces and discarded."""
        given = self.headers.get("Content-Length") or "0"
        if not given.isdecimal() or int(given) > _BODY_LIMIT:
            self.close_connection = True
            raise Rejected(413, f"a body may have at most {_BODY_LIMIT} bytes")
        left = int(given)
        try:
            self.server.guest.check(self.headers.get("X-Paragent-Token"), self.path.partition("?")[0])
        except Rejected:
            while left and (piece := self.rfile.read(min(left, _CHUNK_BYTES))):
                left -= len(piece)
            raise
        return self.rfile.read(left)

    def _send(self, status: int, answer: object) -> None:
        if isinstance(answer, BinaryAnswer):
            content_type, data = answer
        elif isinstance(answer, bytes):
            content_type, data = "application/octet-stream", answer
        elif isinstance(answer, str):
            content_type, data = "text/plain; charset=utf-8", answer.encode()
        else:
            content_type, data = "application/json", json.dumps(answer).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing: the console of a machine is for the kernel."""

    # --- requests ------------------------------------------------------------------------------------------

    def platform_name(self, _: bytes) -> str:
        return platform.system()

    def terminal(self, _: bytes) -> dict[str, Any]:
        return {"output": None, "status": "success"}

    def state(self, _: bytes) -> dict[str, Any]:
        return self.server.guest.state()

    def adopt(self, body: bytes) -> dict[str, Any]:
        fields = fields_of(body)
        self.server.guest.adopt(str(fields["token"]), fields.get("time"), str(fields.get("entropy", "")))
        return self.server.guest.state()

    def execute(self, body: bytes) -> dict[str, Any]:
        output, errors, returncode = self.server.guest.run(fields_of(body))
        return {"status": "success", "output": output, "error": errors, "returncode": returncode}

    def launch(self, body: bytes) -> str:
        fields = fields_of(body)
        self.server.guest.start(fields, subprocess.DEVNULL)
        return f"{fields['command']} launched successfully"

    def get_file(self, body: bytes) -> bytes:
        given = urllib.parse.parse_qs(body.decode()).get("file_path", [""])[0]
        try:
            with open(self.server.guest.path(given), "rb") as file:
                return file.read()
        except OSError as error:
            raise Rejected(404, f"{given}: {error.strerror}") from None

    def upload(self, body: bytes) -> str:
        parts = parts_of(self.headers.get("Content-Type", ""), body)
        path, data = self.server.guest.path(parts["file_path"].decode()), parts["file_data"]
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return f"File Uploaded: {len(data)} bytes"

    def list_directory(self, body: bytes) -> dict[str, Any]:
        given = str(fields_of(body).get("path", "."))
        try:
            return {"directory_tree": _tree(self.server.guest.path(given))}
        except OSError as error:
            raise Rejected(404, f"{given}: {error.strerror}") from None


Handler.get_routes = {
    "/platform": Handler.platform_name,
    "/terminal": Handler.terminal,
    "/paragent/state": Handler.state,
}
Handler.post_routes = {
    "/execute": Handler.execute,
    "/setup/execute": Handler.execute,
    "/setup/launch": Handler.launch,
    "/file": Handler.get_file,
    "/setup/upload": Handler.upload,
    "/list_directory": Handler.list_directory,
    "/paragent/adopt": Handler.adopt,
}


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON body; raises `Rejected` if it is not a JSON object."""
    try:
        fields = json.loads(body or b"{}")
    except ValueError:
        raise Rejected(400, "the body is not JSON") from None
    if not isinstance(fields, dict):
        raise Rejected(400, "the body is not a JSON object")
    return fields


def parts_of(content_type: str, body: bytes) -> dict[str, bytes]:
    """Return the fields of a multipart form."""
    _, _, boundary = content_type.partition("boundary=")
    parts: dict[str, bytes] = {}
    for piece in body.split(b"--" + boundary.strip('"').encode())[1:-1]:
        head, _, data = piece.partition(b"\r\n\r\n")
        _, _, name = head.partition(b'name="')
        parts[name.partition(b'"')[0].decode()] = data.removesuffix(b"\r\n")
    if not boundary or not {"file_path", "file_data"} <= set(parts):
        raise Rejected(400, "an upload needs the fields file_path and file_data")
    return parts


def _tree(path: str) -> dict[str, Any]:
    children = []
    with os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                children.append(_tree(entry.path))
            else:
                children.append({"type": "file", "name": entry.name})
    return {"type": "directory", "name": os.path.basename(path.rstrip("/")), "children": children}


class Server(ThreadingHTTPServer):
    """Serves each connection in its own thread."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, listener: socket.socket, guest: Guest, handler: type[Handler] = Handler) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.guest = guest
        self.server_activate()


def main(arguments: list[str] | None = None) -> None:
    """Serve until the process ends."""
    parser = argparse.ArgumentParser(description="Run commands and transfer files for the holder of this machine.")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - the pool controls the network of the machine
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--folder", default="/root", help="working directory of commands and base of relative paths")
    parser.add_argument("--fd", type=int, help="serve this listening socket instead of opening a port")
    parser.add_argument(
        "--owns-machine", action="store_true", help="set the clock and reseed random numbers; needs root"
    )
    parser.add_argument("--secret-file", help="file with the secret of the pool")
    parser.add_argument("--secret-fd", type=int, help="file descriptor of a pipe with the secret, instead of a file")
    options = parser.parse_args(arguments)
    inherited = options.fd is not None
    listener = socket.socket(fileno=options.fd) if inherited else socket.create_server((options.host, options.port))
    secret = secret_source(options.secret_file, options.secret_fd)
    with Server(listener, Guest(options.folder, options.owns_machine, secret)) as server:
        server.serve_forever(poll_interval=60)


if __name__ == "__main__":
    main()
