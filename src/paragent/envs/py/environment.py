"""Programming: an interpreter in a sandbox, answers scored by hidden tests or by expected output."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from paragent._numbers import seconds, whole
from paragent.bounded import Limits
from paragent.envs.base import Environment
from paragent.envs.py.interpreter import Interpreter, LocalInterpreter
from paragent.envs.py.on_machine import MachineInterpreter
from paragent.envs.py.programs import hidden_tests, program_in, readings
from paragent.envs.py.sandbox import SANDBOXES
from paragent.envs.tools import ToolResult, tool
from paragent.errors import EnvironmentFailed
from paragent.metrics.number import same_number
from paragent.metrics.text import final_answer
from paragent.metrics.words import exact_match

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from paragent.tasks import Item

__all__ = ["PyEnvironment", "PyOptions"]

_SHOWN = 10_000
"""Characters of output that an agent is shown: some 3,000 tokens."""
_INVALID = re.compile(r"(?:^|\n)(?:SyntaxError|IndentationError|TabError)\b[^\n]*$")


@dataclass(frozen=True, slots=True)
class PyOptions:
    """The options of the environment `py`."""

    sandbox: Annotated[Literal["bubblewrap", "vm", "none"], "where programs run"] = "bubblewrap"
    cell_limit: Annotated[float, "seconds for one cell, or for a program with its tests"] = 30.0
    memory: Annotated[int, "MiB for a program and all that it starts"] = 1024
    processes: Annotated[int, "processes and threads of a program"] = 64

    def __post_init__(self) -> None:
        seconds(self.cell_limit, "cell_limit")
        whole(self.memory, "memory", least=1)
        whole(self.processes, "processes", least=1)


class PyEnvironment(Environment):
    """Programming tasks with a Python interpreter that keeps its state over the task.

    Metadata read: `test` and `entry_point` (HumanEval), `test_list` and `test_setup_code` (MBPP). Without tests the item's
    answer is the expected output. Own score: `passed`.
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

    @tool
    async def python(
        self, code: Annotated[str, "Python source; the value of a last expression is shown"]
    ) -> ToolResult:
        """Run code in a Python interpreter that keeps its variables between calls. There is no network."""
        if self._interpreter is None:
            self._interpreter = self._new_interpreter()
        ended = await self._interpreter.run(code, self.options.cell_limit)
        told = [_shortened(ended.output.rstrip())] if ended.output.strip() else []
        if ended.error:
            told.append(_shortened(ended.error))
        if ended.lost:
            told.append("A new interpreter takes over; the variables are gone.")
        return ToolResult("\n".join(told) or "(no output)", error=bool(ended.error), extras={"lost": ended.lost})

    async def score(
        self, item: Item, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        tests = hidden_tests(item)
        if tests is not None:
            return {"passed": float(await self._passes(item, answer, tests))}
        if not item.references:
            return None
        given = await self._given_output(answer)
        return {"passed": float(any(_same_output(given, reference) for reference in item.references))}

    async def _passes(self, item: Item, answer: str, tests: str) -> bool:
        """Run the program, then the tests, which it has not seen until then, in an interpreter of their own."""
        interpreter = self._new_interpreter()
        try:
            for program in readings(item, answer):
                defined = await interpreter.run(program, self.options.cell_limit)
                if not _INVALID.search(defined.error):
                    break
            if defined.error:
                return False
            return not (await interpreter.run(tests, self.options.cell_limit)).error
        finally:
            await interpreter.close()

    async def _given_output(self, answer: str) -> str:
        """Return the output that an answer claims or, if it ends in a program, has."""
        program = program_in(answer)
        if program is None or final_answer(answer) != answer.strip():
            return final_answer(answer)
        interpreter = self._new_interpreter()
        try:
            return (await interpreter.run(program, self.options.cell_limit)).output
        finally:
            await interpreter.close()

    def _new_interpreter(self) -> Interpreter:
        options = self.options
        limits = Limits(memory=options.memory << 20, processes=options.processes)
        if not self.needs_machine:
            return LocalInterpreter(SANDBOXES[options.sandbox], limits)
        if self.machine is None:
            raise EnvironmentFailed("the sandbox 'vm' was handed no machine")
        return MachineInterpreter(self.machine, limits)

    async def close(self) -> None:
        if self._interpreter is not None:
            await self._interpreter.close()
        await super().close()


def _shortened(text: str) -> str:
    if len(text) <= _SHOWN:
        return text
    head, tail = _SHOWN * 3 // 4, _SHOWN // 4
    return f"{text[:head]}\n... {len(text) - head - tail} characters left out ...\n{text[-tail:]}"


def _same_output(given: str, reference: str) -> bool:
    if [line.rstrip() for line in given.strip().splitlines()] == [
        line.rstrip() for line in reference.strip().splitlines()
    ]:
        return True
    return bool(exact_match(given, reference)) or same_number(given, reference)
