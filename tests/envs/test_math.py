"""The environment `math`: exact values, rejected code, limits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from paragent.demo.samples import sample_path
from paragent.envs import ToolResult, open_environment
from paragent.envs.calculator import compute
from paragent.tasks import BenchmarkTask


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 90))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("2/3 + 1/6", "5/6 ≈ 0.833333333333333"),
        ("0.1 + 0.2", "3/10 ≈ 0.300000000000000"),
        ("2^10", "1024"),
        ("7 // 2 + 7 % 4", "6"),
        ("sqrt(50) - sqrt(8)", "3*sqrt(2) ≈ 4.24264068711928"),
        ("solve(x**2 - 2 == 0, x)", "[-sqrt(2), sqrt(2)]"),
        ("integrate(x**2, (x, 0, 3))", "9"),
        ("summation(k, (k, 1, 100))", "5050"),
        ("limit(sin(x)/x, x, 0)", "1"),
        ("factorint(360)", "{2: 3, 3: 2, 5: 1}"),
        ("N(pi, 20)", "3.1415926535897932385"),
        ("1 < 2", "True"),
    ],
)
def test_values_are_exact(expression: str, value: str) -> None:
    assert compute(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')",
        "(1).__class__",
        "open('x')",
        "lambda: 1",
        "[x for x in y]",
        "'a' * 9",
        "f'{1}'",
        "1 +",
        "eval(1)",
        "True",
    ],
)
def test_other_code_is_rejected(expression: str) -> None:
    with pytest.raises(ValueError, match=r"not supported|no function|not an expression|not numbers|not a known"):
        compute(expression)


@pytest.mark.slow
def test_a_computation_over_its_limits_is_stopped_and_the_next_works() -> None:
    async def scenario() -> list[ToolResult]:
        async with open_environment("math") as environment:
            asked = ["1/0", "9**9**9**9", "1 + 1", "factorial(10**8)", "x" * 20_000]
            return list(await asyncio.gather(*(environment.call("calculator", {"expression": one}) for one in asked)))

    zero, tower, fine, large, long = run(scenario())
    assert "division by zero" in zero.text
    assert "was stopped after 10 s" in tower.text
    assert fine.text == "2"
    assert large.error
    assert "longer than" in long.text


def test_python_is_offered_with_the_option() -> None:
    assert [tool.name for tool in open_environment("math").tools()] == ["calculator"]

    async def scenario() -> list[str]:
        async with open_environment("math", {"python": "true"}) as environment:
            await environment.check()
            await environment.open(BenchmarkTask("a", "?"))
            calls = [environment.call("python", {"code": code}) for code in ("x = 2", "x * 21")]
            return [result.text for result in await asyncio.gather(*calls)]

    assert run(scenario()) == ["(no output)", "42"]


@pytest.mark.slow
def test_the_demo_model_solves_the_sample_tasks() -> None:
    async def scenario(entries: list[dict[str, Any]]) -> None:
        async with open_environment("math") as environment:
            for entry in entries:
                asked = entry.get("expression") or entry["question"].removeprefix("Compute ").rstrip(".")
                reported = await environment.call("calculator", {"expression": asked})
                exact = reported.text.partition(" ≈ ")[0]
                task = BenchmarkTask(entry["id"], entry["question"], entry["answer"])
                assert await environment.score(task, f"\\boxed{{{exact}}}") == {"math": 1.0}, (entry, reported)

    run(scenario([json.loads(line) for line in sample_path("math").read_text().splitlines()]))
