"""`paragent init`: the project that it makes, the commands of its README, and the names that it refuses."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from paragent._installation import install_command
from paragent.cli import main
from paragent.errors import MissingExtra
from paragent.testing import OpenAIServer, Script
from tests.children import BoundedPopen

FILES = {
    ".env.example",
    ".gitignore",
    "README.md",
    "pyproject.toml",
    "rollout.toml",
    "tasks.jsonl",
    "tests/test_web_shop.py",
    "web_shop/__init__.py",
    "web_shop/agent.py",
    "web_shop/environment.py",
}


@pytest.fixture(autouse=True)
def _empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def environment() -> dict[str, str]:
    """Return the variables for commands: the programs of this Python are on the path, and there is no display."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OPENAI_", "PYTEST_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return kept | {"PATH": path, "DISPLAY": "", "WAYLAND_DISPLAY": ""}


def succeeds(command: str, folder: Path) -> str:
    """Run a command and return its output."""
    done = subprocess.run(
        shlex.split(command, comments=True), cwd=folder, env=environment(), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def blocks(readme: Path) -> list[list[str]]:
    """Return the lines of each block of commands."""
    return [block.splitlines() for block in re.findall(r"```bash\n(.*?)```", readme.read_text(), re.DOTALL)]


def project(name: str = "web-shop") -> Path:
    assert main(["init", name]) == 0
    return Path(name).absolute()


def test_the_files_have_the_names_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    folder = project()
    found = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert set(found) == FILES
    assert not any("my_project" in text or "my-project" in text for text in found.values())
    assert 'name = "web-shop"' in found["pyproject.toml"]
    printed = capsys.readouterr().out
    assert "cd web-shop\n" in printed
    assert "web_shop/agent.py" in printed
    assert "paragent rollout --config rollout.toml" in printed


def test_the_command_that_installs_the_view_is_named_if_it_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing() -> None:
        raise MissingExtra("`paragent view`", "view", "uvicorn")

    project()
    assert "pip install -e" not in (complete := capsys.readouterr().out)
    assert "look at the results in a browser\n" in complete
    monkeypatch.setattr("paragent.cli.init.check_installed", missing)
    project("other-shop")
    assert f"look at the results in a browser; needs: {install_command(['view'])}\n" in capsys.readouterr().out


@pytest.mark.slow
def test_the_commands_of_the_readme_work() -> None:
    folder = project()
    install, rollout, view, tests = blocks(folder / "README.md")[0]
    assert install == "pip install -e '.[dev]'"  # the test of the built packages runs it
    assert re.search(r"score\s+│ 0\.875", succeeds(rollout, folder))
    assert "passed" in succeeds(tests, folder)
    with BoundedPopen(
        shlex.split(view), cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        assert server.stdout is not None
        assert any("http://127.0.0.1:" in line for line in iter(server.stdout.readline, ""))
        server.send_signal(signal.SIGINT)
        server.communicate(timeout=60)
    assert server.returncode == 0


@pytest.mark.slow
def test_the_project_runs_with_a_model() -> None:
    folder = project()
    copy, rollout = blocks(folder / "README.md")[1]
    succeeds(copy, folder)
    replies = [{"tool": "price", "arguments": {"item": "apples"}}, "It costs 1.50.", "Answer: 1.50"]
    with OpenAIServer(Script(answers={"3 apples cost": replies}, default="Answer: 0.00")) as server:
        keys = folder / ".env"
        text = keys.read_text().replace("OPENAI_API_KEY=", "OPENAI_API_KEY=a-key")
        keys.write_text(re.sub("# OPENAI_BASE_URL=.*", f"OPENAI_BASE_URL={server.url}", text))
        printed = succeeds(rollout, folder)
    assert re.search(r"score\s+│ 0\.125", printed)


def test_a_folder_may_exist_if_it_is_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "Acme.Prices"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert main(["init", "."]) == 0
    assert (folder / "acme_prices" / "agent.py").exists()


@pytest.mark.parametrize("entry", ["file", "folder"])
def test_what_exists_is_not_changed(entry: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "mine"
    if entry == "folder":
        target.mkdir()
        (target / "notes.txt").write_text("keep")
    else:
        target.write_text("keep")
    assert main(["init", "mine"]) == 2
    problem = capsys.readouterr().err
    assert ("is not empty" if entry == "folder" else "is not a folder") in problem
    assert "choose another name" in problem
    assert [path for path in target.rglob("*") if path.name != "notes.txt"] == []


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("1st", "begin with a letter"),
        ("my project", "use letters, digits and single hyphens"),
        ("a--b", "use letters, digits and single hyphens"),
        ("größe", "use letters, digits and single hyphens"),
        ("class", "Python itself has that name"),
        ("json", "Python itself has that name"),
        ("tests", "the folder of the tests has that name"),
        ("paragent", "an installed package has that name"),
        ("PyTest", "an installed package has that name"),
    ],
)
def test_a_name_that_cannot_be_a_package_is_refused(
    name: str, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["init", name]) == 2
    assert problem in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
