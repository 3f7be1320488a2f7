"""A fake of docker's engine: the HTTP requests that the provider sends, with local processes as containers."""

from __future__ import annotations

import json
import socket
import struct
import threading
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.machines.fakes import machines

if TYPE_CHECKING:
    from collections.abc import Callable


class DockerEngine(ThreadingHTTPServer):
    """Serves docker's API at `url`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _RequestHandler)
        self.containers: dict[str, dict[str, Any]] = {}
        self.created: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        """Serializes requests, which arrive on threads of their own."""
        self.before_create: Callable[[], None] = lambda: None
        """Called before a container is created; tests replace it to delay the request."""
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"tcp://127.0.0.1:{self.server_port}"


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: DockerEngine

    def do_GET(self) -> None:
        self._answer("GET")

    def do_POST(self) -> None:
        self._answer("POST")

    def do_DELETE(self) -> None:
        self._answer("DELETE")

    def _answer(self, method: str) -> None:
        address = urllib.parse.urlsplit(self.path)
        parts = [part for part in address.path.split("/") if part and not part.startswith("v1.")]
        query = urllib.parse.parse_qs(address.query)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if parts == ["containers", "create"]:
            self.server.before_create()
        with self.server.lock:
            status, answer = self._handle(method, parts, query, json.loads(body or b"{}"))
        data = answer if isinstance(answer, bytes) else b"" if answer is None else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...

    def _handle(self, method: str, parts: list[str], query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        known = self.server.containers
        if parts == ["version"]:
            return 200, {"ApiVersion": "1.43", "MinAPIVersion": "1.24", "Version": "24.0"}
        if parts[0] == "images":
            found = parts[1:-1] == ["happysixd", "osworld-docker"]
            return (200, {"Id": "sha256:0"}) if found else (404, {"message": "No such image"})
        if parts == ["containers", "create"]:
            return self._create(query["name"][0], body)
        if parts == ["containers", "json"]:
            return 200, [self._summary(name) for name in known if self._matches(name, query)]
        name = next((name for name in known if parts[1] in {name, known[name]["Id"]}), None)
        if name is None:
            return 404, {"message": f"No such container: {parts[1]}"}
        if parts[2:] == ["start"]:
            return self._start(name)
        if parts[2:] == ["logs"]:
            assert int(query["tail"][0]) > 0
            output = f"{name} boots\n".encode()
            return 200, struct.pack(">BxxxL", 1, len(output)) + output  # 1: standard output
        if method == "DELETE":
            assert query["force"] == ["True"]
            if pid := known.pop(name)["pid"]:
                machines.stop(pid)
            machines.delete_disk(name)
            return 204, None
        return 200, known[name]

    def _create(self, name: str, body: Any) -> tuple[int, Any]:
        self.server.created.append(body)
        identity = f"{len(self.server.created):064x}"
        self.server.containers[name] = {
            "Id": identity,
            "Name": f"/{name}",
            "Config": {"Labels": body["Labels"], "Tty": False},
            "State": {"Status": "created"},
            "NetworkSettings": {"Ports": {}},
            "HostConfig": body["HostConfig"],
            "pid": 0,
        }
        return 201, {"Id": identity, "Warnings": []}

    def _start(self, name: str) -> tuple[int, Any]:
        about = self.server.containers[name]
        for port, (binding, *_) in about["HostConfig"]["PortBindings"].items():
            assert binding["HostPort"] in {"", None}, "docker has to choose the port"
            with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
                number = listener.getsockname()[1]
                if port == "5000/tcp":
                    about["pid"] = machines.start(name, listener)
            about["NetworkSettings"]["Ports"][port] = [{"HostIp": binding["HostIp"], "HostPort": str(number)}]
        about["State"]["Status"] = "running"
        return 204, None

    def _summary(self, name: str) -> dict[str, Any]:
        about = self.server.containers[name]
        return {"Id": about["Id"], "Names": [f"/{name}"], "Labels": about["Config"]["Labels"], "State": "running"}

    def _matches(self, name: str, query: dict[str, list[str]]) -> bool:
        filters = json.loads(query.get("filters", ["{}"])[0])
        labels = self.server.containers[name]["Config"]["Labels"]
        if any(label not in labels for label in filters.get("label", ())):
            return False
        return not filters.get("name") or any(part in name for part in filters["name"])
