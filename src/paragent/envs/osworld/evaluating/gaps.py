"""What an evaluator needs and is not there, and where its score can differ, found out without touching a machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.evaluating.differences import DIFFERENCES
from paragent.envs.osworld.evaluating.evaluator import checks_of
from paragent.envs.osworld.evaluating.families import ACCOUNTS, GETTERS, INFEASIBLE, LEFT_OUT, METRICS
from paragent.errors import MissingExtra, MissingProgram, UnknownName

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent._plugins import Family

__all__ = ["differing", "missing"]


def missing(evaluator: Mapping[str, Any]) -> list[str]:
    """Return what of an evaluator is not there: getters, metrics, packages, programs, accounts; each once."""
    found: dict[str, None] = {}
    for check in checks_of(evaluator):
        if check.metric == INFEASIBLE:
            continue
        sides = [side["type"] for side in (check.result, check.expected) if side is not None]
        for reason in (_lack(METRICS, "metric", check.metric), *(_lack(GETTERS, "getter", side) for side in sides)):
            if reason:
                found[reason] = None
    return list(found)


def differing(evaluator: Mapping[str, Any]) -> list[str]:
    """Return why the score of an evaluator can differ from OSWorld's, each reason once; empty if it is the same."""
    found: dict[str, None] = {}
    for check in checks_of(evaluator):
        for name in (check.metric, *(side["type"] for side in (check.result, check.expected) if side is not None)):
            if name in DIFFERENCES:
                found[f"{name}: {DIFFERENCES[name]}"] = None
    return list(found)


def _lack(family: Family, kind: str, name: str) -> str:
    """Return why a getter or a metric cannot be used, empty if it can."""
    if name in ACCOUNTS:
        return f"{ACCOUNTS[name]} (getter {name})"
    try:
        family.load(name)
    except MissingExtra as error:
        return f"pip install 'paragent[{error.extra}]' ({kind} {name} needs {error.missing})"
    except MissingProgram as error:
        return f"{error.cure} ({kind} {name}: {error.problem})"
    except UnknownName:
        return f"{kind} {name}: {LEFT_OUT.get(name, 'nobody here knows it')}"
    return ""
