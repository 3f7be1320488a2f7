"""Programs as agents inside leased machines, which reach the model without a network."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

from paragent import CommandResult, ConfigError, Environment, MachineFailed, RolloutConfig, run_parallel_rollout
from paragent.machines.tunnel import MachineTunnel
from paragent.store import JOURNAL_FILE, Journal, RolloutResult, RolloutStatus
from paragent.testing import OpenAIServer, Script
from tests.rollout.program_runs import ASK, Project

if TYPE_CHECKING:
    from paragent.machines import Machine

pytestmark = pytest.mark.slow

HERE = "tests.rollout.test_program_machines"
TRIED = """
question = sys.stdin.read().strip()
task = json.load(open(os.environ["PARAGENT_TASK_FILE"]))
reply = ask([{"role": "user", "content": question + "x" * 200_000}])
open(os.environ["PARAGENT_ANSWER_FILE"], "w").write(f"{reply['content']} {task['id']} {os.path.exists('left-behind')}")
open("left-behind", "w").write("mine")
"""

GUEST_PROCESS = """
def guest():
    for name in os.listdir("/proc"):
        try:
            words = open(f"/proc/{name}/cmdline").read().split(chr(0))
        except OSError:
            continue
        if any(word.endswith("guest/agent.py") for word in words) and os.getcwd() in words:
            return int(name)
"""


class Desert(Environment):
    """An environment on a machine, without tools."""

    name = "desert"
    metric = "contains"

    @property
    def needs_machine(self) -> bool:
        return True


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return Project(tmp_path / "project", monkeypatch)


def run(
    project: Project, code: str, server: OpenAIServer, patch: pytest.MonkeyPatch, **settings: Any
) -> list[tuple[RolloutResult, dict[str, Any]]]:
    """Run two rollouts on one machine; return the results and the steps of their programs."""
    project.write("inside.py", f"{ASK}\n{code}")
    lines = [json.dumps({"id": one, "question": f"{one}: 6 times 7?", "answer": "42"}) for one in ("a", "b")]
    project.write("tasks.jsonl", "\n".join(lines))
    patch.setenv("OPENAI_BASE_URL", server.url)
    config: dict[str, Any] = {
        "env": f"{HERE}:Desert", "data": "tasks.jsonl", "model": "scripted", "agent_in": "machine", "num_rollouts": 2,
        "workers": 1, "num_vms": 1, "use_vm_pool": True, "provider_name": "process", "run_name": "run",
        "agent": "cmd: python3 inside.py", "engine": "inline", "num_spares": 0,
    }  # fmt: skip
    run_parallel_rollout(RolloutConfig(**config | settings))
    found = []
    with Journal(project.folder / "results/run" / JOURNAL_FILE, read_only=True) as journal:
        for result in journal.results():
            steps = journal.trajectory(result.number)["steps"]
            found.append((result, next(step for step in steps if step["kind"] == "program")))
    return found


@pytest.mark.timeout(300)  # the tiny image is built if nobody has yet
@pytest.mark.parametrize("provider", ["process", pytest.param("qemu", marks=pytest.mark.qemu)])
def test_a_program_in_a_machine(project: Project, monkeypatch: pytest.MonkeyPatch, provider: str) -> None:
    with OpenAIServer(Script(default="42"), keep_requests=True) as server:
        results = run(project, TRIED, server, monkeypatch, provider_name=provider)
    assert [(one.status, one.error) for one, _ in results] == [(RolloutStatus.COMPLETED, "")] * 2
    assert sorted(one.answer or "" for one, _ in results) == ["42 a False", "42 b False"], "the machine was reset"
    assert [(one.turns, one.score) for one, _ in results] == [(1, 1.0)] * 2
    assert [(step["place"], step["exit_code"]) for _, step in results] == [("machine", 0)] * 2
    assert all(len(body["messages"][0]["content"]) > 200_000 for body in server.seen.bodies)


def test_failures_and_time_limits_in_a_machine(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import signal, time
question = sys.stdin.read()
print("begin", flush=True)
if question.startswith("a"):
    raise KeyError("in the machine")
signal.signal(signal.SIGTERM, lambda *_: print("asked to end", flush=True))
while True: time.sleep(60)
"""
    with OpenAIServer(Script(default="42")) as server:
        failed, stopped = run(project, code, server, monkeypatch, timeout=8)
    assert (failed[0].status, failed[0].kind) == (RolloutStatus.FAILED, "exit code")
    assert "KeyError: 'in the machine'" in failed[0].error
    assert failed[1]["exit_code"] == 1
    assert stopped[0].status is RolloutStatus.TIMED_OUT
    assert stopped[1]["stdout"] == "begin\nasked to end\n"


def test_a_machine_that_is_lost_is_a_failure_of_the_machine(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program kills the machine the first time; the retry gets another one."""
    marker = str(project.folder / "killed")
    code = f"""{GUEST_PROCESS}
if not os.path.exists({marker!r}):
    open({marker!r}, "w").close()
    os.kill(guest(), 9)
print(ask([{{"role": "user", "content": "x"}}])["content"])
"""
    with OpenAIServer(Script(default="42")) as server:
        results = run(project, code, server, monkeypatch, limit=1)
    [(result, _)] = results
    assert (result.status, result.answer) == (RolloutStatus.COMPLETED, "42")


def test_pausing_machines_is_rejected(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with OpenAIServer(Script(default="42")) as server, pytest.raises(ConfigError, match="--pause-machines"):
        run(project, "", server, monkeypatch, pause_machines=True)


@pytest.mark.parametrize(
    "message",
    [
        "nonsense",
        "[1]",
        '[{"id": 0, "data": "not base64"}]',
        '[{"port": "x"}]',
        '[{"id": "z", "open": true}]',
        "[" * 10_000,
    ],
)
def test_malformed_messages_of_a_machine_are_its_failure(message: str, tmp_path: Path) -> None:
    """A machine that answers every command with a message of its own."""

    class Hostile:
        async def aput_file(self, path: str, data: bytes) -> None:
            """Accept every file."""

        async def aexecute(self, command: Any, *, timeout: float) -> CommandResult:
            return CommandResult(message if isinstance(command, list) else "", "", 0)

    async def scenario() -> None:
        main = tmp_path / "main.py"
        main.write_text("")
        tunnel = MachineTunnel(cast("Machine", Hostile()), "/nowhere")
        try:
            await tunnel.start(main, {})
        finally:
            await tunnel.close()

    with pytest.raises(MachineFailed, match="malformed message"):
        asyncio.run(scenario())
