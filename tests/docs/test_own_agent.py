"""The tables of docs/howto/own_agent.md are complete."""

from __future__ import annotations

import re
from pathlib import Path

from paragent.rollout.config import all_settings

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/howto/own_agent.md").read_text()


def test_all_flags_and_variables_are_described() -> None:
    flags = [setting.flag for setting in all_settings() if setting.name.startswith("agent")]
    assert not [flag for flag in flags if flag not in PAGE]
    sources = [(ROOT / "src/paragent/rollout" / name).read_text() for name in ("program.py", "gateway_access.py")]
    variables = {
        name for source in sources for name in re.findall(r'"((?:OPENAI|ANTHROPIC|PARAGENT)_[A-Z_]+)"', source)
    }
    assert len(variables) >= 9
    assert not [name for name in variables if f"`{name}`" not in PAGE]
