"""Every code block of README and docs is executed; pages.py describes how."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import EXECUTED, NOT_EXECUTED, PAGES, PARSED, ROOT, read_page

WITH_CODE = [page for page in PAGES if any(block.language in EXECUTED for block in read_page(page).steps)]


def cases() -> list[object]:
    return [
        pytest.param(
            page, id=str(page), marks=[getattr(pytest.mark, name) for name in {"slow", *read_page(page).needs}]
        )
        for page in WITH_CODE
    ]


@pytest.mark.xdist_group("heavy")  # one at a time: pages start servers at fixed ports, clusters and machines
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
