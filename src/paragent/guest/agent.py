"""The guest agent: an HTTP server inside a machine that runs commands and moves files.

It speaks the subset of OSWorld's guest protocol that a machine without a screen has, and three requests of its own under
`/paragent`, by which the pool tells a machine who holds it. It is one file of the standard library alone, because it is
copied into images as it is; `python3 agent.py --help` says how it is started. It opens files without pathlib, which takes
long to import under emulation.

==============================  =============================================================================
GET  /platform                  `Linux`
GET  /terminal                  `{"output": null, "status": "success"}`; whether anybody is there
POST /execute, /setup/execute   `{"command": list or text, "shell": false}` -> status, output, error, returncode
POST /setup/launch              the same, without waiting for the end
POST /file                      form field `file_path` -> the bytes
POST /setup/upload              multipart `file_path`, `file_data` -> text
POST /list_directory            `{"path"}` -> `{"directory_tree"}`
GET  /paragent/state            `{"held": whether it has a holder, "marker": whether a holder's marker is on disk, "boot"}`
POST /paragent/adopt            `{"token", "time", "entropy"}`: from now on only this token is served; sets the clock,
                                stirs the random state, leaves a marker by which a reset is verified
==============================  =============================================================================

Requests carry a token in the header `X-Paragent-Token`. The machine's secret, which the pool gave it when it was made, is
for the pool: until the machine has a holder nothing else is served, and afterwards it still serves `/paragent/`. A holder's
token is for everything else. A request without a token gets status 401, one with a wrong token 409: it may come from
somebody who has lost the machine.

An agent that was started without a secret serves everybody until it is adopted, as OSWorld's own server does. It can be
adopted once.
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
    "Answer",
    "Guest",
    "Handler",
    "Refused",
    "Server",
    "fields_of",
    "main",
    "parts_of",
    "secret_source",
    "set_clock",
]

COMMAND_SECONDS = 120.0
"""What OSWorld's guest allows a command."""
_RESEED = 0x5207
"""RNDRESEEDCRNG in <linux/random.h>: use what was written to /dev/urandom from now on."""
_TOKEN_LENGTH = 16
_PIECE = 64 << 10
_BODY_LIMIT = 1 << 30
"""Bytes of the largest upload; a machine has less memory than that."""


class Guest:
    """The state of this machine."""

    def __init__(self, folder: str, owns_machine: bool, secret: Callable[[], str] = str) -> None:
        self.folder, self.owns_machine = folder, owns_machine
        self.secret = secret
        """Returns the machine's secret, or nothing: it is another one after the machine was cloned."""
        self.holder: str | None = None
        self.boot = os.urandom(8).hex()
        self.lock = threading.Lock()  # protects holder and the marker

    @property
    def marker(self) -> str:
        """The file that a reset has to take away."""
        return os.path.join(self.folder, ".paragent-marker")

    def path(self, given: str) -> str:
        """Relative paths and `~` are within the machine's folder."""
        return os.path.join(self.folder, given.removeprefix("~/"))

    def adopt(self, token: str, now: float | None, entropy: str) -> None:
        """Belong to a new holder.

        Raises:
            Refused: the token is too short, or the machine has a holder and no secret that says who may change that.
        """
        if len(token) < _TOKEN_LENGTH:
            raise Refused(400, f"a token has at least {_TOKEN_LENGTH} characters")
        with self.lock:
            if self.holder is not None and not self.secret():
                raise Refused(403, "this machine has a holder, and no secret of a pool that could change that")
            with open(self.marker, "a") as file:
                file.write("held\n")
            self.holder = token
        if self.owns_machine:
            self.freshen(now, bytes.fromhex(entropy))

    def freshen(self, now: float | None, entropy: bytes) -> None:
        """Set the clock and the random state, which are those of all other clones."""
        set_clock(now, entropy)
        random.seed()

    def run(self, fields: dict[str, Any]) -> tuple[str, str, int]:
        """Run a command to its end; return its output, its errors and how it ended.

        Raises:
            Refused: it cannot be started, or takes too long.
        """
        seconds = float(str(fields.get("timeout") or COMMAND_SECONDS))
        process = self.start(fields, subprocess.PIPE)
        try:
            output, errors = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise Refused(500, f"Command timed out after {seconds:g} seconds") from None
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
            raise Refused(400, "there is no command")
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
            raise Refused(500, f"{error.strerror}: {error.filename}") from None

    def state(self) -> dict[str, Any]:
        """Return what the pool asks for to verify a reset."""
        return {"held": self.holder is not None, "marker": os.path.exists(self.marker), "boot": self.boot}

    def check(self, token: str | None, path: str) -> None:
        """Check that whoever sent a token may ask for `path`.

        Raises:
            Refused: they may not.
        """
        own = path.startswith("/paragent/")
        wanted = self.holder if self.holder is not None and not own else self.secret()
        if not wanted and (self.holder is None or path == "/paragent/adopt"):
            return  # no secret was given; `adopt` refuses a second holder by itself
        if token is None:
            raise Refused(401, "this machine serves its holder only: send the token of the lease")
        if not _same(token, wanted):
            if own:
                raise Refused(403, "only the pool, by the secret of this machine, may ask for that")
            raise Refused(409, "this machine has another holder now")


def _same(given: str, wanted: str) -> bool:
    """Compare without telling by the time it takes how much was right; nothing is like an empty text."""
    return bool(wanted) and hmac.compare_digest(given.encode(), wanted.encode())


def secret_source(path: str | None, descriptor: int | None) -> Callable[[], str]:
    """Return what reads the machine's secret: from a file at each use, or from a pipe once, so that nothing of it is left."""
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
    """Set the machine's clock and stir its random state; only root may."""
    import fcntl

    if now is not None:
        time.clock_settime(time.CLOCK_REALTIME, now)
    with open("/dev/urandom", "wb") as device:
        device.write(entropy)
        device.flush()
        with contextlib.suppress(OSError):  # a kernel that does not know the request reseeds by itself
            fcntl.ioctl(device, _RESEED)


class Answer(NamedTuple):
    """Bytes of a kind that is not plain."""

    kind: str
    data: bytes


class Refused(Exception):
    """A request that gets an error as its answer: a message, and `more` fields if it has any."""

    def __init__(self, status: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.status, self.more = status, more


class Handler(BaseHTTPRequestHandler):
    """One connection; the guest is in `server.guest`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server
    readable: ClassVar[dict[str, Any]] = {}
    """What GET knows: a path to a method that takes the body and returns the answer."""
    writable: ClassVar[dict[str, Any]] = {}
    """What POST knows."""

    def do_GET(self) -> None:
        self._answer(self.readable)

    def do_POST(self) -> None:
        self._answer(self.writable)

    def _answer(self, table: dict[str, Any]) -> None:
        try:
            body = self._body()
            route = table.get(self.path.partition("?")[0])
            if route is None:
                raise Refused(404, f"there is no {self.command} {self.path}")
            answer = route(self, body)
        except Refused as refusal:
            answer = {"status": "error", "message": str(refusal), **refusal.more}
            self._send(refusal.status, answer)
        except Exception as error:  # noqa: BLE001 - whatever a request does, the machine goes on
            self._send(500, {"status": "error", "message": f"{type(error).__name__}: {error}"})
        else:
            self._send(200, answer)

    def _body(self) -> bytes:
        """Return the body of a request that may be served; that of another one is read and thrown away, piece by piece."""
        given = self.headers.get("Content-Length") or "0"
        if not given.isdecimal() or int(given) > _BODY_LIMIT:
            self.close_connection = True
            raise Refused(413, f"a body has at most {_BODY_LIMIT} bytes")
        left = int(given)
        try:
            self.server.guest.check(self.headers.get("X-Paragent-Token"), self.path.partition("?")[0])
        except Refused:
            while left and (piece := self.rfile.read(min(left, _PIECE))):
                left -= len(piece)
            raise
        return self.rfile.read(left)

    def _send(self, status: int, answer: object) -> None:
        if isinstance(answer, Answer):
            kind, data = answer
        elif isinstance(answer, bytes):
            kind, data = "application/octet-stream", answer
        elif isinstance(answer, str):
            kind, data = "text/plain; charset=utf-8", answer.encode()
        else:
            kind, data = "application/json", json.dumps(answer).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Stay silent: the console of a machine is for the kernel."""

    # --- what can be asked ------------------------------------------------------------------------------------------

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
            raise Refused(404, f"{given}: {error.strerror}") from None

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
            raise Refused(404, f"{given}: {error.strerror}") from None


Handler.readable = {
    "/platform": Handler.platform_name,
    "/terminal": Handler.terminal,
    "/paragent/state": Handler.state,
}
Handler.writable = {
    "/execute": Handler.execute,
    "/setup/execute": Handler.execute,
    "/setup/launch": Handler.launch,
    "/file": Handler.get_file,
    "/setup/upload": Handler.upload,
    "/list_directory": Handler.list_directory,
    "/paragent/adopt": Handler.adopt,
}


def fields_of(body: bytes) -> dict[str, Any]:
    """Return the fields of a JSON body; raises `Refused` if it has none."""
    try:
        fields = json.loads(body or b"{}")
    except ValueError:
        raise Refused(400, "the body is no JSON") from None
    if not isinstance(fields, dict):
        raise Refused(400, "the body is no JSON object")
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
        raise Refused(400, "an upload needs the fields file_path and file_data")
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
    """One thread for each connection."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, listener: socket.socket, guest: Guest, handler: type[Handler] = Handler) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.guest = guest
        self.server_activate()


def main(arguments: list[str] | None = None) -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description="Run commands and move files for whoever holds this machine.")
    parser.add_argument("--host", default="0.0.0.0")  # noqa: S104 - the machine's network is the pool's
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--folder", default="/root", help="where commands start and relative paths are")
    parser.add_argument("--fd", type=int, help="serve this listening socket instead of opening a port")
    parser.add_argument("--owns-machine", action="store_true", help="may set the clock and the random state")
    parser.add_argument("--secret-file", help="has the secret by which the pool says who holds this machine")
    parser.add_argument("--secret-fd", type=int, help="a pipe from which that secret is read instead")
    options = parser.parse_args(arguments)
    inherited = options.fd is not None
    listener = socket.socket(fileno=options.fd) if inherited else socket.create_server((options.host, options.port))
    secret = secret_source(options.secret_file, options.secret_fd)
    with Server(listener, Guest(options.folder, options.owns_machine, secret)) as server:
        server.serve_forever(poll_interval=60)


if __name__ == "__main__":
    main()
