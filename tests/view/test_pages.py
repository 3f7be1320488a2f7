"""The pages in a real browser: a live run, a failure, control, hostile text, an export, the addresses."""

from __future__ import annotations

import functools
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from paragent.cli import main
from paragent.view.server import BUNDLE, ViewServer, ViewSettings
from tests.rollout.test_control import Controlled, run  # noqa: F401 - `run` is a fixture
from tests.view.recorded import PNG, result, trajectory, write_run

pytestmark = [pytest.mark.browser, pytest.mark.slow]

expect.set_options(timeout=20_000)
ERROR = "ValueError: the sheet has no column 'Total'"
SCRIPT = "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
HOSTILE = [
    SCRIPT,
    (
        f"# Title\n\n{SCRIPT}\n\n[link](javascript:window.attacked=1) ![picture](http://192.0.2.1/beacon.png)\n\n"
        "<iframe src='/'></iframe>"
    ),
    "\x1b[31mred\x1b[0m \x1b]8;;http://192.0.2.1\x07hidden link\x1b]8;;\x07 \x07",
    "long text " * 1_000_000,
    "[" * 20_000,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page of 1280 x 720 that fails the test if a script of ours fails or a request goes to another host."""
    problems: list[str] = []
    with browser.new_context(viewport={"width": 1280, "height": 720}) as context:
        page = context.new_page()
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("request", lambda request: problems.append(request.url) if not is_local(request.url) else None)
        page.on("dialog", lambda dialog: problems.append(f"dialog {dialog.message}"))
        yield page
    assert not problems


def is_local(url: str) -> bool:
    return re.match(r"(http://127\.0\.0\.1:|blob:)", url) is not None


@contextmanager
def viewing(folder: Path) -> Iterator[ViewServer]:
    """Serve the built pages; `make test` builds them."""
    assert (BUNDLE / "index.html").exists(), "build the pages first: make web"
    with ViewServer(ViewSettings(folder=folder)) as server:
        yield server


def figure(page: Page, text: str | re.Pattern[str]) -> Any:
    return page.get_by_role("region", name="Figures").get_by_text(text).first


def test_the_token_leaves_the_address_bar_and_the_page_stays_signed_in(tmp_path: Path, page: Page) -> None:
    write_run(tmp_path, "one", [result("a", score=1.0)])
    with viewing(tmp_path) as server:
        page.goto(server.link("/run/one"))
        expect(page.get_by_role("heading", name="one")).to_be_visible()
        assert server.token not in page.url
        assert page.url.endswith("/#/run/one")
        assert server.token not in page.evaluate("document.cookie")
        page.reload()
        expect(page.get_by_role("heading", name="one")).to_be_visible()


def test_a_live_run_fills_up_by_itself(run: Controlled, page: Page) -> None:  # noqa: F811 - the fixture
    run.start(tasks=6)
    with viewing(run.path.parent) as server:
        page.goto(server.link())
        row = page.get_by_role("row").filter(has_text="run")
        expect(row.get_by_text("running")).to_be_visible()
        expect(row.get_by_text("0/6")).to_be_visible()
        run.go("t0")
        expect(row.get_by_text("1/6")).to_be_visible()
        page.get_by_role("link", name="run", exact=True).click()
        expect(figure(page, re.compile("2 running"))).to_be_visible()
        run.go()
        expect(figure(page, re.compile("6 right"))).to_be_visible()
        assert run.finish()[0] == 0
        expect(page.get_by_text("complete", exact=True).first).to_be_visible()


def test_a_failure_is_found_with_three_clicks(tmp_path: Path, page: Page) -> None:
    trace = f"{ERROR}\nTraceback (most recent call last):\n  File 'agent.py', line 7"
    messages = [{"role": "user", "content": "Add the totals."}, {"role": "assistant", "content": "I read the sheet."}]
    good = [result(f"good-{n}", score=1.0, trajectory=trajectory(*messages)) for n in range(30)]
    bad = result("bad", status="failed", kind="ValueError", error=trace, trajectory=trajectory(*messages))
    write_run(tmp_path, "one", [*good, bad])
    with viewing(tmp_path) as server:
        page.goto(server.link())
        page.get_by_role("link", name="one", exact=True).click()
        page.get_by_role("link", name=re.compile("example", re.IGNORECASE)).click()
        expect(page.get_by_text(ERROR).first).to_be_visible()
        expect(page.get_by_text("I read the sheet.").first).to_be_visible()
        assert "/run/one/rollout/bad/1" in page.url


def test_wrong_answers_follow_each_other_and_formulas_are_drawn_under_the_policy(tmp_path: Path, page: Page) -> None:
    said = [
        trajectory({"role": "user", "content": "?"}, {"role": "assistant", "content": text})
        for text in ("$$\\sqrt{\\frac{1}{2}}$$", "So\n\n#### 3")
    ]
    wrong = [result(f"wrong-{n}", score=0.0, answer="3", trajectory=one) for n, one in enumerate(said)]
    write_run(tmp_path, "one", [result("good", score=1.0), wrong[0], result("late", score=1.0), wrong[1]])
    refused: list[str] = []
    page.on("console", lambda message: refused.append(message.text) if message.type == "error" else None)
    with viewing(tmp_path) as server:
        page.goto(server.link("/run/one"))
        page.get_by_role("link", name="First wrong answer").click()
        formula = page.locator(".message-text .katex-html")
        expect(formula).to_be_visible()
        fonts = page.evaluate(
            "document.fonts.ready.then((all) => [...all].filter((one) => one.status === 'loaded').length)"
        )
        assert fonts > 0
        assert formula.evaluate("(one) => one.querySelector('.vlist [style]').style.top") != "", "styles are allowed"
        page.get_by_role("link", name="Next wrong answer").click()
        expect(page.locator(".message-text").get_by_text("#### 3")).to_be_visible()
        assert "/rollout/wrong-1/1" in page.url
    assert not refused


def test_pause_and_resume_from_the_page(run: Controlled, page: Page) -> None:  # noqa: F811 - the fixture
    run.start()
    with viewing(run.path.parent) as server:
        page.goto(server.link("/run/run"))
        page.get_by_role("button", name="Pause").click()
        expect(page.get_by_text("no new rollouts start")).to_be_visible()
        run.go("t0")
        run.go("t1")
        expect(page.get_by_text("paused", exact=True).first).to_be_visible()
        assert run.started() == {"t0", "t1"}
        page.get_by_role("button", name="Resume").click()
        expect(page.get_by_text("the run continues")).to_be_visible()
        run.go()
        expect(figure(page, re.compile("4 right"))).to_be_visible()
    assert run.finish()[0] == 0


def test_a_hostile_transcript_is_shown_as_text(tmp_path: Path, page: Page) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": SCRIPT, "arguments": json.dumps({"x": SCRIPT})}}
    messages: list[dict[str, Any]] = [{"role": "user", "content": SCRIPT}]
    for text in HOSTILE:
        messages.append({"role": "assistant", "content": text, "reasoning_content": SCRIPT, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": "c1", "content": text})
    messages[-1]["images"] = ["step_1.png", "step_2.png"]
    files = {"step_1.png": b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.attacked=1'/>", "step_2.png": PNG}
    hostile = result(
        SCRIPT, status="failed", kind=SCRIPT, error=SCRIPT, answer=SCRIPT, trajectory=trajectory(*messages), files=files
    )
    write_run(tmp_path, "one", [hostile])
    with viewing(tmp_path) as server:
        page.goto(server.link("/run/one"))
        expect(page.get_by_text("window.attacked").first).to_be_visible()
        page.get_by_role("link", name=re.compile("example", re.IGNORECASE)).click()
        expect(page.get_by_text("Title").first).to_be_attached()
        assert page.evaluate("window.attacked") is None
        assert page.locator("main script, main iframe, main [onerror], main a[href^='javascript']").count() == 0
        assert "\x1b" not in page.inner_text("main")
        assert len(page.content()) < 3_000_000, "a long text is not put into the page as a whole"
        expect(page.get_by_text("not an image").or_(page.get_by_text("cannot be shown")).first).to_be_attached()


def test_an_export_works_on_a_plain_file_server(tmp_path: Path, page: Page, capsys: pytest.CaptureFixture[str]) -> None:
    said = trajectory({"role": "user", "content": "How much?"}, {"role": "assistant", "content": "It is *forty-two*."})
    write_run(tmp_path / "runs", "one", [result("a", score=1.0, trajectory=said), result("b", score=0.0)])
    assert main(["view", str(tmp_path / "runs"), "--export", str(tmp_path / "site")]) == 0
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        page.goto(f"http://127.0.0.1:{files.server_address[1]}/site/")
        page.get_by_role("link", name="one", exact=True).click()
        expect(figure(page, "0.500")).to_be_visible()
        expect(page.get_by_role("button", name="Pause")).to_have_count(0)
        page.get_by_role("link", name="a", exact=True).first.click()
        expect(page.get_by_text("forty-two").first).to_be_visible()
        files.shutdown()


def test_the_address_is_the_view(tmp_path: Path, page: Page, browser: Browser) -> None:
    results = [result("a", score=1.0), result("b", status="failed", kind="ValueError", error=ERROR)]
    write_run(tmp_path, "one", results)
    with viewing(tmp_path) as server:
        page.goto(server.link("/run/one"))
        page.get_by_role("searchbox").fill("column")
        expect(page.get_by_role("grid").get_by_role("link", name="a", exact=True)).to_have_count(0)
        copied = page.url
        page.goto(f"{server.address}/")
        expect(page.get_by_role("link", name="one", exact=True)).to_be_visible()
        page.goto(copied)
        expect(page.get_by_role("grid").get_by_role("link", name="b", exact=True)).to_be_visible()
        expect(page.get_by_role("grid").get_by_role("link", name="a", exact=True)).to_have_count(0)


def test_a_page_of_another_origin_can_neither_read_nor_change(tmp_path: Path, page: Page) -> None:
    write_run(tmp_path / "runs", "one", [result("a", score=1.0)])
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "index.html").write_text("<!doctype html><title>other</title>")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    with viewing(tmp_path / "runs") as server, ThreadingHTTPServer(("127.0.0.1", 0), handler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        page.goto(server.link())
        expect(page.get_by_role("link", name="one", exact=True)).to_be_visible()
        page.goto(f"http://127.0.0.1:{other.server_address[1]}/")
        attack = """async (address) => {
            const tries = [
                fetch(address + '/api/runs', {credentials: 'include'}),
                fetch(address + '/api/runs', {credentials: 'include', mode: 'no-cors'}).then((got) => {
                    if (got.type === 'opaque') throw new Error('nothing to read');
                }),
                fetch(address + '/api/runs/one/notes', {method: 'POST', credentials: 'include', mode: 'no-cors',
                    headers: {'Content-Type': 'text/plain'}, body: JSON.stringify({execution: 1, step: 0, text: 'x'})})
                    .then(() => { throw new Error('sent, but see below'); }),
            ];
            return (await Promise.allSettled(tries)).map((one) => one.status);
        }"""
        assert page.evaluate(attack, server.address) == ["rejected"] * 3
        other.shutdown()
        page.goto(f"{server.address}/#/run/one/rollout/a/1")
        assert page.evaluate("fetch('/api/runs/one/executions/1').then((got) => got.json())")["notes"] == []
