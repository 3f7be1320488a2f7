"""Programs as agents: what they get, how they answer, how they fail, and what is recorded."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from paragent.cli import main
from paragent.store import PendingRollout, RolloutStatus
from paragent.testing import Fault, OpenAIServer, Script
from tests.rollout.program_runs import FUNCTIONS, TASK, USER_KEY, Project, program_step, trajectory_of
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

PLACES = ("sandbox", "host")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path / "project", monkeypatch)


@pytest.mark.parametrize("place", PLACES)
def test_the_question_comes_from_stdin_and_stdout_is_the_answer(project: Project, place: str) -> None:
    agent = project.python("""print(ask([{"role": "user", "content": sys.stdin.read().strip()}])["content"])""")
    result = project.run(agent, agent_in=place)
    assert (result.status, result.answer, result.score, result.turns) == (RolloutStatus.COMPLETED, "42", 1.0, 1)
    messages = trajectory_of(result)["messages"]
    assert [one["content"] for one in messages] == [TASK.question, "42"]
    step = program_step(result)
    assert (step["exit_code"], step["stdout"], step["stderr"], step["place"]) == (0, "42\n", "", place)
    assert step["seconds"] > 0
    assert step["command"][1:] == [str(project.folder / "my_agent.py")]


@pytest.mark.parametrize("place", PLACES)
def test_files_and_variables(project: Project, place: str) -> None:
    agent = project.python(
        """
        variables = dict(os.environ)
        task = json.load(open(variables["PARAGENT_TASK_FILE"]))
        mcp = json.load(open(variables["PARAGENT_MCP_CONFIG"]))
        open("note", "w").write("the working folder is writable and empty")
        print("not the answer")
        report = {"variables": variables, "task": task, "mcp": mcp, "files": os.listdir(".")}
        open(variables["PARAGENT_ANSWER_FILE"], "w").write(json.dumps(report))
        """.replace("\n        ", "\n")
    )
    result = project.run(agent, agent_in=place, agent_env={"MY_OPTION": "1"}, agent_metadata=["level"])
    report = json.loads(result.answer or "")
    variables, address = report["variables"], report["variables"]["OPENAI_BASE_URL"].removesuffix("/v1")
    assert variables["ANTHROPIC_BASE_URL"] == address
    assert variables["OPENAI_API_KEY"] == variables["ANTHROPIC_API_KEY"] != USER_KEY
    assert (variables["PARAGENT_MODEL"], variables["MY_OPTION"]) == ("scripted", "1")
    assert variables["PARAGENT_FOLDER"] == str(project.folder)
    assert variables["PARAGENT_MCP_URL"] == f"{address}/mcp" == report["mcp"]["mcpServers"]["environment"]["url"]
    task = report["task"]
    assert task.pop("instructions")
    assert task == {"id": "1", "question": TASK.question, "metadata": {"level": "easy"}}, "nothing of the solution"
    assert report["files"] == ["note"]
    assert program_step(result)["stdout"] == "not the answer\n"


def test_a_run_whose_programs_never_call_the_model_says_so(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    (project.folder / "tasks.jsonl").write_text(json.dumps({"id": "a", "question": "?", "answer": "42"}))
    command = ["rollout", "--mode", "math", "--data", "tasks.jsonl", "--model", "m", "--engine", "inline"]
    assert main([*command, "--agent", project.python("print(42)"), "--agent-in", "host"]) == 0
    assert "no rollout called the model: the program must use the address in OPENAI_BASE_URL" in capsys.readouterr().err


def test_the_working_folder_is_deleted(project: Project) -> None:
    agent = project.python("""print(os.getcwd()); open("left", "w").write("x")""")
    folder = Path(project.run(agent, agent_in="host").answer or "")
    assert folder.name == "work"
    assert not folder.parent.exists()


@pytest.mark.parametrize("place", PLACES)
def test_an_exit_code_is_a_failure_with_the_end_of_stderr(project: Project, place: str) -> None:
    agent = project.python("""print("some output"); raise KeyError("no such thing")""")
    result = project.run(agent, agent_in=place)
    assert (result.status, result.kind, result.score) == (RolloutStatus.FAILED, "exit code", None)
    first, *rest = result.error.splitlines()
    assert first.endswith("the program exited with status 1: KeyError: 'no such thing'")
    assert "Traceback" in "".join(rest)
    step = program_step(result)
    assert (step["exit_code"], step["stdout"]) == (1, "some output\n")
    assert "KeyError" in step["stderr"]


def test_a_program_that_is_killed_by_a_signal_fails(project: Project) -> None:
    result = project.run(project.python("os.kill(os.getpid(), 11)"))
    assert (result.status, result.kind) == (RolloutStatus.FAILED, "exit code")
    assert program_step(result)["exit_code"] == -signal.SIGSEGV
    assert "SIGSEGV" in result.error


def test_a_failure_after_a_failure_of_the_endpoint_is_the_endpoints(project: Project) -> None:
    agent = project.python("""ask([{"role": "user", "content": "hello"}])""")
    with OpenAIServer(Script(faults=[Fault(500)])) as server:
        result = project.run(agent, server, max_retries=0)
    assert (result.status, result.kind) == (RolloutStatus.INFRASTRUCTURE, "endpoint")
    assert program_step(result)["exit_code"] == 1


def test_turns_end_at_the_limit(project: Project) -> None:
    agent = project.python("""while True: print(ask([{"role": "user", "content": "hello"}])["content"], flush=True)""")
    result = project.run(agent, max_turns=3)
    assert (result.status, result.ending, result.turns) == (RolloutStatus.COMPLETED, "turns used up", 3)


@pytest.mark.parametrize("place", PLACES)
def test_a_program_over_its_time_limit_is_stopped_with_its_children(project: Project, place: str) -> None:
    agent = project.python(
        "import signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('asked to end', flush=True))\n"
        f"child = subprocess.Popen(['sleep', '1234.{os.getpid()}'], start_new_session=True)\n"
        "print('started', flush=True)\n"
        "while True: time.sleep(60)"
    )
    result = project.run(agent, agent_in=place, timeout=6)
    assert (result.status, result.kind) == (RolloutStatus.TIMED_OUT, "time limit")
    step = program_step(result)
    assert (step["exit_code"], step["stdout"]) == (-signal.SIGKILL, "started\nasked to end\n")
    assert not processes_with(f"1234.{os.getpid()}")


def processes_with(word: str) -> list[str]:
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if word in words:
            found.append(" ".join(words))
    return found


def test_waiting_for_the_rate_limit_does_not_count_as_work(project: Project) -> None:
    agent = project.python("""print(ask([{"role": "user", "content": "hello"}])["content"])""")
    with OpenAIServer(Script(default="42", faults=[Fault(429, last=1, retry_after=7)])) as server:
        result = project.run(agent, server, timeout=6)
    assert (result.status, result.answer) == (RolloutStatus.COMPLETED, "42")
    assert result.waited >= 6


@pytest.mark.parametrize("place", PLACES)
def test_a_cancelled_rollout_ends_its_program(project: Project, place: str) -> None:
    agent = project.python("import time\nask([{'role': 'user', 'content': 'x'}])\ntime.sleep(4321.5)")

    async def scenario(server: OpenAIServer) -> None:
        running = asyncio.create_task(project.worker(agent, server, agent_in=place)(PendingRollout(TASK, 1)))
        while server.seen.answered == 0:
            await asyncio.sleep(0.02)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    with OpenAIServer(Script(default="42")) as server:
        asyncio.run(scenario(server))
    assert not processes_with(str(project.folder / "my_agent.py"))


@pytest.mark.parametrize("place", PLACES)
def test_no_process_survives_a_killed_worker(project: Project, place: str, tmp_path: Path) -> None:
    agent = project.python(
        "import subprocess, time\n"
        f"subprocess.Popen(['sleep', '5432.{os.getpid()}'], start_new_session=True)\n"
        "ask([{'role': 'user', 'content': 'x'}])\n"
        "time.sleep(5432)"
    )
    code = f"""
        from paragent import RolloutConfig, RolloutWorker
        from tests.rollout.program_runs import TASK
        RolloutWorker(RolloutConfig(agent={agent!r}, agent_in={place!r}, mode="math", model="scripted")).run(TASK)
    """
    with OpenAIServer(Script(default="42")) as server:
        root = str(Path(__file__).parents[2])
        variables = {**os.environ, "OPENAI_BASE_URL": server.url, "PYTHONPATH": root, "TMPDIR": str(tmp_path)}
        worker = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=variables)
        try:
            wait_until(lambda: server.seen.answered > 0, what="the program asks")
        finally:
            worker.kill()
            worker.wait(60)
        wait_until(lambda: not processes_with(f"5432.{os.getpid()}"), what="the child of the program ends")
        wait_until(lambda: not processes_with(str(project.folder / "my_agent.py")), what="the program ends")
    wait_until(lambda: not list(tmp_path.glob("paragent-agent-*")), what="the working folder is removed")


@pytest.mark.parametrize("place", PLACES)
def test_long_output_keeps_its_beginning_and_its_end(project: Project, place: str) -> None:
    agent = project.python(
        "print('first'); sys.stderr.write('e' * 3_000_000 + 'last words')\n"
        "for _ in range(300): sys.stdout.write('x' * 10_000)\n"
        "print('last')"
    )
    result = project.run(agent, agent_in=place)
    assert (result.status, result.ending) == (RolloutStatus.COMPLETED, "answer cut")
    step = program_step(result)
    assert step["stdout"].startswith("first\n")
    assert step["stdout"].endswith("last\n")
    assert step["stderr"].endswith("last words")
    assert len(step["stdout"]) + len(step["stderr"]) < 600_000


def test_an_answer_file_that_is_too_long_is_cut(project: Project) -> None:
    agent = project.python("""open(os.environ["PARAGENT_ANSWER_FILE"], "w").write("42" * 1_000_000)""")
    result = project.run(agent)
    assert (result.ending, len(result.answer or "")) == ("answer cut", 1 << 20)


def test_other_programs_modules_and_quoted_words(project: Project) -> None:
    project.write("package/__init__.py", "")
    project.write("package/agent.py", "print('from a module')")
    project.write("script.sh", 'echo "$1 $(cat)"')
    answers = [
        project.run(agent).answer
        for agent in (
            f"cmd: {shlex.quote(sys.executable)} -m package.agent",
            "cmd: sh script.sh 'two words:'",
            """cmd: sh -c 'sh "$PARAGENT_FOLDER/script.sh" from a shell'""",
        )
    ]
    assert answers == ["from a module", f"two words: {TASK.question}", f"from {TASK.question}"]


@pytest.mark.parametrize("place", PLACES)
def test_a_function_runs_in_a_process_of_its_own(project: Project, place: str) -> None:
    name = f"functions_{place}"
    project.write(f"{name}.py", FUNCTIONS)
    result = project.run(f"{name}:answer", agent_in=place)
    *words, process = (result.answer or "").rsplit(" ", 4)
    assert words == [TASK.question, "True", "scripted", "1"]
    assert int(process) != os.getpid()
    assert program_step(result)["stderr"] == "printed\n"
    failed = project.run(f"{name}:fails", agent_in=place)
    assert (failed.kind, "ValueError: cannot answer" in failed.error) == ("exit code", True)


@pytest.mark.parametrize("place", PLACES)
def test_the_tools_of_the_environment_can_be_called_by_mcp(project: Project, place: str) -> None:
    agent = project.python(
        """
server = json.load(open(os.environ["PARAGENT_MCP_CONFIG"]))["mcpServers"]["environment"]
accepted = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

def call(method, **params):
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    with urllib.request.urlopen(urllib.request.Request(server["url"], body, {**server["headers"], **accepted})) as reply:
        accepted["Mcp-Session-Id"] = reply.headers.get("Mcp-Session-Id") or ""
        text = reply.read().decode()
    return json.loads(text.partition("data: ")[2] if text.startswith("event") else text)["result"]

client = {"name": "test", "version": "1"}
call("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
[tool] = call("tools/list")["tools"]
argument = next(iter(tool["inputSchema"]["properties"]))
result = call("tools/call", name=tool["name"], arguments={argument: "6*7"})
print(result["content"][0]["text"])
"""
    )
    result = project.run(agent, agent_in=place)
    assert (result.status, result.answer, result.tool_calls) == (RolloutStatus.COMPLETED, "42", 1)
