"""The view next to inspect view and Harbor's viewer: the same 2,000 rollouts in a real browser.

The environments of the peers are made by `python -m bench.peers`. Each contender has its server and its log; a sample
is taken in a new browser context, so nothing is cached.
"""

from __future__ import annotations

import atexit
import functools
import re
import socket
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from bench.executors import LIMIT
from bench.measure import Contender, Measurement, Run, Target
from bench.peers.environments import peer_program
from bench.view_data import rollouts, write_json, write_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["MEASUREMENTS", "browser"]

_SCRIPTS = Path(__file__).parent / "scripts"
_CHOSEN = 3
"""The rollout that is opened: in the first rows of every list."""
_WAIT = 60_000
"""Milliseconds for a page."""
_START = 60.0
"""Seconds for a server to start."""


class _Viewer:
    """A running viewer: its address, and how to reach its list of rollouts."""

    def __init__(self, address: str, reach_list: Callable[[Any], None] | None = None) -> None:
        self.address = address
        self._reach_list = reach_list

    def open_list(self, page: Any, task: str) -> float:
        """Open the address; return the seconds until the list shows the task."""
        began = perf_counter()
        page.goto(self.address)
        if self._reach_list:
            self._reach_list(page)
        page.get_by_text(task).first.wait_for(timeout=_WAIT)
        return perf_counter() - began

    def open_rollout(self, page: Any, task: str, text: str) -> float:
        """Click the task in the list; return the seconds until its conversation is shown."""
        self.open_list(page, task)
        began = perf_counter()
        page.get_by_text(task).first.click()
        page.get_by_text(text).first.wait_for(timeout=_WAIT)
        return perf_counter() - began


@contextmanager
def _server(command: list[str], ready: str) -> Iterator[re.Match[str]]:
    """Start a server; yield the match of the line that it prints when it listens."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)
        try:
            limit = perf_counter() + _START
            while perf_counter() < limit and process.poll() is None:
                log.seek(0)
                if found := re.search(ready, log.read()):
                    yield found
                    return
            log.seek(0)
            raise RuntimeError(f"{command[0]} did not start: {log.read()[-300:]}")
        finally:
            process.terminate()
            process.wait(LIMIT)


@contextmanager
def _paragent(folder: Path, size: int) -> Iterator[_Viewer]:
    write_run(folder / "sample", size)
    command = [sys.executable, "-m", "paragent", "view", str(folder / "sample"), "--no-browser"]
    with _server(command, r"http://\S+token=\S+") as link:
        yield _Viewer(link.group())


@contextmanager
def _inspect(folder: Path, size: int) -> Iterator[_Viewer]:
    write_json(folder / "rollouts.jsonl", size)
    _write_log("inspect_ai", "viewer_inspect.py", folder)
    port = _free_port()
    command = [
        str(peer_program("inspect_ai", "inspect")),
        "view",
        "start",
        "--log-dir",
        str(folder / "log"),
        "--port",
        str(port),
    ]
    with _server(command, r"Running on (http://\S+)") as line:
        yield _Viewer(f"{line.group(1)}/#/tasks/sample.eval")


@contextmanager
def _harbor(folder: Path, size: int) -> Iterator[_Viewer]:
    write_json(folder / "rollouts.jsonl", size)
    _write_log("harbor", "viewer_harbor.py", folder)
    command = [
        str(peer_program("harbor", "harbor")),
        "view",
        str(folder / "log"),
        "--jobs",
        "--port",
        str(_free_port()),
    ]
    with _server(command, r"running on (http://\S+)") as line:
        yield _Viewer(f"{line.group(1)}/jobs/sample?tab=results")


@functools.cache
def browser() -> Any:
    """Return the browser of all contenders; it is closed when the program ends."""
    from playwright.sync_api import sync_playwright

    playwright = sync_playwright().start()
    browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
    atexit.register(playwright.stop)
    atexit.register(browser.close)
    return browser


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _write_log(peer: str, script: str, folder: Path) -> None:
    command = [peer_program(peer), _SCRIPTS / script, folder / "rollouts.jsonl", folder / "log"]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)


def _contender(
    name: str, viewer: Callable[[Path, int], AbstractContextManager[_Viewer]], *, rollout: bool
) -> Contender:
    @contextmanager
    def opened(size: int) -> Iterator[Run]:
        chosen = [one for _, one in zip(range(_CHOSEN + 1), rollouts(size), strict=False)][-1]
        thought = chosen.messages[2]["content"]
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            running = stack.enter_context(viewer(folder, size))

            def run() -> float:
                context = browser().new_context(viewport={"width": 1280, "height": 720})
                try:
                    page = context.new_page()
                    if rollout:
                        return running.open_rollout(page, chosen.task, thought)
                    return running.open_list(page, chosen.task)
                finally:
                    context.close()

            yield run

    return Contender(name, opened, needs="playwright")


def _measurement(name: str, title: str, question: str, *, rollout: bool) -> Measurement:
    viewers = {"paragent view": _paragent, "inspect view": _inspect, "harbor view": _harbor}
    return Measurement(
        name=name,
        title=title,
        question=question,
        unit="s",
        size=2000,
        quick_size=100,
        contenders=tuple(_contender(one, opened, rollout=rollout) for one, opened in viewers.items()),
        targets=(Target("at most", 1.0, "inspect view"), Target("at most", 1.0, "harbor view")),
    )


MEASUREMENTS = (
    _measurement(
        "viewer_list",
        "Page with 2,000 rollouts",
        "How long until a viewer shows the list of 2,000 rollouts?",
        rollout=False,
    ),
    _measurement(
        "viewer_rollout",
        "Page of one rollout",
        "How long until a click on one of 2,000 rollouts shows its conversation?",
        rollout=True,
    ),
)
