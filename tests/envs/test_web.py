"""The environment `web`: pages as text, the SSRF proxy, isolation, and pages that hang, crash or open others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest

from paragent.demo.samples import sample_options, sample_path
from paragent.envs import Environment, SharedResources, open_environment
from paragent.envs.web.browser import FLAGS
from paragent.envs.web.chromium import find_chromium
from paragent.envs.web.environment import WebEnvironment
from paragent.envs.web.search import SEARCH_SERVICES
from paragent.envs.web.ssrf_proxy import AddressRefused, SsrfProxy
from paragent.errors import ConfigError, EnvironmentFailed, MissingProgram
from paragent.tasks import BenchmarkTask
from tests.children import BoundedPopen
from tests.waiting import wait_until_async

pytestmark = pytest.mark.browser

PAGES = {
    "/": "<title>Home</title><h1>Home</h1><a href='/next' target=_blank>Next</a><script>document.title='Home'</script>",
    "/next": "<title>Next</title><p>You came.</p>",
    "/hang": "<title>Hang</title><p>fine so far</p><button onclick='while(true){}'>Hang</button>",
    "/popups": "<title>Pop</title><button onclick=\"for(let i=0;i<3;i++)window.open('/next')\">Pop</button>",
    "/dialogs": "<title>D</title><script>alert('a');confirm('b')</script><p>after</p>",
    "/long": "<title>Long</title>" + "".join(f"<p>Paragraph {i} of a long page.</p>" for i in range(1000)),
    "/cookie": "<title>C</title><p id=c></p><script>c.textContent='had:'+document.cookie;document.cookie='k=1'</script>",
    "/form": (
        "<label>City <select name=s><option>Rome</option><option>Oslo</option></select></label>"
        "<input type=checkbox name=agree><input type=password name=pw><p hidden>secret</p>"
        "<textarea name=t>old</textarea><div style='display:none'>invisible</div><img alt='a cat' src='data:,'>"
    ),
    "/fetch": (
        "<p id=r>waiting</p><script>fetch('http://10.0.0.1/').then(x=>x.text()).then(t=>r.textContent='got '+t)"
        ".catch(e=>r.textContent='refused')</script>"
    ),
}


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "http://10.1.2.3/")
            self.end_headers()
            return
        if self.path == "/slow":
            time.sleep(6)
        body = PAGES.get(self.path, "").encode()
        self.send_response(200 if body else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        found = [
            {"title": given.get("q") or given.get("query"), "link": "http://a/", "url": "http://a/", "snippet": "s"}
        ]
        body = json.dumps({"organic": found, "results": found}).encode()
        self.send_response(200 if self.headers.get("X-API-KEY") == "k" or self.headers.get("Authorization") else 403)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}"
        httpd.shutdown()
        thread.join(10)


@pytest.fixture(scope="module", autouse=True)
def _loop() -> Iterator[None]:
    """Run all tests on one event loop, so that they share browsers."""
    with asyncio.Runner() as runner:
        SHARED["runner"], SHARED["resources"] = runner, SharedResources()
        yield
        runner.run(SHARED["resources"].close())
        SHARED.clear()


SHARED: dict[str, Any] = {}
"""The event loop and the resources of the running module."""


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return SHARED["runner"].run(asyncio.wait_for(coroutine, 100))


@asynccontextmanager
async def web(shared: SharedResources | None = None, **options: Any) -> AsyncIterator[Environment]:
    shared = shared or SHARED["resources"]
    async with open_environment("web", {"allow_private": True, **options}, shared=shared) as environment:
        await environment.open(BenchmarkTask("a", "?"))
        yield environment


async def text_of(environment: Environment, name: str, **arguments: Any) -> str:
    return (await environment.call(name, arguments)).text


# --- pages -------------------------------------------------------------------------------------------------------------


def test_pages_have_numbered_elements_and_links_open_in_the_same_tab(server: str) -> None:
    async def scenario() -> None:
        async with web() as environment:
            assert "# Home\n[1 link: Next]" in await text_of(environment, "open", url=server)
            assert "You came." in await text_of(environment, "click", element=1)
            assert "# Home" in await text_of(environment, "back")
            assert "no element 9; the page has 1 to 1" in await text_of(environment, "click", element=9)

    run(scenario())


def test_fields_can_be_read_filled_and_selected(server: str) -> None:
    async def scenario() -> None:
        async with web() as environment:
            page = await text_of(environment, "open", url=f"{server}/form")
            assert '= "Rome" of "Rome", "Oslo"' in page
            assert "(not checked)" in page
            assert "(image: a cat)" in page
            assert "secret" not in page
            assert "invisible" not in page
            assert '= "Oslo"' in await text_of(environment, "type", element=1, text="Oslo")
            assert "(checked)" in await text_of(environment, "click", element=2)
            assert '"***"' in await text_of(environment, "type", element=3, text="abc")
            assert '"new"' in await text_of(environment, "type", element=4, text="new")

    run(scenario())


def test_long_pages_are_shown_in_parts(server: str) -> None:
    async def scenario() -> None:
        async with web() as environment:
            first = await text_of(environment, "open", url=f"{server}/long")
            assert "Paragraph 0 " in first
            assert "scroll for the rest" in first
            assert "Paragraph 0 " not in await text_of(environment, "scroll", direction="down")
            assert "Paragraph 0 " in await text_of(environment, "scroll", direction="up")

    run(scenario())


def test_tools_need_an_open_page() -> None:
    async def scenario() -> None:
        async with web() as environment:
            assert "open first" in await text_of(environment, "read")

    run(scenario())


# --- the proxy ----------------------------------------------------------------------------------------------------------


def test_private_addresses_are_refused_in_every_notation(server: str) -> None:
    port = server.rpartition(":")[2]
    names = ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:127.0.0.1]"]

    async def scenario() -> None:
        async with web(allow_private=False) as environment:
            for name in names:
                result = await environment.call("open", {"url": f"http://{name}:{port}/"})
                assert result.error, name
                assert "public" in result.text or "no host" in result.text, result.text
            for url in ("file:///etc/passwd", "chrome://version", "javascript:alert(1)", "about:blank", "nonsense"):
                assert "http://" in await text_of(environment, "open", url=url)

    run(scenario())


def test_the_proxy_blocks_redirects_and_scripts(server: str, tmp_path: Path) -> None:
    """The pages are served by the proxy itself, so that only their redirects and scripts use private addresses."""
    (tmp_path / "fetch.html").write_text(PAGES["/fetch"])
    (tmp_path / "go.html").write_text(f"<p>going</p><script>location='{server}/next'</script>")
    (tmp_path / "img.html").write_text(f"<img src='{server}/next' onerror=\"document.title='no image'\"><p>x</p>")

    async def scenario() -> None:
        async with web(allow_private=False, site=tmp_path) as environment:
            await text_of(environment, "open", url="http://site.test/fetch.html")
            assert "got" not in (page := await text_of(environment, "read")) or "no public address" in page
            assert "You came" not in await text_of(environment, "open", url="http://site.test/go.html")
            assert "You came" not in await text_of(environment, "read")
            assert "no image" in await text_of(environment, "open", url="http://site.test/img.html")

    run(scenario())


def test_the_proxy_refuses_private_redirect_targets(server: str) -> None:
    async def scenario() -> tuple[str, str]:
        async with SsrfProxy(allow_private=False, site=None) as proxy:
            with pytest.raises(AddressRefused, match=r"127\.0\.0\.1"):
                await proxy.check(server)
            answers = []
            for head in ("GET http://10.1.2.3/ HTTP/1.1", "CONNECT 10.1.2.3:443 HTTP/1.1"):
                reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
                writer.write(f"{head}\r\nHost: 10.1.2.3\r\n\r\n".encode())
                answers.append((await reader.read()).decode())
                writer.close()
                await writer.wait_closed()
            return answers[0], answers[1]

    assert all(answer.startswith("HTTP/1.1 403") for answer in run(scenario()))


def at(*addresses: str) -> Any:
    """Return a fake name resolver."""

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in addresses]

    return getaddrinfo


RTC = """<title>waiting</title><p>page</p><script>
const udp = UDP_PORT, tcp = TCP_PORT, login = {username: 'u', credential: 'c'};
async function attack() {
  const near = new RTCPeerConnection({iceServers: [
    {urls: `stun:127.0.0.1:${udp}`},
    {urls: `turn:127.0.0.1:${udp}?transport=udp`, ...login},
    {urls: `turn:127.0.0.1:${tcp}?transport=tcp`, ...login}]});
  const far = new RTCPeerConnection();
  near.createDataChannel('x');
  await near.setLocalDescription(await near.createOffer());
  await far.setRemoteDescription(near.localDescription);
  await far.setLocalDescription(await far.createAnswer());
  await near.setRemoteDescription(far.localDescription);
  const host = (kind, port, rest) => near.addIceCandidate(
    {candidate: `candidate:1 1 ${kind} 2130706431 127.0.0.1 ${port} typ host${rest}`, sdpMid: '0'});
  await host('udp', udp, '');
  await host('tcp', tcp, ' tcptype passive');
  const failed = new Promise(done => near.oniceconnectionstatechange = () =>
    ['failed', 'disconnected'].includes(near.iceConnectionState) && done());
  await Promise.race([failed, new Promise(done => setTimeout(done, 15000))]);
}
attack().then(() => document.title = 'attacked', error => document.title = `error ${error}`);
</script>"""


async def webrtc_attack(flags: list[str], folder: Path) -> tuple[int, bool]:
    """Visit a page that attacks two ports of this host; return the number of packets and whether a connection was made."""
    from playwright.async_api import async_playwright

    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        udp.bind(("127.0.0.1", 0))
        for one in (udp, tcp):
            one.setblocking(False)
        ports = {"UDP_PORT": udp.getsockname()[1], "TCP_PORT": tcp.getsockname()[1]}
        page = RTC
        for name, port in ports.items():
            page = page.replace(name, str(port))
        (folder / "rtc.html").write_text(page)
        async with SsrfProxy(allow_private=False, site=folder) as proxy, async_playwright() as playwright:
            chromium = await playwright.chromium.launch(
                executable_path=find_chromium(None),
                args=[*flags, "--no-sandbox"],
                proxy={"server": f"http://127.0.0.1:{proxy.port}", "bypass": "<-loopback>"},
            )
            tab = await chromium.new_page()
            await tab.goto("http://site.test/rtc.html")
            await tab.wait_for_function("document.title != 'waiting'", timeout=60_000)
            assert await tab.title() == "attacked"
            await chromium.close()
        packets = 0
        with contextlib.suppress(BlockingIOError):
            while udp.recv(4096):
                packets += 1
        with contextlib.suppress(BlockingIOError):
            tcp.accept()[0].close()
            return packets, True
        return packets, False


def test_webrtc_does_not_bypass_the_proxy(tmp_path: Path) -> None:
    packets, _ = run(webrtc_attack([], tmp_path))
    assert packets, "the attack works on a browser without our flags"
    assert run(webrtc_attack(FLAGS, tmp_path)) == (0, False)


def test_a_name_with_one_private_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        proxy = SsrfProxy(allow_private=False, site=None)
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "getaddrinfo", at("8.8.8.8", "10.0.0.1"), raising=False)
        with pytest.raises(AddressRefused, match=r"10\.0\.0\.1"):
            await proxy.check("http://both.example/")
        monkeypatch.setattr(loop, "getaddrinfo", at("8.8.8.8"), raising=False)
        await proxy.check("http://one.example/")
        monkeypatch.undo()

    run(scenario())


def test_the_proxy_connects_to_the_checked_address_for_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may resolve to another address the second time, and a persistent connection may be used for another host."""
    asked: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\nfine")

    async def scenario() -> bytes:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        loop, looks = asyncio.get_running_loop(), iter([at("127.0.0.1"), at("127.0.0.2"), at("127.0.0.2")])

        async def another_each_time(*given: Any, **more: Any) -> Any:
            return await next(looks)(*given, **more)

        async with server, SsrfProxy(allow_private=True, site=None) as proxy:
            monkeypatch.setattr(loop, "getaddrinfo", another_each_time, raising=False)
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            head = (
                f"GET http://flip.example:{port}/x HTTP/1.1\r\nHost: flip.example\r\nProxy-Connection: keep-alive\r\n"
            )
            writer.write(f"{head}Connection: keep-alive\r\n\r\n".encode())
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            monkeypatch.undo()
            return answer

    assert run(scenario()).endswith(b"fine")
    [head] = asked
    assert head.startswith(b"GET /x HTTP/1.1\r\n")
    assert [line for line in head.split(b"\r\n") if b"onnection" in line] == [b"Connection: close"]


def test_the_site_serves_only_its_folder(tmp_path: Path) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "secret.html").write_text("treasure")

    async def scenario() -> str:
        async with SsrfProxy(allow_private=False, site=tmp_path / "site") as proxy:
            reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
            writer.write(b"GET http://site.test/..%2fsecret.html HTTP/1.1\r\n\r\n")
            answer = (await reader.read()).decode()
            writer.close()
            await writer.wait_closed()
            return answer

    assert run(scenario()).startswith("HTTP/1.1 404")


# --- trouble -----------------------------------------------------------------------------------------------------------


def test_a_hanging_page_is_closed_and_does_not_affect_others(server: str) -> None:
    async def scenario() -> None:
        async with SharedResources() as shared, web(shared, page_limit=3) as one, web(shared, page_limit=3) as other:
            await text_of(one, "open", url=f"{server}/hang")
            await text_of(other, "open", url=server)
            hanging = asyncio.create_task(one.call("click", {"element": 1}))
            assert "You came" in await text_of(other, "click", element=1)
            assert (await hanging).error
            assert "# Home" in await text_of(one, "open", url=server)
            assert (await one.call("open", {"url": f"{server}/slow"})).error
            assert "# Home" in await text_of(one, "open", url=server)

    run(scenario())


def test_pop_ups_and_dialogs_are_closed(server: str) -> None:
    async def scenario() -> None:
        async with web() as environment:
            await text_of(environment, "open", url=f"{server}/popups")
            await text_of(environment, "click", element=1)
            assert "Pop" in await text_of(environment, "read")
            assert isinstance(environment, WebEnvironment)
            await wait_until_async(lambda: environment.open_pages == 1, 30)
            assert "after" in await text_of(environment, "open", url=f"{server}/dialogs")

    run(scenario())


def test_attempts_do_not_share_cookies(server: str) -> None:
    async def scenario() -> None:
        async with SharedResources() as shared, web(shared) as one, web(shared) as other:
            assert (await text_of(one, "open", url=f"{server}/cookie")).endswith("had:")
            assert (await text_of(one, "open", url=f"{server}/cookie")).endswith("had:k=1")
            assert (await text_of(other, "open", url=f"{server}/cookie")).endswith("had:")

    run(scenario())


def browsers_of(pid: int) -> list[psutil.Process]:
    found = psutil.Process(pid).children(recursive=True)
    return [one for one in found if "chrom" in one.name() and "--type=" not in " ".join(one.cmdline())]


def test_the_browser_does_not_inherit_api_keys(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-user")

    async def scenario() -> None:
        async with SharedResources() as shared, web(shared) as one:
            await text_of(one, "open", url=server)
            browsers = browsers_of(os.getpid())
            assert browsers
            for process in browsers:
                assert "OPENAI_API_KEY" not in process.environ()

    run(scenario())


def test_a_dead_browser_is_replaced_for_the_next_attempt(server: str) -> None:
    async def scenario() -> None:
        async with SharedResources() as shared:
            async with web(shared) as one:
                await text_of(one, "open", url=server)
                browsers = browsers_of(os.getpid())
                for process in browsers:
                    process.kill()
                await asyncio.to_thread(psutil.wait_procs, browsers, timeout=10)
                with pytest.raises(EnvironmentFailed):
                    await one.call("read", {})
            async with web(shared) as other:
                assert "# Home" in await text_of(other, "open", url=server)

    run(scenario())


WORKER = """
import asyncio, sys
from paragent.envs import open_environment
async def scenario():
    environment = open_environment("web", {"site": sys.argv[1]})
    print((await environment.call("open", {"url": "http://site.test/"})).text, flush=True)
    print("open", flush=True)
    await asyncio.sleep(100)
asyncio.run(scenario())
"""


def test_the_browser_ends_when_its_worker_is_killed() -> None:
    command = [sys.executable, "-c", WORKER, str(sample_options("web")["site"])]
    with BoundedPopen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        while worker.stdout.readline().strip() != "open":
            assert worker.poll() is None
        family = psutil.Process(worker.pid).children(recursive=True)
        assert browsers_of(worker.pid)
        worker.send_signal(signal.SIGKILL)
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive


# --- search and options --------------------------------------------------------------------------------------------------


def test_search_is_offered_only_with_a_search_service() -> None:
    assert "search" not in [tool.name for tool in open_environment("web").tools()]
    assert "search" in [tool.name for tool in open_environment("web", {"search": "serper"}).tools()]


@pytest.mark.parametrize("name", ["serper", "tavily"])
def test_a_search_service_gets_the_key(server: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SEARCH_SERVICES[name].variable, "k")
    monkeypatch.setenv(f"{name.upper()}_URL", f"{server}/search")

    async def scenario() -> str:
        async with web(search=name) as environment:
            return await text_of(environment, "search", query="herons")

    assert run(scenario()).startswith("herons\nhttp://a/")


def test_check_reports_missing_requirements(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="SERPER_API_KEY"):
        run(open_environment("web", {"search": "serper"}).check())
    (tmp_path / ".env").write_text("SERPER_API_KEY=k\n")
    run(open_environment("web", {"search": "serper"}).check())
    with pytest.raises(ConfigError, match="--kb"):
        run(open_environment("web", {"search": "local"}).check())
    with pytest.raises(ConfigError, match="not a folder"):
        run(open_environment("web", {"site": tmp_path / "none"}).check())
    with pytest.raises(MissingProgram, match="chromium"):
        run(open_environment("web", {"chromium": tmp_path / "none"}).check())


def test_the_demo_model_solves_the_sample_tasks() -> None:
    import re

    entries = [json.loads(line) for line in sample_path("web").read_text().splitlines()]

    async def scenario(shared: SharedResources, entry: dict[str, Any]) -> None:
        async with open_environment("web", sample_options("web"), shared=shared) as environment:
            page = await text_of(environment, "open", url=entry["start_url"])
            for label in entry.get("clicks", ()):
                found = re.search(rf"\[(\d+) \w+: {label}\]", page)
                assert found, page
                page = await text_of(environment, "click", element=int(found[1]))
            if "typed" in entry:
                page = await text_of(environment, "type", element=1, text=entry["typed"], submit=True)
            answers = entry["answer"] if isinstance(entry["answer"], list) else [entry["answer"]]
            assert answers[0] in page

    async def all_of_them() -> None:
        async with SharedResources() as shared:
            await asyncio.gather(*(scenario(shared, entry) for entry in entries))

    run(all_of_them())


@pytest.mark.parametrize("value", ["nan", "inf", "-1", -1, True, 1e300])
def test_an_invalid_page_limit_is_rejected(value: Any) -> None:
    with pytest.raises(ConfigError, match="must be"):
        open_environment("web", {"page_limit": value})
