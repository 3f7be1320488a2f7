"""The examples and tables of docs/guide/environments.md and docs/guide/models.md are correct."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from paragent import ModelSettings
from paragent.envs import ENVIRONMENTS, environment_class
from paragent.scorers import SCORERS
from paragent.tasks import BenchmarkTask

DOCS = Path(__file__).parents[2] / "docs"
ENVIRONMENTS_PAGE = (DOCS / "guide" / "environments.md").read_text()
MODELS_PAGE = (DOCS / "guide" / "models.md").read_text()


def example(page: str, name: str) -> Any:
    """Run the code block of a page that defines a class, and return the class."""
    names: dict[str, Any] = {"__name__": "example"}
    [source] = [code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if f"\nclass {name}(" in code]
    exec(compile(source, "example", "exec", dont_inherit=True), names)
    return names[name]


def test_the_example_environment_works() -> None:
    async def scenario() -> None:
        async with example(ENVIRONMENTS_PAGE, "Dice")({"sides": "20"}) as environment:
            await environment.open(BenchmarkTask("a", "10"))
            assert (await environment.call("roll", {})).text == "10"
            assert (await environment.call("roll", {"times": 0})).error
            assert await environment.score(BenchmarkTask("a", "10"), "") == {"frugal": 1.0}

    asyncio.run(scenario())


def test_the_example_scorer_works() -> None:
    scorer = example(ENVIRONMENTS_PAGE, "FirstLetter")()
    assert asyncio.run(scorer.score(BenchmarkTask("a", "?", "Paris"), "Prague")).value == 1.0


def test_the_example_model_works() -> None:
    model = example(MODELS_PAGE, "Echo")(ModelSettings(name="echo"))
    completion = asyncio.run(model.complete([{"role": "user", "content": "hello"}], []))
    assert completion.message == {"role": "assistant", "content": "hello"}


def test_every_option_and_scorer_is_documented() -> None:
    for name in ENVIRONMENTS.names():
        for option in environment_class(name).option_names():
            assert re.search(rf"`{option}`", ENVIRONMENTS_PAGE), (name, option)
    for scorer in SCORERS.names():
        assert f"| `{scorer}` |" in ENVIRONMENTS_PAGE, scorer
