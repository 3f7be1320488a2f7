"""The tables of docs/guide/environments.md are complete."""

from __future__ import annotations

import re
from pathlib import Path

from paragent.envs import ENVIRONMENTS, environment_class
from paragent.scorers import SCORERS

ENVIRONMENTS_PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "environments.md").read_text()


def test_every_option_and_scorer_is_documented() -> None:
    for name in ENVIRONMENTS.names():
        for option in environment_class(name).option_names():
            assert re.search(rf"`{option}`", ENVIRONMENTS_PAGE), (name, option)
    for scorer in SCORERS.names():
        assert f"| `{scorer}` |" in ENVIRONMENTS_PAGE, scorer
