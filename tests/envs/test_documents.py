"""What the documentation shows works."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

from paragent.envs import ENVIRONMENTS, environment_class
from paragent.scorers import SCORERS
from paragent.tasks import BenchmarkTask

GUIDE = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()


def test_the_environment_of_the_guide_works() -> None:
    names: dict[str, Any] = {"__name__": "guide"}
    source = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)[-1]
    exec(compile(source, "guide", "exec", dont_inherit=True), names)

    async def play() -> None:
        async with names["Dice"]({"sides": "20"}) as environment:
            await environment.open(BenchmarkTask("a", "10"))
            assert (await environment.call("roll", {})).text == "10"
            assert (await environment.call("roll", {"times": 0})).error
            assert await environment.score(BenchmarkTask("a", "10"), "") == {"frugal": 1.0}

    asyncio.run(play())


def test_the_guide_names_every_environment_option_and_metric() -> None:
    for name in ENVIRONMENTS.names():
        for option in environment_class(name).option_names():
            assert re.search(rf"`{option}(=\w+)?`", GUIDE), (name, option)
    for metric in SCORERS.names():
        assert f"| `{metric}` |" in GUIDE, metric
