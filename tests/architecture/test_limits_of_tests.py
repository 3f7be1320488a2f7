"""Every wait of a test has a limit, and a test that loses the exception of its time limit is ended all the same."""

from __future__ import annotations

import ast
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.trees import tree_of

ROOT = Path(__file__).parents[2]
STUBBORN = """
import subprocess, sys, time
import pytest

@pytest.mark.timeout(1)
def test_swallows_its_limit():
    while True:
        try:
            time.sleep(60)
        except BaseException:
            pass

@pytest.mark.parametrize("run", [1, 2])
def test_children_end_with_ctrl_c(run):
    child = subprocess.Popen([sys.executable, "-c", "import time; print(flush=True); time.sleep(60)"], stdout=-1, stderr=-1)
    child.stdout.readline()
    child.send_signal(2)
    child.communicate(timeout=10)
    assert child.returncode == -2
"""


def waits_without_limit(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of calls that may wait for ever; not those that a coroutine awaits."""
    awaited = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Await)}
    entered = {id(item.context_expr) for node in ast.walk(tree) if isinstance(node, ast.With) for item in node.items}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or id(node) in awaited:
            continue
        name = ast.unparse(node.func)
        waits = re.search(r"\.(wait|communicate|join)$", name) and not name.endswith("Event().wait")
        if (
            (waits and not node.args and not node.keywords)
            or (name == "subprocess.Popen" and id(node) in entered)  # see tests/children.py
            or (
                re.fullmatch(r"subprocess\.(run|call|check_call|check_output)", name)
                and "timeout" not in {keyword.arg for keyword in node.keywords}
            )
        ):
            yield node.lineno, name


def test_every_wait_of_a_test_has_a_limit() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{line}": call
        for path in (ROOT / "tests").rglob("*.py")
        for line, call in waits_without_limit(tree_of(path))
    }
    assert found == {}


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 1])
def test_a_test_that_swallows_its_limit_fails_and_the_others_run(tmp_path: Path, processes: int) -> None:
    """As in `nohup make test &`: the process ignores SIGINT, which its children would inherit."""
    (tmp_path / "test_stubborn.py").write_text(STUBBORN)
    (tmp_path / "pytest.ini").write_text("[pytest]\nhard_limit_grace = 1\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "tests.time_limits",
        "-p",
        "tests.distribution",
        "-p",
        "no:cacheprovider",
    ]
    command += ["--rootdir", str(tmp_path), "-c", str(tmp_path / "pytest.ini"), str(tmp_path)]
    command += ["--numprocesses", str(processes), *(["--dist", "loadgroup"] if processes else [])]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    shown = done.stdout + done.stderr
    assert done.returncode == 1, shown
    assert re.search(r"Timeout \(0:00:02\)!\n.*in test_swallows_its_limit\n", done.stderr, re.DOTALL), shown
    if processes:
        assert "crashed while running 'test_stubborn.py::test_swallows_its_limit'" in shown
        assert "1 failed, 2 passed" in shown
