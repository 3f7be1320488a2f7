"""Getters that look at pages, with a real browser and a site on this host."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from playwright.async_api import Error

from paragent.osworld import browser
from paragent.osworld.context import AttemptContext, GetterContext, MachineRefused
from paragent.osworld.controller import CommandReply, Controller
from paragent.osworld.evaluators import GETTERS, evaluate
from paragent.osworld.evaluators.evaluator import evaluation_processes
from paragent.osworld.evaluators.getters import pages
from paragent.subprocesses import SubprocessPool
from tests.waiting import wait_until

PAGE = """<html><head><title>Flights</title></head><body>
<div class="date">Tue, Nov 17, 2026</div>
<div class="route">SEA<span>to</span>NYC</div>
<ul><li class="stop">One</li><li class="stop">Two</li></ul>
<div class="card"><p>x</p><h3>First</h3></div><div class="card"><h3>Second</h3></div>
<div class="crumb"><li class="catAllProducts"><span>Toys</span></li></div>
<a class="chosen">Nike</a><a class="chosen">Women</a>
<form><input value=" James "></form>
<a id="next" href="/more">More</a>
</body></html>"""
MORE = "<html><head><title>More</title></head><body><a id='link' href='https://x.org/'>there</a></body></html>"

SLOW = "<html><head><title>Slow</title></head><body>here<img src='/silent'></body></html>"


class Handler(BaseHTTPRequestHandler):
    stopping = threading.Event()

    def do_GET(self) -> None:
        if self.path.startswith("/silent"):
            self.stopping.wait(100)
            return
        body = (SLOW if self.path.startswith("/slow") else MORE if self.path.startswith("/more") else PAGE).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    Handler.stopping.set()
    server.shutdown()
    server.server_close()
    thread.join(10)


def start_browser(folder: Path, address: str) -> tuple[subprocess.Popen[bytes], str]:
    """Start a browser with a tab at an address; return the process and its DevTools address."""
    program = shutil.which("chromium") or "google-chrome"
    command = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-dev-shm-usage"]
    command += ["--remote-debugging-port=0", f"--user-data-dir={folder}", address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    reported = folder / "DevToolsActivePort"
    try:
        lines = wait_until(
            lambda: reported.read_text().splitlines() if reported.is_file() else [], 45, what="DevTools", interval=0.1
        )
    except TimeoutError:
        end(process)
        raise
    return process, f"127.0.0.1:{lines[0]}"


def end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.fixture(scope="module")
def devtools(site: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    for turn in range(3):
        try:
            process, address = start_browser(
                tmp_path_factory.mktemp("browser"), f"http://{site}/flights?from=SEA&to=NYC&tags=a,b"
            )
            break
        except RuntimeError:
            if turn == 2:
                raise
    yield address
    end(process)


class Guest:
    """A controller of a real browser; its accessibility tree has only the address bar."""

    def __init__(self, devtools: str, shown: str) -> None:
        self.devtools, self.shown = devtools, shown

    async def accessibility_tree(self) -> str:
        text = self.shown.replace("&", "&amp;")
        entry = f'<entry name="Address and search bar">{text}</entry>' if text else ""
        return f'<desktop-frame><application name="Chromium">{entry}</application></desktop-frame>'

    async def execute(self, command: Any, **_: Any) -> CommandReply:
        raise AssertionError(f"unexpected command {command}")

    async def launch(self, command: list[str], **_: Any) -> None:
        raise MachineRefused(f"there is no {command[0]}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the waits for a missing browser and for pages that do not load."""
    for name, seconds in {"_START_SECONDS": 0.1, "_PAGE_SECONDS": 20.0, "_PRINT_PAUSE": 0.1}.items():
        monkeypatch.setattr(pages, name, seconds)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all getters of this module, so that they share their child process."""
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def processes(runner: asyncio.Runner) -> Iterator[SubprocessPool]:
    opened = evaluation_processes()
    yield runner.run(opened.__aenter__())
    runner.run(opened.__aexit__(None, None, None))


@pytest.fixture
def get(
    devtools: str, site: str, tmp_path: Path, runner: asyncio.Runner, processes: SubprocessPool
) -> Callable[..., Any]:
    def call(
        kind: str, *, shown: str = f"{site}/flights?from=SEA&to=NYC&tags=a,b", at: str = devtools, **config: Any
    ) -> Any:
        attempt = AttemptContext(cast("Controller", Guest(at, shown)), tmp_path)
        context = GetterContext(attempt, tmp_path, processes)
        getting = GETTERS.load(kind)(context, {"goto_prefix": "http://", **config})
        return runner.run(asyncio.wait_for(getting, 110))

    return call


def test_addresses(get: Callable[..., Any], site: str) -> None:
    assert get("active_url_from_accessTree") == f"http://{site}/flights?from=SEA&to=NYC&tags=a,b"
    assert get("active_url_from_accessTree", shown="chrome://settings") == "http://chrome://settings"
    assert get("active_url_from_accessTree", shown="www.a.org", goto_prefix="https://www.") == "https://www.www.a.org"
    assert get("active_url_from_accessTree", shown="") is None
    keys = ["from", "to", "nowhere"]
    assert get("active_tab_url_parse", parse_keys=keys) == {"from": "SEA", "to": "NYC", "nowhere": ""}
    assert get("active_tab_url_parse", parse_keys=["from"], replace={"from": "time"}) == {"time": "SEA"}
    assert get("active_tab_url_parse", parse_keys=["tags"], split_list=True) == {"tags": ["a", "b"]}
    part = {"partIndex": -1, "needDeleteId": True, "key": "what"}
    assert get("url_dashPart", **part, returnType="json") == {"what": "flights"}
    assert get("url_dashPart", **part, returnType="string") == "flights"
    assert get("url_dashPart", **(part | {"partIndex": 9}), returnType="string") is None


def test_tabs(get: Callable[..., Any], site: str) -> None:
    assert get("open_tabs_info") == [{"title": "Flights", "url": f"http://{site}/flights?from=SEA&to=NYC&tags=a,b"}]
    assert get("open_tabs_info", at="127.0.0.1:9") == []


def test_texts_of_the_active_page(get: Callable[..., Any]) -> None:
    found = get(
        "active_tab_html_parse",
        category="class",
        class_singleObject={"date": "time", "nothing": "gone"},
        class_multiObject={"stop": {"0": "first", "1": "second", "7": "none"}},
        class_multiObject_child={"route": {"0": "start", "1": "end"}},
        class_multiObject_only_child={"card": {"1": "second card"}},
        class_multiObject_search_exist={"chosen": ["Nike", "Adidas", "is_other_exist"]},
    )
    assert found == {
        "time": "Tue, Nov 17, 2026",
        "gone": "",
        "first": "One",
        "second": "Two",
        "none": "",
        "start": "SEA",
        "end": "NYC",
        "second card": "Second",
        "Nike": True,
        "Adidas": False,
        "is_other_exist": True,
    }


def test_texts_by_path_label_and_field(get: Callable[..., Any]) -> None:
    assert get("active_tab_html_parse", category="xpath", xpathObject={"//h3": "head", "//h9": "gone"}) == {
        "head": "First",
        "gone": "",
    }
    assert get("active_tab_html_parse", category="label", labelObject={"Tue, Nov": "day"}) == {
        "day": "Tue, Nov 17, 2026"
    }
    assert get("active_tab_html_parse", category="input", inputObject={"//form/input": "name"}) == {"name": "James"}


def test_words_of_the_page_or_its_address(get: Callable[..., Any]) -> None:
    by_address = get(
        "active_tab_html_parse",
        category="class&url",
        class_multiObject={"chosen": ["nike", "women"]},
        class_multiObject_li={"crumb": ["Toys"]},
        url_include_expected=["flights", "hotels"],
        url_include_expected_multichoice={"SEA": "Seattle"},
    )
    assert by_address == {
        "nike": True,
        "women": True,
        "toys": True,
        "flights": True,
        "hotels": False,
        "seattle": True,
        "is_other_exist": False,
    }


def test_a_page_that_is_not_open_has_no_texts(get: Callable[..., Any]) -> None:
    config = {"category": "xpath", "xpathObject": {"//h3": "head"}}
    assert get("active_tab_html_parse", shown="127.0.0.1:1/other", **config) == {}
    assert get("active_tab_html_parse", shown="", **config) is None
    assert get("active_tab_html_parse", at="127.0.0.1:9", **config) == {}


def test_the_active_page_is_loaded_again(get: Callable[..., Any]) -> None:
    info = get("active_tab_info")
    assert info["title"] == "Flights"
    assert "SEA" in info["content"]
    assert len(get("open_tabs_info")) == 1  # what was opened for this is closed again


def test_other_pages(get: Callable[..., Any], site: str) -> None:
    assert get("page_info", url=f"http://{site}/more")["title"] == "More"
    failed = {"title": "Connection failed", "url": "http://x", "content": ""}
    assert get("page_info", url="http://x", at="127.0.0.1:9") == failed


def test_pages_that_do_not_load_give_osworlds_values(
    get: Callable[..., Any], site: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "http://127.0.0.1:9/"
    for _ in range(5):  # closing a page that failed to load hung every other time
        assert get("page_info", url=refused) == {"title": "Connection failed", "url": refused, "content": ""}
        assert get("active_tab_info", shown="127.0.0.1:9/") is None
    assert get("info_from_website", url=refused, infos=[{"selector": "h3"}], backups=["b"]) == ["b"]
    path = get("pdf_from_url", path=refused, dest="page.pdf")
    assert Path(path).read_bytes() == b"%PDF-1.4\n%EOF\n"
    monkeypatch.setattr(pages, "_PAGE_SECONDS", 3.0)
    slow = get("active_tab_info", shown=f"{site}/slow")
    assert (slow["title"], slow["url"]) == ("Load timeout", f"http://{site}/slow")
    assert "here" in slow["content"]
    assert get("page_info", url=f"http://{site}/slow")["title"] == "Connection failed"


def test_calls_that_the_browser_never_answers_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def asking() -> None:
        with pytest.raises(Error, match="did not answer"):
            await browser.limited(asyncio.Event().wait(), 0.01)
        async with browser.opened_page(opened()) as page:
            pass
        assert cast("Any", page).closing.is_set()

    class Page:
        closing = asyncio.Event()

        async def close(self) -> None:
            self.closing.set()
            await asyncio.Event().wait()

    async def opened() -> Any:
        return Page()

    monkeypatch.setattr(browser.limited, "__defaults__", (0.01,))
    asyncio.run(asyncio.wait_for(asking(), 30))


@pytest.mark.parametrize("module", [pages, browser])
def test_every_call_to_a_page_has_a_time_limit(module: ModuleType) -> None:
    """Playwright itself never gives up on these methods."""
    endless = {"close", "content", "eval_on_selector_all", "evaluate", "new_page", "pdf", "stop", "title"}
    for node in ast.walk(ast.parse(Path(str(module.__file__)).read_text())):
        if (
            isinstance(node, ast.Await)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
        ):
            assert node.value.func.attr not in endless, ast.unparse(node)


def test_the_appearance_of_the_browser_is_read_from_its_settings(get: Callable[..., Any]) -> None:
    assert get("chrome_appearance_mode_ui") in {"light", "dark", "system"}


def test_a_page_is_printed(get: Callable[..., Any], site: str) -> None:
    path = get("pdf_from_url", path=f"http://{site}/flights", dest="page.pdf")
    assert Path(path).read_bytes().startswith(b"%PDF")


def test_texts_and_attributes_of_pages(get: Callable[..., Any], site: str) -> None:
    infos = [
        {"action": "inner_text", "selector": "h3"},
        {"action": "click_and_attribute", "selector": ["#next", "#link"], "attribute": "href"},
        {"action": "attribute", "selector": "#next", "attribute": "href"},
    ]
    asked = {"url": f"http://{site}/flights", "infos": infos, "backups": ["b"]}
    assert get("info_from_website", **asked) == ["First", "https://x.org/", "/more"]
    assert get("info_from_website", **asked, at="127.0.0.1:9") == ["b"]


def test_an_evaluation_by_the_browser(devtools: str, site: str, tmp_path: Path) -> None:
    evaluator = {
        "func": ["is_expected_url_pattern_match", "check_direct_json_object", "is_expected_tabs"],
        "result": [
            {"type": "active_url_from_accessTree", "goto_prefix": "http://"},
            {
                "type": "active_tab_html_parse",
                "goto_prefix": "http://",
                "category": "class",
                "class_singleObject": {"date": "time"},
            },
            {"type": "open_tabs_info"},
        ],
        "expected": [
            {"type": "rule", "rules": {"expected": ["from=SEA"]}},
            {"type": "rule", "rules": {"expected": {"time": "Tue, Nov 17, 2026"}}},
            {"type": "rule", "rules": {"type": "url", "urls": [f"http://{site}/flights?from=SEA&to=NYC&tags=a,b"]}},
        ],
    }
    attempt = AttemptContext(cast("Controller", Guest(devtools, f"{site}/flights?from=SEA&to=NYC&tags=a,b")), tmp_path)
    assert asyncio.run(asyncio.wait_for(evaluate(evaluator, attempt), 110)) == 1
