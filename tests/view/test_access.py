"""Who can read and change something through the view, with real requests to a real server."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from paragent.errors import UsageError
from paragent.view.server import ViewServer, ViewSettings
from tests.view.recorded import fake_bundle, result, serving, write_run


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewServer]:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, "one", [result("a")])
    with serving(folder) as (server, _):
        yield server


@pytest.fixture(scope="module")
def browser(server: ViewServer) -> Iterator[httpx.Client]:
    """A client that has opened the link: it has the cookie."""
    with httpx.Client(base_url=server.address) as client:
        assert client.get(server.link(), follow_redirects=True).status_code == 200
        yield client


@pytest.fixture(scope="module")
def _connections() -> Iterator[httpx.Client]:
    with httpx.Client() as client:
        yield client


@pytest.fixture
def stranger(_connections: httpx.Client) -> httpx.Client:
    """A client without the cookie."""
    _connections.cookies.clear()
    return _connections


def test_the_link_is_exchanged_for_a_cookie_and_the_token_leaves_the_address(server: ViewServer) -> None:
    with httpx.Client() as client:
        exchanged = client.get(server.link())
        assert exchanged.status_code == 303
        assert exchanged.headers["location"] == "/"
        cookie = exchanged.headers["set-cookie"]
        assert f"paragent-view-{server.port}=" in cookie
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert server.token not in cookie
        page = client.get(f"{server.address}/")
        assert page.status_code == 200
        assert server.token not in str(page.url)
        assert "pages" in page.text


def test_the_link_that_a_browser_gets_is_valid_once(server: ViewServer, stranger: httpx.Client) -> None:
    link = server.link_for_once("/run/one")
    assert stranger.get(link).status_code == 303
    stranger.cookies.clear()
    assert stranger.get(link).status_code == 401
    assert server.token not in link


def test_other_parameters_survive_the_exchange(server: ViewServer, stranger: httpx.Client) -> None:
    answer = stranger.get(f"{server.address}/?a=1%26b&token={server.token}&c=%C3%A9")
    assert answer.headers["location"] == "/?a=1%26b&c=%C3%A9"


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example/", "/%2f%2fevil.example"])
def test_the_exchange_redirects_to_no_other_host(server: ViewServer, path: str) -> None:
    request = f"GET {path}?token={server.token} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    [location] = [line.partition(": ")[2] for line in answer.splitlines() if line.lower().startswith("location")]
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))


PATHS = ["/", "/data/settings.json", "/api/runs", "/api/runs/one", "/assets/index-1a2b3c.js"]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer"},
        {"Authorization": "Basic {token}"},
        {"Cookie": "paragent-view-{port}=wrong"},
        {"Cookie": "paragent-view-1={session}"},
        {"Cookie": "paragent-view-{port}={token}"},
        {"Cookie": 'broken"; ;=,'},
    ],
)
def test_a_request_without_the_cookie_or_the_token_gets_nothing(
    server: ViewServer, stranger: httpx.Client, browser: httpx.Client, path: str, headers: dict[str, str]
) -> None:
    session = browser.cookies[f"paragent-view-{server.port}"]
    filled = {
        name: value.format(token=server.token, port=server.port, session=session) for name, value in headers.items()
    }
    answer = stranger.get(server.address + path, headers=filled)
    assert answer.status_code == 401
    assert "one" not in answer.text.split()
    assert server.token not in answer.text


@pytest.mark.parametrize("path", ["/", "/api/runs"])
def test_a_wrong_token_in_the_link_gets_nothing(server: ViewServer, stranger: httpx.Client, path: str) -> None:
    answer = stranger.get(f"{server.address}{path}?token=wrong")
    assert answer.status_code == 401
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("path", PATHS)
def test_a_name_that_was_rebound_to_this_host_gets_nothing(
    server: ViewServer, stranger: httpx.Client, path: str
) -> None:
    for host in (f"evil.example:{server.port}", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", ""):
        headers = {"Host": host, "Authorization": f"Bearer {server.token}"}
        assert stranger.get(server.address + path, headers=headers).status_code == 403


def test_names_of_the_loopback_address_and_forwarded_ports_are_accepted(
    server: ViewServer, stranger: httpx.Client
) -> None:
    for host in (f"localhost:{server.port}", "127.0.0.1:8080", "LOCALHOST", f"[::1]:{server.port}"):
        headers = {"Host": host, "Authorization": f"Bearer {server.token}"}
        assert stranger.get(f"{server.address}/api/runs", headers=headers).status_code == 200


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_requests_from_pages_of_other_origins_are_refused(browser: httpx.Client, path: str, site: str) -> None:
    assert browser.get(path, headers={"Sec-Fetch-Site": site}).status_code == 403
    assert browser.get(path, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 200


def test_changing_requests_need_the_origin_and_json(server: ViewServer, browser: httpx.Client) -> None:
    path, own = "/api/runs/one/notes", f"http://127.0.0.1:{server.port}"
    for headers in (
        {},
        {"Content-Type": "application/json"},
        {"Origin": own},
        {"Origin": own, "Content-Type": "text/plain"},
        {"Origin": own, "Content-Type": "application/x-www-form-urlencoded"},
        {"Origin": "http://evil.example", "Content-Type": "application/json"},
        {"Origin": f"https://127.0.0.1:{server.port}", "Content-Type": "application/json"},
        {"Origin": "http://127.0.0.1:1", "Content-Type": "application/json"},
        {"Origin": "null", "Content-Type": "application/json"},
    ):
        assert browser.post(path, content="{}", headers=headers).status_code == 403, headers


@pytest.mark.parametrize("path", [*PATHS, "/nothing", "/api/nothing", "/api/runs/none"])
def test_every_response_has_the_headers(browser: httpx.Client, path: str) -> None:
    headers = browser.get(path).headers
    policy = headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    assert "server" not in headers


def test_data_is_not_kept_by_the_browser_and_hashed_files_are(browser: httpx.Client) -> None:
    kept = {path: browser.get(path).headers["cache-control"] for path in PATHS}
    assert kept["/api/runs"] == kept["/data/settings.json"] == "no-store"
    assert kept["/"] == "no-cache"
    assert "immutable" in kept["/assets/index-1a2b3c.js"]


@pytest.mark.parametrize(
    "path",
    [
        "/..%2f..%2fetc%2fpasswd",
        "/assets/..%2f..%2frecorded.py",
        "/api/runs/..",
        "/api/runs/..%2fone",
        "/api/runs/%2e%2e/rollouts",
        "/api/runs/one%00/rollouts",
        "/api/runs/one%2f..%2fone",
        "/api/runs/" + "x" * 5000,
    ],
)
def test_names_in_paths_are_looked_up_and_never_joined(server: ViewServer, path: str) -> None:
    request = (
        f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {server.token}\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request.encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 404")


def test_a_port_that_is_in_use_is_reported(server: ViewServer, tmp_path: Path) -> None:
    settings = ViewSettings(folder=tmp_path, port=server.port, bundle=fake_bundle(tmp_path / "bundle"))
    with pytest.raises(UsageError, match="choose another --port"), ViewServer(settings):
        pass


def test_pages_that_are_not_built_are_reported(tmp_path: Path) -> None:
    settings = ViewSettings(folder=tmp_path, bundle=tmp_path / "none")
    with pytest.raises(UsageError, match="make web"), ViewServer(settings):
        pass


def test_a_server_on_all_addresses_knows_its_names(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    with serving(tmp_path / "runs", host="0.0.0.0") as (server, _), httpx.Client() as client:
        url, bearer = f"http://127.0.0.1:{server.port}/api/runs", f"Bearer {server.token}"
        assert server.address == f"http://{socket.gethostname()}:{server.port}"
        for host in ("192.0.2.7", "[2001:db8::1]:80", f"{socket.gethostname()}:{server.port}", "localhost"):
            assert client.get(url, headers={"Host": host, "Authorization": bearer}).status_code == 200, host
        for host in ("evil.example", "192.0.2.7.evil.example", "x" + socket.gethostname()):
            assert client.get(url, headers={"Host": host, "Authorization": bearer}).status_code == 403, host


@pytest.mark.parametrize("other", ['x={"a": 1, "b": 2}', "a b=1", "=", "caf\u00e9=1"])
def test_malformed_cookies_of_other_servers_on_this_host_change_nothing(
    server: ViewServer, browser: httpx.Client, other: str
) -> None:
    name = f"paragent-view-{server.port}"
    cookie = f"{other}; {name}={browser.cookies[name]}".encode("latin-1")
    assert httpx.get(f"{server.address}/api/runs", headers={b"Cookie": cookie}).status_code == 200
    assert httpx.get(f"{server.address}/api/runs", headers={b"Cookie": cookie[:-1]}).status_code == 401


def test_unfinished_requests_of_others_do_not_lock_the_owner_out(server: ViewServer, browser: httpx.Client) -> None:
    with contextlib.ExitStack() as opened:
        for _ in range(300):
            one = opened.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n")
        assert httpx.get(server.link()).status_code == 303
        assert browser.get("/").status_code == 200
