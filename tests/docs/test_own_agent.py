"""The agents and commands of docs/howto/own_agent.md work, and its tables are complete."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from paragent.cli import main
from paragent.rollout.config import all_settings
from paragent.testing import OpenAIServer, Script
from tests.rollout.program_runs import Project

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/own_agent.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A folder with the files of the page."""
    project = Project(tmp_path / "project", monkeypatch)
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        project.write(re.match(r"# (\w+\.py)\n", code)[1], code)  # type: ignore[index]  # each block begins with its name
    project.write("tasks.jsonl", json.dumps({"id": "1", "question": "What is 6 times 7?", "answer": "42"}))
    shutil.copytree(ROOT / "examples", project.folder / "examples")
    return project


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=range(len(COMMANDS)))
def test_the_commands_work(project: Project, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    program, *words = shlex.split(command)
    assert program == "paragent"
    if "examples/" in command:
        words.append("--dry-run")  # tests/real_agents runs them
    if "--mode py" in command:
        words += ["--provider-name", "process"]
    with OpenAIServer(Script(default="42")) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        assert main([*words, "--model", "scripted", "--num-rollouts", "1"]) == 0


def test_all_flags_and_variables_are_described() -> None:
    flags = [setting.flag for setting in all_settings() if setting.name.startswith("agent")]
    assert not [flag for flag in flags if flag not in PAGE]
    sources = [(ROOT / "src/paragent/rollout" / name).read_text() for name in ("program.py", "gateway_access.py")]
    variables = {
        name for source in sources for name in re.findall(r'"((?:OPENAI|ANTHROPIC|PARAGENT)_[A-Z_]+)"', source)
    }
    assert len(variables) >= 9
    assert not [name for name in variables if f"`{name}`" not in PAGE]
