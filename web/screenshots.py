"""Take a picture of each page, in two sizes and both themes. Usage: python web/screenshots.py RUNS_FOLDER TARGET [PAGE ...]

A PAGE is the part of an address after `#`, for example `/run/NAME`; without one, the list of runs, the newest two runs, their
comparison, and a rollout of each are taken.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from paragent.store import JOURNAL_FILE, Journal, find_runs
from paragent.view.server import ViewServer, ViewSettings

SIZES = ((1280, 720), (1920, 1080))
THEMES = ("light", "dark")
SETTLED = 2500
"""Milliseconds for charts and images after the data is there."""


def default_pages(folder: Path) -> list[str]:
    """Return the pages of the newest two runs."""
    runs = find_runs(folder)[:2]
    pages = ["/", f"/compare?runs={','.join(run.name for run in runs)}", "/pools", "/servers"]
    for run in runs:
        with Journal(run / JOURNAL_FILE, read_only=True) as journal:
            [(task, attempt)] = journal.rows("SELECT task, attempt FROM results ORDER BY turns DESC LIMIT 1")
        pages += [f"/run/{run.name}", f"/run/{run.name}/rollout/{task}/{attempt}", f"/run/{run.name}/engine"]
    return pages


def take(browser: Any, server: ViewServer, page: str, target: Path) -> None:
    """Take the pictures of one page."""
    name = re.sub(r"\W+", "-", page).strip("-") or "runs"
    for width, height in SIZES:
        for theme in THEMES:
            context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme)
            tab = context.new_page()
            tab.goto(server.link(page))
            tab.wait_for_timeout(SETTLED)
            tab.screenshot(path=target / f"{name}-{width}-{theme}.png")
            context.close()


def main() -> None:
    """Take all pictures."""
    folder, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    with ViewServer(ViewSettings(folder=folder)) as server, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for page in sys.argv[3:] or default_pages(folder):
            take(browser, server, page, target)
        browser.close()


if __name__ == "__main__":
    main()
