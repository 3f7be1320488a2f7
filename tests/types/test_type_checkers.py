"""mypy and pyright accept the examples and the code of the pages, and reject wrong uses of what these show."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.types.extracted import write_modules

CHECKERS = ("mypy", "pyright")
Check = Callable[[str], dict[str, list[str]]]

MYPY = f"""\
[mypy]
strict = True
warn_unreachable = True
mypy_path = {ROOT / "src"}:{ROOT}
explicit_package_bases = True
cache_dir = {ROOT / ".mypy_cache" / "pages"}
[mypy-datasets.*,pyarrow.*]
ignore_missing_imports = True
"""


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Check:
    """Return a function that runs a checker over all modules, once, and returns the errors by the name of the module."""
    folder = tmp_path_factory.mktemp("types")
    write_modules(folder)
    for name in ("right_uses", "wrong_uses"):
        (folder / f"{name}.py").write_text((ROOT / "tests" / "types" / f"{name}.py.txt").read_text())
    (folder / "mypy.ini").write_text(MYPY)
    paths = {"extraPaths": [str(ROOT / "src"), str(ROOT)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(paths))
    found: dict[str, dict[str, list[str]]] = {}

    def run(checker: str) -> dict[str, list[str]]:
        if checker not in found:
            found[checker] = _errors(checker, folder)
        return found[checker]

    return run


def _errors(checker: str, folder: Path) -> dict[str, list[str]]:
    arguments = {"mypy": ["--config-file", "mypy.ini", "."], "pyright": ["--pythonpath", sys.executable]}[checker]
    done = subprocess.run(
        [sys.executable, "-m", checker, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    lines = [line.replace(f"{folder}/", "").strip() for line in done.stdout.splitlines()]
    errors = [line for line in lines if re.search(r"\.py:\d+.*error: ", line)]
    assert re.search(rf"\b{len(errors)} errors?\b", lines[-1]), done.stdout + done.stderr
    by_module: dict[str, list[str]] = {}
    for error in errors:
        by_module.setdefault(error.partition(".py:")[0], []).append(error)
    return by_module


@pytest.mark.slow(20)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_examples_and_the_code_of_pages_have_no_errors(check: Check, checker: str) -> None:
    errors = [error for name, found in check(checker).items() for error in found if name != "wrong_uses"]
    assert not errors, "\n".join(errors)


@pytest.mark.slow(1)
@pytest.mark.timeout(300)
@pytest.mark.parametrize("checker", CHECKERS)
def test_every_wrong_use_is_an_error(check: Check, checker: str) -> None:
    code = (ROOT / "tests" / "types" / "wrong_uses.py.txt").read_text().splitlines()
    wrong = {number: line for number, line in enumerate(code, 1) if "# wrong" in line}
    reported = {int(error.split(":")[1]) for error in check(checker)["wrong_uses"]}
    assert [line for number, line in wrong.items() if number not in reported] == []
    assert reported <= wrong.keys(), check(checker)["wrong_uses"]
