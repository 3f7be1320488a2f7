"""The view of a run of 100,000 rollouts in a real browser: sorting and filtering its table, and searching all its text.

Each sample is the time from the change of the address, as a click or a key makes it, to the frame that shows the new content.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.measure import Contender, Measurement, Run, Target
from bench.view_data import write_run
from bench.viewers import browser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS"]

_WAIT = 600_000
"""Milliseconds to load the rows, and to build the index of the search."""
_CHANGE = """async ([address, selector, before]) => {
    const text = () => document.querySelector(selector)?.textContent ?? '';
    const old = text();
    const began = performance.now();
    window.location.hash = address;
    while (text() === old || text().includes(before)) {
        if (performance.now() - began > 60000) throw new Error(`no change after ${address}: ${text()}`);
        await new Promise((done) => requestAnimationFrame(done));
    }
    return performance.now() - began;
}"""
"""Change the address, wait for the frame in which a part of the page has another text, and return the milliseconds."""
_GONE = """async ([selector, text, limit]) => {
    const began = performance.now();
    while (document.querySelector(selector)?.textContent.includes(text) ?? true) {
        if (performance.now() - began > limit) throw new Error(`still there: ${text}`);
        await new Promise((done) => setTimeout(done, 20));
    }
}"""
"""Wait until a part of the page does not contain a text. Playwright's own `wait_for_function` evaluates text, which the
Content-Security-Policy forbids."""
_FIRST_ROW = "[role=grid] [aria-rowindex='2']"
_COUNT = ".filtered-count"
_HITS = ".search"


@contextmanager
def _open_page(size: int, path: str, ready: str) -> Iterator[Any]:
    """A page of a sample run, when it shows the text `ready`."""
    from paragent.view.server import ViewServer, ViewSettings

    with ViewServer(ViewSettings(folder=_sample_run(size))) as server:
        page = browser().new_page(viewport={"width": 1280, "height": 720})
        try:
            page.goto(server.link(path))
            page.get_by_text(ready.format(size)).first.wait_for(timeout=_WAIT)
            page.evaluate(_GONE, ["body", "loading…", _WAIT])
            yield page
        finally:
            page.close()


@functools.cache
def _sample_run(size: int) -> Path:
    """Write the run that all measurements show; it is removed when the program ends."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    write_run(Path(folder.name) / "large", size)
    return Path(folder.name)


def _sorting(page: Any) -> float:
    page.evaluate(_CHANGE, ["#/run/large?sort=seconds", _FIRST_ROW, "\0"])
    return float(page.evaluate(_CHANGE, ["#/run/large?sort=-seconds", _FIRST_ROW, "\0"]))


def _filtering(page: Any) -> float:
    page.evaluate("window.location.hash = '#/run/large'")
    page.evaluate(_GONE, [_COUNT, " of ", _WAIT])
    return float(page.evaluate(_CHANGE, ["#/run/large?q=invoice+total&status=completed", _COUNT, "\0"]))


def _searching(page: Any) -> float:
    page.evaluate(_CHANGE, ["#/run/large/search", _HITS, "Searching…"])
    return float(page.evaluate(_CHANGE, ["#/run/large/search?q=workbook+invoice", _HITS, "Searching…"]))


def _contender(path: str, ready: str, sample: Callable[[Any], float]) -> Contender:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        with _open_page(size, path, ready) as page:
            if path.endswith("search?q=workbook"):
                page.evaluate(_GONE, [_HITS, "The index is being built", _WAIT])
            yield lambda: sample(page)

    return Contender("paragent view", opened, needs="playwright")


def _measurement(name: str, title: str, question: str, contender: Contender) -> Measurement:
    return Measurement(
        name=name,
        title=title,
        question=question,
        unit="ms",
        size=100_000,
        quick_size=2000,
        contenders=(contender,),
        targets=(Target("at most", 200.0),),
    )


MEASUREMENTS = (
    _measurement(
        "view_table",
        "Sort 100,000 rollouts",
        "How long does the table of 100,000 rollouts take to sort?",
        _contender("/run/large", "{:,} rollouts", _sorting),
    ),
    _measurement(
        "view_filter",
        "Filter 100,000 rollouts",
        "How long does a filter of 100,000 rollouts take?",
        _contender("/run/large", "{:,} rollouts", _filtering),
    ),
    _measurement(
        "view_search",
        "Search 100,000 rollouts",
        "How long does a search in all text of 100,000 rollouts take?",
        _contender("/run/large/search?q=workbook", "workbook", _searching),
    ),
)
