"""What mistakes need besides files: endpoints, servers, ports and stored runs. Each function returns a context manager."""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from paragent import RpcAgentServerLauncher, VMPoolManager
from paragent.store import RolloutResult, RolloutStatus, RunDirectory
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer
from paragent.testing.openai_server import Fault, Script
from tests.machines.certificates import certify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    Surroundings = Callable[[Path], AbstractContextManager[Mapping[str, str]]]

ENDPOINT = {"OPENAI_BASE_URL": "<url>/v1", "OPENAI_API_KEY": "sk-mistake"}
"""Variables for an endpoint at `<url>`."""


def endpoint(status: int, message: str, code: str = "") -> Surroundings:
    """An endpoint that answers every request with an error; `<url>`."""

    @contextlib.contextmanager
    def given(_: Path) -> Iterator[dict[str, str]]:
        fault = Fault(status, message=message, code=code)
        with OpenAIServer(Script(faults=[fault])) as server:
            yield {"url": server.url.removesuffix("/v1")}

    return given


def web_server(status: int, page: str = "<!doctype html><title>Welcome</title>") -> Surroundings:
    """A web server that answers every request with a page; `<url>` and `<port>`."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(page)))
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: Any) -> None:
            """Print nothing."""

    @contextlib.contextmanager
    def given(_: Path) -> Iterator[dict[str, str]]:
        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.05,))
            thread.start()
            try:
                yield {"url": f"http://127.0.0.1:{server.server_port}", "port": str(server.server_port)}
            finally:
                server.shutdown()
                thread.join(60)

    return given


@contextlib.contextmanager
def free_port(_: Path) -> Iterator[dict[str, str]]:
    """A port at which nobody listens: it is bound, so that no other program gets it; `<port>` and `<url>`."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        yield {"port": str(port), "url": f"http://127.0.0.1:{port}"}


@contextlib.contextmanager
def busy_port(_: Path) -> Iterator[dict[str, str]]:
    """A port at which another program listens; `<port>`."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield {"port": str(server.getsockname()[1])}


def agent_server(*, tls: bool = False, **settings: Any) -> Surroundings:
    """An agent server; `<port>`. With `tls` its certificate is cert.pem in the folder."""

    @contextlib.contextmanager
    def given(folder: Path) -> Iterator[dict[str, str]]:
        conf = certify(folder, "127.0.0.1") if tls else None
        with RpcAgentServerLauncher("127.0.0.1", tls=conf, **settings) as launcher:
            yield {"port": str(launcher.port)}

    return given


@contextlib.contextmanager
def pool(_: Path) -> Iterator[dict[str, str]]:
    """A served pool of one machine; `<port>`."""
    with VMPoolManager("process", 1, name="mistakes") as manager:
        yield {"port": str(manager.serve("127.0.0.1").address.port)}


@contextlib.contextmanager
def runs(folder: Path) -> Iterator[dict[str, str]]:
    """The runs `first` with the task a, and `second` with the task b."""
    for name, task in {"first": "a", "second": "b"}.items():
        with RunDirectory(folder / "results" / name) as directory:
            directory.open({"mode": "math", "attempts": 1}, "an identity")
            directory.journal.add_tasks([BenchmarkTask(task, f"{task}?", "5")])
            result = RolloutResult(
                task, 1, RolloutStatus.COMPLETED, score=1.0, scores={"math": 1.0}, answer="5", final=True
            )
            directory.journal.record([result])
    yield {}


@contextlib.contextmanager
def busy_run(folder: Path) -> Iterator[dict[str, str]]:
    """The same runs; this process uses `first`."""
    with runs(folder), RunDirectory(folder / "results" / "first") as directory:
        directory.open_existing()
        yield {}
