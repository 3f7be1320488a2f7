"""Sample tasks for each environment, which `--model demo` can solve, and the options that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paragent.errors import UnknownName

__all__ = ["sample_options", "sample_path"]

_HERE = Path(__file__).parent
_OPTIONS: dict[str, dict[str, Any]] = {
    "math": {},
    "osworld": {"observation_type": "a11y_tree"},
    "py": {},
    "rag": {"kb": _HERE / "rag_kb.jsonl"},
    "web": {"kb": _HERE / "web_kb.jsonl", "search": "local", "site": _HERE / "web_site"},
}


def sample_path(environment: str) -> Path:
    """Return the path of the sample tasks of an environment.

    Raises:
        UnknownName: there are none for this environment.
    """
    if environment not in _OPTIONS:
        raise UnknownName("sample", environment, _OPTIONS)
    return _HERE / f"{environment}.jsonl"


def sample_options(environment: str) -> dict[str, Any]:
    """Return the options of an environment for its sample tasks.

    Raises:
        UnknownName: there are none for this environment.
    """
    sample_path(environment)
    return dict(_OPTIONS[environment])
