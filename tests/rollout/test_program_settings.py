"""Settings of programs as agents: mistakes, the identity of a run, and one rollout in the sandbox."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from paragent import ConfigError, MissingProgram, RolloutConfig
from paragent.rollout.prepare import prepare
from paragent.rollout.program_settings import program_settings
from paragent.store import RolloutStatus
from tests.rollout.program_runs import FUNCTIONS, Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path / "project", monkeypatch)


def test_a_program_answers(project: Project) -> None:
    agent = project.python("""print(ask([{"role": "user", "content": sys.stdin.read()}])["content"])""")
    result = project.run(agent)
    assert (result.status, result.answer, result.score, result.turns) == (RolloutStatus.COMPLETED, "42", 1.0, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"agent": "cmd:"}, "the command is empty"),
        ({"agent": "cmd: 'unfinished"}, "cannot be split into words"),
        ({"agent": "cmd: no-such-program-anywhere"}, "there is no program 'no-such-program-anywhere'"),
        ({"agent": "cmd: true", "agent_in": "worker"}, "run in a process of their own"),
        (
            {"agent": "cmd: true", "agent_in": "moon"},
            "--agent-in must be one of 'worker', 'sandbox', 'host', 'machine'",
        ),
        ({"agent": "cmd: true", "agent_in": "machine"}, "the environment 'math' uses no machine"),
        ({"agent": "cmd: true", "agent_network": "all"}, "--agent-network must be one of"),
        ({"agent": "cmd: true", "agent_env": {"1X": ""}}, "'1X' is not the name of a variable"),
        ({"agent": "cmd: true", "agent_env": {"OPENAI_API_KEY": "x"}}, "the run sets OPENAI_API_KEY itself"),
        ({"agent_in": "sandbox"}, "add --agent"),
        ({"agent_env": {"A": "b"}}, "add --agent-in"),
        ({"agent": "functions:Agent", "agent_in": "host"}, "classes run in the worker"),
        ({"agent": "functions:answer", "agent_in": "machine"}, "is for commands"),
    ],
)
def test_mistakes_are_reported_before_the_run(project: Project, settings: dict[str, Any], message: str) -> None:
    project.write("functions.py", FUNCTIONS)
    project.write("tasks.jsonl", json.dumps({"id": "1", "question": "?", "answer": "!"}))
    with pytest.raises(ConfigError, match=message):
        prepare(RolloutConfig(**{"data": "tasks.jsonl", "mode": "math", "model": "demo"} | settings))


def test_a_missing_sandbox_is_reported(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    project.write("x.py", "")
    agent = f"cmd: {shlex.quote(sys.executable)} x.py"
    monkeypatch.setenv("PATH", str(project.folder))
    with pytest.raises(MissingProgram, match="--agent-in host"):
        project.run(agent)
    project.write("bwrap", "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{project.folder}:/usr/bin:/bin")
    with pytest.raises(MissingProgram, match="No permissions to create new namespace"):
        project.run(agent)


def test_the_home_folder_is_not_shown_to_an_agent(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(project.folder / "home"))
    with pytest.raises(ConfigError, match="contains much else"):
        project.run("cmd: true")
    monkeypatch.delenv("HOME")
    monkeypatch.chdir("/tmp")
    with pytest.raises(ConfigError, match="contains much else"):
        project.run("cmd: true")


def test_the_program_is_part_of_the_identity(project: Project) -> None:
    project.write("tasks.jsonl", json.dumps({"id": "1", "question": "?", "answer": "!"}))

    def identity(**settings: Any) -> str:
        return prepare(RolloutConfig(data="tasks.jsonl", mode="math", model="demo", **settings)).identity

    ways: list[dict[str, Any]] = [
        {},
        {"agent": "cmd: true"},
        {"agent": "cmd: true x"},
        {"agent": "cmd: true", "agent_in": "host"},
        {"agent": "cmd: true", "agent_network": "host"},
        {"agent": "cmd: true", "agent_env": {"A": "1"}},
        {"agent": "cmd: true", "agent_metadata": ["level"]},
    ]
    assert len({identity(**way) for way in ways}) == len(ways)
    secret = {identity(agent="cmd: true", agent_env={"MY_API_KEY": key}) for key in ("one", "two")}
    assert len(secret) == 1, "another key is not another run"


def test_the_file_of_mcp_servers_is_hidden_from_the_agent(project: Project) -> None:
    servers = project.write("servers.json", json.dumps({"mcpServers": {"a": {"url": "http://127.0.0.1:9/"}}}))
    agent = project.python("print(42)")
    config = RolloutConfig(mode="math", model="demo", agent=agent, mcp_config=servers)
    settings = program_settings(config)
    assert settings is not None
    assert str(servers.resolve()) in settings.hidden
