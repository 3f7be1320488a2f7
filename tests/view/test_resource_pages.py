"""The pages of pools, agent servers and engines in a real browser, with real desktops and a real agent server."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from paragent import RpcAgentServerLauncher, VMPoolManager
from paragent.store import WorkerEvent
from paragent.view.server import ViewServer, ViewSettings
from tests.remote.agents import Worker
from tests.view.recorded import EPOCH, journal_of, result, write_run
from tests.view.test_pages import browser, page  # noqa: F401 - fixtures

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HOSTILE = "\x1b]0;title\x07\x1b[31m<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"
SHOWN = "<script>window.attacked = 1</script><img src=x onerror='window.attacked = 1'>"


@pytest.fixture(autouse=True)
def _own_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a token file and a cache of this test instead of the user's."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PARAGENT_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PARAGENT_TOKEN", raising=False)


@pytest.fixture
def desktops() -> Iterator[VMPoolManager]:
    options = {"desktop": True, "applications": "terminal"}
    with VMPoolManager("process", 1, spares=0, name="shown", screen=(800, 600), options=options) as pool:
        pool.serve()
        yield pool


def test_the_screen_and_the_log_of_a_machine_and_its_retirement(
    desktops: VMPoolManager,
    tmp_path: Path,
    page: Page,  # noqa: F811 - the fixture
) -> None:
    lease = desktops.allocate(timeout=100, holder="a program of mine")
    with Path(f"/proc/{lease.machine.details['pid']}/fd/2").open("a") as log:
        log.write(HOSTILE)
    write_run(tmp_path / "runs", "one", [result("a")])
    with ViewServer(ViewSettings(folder=tmp_path / "runs", pools=[desktops.address])) as server:
        page.goto(server.link("/pools"))
        page.get_by_role("link", name=desktops.address).click()
        row = page.get_by_role("row").filter(has_text="a program of mine").first
        expect(row.get_by_text("leased")).to_be_visible()
        page.get_by_role("link", name=lease.machine.id, exact=True).click()
        panel = page.get_by_role("complementary", name=f"Machine {lease.machine.id}")
        image = panel.get_by_role("img")
        expect(image).to_be_visible()
        page.wait_for_function("document.querySelector('.machine-panel img').naturalWidth === 800")
        expect(panel.get_by_text(SHOWN)).to_be_visible()
        assert page.evaluate("window.attacked") is None
        first = image.get_attribute("src")
        expect(image).not_to_have_attribute("src", first or "")
        panel.get_by_role("button", name="Retire…").click()
        panel.get_by_role("button", name=f"Retire {lease.machine.id}").click()
        expect(panel.get_by_text("is replaced when its lease ends")).to_be_visible()
        lease.release()
        expect(panel.get_by_text("stopped", exact=True)).to_be_visible()
        page.keyboard.press("Escape")
        expect(panel).to_be_hidden()


def test_agents_of_a_server_and_a_dead_server(tmp_path: Path, page: Page) -> None:  # noqa: F811 - the fixture
    write_run(tmp_path / "runs", "one", [result("a")])
    with RpcAgentServerLauncher("127.0.0.1") as agents:
        address = f"127.0.0.1:{agents.port}"
        agent: Any = Worker("a", to_dist={"host": "127.0.0.1", "port": str(agents.port)})
        settings = ViewSettings(folder=tmp_path / "runs", agent_servers=[address, "127.0.0.1:1"])
        with ViewServer(settings) as server:
            page.goto(server.link("/servers"))
            expect(page.get_by_text("no agent server answers at 127.0.0.1:1")).to_be_visible()
            page.get_by_role("link", name=address).click()
            grid = page.get_by_role("grid", name="Agents")
            expect(grid.get_by_text("Worker")).to_be_visible()
            for _ in range(3):
                assert agent.add(1) == 2
            expect(grid.get_by_role("gridcell").nth(5)).to_have_text("3")


def test_the_workers_of_a_run(tmp_path: Path, page: Page) -> None:  # noqa: F811 - the fixture
    lost = result("a", status="infrastructure", kind="worker", final=False, worker="h:2")
    path = write_run(tmp_path, "one", [lost, result("a", worker="h:3", started=EPOCH + 5)])
    with journal_of(path) as journal:
        events = [WorkerEvent("h:2", "ready", EPOCH), WorkerEvent("h:2", "lost", EPOCH + 2, HOSTILE)]
        journal.record([], worker_events=[*events, WorkerEvent("h:3", "started", EPOCH + 3)])
    with ViewServer(ViewSettings(folder=tmp_path)) as server:
        page.goto(server.link("/run/one"))
        page.get_by_role("link", name="Engine").click()
        expect(page.get_by_role("heading", name="Engine local")).to_be_visible()
        grid = page.get_by_role("grid", name="Workers")
        expect(grid.get_by_role("row").filter(has_text="h:2").get_by_text("lost")).to_be_visible()
        expect(page.get_by_role("region", name="Events").get_by_text(SHOWN)).to_be_visible()
        expect(page.get_by_text(re.compile("Restarts")).locator("..")).to_contain_text("1")
        assert page.evaluate("window.attacked") is None
