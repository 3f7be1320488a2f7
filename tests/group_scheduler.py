"""Assigns groups of tests to the processes of xdist; see distribution.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]


class GroupScheduler(LoadScopeScheduling):  # type: ignore[misc]
    """Assigns the tests of a group to one process, in the order of the groups.

    After a crash the other tests of the group are run in a new process, and not the test that crashed. xdist's own scheduler
    would run it again. It also puts the name of a group into the ids of tests, which pytest 9.2 ignores.
    """

    def __init__(self, config: pytest.Config, log: Any, groups: Path) -> None:
        """Make a scheduler.

        Args:
            groups: a JSON file with the group of each test, which the processes write before tests are scheduled.
        """
        config.option.loadscopereorder = False
        super().__init__(config, log)
        self._file = groups
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        self._groups = self._groups or json.loads(self._file.read_text())
        return self._groups[nodeid]

    def _reschedule(self, node: Any) -> None:
        """Assign groups until the process has two tests: it runs a test when it knows the next one, or that there is none."""
        while self.workqueue and not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._assign_work_unit(node)
        if not self.workqueue:
            node.shutdown()

    def remove_node(self, node: Any) -> str | None:
        units = self.assigned_work.pop(node)
        crashed = next((name for tests in units.values() for name, completed in tests.items() if not completed), None)
        for group, tests in reversed(units.items()):
            if crashed in tests:
                tests[crashed] = True
            if not all(tests.values()):
                self.workqueue[group] = tests
                self.workqueue.move_to_end(group, last=False)
        return crashed
