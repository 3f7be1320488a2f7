"""Untrusted task files: which files of this host they can read and which addresses they can download from."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paragent._internal import networks
from paragent.envs import open_environment
from paragent.errors import EnvironmentFailed
from paragent.osworld import access as access_module
from paragent.osworld.access import Access
from paragent.osworld.context import AttemptContext
from paragent.osworld.setup import set_up
from paragent.rollout.prepare import with_data_folder
from paragent.tasks import BenchmarkTask


class Service:
    """A service of this host that tasks must not reach."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                service.asked.append(self.path)
                moved = self.path.removeprefix("/to/") if self.path.startswith("/to/") else None
                self.send_response(302 if moved else 200)
                if moved:
                    self.send_header("Location", moved)
                self.send_header("Content-Length", "0" if moved else "6")
                self.end_headers()
                self.wfile.write(b"" if moved else b"secret")

            def do_CONNECT(self) -> None:
                service.asked.append(self.path)
                self.send_error(403)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Service]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PARAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(access_module, "_PAUSE", 0.01)
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join(10)


def fetch(url: str, access: Access | None = None) -> bytes:
    return asyncio.run(asyncio.wait_for(access_module.fetch(url, access or Access()), 60)).read_bytes()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0", "2130706433", "0x7f.1", "127.0.0%2e1", "127.1"])
def test_downloads_from_this_host_are_rejected_in_every_notation(service: Service, host: str) -> None:
    with pytest.raises(EnvironmentFailed, match="not a public address"):
        fetch(f"http://{host}:{service.port}/")
    assert service.asked == []


@pytest.mark.parametrize(
    "address", ["169.254.169.254", "192.168.0.1", "168.63.129.16", "[fd00:ec2::254]", "[::ffff:10.0.0.1]"]
)
def test_downloads_from_private_networks_are_rejected(address: str) -> None:
    for scheme in ("http", "https"):
        with pytest.raises(EnvironmentFailed, match="allow_private=true"):
            fetch(f"{scheme}://{address}/latest/meta-data/")


def test_every_redirect_is_checked(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first host counts as public; the redirects lead to a private host, and to other schemes."""
    checked = networks.is_public
    monkeypatch.setattr(networks, "is_public", lambda address: address == "127.0.0.1" or checked(address))
    start = f"http://127.0.0.1:{service.port}"
    with pytest.raises(EnvironmentFailed, match=r"127\.0\.0\.2.*not a public address"):
        fetch(f"{start}/to/http://127.0.0.2:{service.port}/secret")
    for elsewhere in ("file:///etc/passwd", "ftp://127.0.0.2/x", "data:text/plain,x"):
        with pytest.raises(EnvironmentFailed, match="cannot fetch"):
            fetch(f"{start}/to/{elsewhere}")
    assert all(path.startswith("/to/") for path in service.asked)
    assert fetch(f"{start}/to/{start}/fine") == b"secret"


def test_dns_rebinding_is_rejected(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is resolved once: the checked address is the one that is connected to."""
    looked: list[str] = []
    real = socket.getaddrinfo

    def flipping(host: str, port: int, *more: Any, **named: Any) -> Any:
        if host != "flip.example":
            return real(host, port, *more, **named)
        looked.append(host)
        address = "203.0.113.1" if len(looked) == 1 else "127.0.0.1"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

    monkeypatch.setattr(socket, "getaddrinfo", flipping)
    monkeypatch.setattr(networks, "is_public", lambda address: address == "203.0.113.1")
    connected: list[Any] = []

    def connect(address: Any, *_: Any) -> Any:
        connected.append(address)
        raise OSError("nobody there")

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(OSError, match="nobody there"):
        networks.connect_public(("flip.example", 80))
    assert connected == [("203.0.113.1", 80)]


def test_private_addresses_are_not_requested_through_a_proxy(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{service.port}")
    monkeypatch.setenv("no_proxy", "")
    for url in ("http://10.1.2.3/x", "https://10.1.2.3/x", "http://10.1.2%2e3/x"):
        with pytest.raises(EnvironmentFailed, match="not a public address"):
            fetch(url)
    assert service.asked == []
    assert fetch("http://only-the-proxy-knows.invalid/x") == b"secret"


def test_a_slow_server_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(access_module, "_SECONDS", 0.5)
    monkeypatch.setattr(access_module, "_TRIES", 1)
    given_up = threading.Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
            while not given_up.wait(0.05):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        try:
            with pytest.raises(EnvironmentFailed, match="longer than"):
                fetch(f"http://127.0.0.1:{listener.getsockname()[1]}/recording", Access(allow_private=True))
        finally:
            given_up.set()
            thread.join(20)


def test_the_home_folder_is_a_data_folder_only_if_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home, kind = tmp_path / "home", type(open_environment("osworld", {}))
    (home / "tasks").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    for folder in (home, tmp_path, Path("/"), home / "tasks" / ".."):
        located = with_data_folder({}, kind, folder / "tasks.json")
        assert "data_folder" not in located
        step = {"type": "upload_file", "parameters": {"files": [{"local_path": "x", "path": "/there"}]}}
        task = BenchmarkTask("a", "?", None, {"config": [step], "evaluator": {"func": "infeasible"}})
        [reported] = open_environment("osworld", located).missing_requirements(task)
        assert "--env-option data_folder=FOLDER" in reported
    assert with_data_folder({}, kind, home / "tasks" / "t.json") == {"data_folder": str(home / "tasks")}
    assert with_data_folder({"data_folder": str(home)}, kind, home / "t.json") == {"data_folder": str(home)}


def test_private_downloads_can_be_allowed_and_have_their_own_cache(service: Service) -> None:
    url = f"http://127.0.0.1:{service.port}/x"
    assert fetch(url, Access(allow_private=True)) == b"secret"
    with pytest.raises(EnvironmentFailed, match="not a public address"):
        fetch(url)


# --- files ----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "files").mkdir(parents=True)
    (folder / "files/note.txt").write_text("fine")
    (folder / ".env").write_text("KEY=secret")
    (folder / ".ssh").mkdir()
    (folder / ".ssh/id").write_text("secret")
    (tmp_path / "secret.txt").write_text("secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "folder_link").symlink_to(tmp_path)
    (folder / "hidden_link").symlink_to(folder / ".env")
    os.mkfifo(folder / "pipe")
    return folder


class Guest:
    """Records uploads."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    async def upload(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def execute(self, command: Any, **_: Any) -> Any:
        self.files["executed"] = str(command).encode()
        return SimpleNamespace(status="success", output="", error="", returncode=0)


def put(source: str, access: Access, kind: str = "upload_file") -> dict[str, bytes]:
    guest = Guest()
    parameters = {"trajectory": source} if kind == "replay" else {"files": [{"local_path": source, "path": "/there"}]}
    attempt: Any = AttemptContext(guest, Path(), run_steps=set_up, access=access)  # type: ignore[arg-type]
    asyncio.run(attempt.set_up([{"type": kind, "parameters": parameters}]))
    return guest.files


def test_files_of_the_data_folder_are_uploaded(data: Path) -> None:
    for name in ("files/note.txt", str(data / "files/note.txt"), "files/../files/note.txt"):
        assert put(name, Access(data)) == {"/there": b"fine"}


@pytest.mark.parametrize("kind", ["upload_file", "replay"])
@pytest.mark.parametrize(
    "name",
    [
        "/etc/passwd",
        "../secret.txt",
        "files/../../secret.txt",
        "link.txt",
        "folder_link/secret.txt",
        ".env",
        ".ssh/id",
        "hidden_link",
        "/proc/self/environ",
        "pipe",
        "files",
        "~/.ssh/id_rsa",
    ],
)
def test_files_outside_the_data_folder_are_rejected(data: Path, name: str, kind: str) -> None:
    with pytest.raises(EnvironmentFailed, match=r"outside of the folder|hidden|not a file"):
        put(name, Access(data), kind)


def test_tasks_that_read_other_files_are_reported_before_a_run(data: Path) -> None:
    def missing_for_steps(name: str, **options: Any) -> list[str]:
        step = {"type": "upload_file", "parameters": {"files": [{"local_path": name, "path": "/there"}]}}
        first = BenchmarkTask("a", "?", None, {"config": [step], "evaluator": {"func": "infeasible"}})
        last = BenchmarkTask("b", "?", None, {"evaluator": {"func": "infeasible", "postconfig": [step]}})
        environment = open_environment("osworld", {"data_folder": str(data), **options})
        assert environment.missing_requirements(first) == environment.missing_requirements(last)
        return environment.missing_requirements(first)

    assert missing_for_steps("files/note.txt") == []
    [reported] = missing_for_steps("../secret.txt")
    assert "'../secret.txt', which is outside" in reported
    assert "hidden" in missing_for_steps(".env")[0]
    assert missing_for_steps("secret.txt", data_folder=str(data.parent)) == []


def test_without_a_data_folder_no_file_is_read(data: Path) -> None:
    with pytest.raises(EnvironmentFailed, match="data_folder=FOLDER"):
        put(str(data / "files/note.txt"), Access())
