"""A pytest plug-in: which process runs which tests (with `--dist loadgroup`), and how long each part of the tests took.

All tests of a file run in one process. Tests with clusters or machines run one after the other, all of a kind in one process:
two of a kind at a time overload a small computer. A test may name its group (`xdist_group`).
"""

from __future__ import annotations

import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest

ALONE = ("ray", "spark", "qemu")
"""Markers of tests of which only one runs at a time."""
SECONDS = {"ray": 5.0, "spark": 4.0, "qemu": 4.0, "browser": 3.0, "slow": 3.0}
"""About how long a test with a marker takes, if it does not say so: `slow(20)`. All others take about 0.1 seconds."""


def group_of(item: pytest.Item) -> str:
    """Return the name of the group of a test."""
    if named := item.get_closest_marker("xdist_group"):
        return str(named.args[0])
    return next((name for name in ALONE if item.get_closest_marker(name)), item.nodeid.partition("::")[0])


def seconds_of(item: pytest.Item) -> float:
    """Return about how long a test takes."""
    slow = item.get_closest_marker("slow")
    if slow is not None and slow.args:
        return float(slow.args[0])
    return next((SECONDS[name] for name in SECONDS if item.get_closest_marker(name)), 0.1)


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests of a contract that a class leaves to `make test-nightly`, all that it does not name in `differs`, and to
    `make test-integrations`, which it names in `programs`."""
    suite, name = getattr(item, "cls", None), getattr(item, "originalname", item.name)
    if (differs := getattr(suite, "differs", None)) is not None and name not in differs:
        item.add_marker(pytest.mark.nightly)
    if name in getattr(suite, "programs", ()):
        item.add_marker(pytest.mark.integration)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of xdist, sort tests so that groups that take long begin first, and write the groups for the scheduler."""
    given = getattr(config, "workerinput", {})
    if "groups" not in given:
        return
    seconds: defaultdict[str, float] = defaultdict(float)
    groups = {item.nodeid: group_of(item) for item in items}
    for item in items:
        seconds[groups[item.nodeid]] += seconds_of(item)
    items.sort(key=lambda item: -seconds[groups[item.nodeid]])
    own = Path(f"{given['groups']}.{given['workerid']}")
    own.write_text(json.dumps(groups))
    own.replace(given["groups"])


class Controller:
    """The hooks of the process that starts the others, with `--dist loadgroup`."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paragent-tests-")
        self._groups = Path(self._folder.name) / "groups.json"

    def pytest_configure_node(self, node: Any) -> None:
        node.workerinput["groups"] = str(self._groups)

    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Any:
        from tests.group_scheduler import GroupScheduler

        return GroupScheduler(config, log, self._groups)

    def pytest_unconfigure(self) -> None:
        self._folder.cleanup()


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("dist", None) == "loadgroup" and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Controller())


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show the seconds and the number of tests of each folder, each kind and each process."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for report in [one for reports in terminalreporter.stats.values() for one in reports]:
        if not isinstance(report, pytest.TestReport):
            continue
        parts = report.nodeid.split("::")[0].split("/")
        names = [f"{parts[0]}/{parts[1]}"] if len(parts) > 2 else [parts[0]]
        names += [name for name in (*SECONDS, "integration") if name in report.keywords]
        names += [f"process {worker}"] if (worker := getattr(report, "worker_id", "")) else []
        for name in names:
            seconds[name] += report.duration
            tests[name] += report.when == "call"
    if sum(seconds.values()) < 60:
        return
    terminalreporter.section("seconds by part", sep="=")
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        terminalreporter.write_line(f"{spent:8.1f} s {tests[name]:6d} tests  {name}")
