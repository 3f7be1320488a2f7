"""Every code block of README and docs is executed; pages.py describes how."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.distribution import ALONE
from tests.docs.pages import EXECUTED, NOT_EXECUTED, PAGES, PARSED, ROOT, read_page

WITH_CODE = [page for page in PAGES if any(block.language in EXECUTED for block in read_page(page).steps)]


def ports_of(page: Path) -> list[str]:
    """Return the fixed ports of the servers that a page starts."""
    code = "\n".join(block.body for block in read_page(page).steps if block.language in EXECUTED)
    return sorted(set(re.findall(r"--port[ =](\d+)", code)))


def group_of(page: Path) -> str:
    """Return the group of pages that run one after the other: they need a cluster or machines, or have a port in common."""
    ports = set(ports_of(page))
    together = [other for other in WITH_CODE if other == page or ports & set(ports_of(other))]
    needs = {name for other in together for name in read_page(other).needs}
    return next((name for name in ALONE if name in needs), str(together[0]))


def cases() -> list[object]:
    return [
        pytest.param(
            page,
            id=str(page),
            marks=[
                pytest.mark.xdist_group(group_of(page)),
                pytest.mark.slow(3 * sum(block.language in EXECUTED for block in read_page(page).steps)),
                *(getattr(pytest.mark, name) for name in set(read_page(page).needs) - {"slow"}),
            ],
        )
        for page in WITH_CODE
    ]


def test_pages_with_a_port_in_common_are_in_one_group() -> None:
    groups: dict[str, set[str]] = {}
    for page in WITH_CODE:
        for port in ports_of(page):
            groups.setdefault(port, set()).add(group_of(page))
    assert {port: names for port, names in groups.items() if len(names) > 1} == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", cases())
def test_the_code_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    folder, home = tmp_path / "project", tmp_path / "home"
    home.mkdir()
    folder.mkdir()
    folder.chmod(0o755)  # pytest's folders are private, and root runs agents in the sandbox as another user
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PARAGENT_"))}
    environment |= {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), environment["PATH"]]),
        "PYTHONPATH": str(ROOT),
        "HOME": str(home),
        "PARAGENT_WORKERS": "1",  # the default, one for each core, would take twice the time of the small runs of pages
        "PARAGENT_CACHE": os.environ.get("PARAGENT_CACHE", str(Path.home() / ".cache" / "paragent")),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.docs.run_page", str(page)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_every_block_has_a_known_language(page: Path) -> None:
    known = {"setup", *EXECUTED, *PARSED, *NOT_EXECUTED}
    assert not [(block.line, block.language) for block in read_page(page).steps if block.language not in known]
