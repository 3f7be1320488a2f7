"""Evaluator: scores an attempt by running the checks of a task and combining them by `and` or `or`."""

from __future__ import annotations

import logging
import math
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError
from paragent.osworld.context import CHILD_MODULE, PARSE_SECONDS, GetterContext, MachineRefused
from paragent.osworld.evaluators.registry import GETTERS, INFEASIBLE, METRICS
from paragent.osworld.evaluators.supported import UnsupportedCheck
from paragent.subprocesses import CallFailed, SubprocessPool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.osworld.context import AttemptContext

__all__ = ["Check", "checks_of", "evaluate", "evaluation_processes"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Check:
    """One metric with the getters of its result and its expectation; None if there is no getter."""

    metric: str
    result: Mapping[str, Any] | None
    expected: Mapping[str, Any] | None
    options: Mapping[str, Any] = field(default_factory=dict)


def checks_of(evaluator: Mapping[str, Any]) -> list[Check]:
    """Return the checks of an evaluator. If `func` is a list, the other fields are lists too, or absent."""
    functions = evaluator["func"]
    if isinstance(functions, str):
        options = evaluator.get("options") or {}
        return [Check(functions, evaluator.get("result") or None, evaluator.get("expected") or None, options)]
    fields = ("result", "expected", "options")
    results, expectations, options = (_listed(evaluator, name, len(functions)) for name in fields)
    return [Check(*parts) for parts in zip(functions, results, expectations, [o or {} for o in options], strict=True)]


def _listed(evaluator: Mapping[str, Any], name: str, length: int) -> list[Any]:
    given = evaluator.get(name) or []
    given = list(given) if isinstance(given, list) else [given] * length
    return [entry or None for entry in given[:length]] + [None] * (length - len(given))


async def evaluate(
    evaluator: Mapping[str, Any],
    attempt: AttemptContext,
    *,
    processes: SubprocessPool | None = None,
    strict: bool = False,
) -> float:
    """Score an attempt, from 0 to 1, as OSWorld does.

    The steps of `postconfig` run first. An infeasible task scores 1 if the agent's last action was FAIL; any other task scores 0
    after FAIL. Checks joined by `and` score 0 as soon as one scores 0, otherwise their mean. Checks joined by `or` score 1 as
    soon as one scores 1, otherwise the best. A file that is missing, or that a metric cannot process within its limits of time
    and memory, scores 0. Metrics can read only the attempt's folder, whatever paths a task names.

    Args:
        evaluator: the field `evaluator` of a task.
        attempt: the context of the attempt.
        processes: child processes for metrics, from `evaluation_processes`; without it they are started and stopped here.
        strict: whether metrics with a known bug of OSWorld score correctly instead of reproducing it.

    Raises:
        UnknownName: a getter or metric does not exist; `coverage.missing` reports it in advance.
        MissingExtra: a package is not installed; as above.
        MissingProgram: a program is not installed; as above.
        ConfigError: the evaluator has a rule that its metric does not support.
        InfrastructureError: the machine does not answer, or an expected file cannot be downloaded.
    """
    checks = checks_of(evaluator)
    infeasible = checks[0].metric == INFEASIBLE
    if not infeasible:
        _load(checks)
    prepared = await _prepared(attempt, evaluator.get("postconfig") or [])
    if infeasible or attempt.failed or not prepared:
        return float(infeasible and attempt.failed)
    conjunction = str(evaluator.get("conj", "and"))
    if processes is not None:
        return await _combined_score(checks, conjunction, attempt, processes, strict)
    async with evaluation_processes() as own:
        return await _combined_score(checks, conjunction, attempt, own, strict)


async def _prepared(attempt: AttemptContext, steps: Sequence[Mapping[str, Any]]) -> bool:
    """Run the evaluator's steps; return False if the machine refuses one, such as opening a file that the agent deleted."""
    try:
        if steps:
            await attempt.set_up(steps)
    except MachineRefused as error:
        _log.info("the machine refused a step of postconfig, which scores 0: %s", error)
        return False
    return True


@asynccontextmanager
async def evaluation_processes() -> AsyncIterator[SubprocessPool]:
    """Run a pool with one child process for `evaluate`; several attempts of a worker may share it."""
    async with SubprocessPool.running(CHILD_MODULE, most=1) as processes:
        yield processes


def _load(checks: list[Check]) -> None:
    """Load everything that the checks need before the machine is changed."""
    for check in checks:
        METRICS.load(check.metric)
        for side in (check.result, check.expected):
            if side is not None:
                GETTERS.load(side["type"])


async def _combined_score(
    checks: list[Check], conjunction: str, attempt: AttemptContext, processes: SubprocessPool, strict: bool
) -> float:
    scores = []
    for check in checks:
        score = await _score(check, attempt, processes, strict)
        if conjunction == "and" and score == 0.0:
            return 0.0
        if conjunction == "or" and score == 1.0:
            return 1.0
        scores.append(score)
    return sum(scores) / len(scores) if conjunction == "and" else max(scores)


async def _score(check: Check, attempt: AttemptContext, processes: SubprocessPool, strict: bool) -> float:
    try:
        result_folder = attempt.folder / "result"
        result = await _get(check.result, GetterContext(attempt, result_folder, processes))
        reused = None if strict else result_folder
        expected = await _get(check.expected, GetterContext(attempt, attempt.folder / "expected", processes, reused))
    except (FileNotFoundError, MachineRefused) as error:
        _log.info("%s has no input, which scores 0: %s", check.metric, error)
        return 0.0
    try:
        arguments = [result] if check.expected is None else [result, expected]
        await processes.call("load_metric", check.metric, limit=PARSE_SECONDS)
        parts = check.metric, arguments, dict(check.options), strict
        score = float(await processes.call("score", *parts, limit=PARSE_SECONDS, folder=attempt.folder))
    except CallFailed as error:
        if error.kind == UnsupportedCheck.__name__:
            raise ConfigError(f"the task's evaluator cannot be used: {check.metric}: {error}") from None
        _log.info("%s failed, which scores 0: %s: %s", check.metric, error.kind, error)
        return 0.0
    return 0.0 if math.isnan(score) else min(max(score, 0.0), 1.0)


async def _get(config: Mapping[str, Any] | None, context: GetterContext) -> Any:
    if config is None:
        return None
    context.folder.mkdir(parents=True, exist_ok=True)
    return await GETTERS.load(config["type"])(context, config)
