"""The environment `py`: a sandboxed Python interpreter; answers are scored by hidden tests or by expected output."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paragent._internal.validation import integer, seconds
from paragent.envs.base import Environment
from paragent.envs.py.interpreter import Interpreter, LocalInterpreter, MachineInterpreter
from paragent.envs.py.sandbox import SANDBOXES
from paragent.envs.tools import ToolResult, tool
from paragent.errors import EnvironmentFailed
from paragent.scorers.text import exact_match, final_answer, same_number
from paragent.subprocesses import ProcessLimits

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paragent.machines import Machine
    from paragent.tasks import BenchmarkTask

__all__ = ["PyEnvironment", "PyOptions"]

_SHOWN = 10_000
"""Characters of output that an agent is shown: about 3,000 tokens."""
_LONGEST_NOTE = 300
"""Characters of the reason for a score."""
_INVALID = re.compile(r"(?:^|\n)(?:SyntaxError|IndentationError|TabError)\b[^\n]*$")
"""The end of a traceback of a program that is not valid Python."""
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+-]*)([^\n]*)$", re.MULTILINE)
"""A line that begins or ends a block of code, with the language and the rest of the line."""
_PYTHON = {"", "python", "py", "python3"}


def _program_in(answer: str, entry_point: str = "") -> str | None:
    """Return the last code block that defines `entry_point`, otherwise the last code block; None if there is none."""
    blocks = [code for language, code in _fenced(answer) if language.lower() in _PYTHON]
    defining = [block for block in blocks if _defines(block, entry_point)]
    found = defining or blocks
    return found[-1] if found else None


def _fenced(answer: str) -> Iterator[tuple[str, str]]:
    """Yield the language and the content of each block of code. One without an end is none."""
    first: re.Match[str] | None = None
    for fence in _FENCE.finditer(answer):
        if first is None:
            first = fence
        elif not f"{fence[1]}{fence[2]}".strip():
            yield first[1], answer[first.end() + 1 : fence.start()]
            first = None


def _defines(code: str, name: str) -> bool:
    return (
        bool(name)
        and re.search(rf"^(?:async\s+)?def\s+{re.escape(name)}\b|^{re.escape(name)}\s*=", code, re.MULTILINE)
        is not None
    )


def _readings(task: BenchmarkTask, answer: str) -> list[str]:
    """Return the possible programs of an answer, most likely first. The first that is valid Python is used.

    Questions of HumanEval end within a function. An answer may be the whole function or only its body, possibly without
    the indentation.
    """
    entry_point = str(task.metadata.get("entry_point") or "")
    code = _program_in(answer, entry_point)
    code = answer if code is None else code
    if not _defines(task.question, entry_point):
        return [code]
    if _defines(code, entry_point):
        return [f"{task.question}\n{code}", code]
    body = textwrap.indent(textwrap.dedent(code), "    ")
    return [task.question + code, f"{task.question}\n{body}", f"{task.question}\n    {code.lstrip()}"]


def _tests(task: BenchmarkTask) -> str | None:
    """Return the code that raises if an answer is wrong; None if the task has no tests.

    Supports HumanEval's `test` (with `entry_point`) and MBPP's `test_list` (with `test_setup_code` or `test_imports`).
    """
    test = task.metadata.get("test")
    if isinstance(test, str) and test.strip():
        entry_point = task.metadata.get("entry_point")
        return f"{test}\n\ncheck({entry_point})\n" if entry_point and _defines(test, "check") else test
    if listed := _listed_tests(task):
        imports = task.metadata.get("test_imports")
        setup = map(str, imports) if isinstance(imports, list) else [str(task.metadata.get("test_setup_code") or "")]
        return "\n".join([*setup, *listed])
    return None


def _listed_tests(task: BenchmarkTask) -> list[str]:
    """Return the tests of a task of MBPP, which belong to its question: they name the function."""
    test, listed = task.metadata.get("test"), task.metadata.get("test_list")
    is_listed = isinstance(listed, list) and not (isinstance(test, str) and test.strip())
    return [str(one) for one in listed or ()] if is_listed else []


@dataclass(frozen=True, slots=True)
class PyOptions:
    """The options of the environment `py`."""

    sandbox: Annotated[Literal["bubblewrap", "vm", "none"], "where programs run"] = "bubblewrap"
    cell_limit: Annotated[float, "seconds for one cell, or for a program with its tests"] = 30.0
    memory: Annotated[int, "MiB for a program and its child processes"] = 1024
    processes: Annotated[int, "processes and threads of a program"] = 64

    def __post_init__(self) -> None:
        seconds(self.cell_limit, "cell_limit")
        integer(self.memory, "memory", least=1)
        integer(self.processes, "processes", least=1)


class PyEnvironment(Environment):
    """Programming tasks with a Python interpreter that keeps its state during the attempt.

    Task metadata: `test` and `entry_point` (HumanEval); `test_list` with `test_setup_code` or `test_imports` (MBPP), which the
    question shows. Without tests, the task's answer is the expected output. Own score: `passed`.
    """

    name = "py"
    metric = "passed"
    options_type = PyOptions
    one_at_a_time = True
    instructions = (
        "Solve the task. The tool `python` is an interpreter that keeps its variables; use it to try things out. "
        "If the task asks for a program or a function, end with its complete code in one ```python block. "
        "If it asks for a result, end with a line `Answer: ...`."
    )
    options: PyOptions

    def __init__(self, options: Mapping[str, Any] | None = None, **more: Any) -> None:
        super().__init__(options, **more)
        self._interpreter: Interpreter | None = None

    @property
    def needs_machine(self) -> bool:
        return self.options.sandbox == "vm"

    async def check(self) -> None:
        if not self.needs_machine:
            probe = self._new_interpreter()
            try:
                await probe.run("", self.options.cell_limit)
            finally:
                await probe.close()

    async def open(self, task: BenchmarkTask, machine: Machine | None = None) -> str:
        question = await super().open(task, machine)
        listed = _listed_tests(task)
        return "\n".join([question, "Your code should pass these tests:", "", *listed]) if listed else question

    @tool
    async def python(
        self, code: Annotated[str, "Python source; the value of a last expression is shown"]
    ) -> ToolResult:
        """Run code in a Python interpreter that keeps its variables between calls. There is no network."""
        if self._interpreter is None:
            self._interpreter = self._new_interpreter()
        ended = await self._interpreter.run(code, self.options.cell_limit)
        parts = [_shortened(ended.output.rstrip())] if ended.output.strip() else []
        if ended.error:
            parts.append(_shortened(ended.error))
        if ended.lost:
            parts.append("The interpreter was restarted; its variables are lost.")
        return ToolResult("\n".join(parts) or "(no output)", error=bool(ended.error), extras={"lost": ended.lost})

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        tests = _tests(task)
        if tests is not None:
            error = await self._error_of(task, answer, tests)
            self.score_note = _last_line(error)
            return {"passed": float(not error)}
        if not task.references:
            return None
        given = await self._given_output(answer)
        return {"passed": float(any(_same_output(given, reference) for reference in task.references))}

    async def _error_of(self, task: BenchmarkTask, answer: str, tests: str) -> str:
        """Run the program in a new interpreter, then the tests, which the program cannot see before; return the error."""
        interpreter = self._new_interpreter()
        try:
            for program in _readings(task, answer):
                defined = await interpreter.run(program, self.options.cell_limit)
                if not _INVALID.search(defined.error):
                    break
            return defined.error or (await interpreter.run(tests, self.options.cell_limit)).error
        finally:
            await interpreter.close()

    async def _given_output(self, answer: str) -> str:
        """Return the output that an answer states or, if it ends in a program, that the program prints."""
        program = _program_in(answer)
        if program is None or final_answer(answer) != answer.strip():
            return final_answer(answer)
        interpreter = self._new_interpreter()
        try:
            return (await interpreter.run(program, self.options.cell_limit)).output
        finally:
            await interpreter.close()

    def _new_interpreter(self) -> Interpreter:
        options = self.options
        limits = ProcessLimits(memory=options.memory << 20, processes=options.processes)
        if not self.needs_machine:
            return LocalInterpreter(SANDBOXES[options.sandbox], limits)
        if self.machine is None:
            raise EnvironmentFailed("the sandbox 'vm' needs a machine: pass a leased one to `open`")
        return MachineInterpreter(self.machine, limits)

    async def close(self) -> None:
        if self._interpreter is not None:
            await self._interpreter.close()
        await super().close()


def _last_line(error: str) -> str:
    """Return the last line of a traceback, which names the exception."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    return lines[-1][:_LONGEST_NOTE] if lines else ""


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    head, tail = _SHOWN * 3 // 4, _SHOWN // 4
    return f"{text[:head]}\n... {len(text) - head - tail} characters omitted ...\n{text[-tail:]}"


def _same_output(given: str, reference: str) -> bool:
    ours, theirs = ([line.rstrip() for line in text.strip().splitlines()] for text in (given, reference))
    if ours == theirs:
        return True
    return bool(exact_match(given, reference)) or same_number(given, reference)
