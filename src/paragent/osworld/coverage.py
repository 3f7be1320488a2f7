"""Which tasks get OSWorld's score here, which can get another one, and what the others need."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paragent.errors import MissingExtra, MissingProgram, UnknownName
from paragent.osworld.evaluators.evaluator import checks_of
from paragent.osworld.evaluators.registry import ACCOUNTS, GETTERS, INFEASIBLE, LEFT_OUT, METRICS
from paragent.osworld.setup import lacking

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from paragent._internal.registry import Registry

__all__ = [
    "CANNOT",
    "DIFFERENCES",
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


DIFFERENCES: dict[str, str] = {
    "compare_archive": "text of PDF files in archives is extracted by pypdf, not PyMuPDF",
    "compare_audios": "sounds are decoded and resampled by ffmpeg, not librosa (scores of different sounds move by about 0.001)",
    "compare_pdfs": "text of PDF files is extracted by pypdf, not PyMuPDF; the likeness of different texts moves by up to 0.06",
    "compare_videos": "films are decoded by ffmpeg, not OpenCV",
}
"""By the name of a metric or a getter, which are distinct. What differs for every evaluator is in docs/osworld_evaluators.md."""


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


def _lack(registry: Registry, kind: str, name: str) -> str:
    """Return why a getter or a metric cannot be used, empty if it can."""
    if name in ACCOUNTS:
        return f"{ACCOUNTS[name]} (getter {name})"
    try:
        registry.load(name)
    except MissingExtra as error:
        return f"pip install 'paragent[{error.extra}]' ({kind} {name} needs {error.missing})"
    except MissingProgram as error:
        return f"{error.cure} ({kind} {name}: {error.problem})"
    except UnknownName:
        return f"{kind} {name}: {LEFT_OUT.get(name, 'nobody here knows it')}"
    return ""


_ACCOUNTS = tuple(set(ACCOUNTS.values()))
SAME, DIFFERS, CANNOT = "same score", "differs", "cannot be scored"
PROXY = "a proxy (the sites that the task visits refuse many addresses)"


@dataclass(frozen=True, slots=True)
class TaskNeeds:
    """What one task needs and is not there, and whether its score is OSWorld's."""

    id: str
    domain: str
    missing: tuple[str, ...]
    """Set-up steps, getters, metrics, packages."""
    account: str
    """The account that it needs, empty if none."""
    proxy: bool
    differences: tuple[str, ...] = ()
    """Why its score can differ from OSWorld's."""

    @property
    def verdict(self) -> str:
        """`same score`, `differs` or `cannot be scored`; a proxy is the user's, and a score does not depend on it."""
        if self.missing or self.account:
            return CANNOT
        return DIFFERS if self.differences else SAME

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the verdict is not `same score`."""
        return (
            (*self.missing, *([self.account] if self.account else [])) if self.verdict == CANNOT else self.differences
        )

    @property
    def covered(self) -> bool:
        """Whether it can be played and scored on a plain machine of the right image."""
        return not (self.missing or self.account or self.proxy)


@dataclass(frozen=True, slots=True)
class Need:
    """One thing that is not there."""

    what: str
    tasks: int
    """How many tasks need it."""
    unlocks: int
    """How many of them need nothing else."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is known about all tasks of a file."""

    tasks: Sequence[TaskNeeds]

    def needs(self) -> list[Need]:
        """Return all that is not there, the most wanted first."""
        wanted: Counter[str] = Counter()
        alone: Counter[str] = Counter()
        for task in self.tasks:
            needed = [*task.missing, *([task.account] if task.account else []), *([PROXY] if task.proxy else [])]
            wanted.update(needed)
            alone.update(needed if len(needed) == 1 else [])
        return sorted((Need(what, count, alone[what]) for what, count in wanted.items()), key=_order)


def _order(need: Need) -> tuple[int, int, str]:
    return (-need.unlocks, -need.tasks, need.what)


def coverage_of(tasks: Iterable[Mapping[str, Any]]) -> Coverage:
    """Return what is known about tasks, as `read_tasks` returns them."""
    return Coverage([needs_of(task) for task in tasks])


def missing_for_task(task: Mapping[str, Any]) -> list[str]:
    """Return which of a task's set-up steps, getters, metrics, packages, programs and accounts are not there; each once."""
    evaluator = task.get("evaluator")
    try:
        found = lacking(task.get("config") or [])
        if evaluator is not None:
            found += [*missing(evaluator), *lacking(evaluator.get("postconfig") or [])]
    except (AttributeError, KeyError, TypeError) as error:
        return [f"a `config` and an `evaluator` of OSWorld's form ({type(error).__name__}: {error})"]
    return list(dict.fromkeys(found))


def needs_of(task: Mapping[str, Any]) -> TaskNeeds:
    """Return what a task needs and is not there, and why its score can differ."""
    found = missing_for_task(task)
    plain = tuple(reason for reason in found if not reason.startswith(_ACCOUNTS))
    account = next((one for one in _ACCOUNTS for reason in found if reason.startswith(one)), "")
    domain = str(task.get("domain") or task.get("snapshot") or "")
    differences = () if found else tuple(differing(task.get("evaluator") or {"func": []}))
    return TaskNeeds(str(task["id"]), domain, plain, account, bool(task.get("proxy")), differences)
