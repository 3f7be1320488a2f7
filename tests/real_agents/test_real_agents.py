"""Agents of other projects, unchanged, as programs in the sandbox: what they say is recorded and scored."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from paragent.store import RolloutStatus
from paragent.testing import OpenAIServer, Script
from tests.rollout.program_runs import TASK, Project, program_step, trajectory_of

pytestmark = [pytest.mark.slow, pytest.mark.integration]

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-agents/bin/python"
"""`make test-integrations` creates it."""
MULTIPLY = [{"tool": "multiply", "arguments": {"a": 6, "b": 7}}, "Answer: 42"]
SHELL = [
    {"tool": "bash", "arguments": {"command": "echo $((6 * 7)) > number && cat number"}},
    {"tool": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT; cat number"}},
]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    project = Project(tmp_path / "project", monkeypatch)
    for example in (ROOT / "examples/agents").iterdir():
        project.write(example.name, example.read_text())
    return project


@pytest.mark.parametrize(
    ("name", "replies", "tool", "result_of_tool"),
    [
        ("openai_agents_sdk", MULTIPLY, "multiply", "42"),
        ("langgraph_agent", MULTIPLY, "multiply", "42"),
        ("pydantic_ai_agent", MULTIPLY, "multiply", "42"),
        ("mini_swe_agent", SHELL, "bash", "<output>\n42"),
    ],
)
def test_a_real_agent(project: Project, name: str, replies: list[Any], tool: str, result_of_tool: str) -> None:
    with OpenAIServer(Script(default=replies), keep_requests=True) as server:
        result = project.run(f"cmd: {shlex.quote(str(PYTHON))} {name}.py", server, timeout=300)
    assert (result.status, result.error) == (RolloutStatus.COMPLETED, "")
    assert (result.score, result.turns, result.requests) == (1.0, 2, 2)
    assert result.prompt_tokens
    assert result.completion_tokens
    trajectory = trajectory_of(result)
    messages = [message for message in trajectory["messages"] if message["role"] not in {"system", "developer"}]
    assert [message["role"] for message in messages[:3]] == ["user", "assistant", "tool"]
    assert TASK.question in str(messages[0]["content"])
    assert messages[1]["tool_calls"][0]["function"]["name"] == tool
    assert result_of_tool in str(messages[2]["content"])
    assert messages[3]["role"] == "assistant"
    assert "branches" not in trajectory
    assert [one["function"]["name"] for one in trajectory["tools"]] == [tool]
    assert program_step(result)["exit_code"] == 0
    assert all(body["model"] == "scripted" for body in server.seen.bodies)


def test_a_shell_script_with_curl(project: Project) -> None:
    result = project.run("cmd: sh shell_agent.sh")
    assert (result.status, result.answer, result.turns) == (RolloutStatus.COMPLETED, "42", 1)
