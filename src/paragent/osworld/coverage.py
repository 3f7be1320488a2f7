"""Coverage of OSWorld's tasks: which get OSWorld's score, which may get another score, and what the others need."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import MissingExtra, MissingProgram, UnknownName
from paragent.osworld.evaluators.evaluator import checks_of
from paragent.osworld.evaluators.registry import ACCOUNTS, GETTERS, INFEASIBLE, LEFT_OUT, METRICS
from paragent.osworld.evaluators.supported import (
    UnsupportedCheck,
    check_config,
    check_options,
    check_rules,
    difference_of,
)
from paragent.osworld.setup import missing_for_steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from paragent._internal.registry import Registry
    from paragent.osworld.evaluators.evaluator import Check

__all__ = [
    "CANNOT",
    "DIFFERS",
    "SAME",
    "Coverage",
    "Need",
    "TaskNeeds",
    "coverage_of",
    "differing",
    "missing",
    "missing_for_task",
    "needs_of",
]


def missing(evaluator: Mapping[str, Any]) -> list[str]:
    """Return what an evaluator needs and is missing, each once: getters, metrics, rules, packages, programs and accounts."""
    found: dict[str, None] = {}
    for check in checks_of(evaluator):
        if check.metric == INFEASIBLE:
            continue
        sides = [side["type"] for side in (check.result, check.expected) if side is not None]
        lacks = [_lack(METRICS, "metric", check.metric), *(_lack(GETTERS, "getter", side) for side in sides)]
        for reason in lacks if any(lacks) else _unsupported(check):
            if reason:
                found[reason] = None
    return list(found)


def _unsupported(check: Check) -> Iterator[str]:
    """Yield why the metric and the getters of a check cannot evaluate its rules."""
    metric = METRICS.load(check.metric)
    yield _refusal(f"metric {check.metric}", check_options, metric, check.options)
    if check.expected is not None and check.expected["type"] == "rule":
        yield _refusal(f"metric {check.metric}", check_rules, metric, check.expected["rules"])
    for side in (check.result, check.expected):
        if side is not None:
            yield _refusal(f"getter {side['type']}", check_config, GETTERS.load(side["type"]), side)


def _refusal(owner: str, check: Callable[[Any, Any], None], function: Any, given: Any) -> str:
    """Return why a check fails; empty if it does not."""
    try:
        check(function, given)
    except UnsupportedCheck as error:
        return f"{owner}: {error}"
    except (MissingExtra, MissingProgram) as error:
        return _advice(owner, error)
    except (AttributeError, LookupError, TypeError, ValueError, re.error) as error:
        return f"{owner}: malformed rules or options ({type(error).__name__}: {error})"
    return ""


def differing(evaluator: Mapping[str, Any]) -> list[str]:
    """Return why the score of an evaluator can differ from OSWorld's, each reason once; empty if it does not.

    The evaluator must not miss anything. docs/guide/osworld_evaluators.md lists the differences that apply to every evaluator.
    """
    found: dict[str, None] = {}
    for check in checks_of(evaluator):
        if check.metric != INFEASIBLE and (why := difference_of(METRICS.load(check.metric), check.options)):
            found[f"{check.metric}: {why}"] = None
    return list(found)


def _lack(registry: Registry, kind: str, name: str) -> str:
    """Return why a getter or metric cannot be used; empty if it can."""
    if name in ACCOUNTS:
        return f"{ACCOUNTS[name]} (getter {name})"
    try:
        registry.load(name)
    except (MissingExtra, MissingProgram) as error:
        return _advice(f"{kind} {name}", error)
    except UnknownName:
        return f"{kind} {name}: {LEFT_OUT.get(name, 'unknown')}"
    return ""


def _advice(owner: str, error: MissingExtra | MissingProgram) -> str:
    """Return how to install what a getter or metric needs."""
    if isinstance(error, MissingExtra):
        return f"{error.command} ({owner} needs {error.missing})"
    return f"{error.advice} ({owner}: {error.problem})"


_ACCOUNTS = tuple(set(ACCOUNTS.values()))
SAME, DIFFERS, CANNOT = "same score", "differs", "cannot be scored"
_PROXY = "a proxy (the sites of the task refuse many addresses)"


@dataclass(frozen=True, slots=True)
class TaskNeeds:
    """What a task needs and is missing, and whether its score equals OSWorld's."""

    id: str
    domain: str
    missing: tuple[str, ...]
    """Missing set-up steps, getters, metrics and packages."""
    account: str
    """The account that the task needs; empty if none."""
    proxy: bool
    differences: tuple[str, ...] = ()
    """Why the score can differ from OSWorld's."""

    @property
    def verdict(self) -> str:
        """`same score`, `differs` or `cannot be scored`. A proxy is provided by the user and does not affect the score."""
        if self.missing or self.account:
            return CANNOT
        return DIFFERS if self.differences else SAME

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is not `same score`."""
        if self.verdict != CANNOT:
            return self.differences
        return (*self.missing, self.account) if self.account else self.missing

    @property
    def covered(self) -> bool:
        """Whether the task can be run and scored without an account or a proxy."""
        return not (self.missing or self.account or self.proxy)


@dataclass(frozen=True, slots=True)
class Need:
    """A missing requirement."""

    what: str
    tasks: int
    """The number of tasks that need it."""
    unlocks: int
    """The number of tasks that need nothing else."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """The requirements and verdicts of all tasks of a file."""

    tasks: Sequence[TaskNeeds]

    def needs(self) -> list[Need]:
        """Return the missing requirements; those that unlock most tasks come first."""
        wanted: Counter[str] = Counter()
        alone: Counter[str] = Counter()
        for task in self.tasks:
            lacks = dict.fromkeys(_EXTRA.sub(r"\1", reason) for reason in task.missing)
            needed = [*lacks, *([task.account] if task.account else []), *([_PROXY] if task.proxy else [])]
            wanted.update(needed)
            alone.update(needed if len(needed) == 1 else [])
        return sorted((Need(what, count, alone[what]) for what, count in wanted.items()), key=_order)


_EXTRA = re.compile(r"^(.*\bpip install .+) \((?:getter|metric|set-up step) .*\)$")
"""Evaluators and steps that need the same extra are one requirement."""


def _order(need: Need) -> tuple[int, int, str]:
    return (-need.unlocks, -need.tasks, need.what)


def coverage_of(tasks: Iterable[Mapping[str, Any]]) -> Coverage:
    """Return the coverage of tasks as returned by `read_tasks`."""
    return Coverage([needs_of(task) for task in tasks])


def missing_for_task(task: Mapping[str, Any]) -> list[str]:
    """Return the missing set-up steps, getters, metrics, packages, programs and accounts of a task, each once."""
    evaluator = task.get("evaluator")
    try:
        found = missing_for_steps(task.get("config") or [])
        if evaluator is not None:
            found += [*missing(evaluator), *missing_for_steps(evaluator.get("postconfig") or [])]
    except (AttributeError, KeyError, TypeError) as error:
        return [f"a valid `config` and `evaluator` ({type(error).__name__}: {error})"]
    return list(dict.fromkeys(found))


def needs_of(task: Mapping[str, Any]) -> TaskNeeds:
    """Return the missing requirements of a task and the reasons why its score can differ."""
    found = missing_for_task(task)
    plain = tuple(reason for reason in found if not reason.startswith(_ACCOUNTS))
    account = next((one for one in _ACCOUNTS for reason in found if reason.startswith(one)), "")
    domain = str(task.get("domain") or task.get("snapshot") or "")
    differences = () if found else tuple(differing(task.get("evaluator") or {"func": []}))
    return TaskNeeds(str(task["id"]), domain, plain, account, bool(task.get("proxy")), differences)
