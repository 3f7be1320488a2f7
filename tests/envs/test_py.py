"""The environment `py`: the interpreter, the isolation of the sandbox, and scores."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from paragent.demo.samples import sample_path
from paragent.envs import ToolResult, open_environment
from paragent.errors import ConfigError, EnvironmentFailed, MissingProgram
from paragent.rollout.dataset import read_benchmark
from paragent.tasks import BenchmarkTask

pytestmark = pytest.mark.slow

QUESTION = "from typing import List\n\n\ndef total(numbers: List[int]) -> int:\n    '''Return the sum.'''\n"
TEST = "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert candidate([]) == 0\n"
TASK = BenchmarkTask("h", QUESTION, None, {"entry_point": "total", "test": TEST})


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 90))


def cells(*codes: str, **options: Any) -> list[ToolResult]:
    async def scenario() -> list[ToolResult]:
        async with open_environment("py", {"cell_limit": 10, **options}) as environment:
            await environment.open(TASK)
            return [await environment.call("python", {"code": code}) for code in codes]

    found: list[ToolResult] = run(scenario())
    return found


def score(answer: str, task: BenchmarkTask = TASK, **options: Any) -> float | None:
    async def scenario() -> dict[str, float] | None:
        async with open_environment("py", options) as environment:
            return await environment.score(task, answer)

    scores = run(scenario())
    return None if scores is None else float(scores["passed"])


def test_the_question_of_mbpp_has_its_tests(tmp_path: Path) -> None:
    lines = [
        {
            "task_id": 2,
            "text": "Write a function to add.",
            "code": "",
            "test_setup_code": "one = 1",
            "test_list": ["assert plus(one) == 2"],
        },
        {
            "task_id": 3,
            "prompt": "Write it.",
            "test_imports": ["import math"],
            "test_list": ["assert plus(math.pi) > 4"],
        },
    ]
    data = tmp_path / "mbpp.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = list(read_benchmark(data))

    async def first_message(task: BenchmarkTask) -> str:
        async with open_environment("py", {"sandbox": "none"}) as environment:
            return await environment.open(task)

    shown = [run(first_message(task)) for task in tasks]
    assert shown[0] == "Write a function to add.\nYour code should pass these tests:\n\nassert plus(one) == 2"
    assert "assert plus(math.pi) > 4" in shown[1]
    assert [score("def plus(x):\n    return x + 1", task, sandbox="none") for task in tasks] == [1.0, 1.0]
    assert score("def add(x):\n    return x + 1", tasks[0], sandbox="none") == 0.0
    assert run(first_message(TASK)) == QUESTION, "the tests of HumanEval are hidden"


# --- an interpreter ---------------------------------------------------------------------------------------------------


def test_variables_are_kept_and_the_last_value_is_shown() -> None:
    reported = cells("x = 20", "x + 1", "print('a'); print('b')", "def f():\n    return x", "f()")
    assert [result.text for result in reported] == ["(no output)", "21", "a\nb", "(no output)", "20"]


def test_an_exception_shows_its_line_and_keeps_the_variables() -> None:
    failed, after = cells("x = 1\nprint('before')\nx / 0", "x")
    assert failed.error
    assert failed.text.startswith("before\nTraceback")
    assert "x / 0" in failed.text
    assert "ZeroDivisionError" in failed.text
    assert "child_main" not in failed.text
    assert after.text == "1"


def test_a_cell_over_its_time_limit_is_interrupted_and_keeps_the_variables() -> None:
    _, slow, after = cells("x = 1", "import time\ntime.sleep(60)", "x", cell_limit=0.5)
    assert slow.error
    assert "0.5 s" in slow.text
    assert after.text == "1"


def test_output_of_child_processes_and_c_code_is_captured() -> None:
    (reported,) = cells("import os\nprint('one', flush=True)\nos.system('echo two')\nos.write(2, b'three\\n');None")
    assert reported.text.split() == ["one", "two", "three"]


def test_long_output_is_shortened_in_the_middle() -> None:
    (reported,) = cells("print('a' * 50_000 + 'z')")
    assert len(reported.text) < 11_000
    assert "omitted" in reported.text
    assert reported.text.endswith("z")


def test_reading_input_does_not_hang() -> None:
    (reported,) = cells("input()")
    assert "EOFError" in reported.text


# --- hostile programs --------------------------------------------------------------------------------------------------


def test_there_is_no_network() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (reported,) = cells(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), timeout=3)")
    assert "ConnectionRefused" in reported.text or "unreachable" in reported.text


def test_other_files_are_hidden_and_the_system_is_read_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "treasure")
    secret = tmp_path / "secret"
    secret.write_text("treasure")
    secret.chmod(0o644)
    reported = cells(
        f"open({str(secret)!r}).read()",
        "open('/usr/x', 'w')",
        "open('/x', 'w')",
        "open('/tmp/mine', 'w').write('fine')",
        "import os; sorted(os.environ)",
    )
    assert "treasure" not in reported[0].text
    assert [result.error for result in reported] == [True, True, True, False, False]
    assert "KEY" not in reported[4].text


def test_sandboxes_are_isolated_from_each_other() -> None:
    name = secrets.token_hex(8)

    async def scenario() -> list[str]:
        async with open_environment("py") as one, open_environment("py") as other:
            await one.call("python", {"code": f"import os; open('/tmp/{name}', 'w').write('x'); os.setpgid"})
            files = await other.call("python", {"code": "import os; os.listdir('/tmp')"})
            processes = await other.call("python", {"code": "len([p for p in os.listdir('/proc') if p.isdigit()])"})
            return [files.text, processes.text]

    files, processes = run(scenario())
    assert name not in files
    assert int(processes) <= 3


def test_shared_memory_of_the_host_is_hidden() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    segment = libc.shmget(0, 4096, 0o1666)  # readable by all users
    assert segment >= 0, os.strerror(ctypes.get_errno())
    try:
        (reported,) = cells("len(open('/proc/sysvipc/shm').readlines())")
    finally:
        libc.shmctl(segment, 0, None)
    assert reported.text == "1", "the head of the table, and nothing in it"


def test_a_fork_bomb_is_contained() -> None:
    reported = cells(
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass", "1 + 1", cell_limit=5
    )
    assert reported[0].error
    assert reported[1].text == "2"
    assert not [one for one in psutil.Process().children(recursive=True) if "bwrap" in one.name()]


def test_forking_up_to_the_limit_fails_inside() -> None:
    (reported,) = cells(
        "import os, time\nn = 0\ntry:\n    while True:\n        if os.fork() == 0:\n            time.sleep(60)\n        n += 1\n"
        "except OSError:\n    print(n)",
        processes=20,
    )
    assert int(reported.text) < 20


def test_a_memory_bomb_is_contained_in_one_process_and_in_many() -> None:
    alone, after = cells("x = bytearray(3 << 30)", "1 + 1", memory=512)
    assert "MemoryError" in alone.text
    assert after.text == "2"
    hungry = (
        "import os, time\nfor _ in range(8):\n    if os.fork() == 0:\n        x = b'x' * (200 << 20)\n        time.sleep(60)\n"
        "time.sleep(60)"
    )
    together, after = cells(hungry, "1 + 1", memory=512)
    assert "512 MiB" in together.text
    assert after.text == "2"


def test_a_full_disk_only_affects_the_program() -> None:
    (reported,) = cells("for i in range(99):\n    open(f'/tmp/{i}', 'wb').write(b'x' * (50 << 20))")
    assert "No space left" in reported.text


def test_endless_output_is_stopped() -> None:
    reported, after = cells("while True:\n    print('y' * 1000)", "1 + 1")
    assert "printed more than" in reported.text
    assert after.text == "2"


@pytest.mark.parametrize(
    "code",
    [
        "import os; os.kill(os.getpid(), 9)",
        "import os; os._exit(0)",
        "import ctypes; ctypes.string_at(0)",
        "import os; os.write(1, b'x' * 10); os.close(1); os.close(2)",
        "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN)\nwhile True:\n    pass",
    ],
)
def test_a_killed_interpreter_is_replaced_without_its_variables(code: str) -> None:
    _, reported, after = cells("x = 1", code, "x", cell_limit=1)
    assert reported.error
    assert "variables are lost" in reported.text
    assert "NameError" in after.text


def test_processes_started_by_a_cell_end_with_the_attempt() -> None:
    mark = f"{secrets.randbelow(10**9) + 10**9}.25"
    (reported,) = cells(f"import subprocess\nsubprocess.Popen(['sleep', '{mark}'], start_new_session=True).pid > 0")
    assert reported.text == "True"
    _, alive = psutil.wait_procs(
        [one for one in psutil.process_iter(["cmdline"]) if mark in (one.info["cmdline"] or [])], timeout=10
    )
    assert not alive  # the kernel ends a whole namespace a moment after its first process


def test_the_program_is_not_root() -> None:
    (reported,) = cells(
        "import os; os.getuid(), os.geteuid(), open('/proc/self/status').read().split('CapEff:')[1].split()[0]"
    )
    uid, effective, capabilities = eval(reported.text)
    assert uid == effective != 0 or os.geteuid() != 0
    assert int(capabilities, 16) == 0


# --- choosing where ----------------------------------------------------------------------------------------------------


def test_missing_bubblewrap_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingProgram, match="--sandbox none"):
        run(open_environment("py").check())
    assert cells("1 + 1", sandbox="none")[0].text == "2"


def test_bubblewrap_without_permissions_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace'\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(MissingProgram, match="No permissions"):
        run(open_environment("py").check())


def test_an_interpreter_that_was_started_by_a_path_with_dots_can_be_used(tmp_path: Path) -> None:
    python = os.path.relpath(Path(sys.prefix) / "bin" / "python", tmp_path)
    code = "from tests.envs.test_py import cells; import sys; print(sys.executable, cells('6 * 7')[0].text)"
    variables = os.environ | {"PYTHONPATH": str(Path.cwd())}
    done = subprocess.run([python, "-c", code], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=90)
    assert "/../" in done.stdout
    assert done.stdout.endswith(" 42\n"), done.stderr


def test_an_interpreter_that_the_sandbox_does_not_have_is_not_a_problem_of_bubblewrap(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(EnvironmentFailed, match="execvp") as raised:
        cells("6 * 7")
    assert "--sandbox none" not in str(raised.value)


def test_only_the_sandbox_vm_needs_a_machine() -> None:
    assert open_environment("py", {"sandbox": "vm"}).needs_machine
    assert not open_environment("py").needs_machine
    with pytest.raises(ConfigError, match="bubblewrap"):
        open_environment("py", {"sandbox": "docker"})


class Guest:
    """A fake machine that runs commands on this computer."""

    def __init__(self) -> None:
        self.folders: set[Path] = set()

    async def aput_file(self, path: str, data: bytes) -> None:
        self.folders.add(Path(path).parent)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)

    async def aexecute(self, command: str, *, timeout: float) -> Any:
        done = await asyncio.to_thread(
            subprocess.run, ["sh", "-c", command], capture_output=True, text=True, timeout=timeout
        )
        return SimpleNamespace(output=done.stdout, error=done.stderr, returncode=done.returncode)


def test_the_sandbox_vm_runs_programs_with_files_and_commands() -> None:
    guest = Guest()

    async def scenario() -> list[str]:
        async with open_environment("py", {"sandbox": "vm", "cell_limit": 1}) as environment:
            await environment.open(TASK, guest)
            codes = [
                "x = 20",
                "print('a')\nx + 1",
                "x / 0",
                "import time; time.sleep(30)",
                "x",
                "import os; os._exit(1)",
                "x",
            ]
            found = [(await environment.call("python", {"code": code})).text for code in codes]
            assert await environment.score(TASK, "    return sum(numbers)\n") == {"passed": 1.0}
            assert await environment.score(TASK, "    return 3\n") == {"passed": 0.0}
            return found

    assigned, value, failed, slow, kept, gone, lost = run(scenario())
    assert guest.folders
    assert [folder for folder in guest.folders if folder.exists()] == []
    folders = tuple(map(str, guest.folders))
    left = [one for one in psutil.process_iter(["cwd"]) if (one.info["cwd"] or "").startswith(folders)]
    assert not psutil.wait_procs(left, timeout=10)[1]
    assert (assigned, value, kept) == ("(no output)", "a\n21", "20")
    assert "ZeroDivisionError" in failed
    assert "stopped after 1 s" in slow
    assert "variables are lost" in gone
    assert "NameError" in lost


# --- scores ------------------------------------------------------------------------------------------------------------


def test_hostile_fences_are_read_quickly() -> None:
    began = time.process_time()
    score("```x\n" * 50_000)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    "answer",
    [
        "    return sum(numbers)\n",
        "return sum(numbers)",
        "```python\n    return sum(numbers)\n```",
        "def total(numbers):\n    return sum(numbers)",
        "Here it is:\n```python\ndef total(numbers: List[int]) -> int:\n    return sum(numbers)\n```\nIt sums.",
        "First try:\n```python\nprint(1)\n```\n```py\ndef total(n):\n    return sum(n)\n```\nSo:\n```\ntotal([1])\n```",
    ],
)
def test_a_right_function_passes_its_hidden_tests_in_every_format(answer: str) -> None:
    assert score(answer) == 1.0


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "I do not know",
        "    return 3\n",
        "    return None\n",
        "import os\nos._exit(0)",
        "raise SystemExit(0)",
        "def total(numbers):\n    raise SystemExit(0)",
        "def total(numbers):\n    import os\n    os._exit(0)",
        "def total(numbers):\n    while True: pass",
    ],
)
def test_a_wrong_function_fails_its_hidden_tests(answer: str) -> None:
    assert score(answer, cell_limit=2) == 0.0


@pytest.mark.parametrize(
    ("answer", "note"),
    [
        ("    return sum(numbers)", ""),
        ("    return 3", "AssertionError"),
        ("    return (", "SyntaxError: "),
        ("    return missing", "NameError: name 'missing' is not defined"),
    ],
)
def test_the_reason_of_a_failed_test_is_noted(answer: str, note: str) -> None:
    async def scenario() -> str:
        async with open_environment("py", {}) as environment:
            await environment.score(TASK, answer)
            return environment.score_note

    noted = run(scenario())
    assert noted.startswith(note)
    assert bool(noted) is bool(note)


def test_the_answer_is_compared_with_the_expected_output() -> None:
    task = BenchmarkTask("o", "What is 6 * 7?", 42)
    assert score("Answer: 42", task) == 1.0
    assert score("Answer: 42.0", task) == 1.0
    assert score("```python\nprint(6 * 7)\n```", task) == 1.0
    assert score("```python\nprint(6 * 8)\n```", task) == 0.0
    assert score("It is 42 or 43", task) == 0.0
    assert score("anything", BenchmarkTask("n", "no reference")) is None


def test_the_demo_model_solves_the_sample_tasks() -> None:
    import json

    for line in sample_path("py").read_text().splitlines():
        entry = json.loads(line)
        task = BenchmarkTask(entry.get("id") or entry["task_id"], entry["question"], entry.get("answer"), entry)
        solution = entry.get("canonical_solution") or f"```python\n{entry['code']}\n```"
        assert score(solution, task) == 1.0, task.id
