"""Runs for the measurements of the view: the same conversations in the format of paragent and as plain JSON for its peers.

`python -m bench.view_data FOLDER COUNT [MACHINES]` writes a run directory.
"""

from __future__ import annotations

import json
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent.store import (
    ATTEMPTS,
    JOURNAL_FILE,
    PRICES,
    ActivityInterval,
    Journal,
    MachineEvent,
    RolloutActivity,
    RolloutResult,
    RolloutStatus,
    WorkerEvent,
    pack_activity,
)
from paragent.store.records import pack_trajectory
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SampleRollout", "rollouts", "write_json", "write_run"]

_WORDS = [
    "agent",
    "browser",
    "button",
    "cell",
    "checkout",
    "column",
    "compute",
    "customer",
    "document",
    "error",
    "file",
    "filter",
    "folder",
    "image",
    "invoice",
    "list",
    "login",
    "machine",
    "menu",
    "model",
    "number",
    "order",
    "page",
    "parameter",
    "price",
    "query",
    "record",
    "result",
    "row",
    "screen",
    "search",
    "session",
    "sheet",
    "step",
    "summary",
    "table",
    "task",
    "terminal",
    "text",
    "total",
    "user",
    "value",
    "window",
    "word",
    "workbook",
]
_ERRORS = (
    ("endpoint", RolloutStatus.INFRASTRUCTURE, "EndpointDown: the endpoint answered 503 {number} times"),
    ("time limit", RolloutStatus.TIMED_OUT, "worked longer than 600 s"),
    ("ValueError", RolloutStatus.FAILED, "ValueError: invalid literal for int() with base 10: '{word}'"),
    ("machine", RolloutStatus.INFRASTRUCTURE, "MachineFailed: vm-{number} does not answer"),
)
_CONCURRENT = 64
_WORKERS = 8
_BATCH = 500


@dataclass(slots=True)
class SampleRollout:
    """One rollout with its conversation."""

    task: str
    question: str
    answer: str
    score: float | None
    status: RolloutStatus
    kind: str
    error: str
    messages: list[dict[str, Any]]
    steps: list[dict[str, Any]]
    started: float
    seconds: float
    worker: str
    machine: str
    tokens: tuple[int, int]
    activity: list[ActivityInterval] = field(default_factory=list)


def rollouts(count: int, machines: int = 0, seed: int = 1, begin: float = 0.0) -> Iterator[SampleRollout]:
    """Yield rollouts that start from `begin` on; the same numbers give the same rollouts."""
    chance = random.Random(seed)
    concurrent = min(_CONCURRENT, machines or _CONCURRENT)
    ends = [begin + chance.random() for _ in range(concurrent)]
    for number in range(count):
        place = min(range(concurrent), key=ends.__getitem__)
        rollout = _rollout(chance, number, place, machines)
        rollout.started = ends[place]
        ends[place] += rollout.seconds + 0.05
        yield rollout


def _text(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(_WORDS, k=words))


def _rollout(chance: random.Random, number: int, place: int, machines: int) -> SampleRollout:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer the question. Use the tools."},
        {"role": "user", "content": f"Question {number}: {_text(chance, 40)}?"},
    ]
    steps: list[dict[str, Any]] = []
    activity = [ActivityInterval(RolloutActivity.OPENING, 0.2)]
    at, tokens = 0.2, [0, 0]
    for turn in range(1, chance.choice((3, 4, 5, 6, 9)) + 1):
        at = _turn(chance, turn, at, messages, steps, activity, tokens)
    answer = str(chance.randrange(1000))
    messages.append({"role": "assistant", "content": f"The **answer** is {answer}."})
    activity.append(ActivityInterval(RolloutActivity.SCORING, 0.1))
    kind, status, error = "", RolloutStatus.COMPLETED, ""
    if chance.random() < 0.05:
        kind, status, error = chance.choice(_ERRORS)
        error = error.format(number=chance.randrange(9), word=chance.choice(_WORDS))
    return SampleRollout(
        task=f"task-{number:06d}",
        question=messages[1]["content"],
        answer=answer,
        score=float(chance.random() < 0.6) if status is RolloutStatus.COMPLETED else None,
        status=status,
        kind=kind,
        error=error,
        messages=messages,
        steps=steps,
        started=0.0,
        seconds=at + 0.1,
        worker=f"host:{4000 + place % _WORKERS}",
        machine=f"vm-{place}" if machines else "",
        tokens=(tokens[0], tokens[1]),
        activity=activity,
    )


def _turn(
    chance: random.Random,
    turn: int,
    at: float,
    messages: list[dict[str, Any]],
    steps: list[dict[str, Any]],
    activity: list[ActivityInterval],
    tokens: list[int],
) -> float:
    """Add a model's message with a tool call and the tool's result; return the time at its end."""
    sent = len(messages)
    call = {"name": "search", "arguments": json.dumps({"query": _text(chance, 4)})}
    calls = [{"id": f"call_{turn}", "type": "function", "function": call}]
    thought = _text(chance, 30)
    messages += [
        {"role": "assistant", "content": _text(chance, 12), "reasoning_content": thought, "tool_calls": calls},
        {"role": "tool", "tool_call_id": f"call_{turn}", "content": _text(chance, 120)},
    ]
    generating, acting = 0.5 + chance.expovariate(1.0), 0.1 + chance.expovariate(4.0)
    usage = {"prompt_tokens": 80 * sent, "completion_tokens": 60, "cached_tokens": 40 * sent, "reasoning_tokens": 30}
    model = {"model": "sample", "request_id": f"req-{turn}", "usage": usage, "messages": sent, "finish_reason": "stop"}
    steps += [
        {"kind": "model", "turn": turn, "at": at, "seconds": generating, **model},
        {
            "kind": "tool",
            "turn": turn,
            "at": at + generating,
            "seconds": acting,
            "name": "search",
            "call": f"call_{turn}",
        },
    ]
    activity += [
        ActivityInterval(RolloutActivity.GENERATING, generating),
        ActivityInterval(RolloutActivity.ACTING, acting),
    ]
    tokens[0] += usage["prompt_tokens"]
    tokens[1] += usage["completion_tokens"]
    return at + generating + acting


def write_run(folder: Path, count: int, machines: int = 0, seed: int = 1) -> None:
    """Write a run directory with a result for each of `count` tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"mode": "rag", "model": "sample", "engine": "local", "num_rollouts": _CONCURRENT, "attempts": 1}
    (folder / "config.json").write_text(json.dumps(config))
    with Journal(folder / JOURNAL_FILE) as journal:
        journal.set_meta(ATTEMPTS, "1")
        journal.set_meta(PRICES, json.dumps({"model": {"input": 0.5, "output": 1.5}}))
        session, begin = journal.begin_session(), time.time()
        workers = [WorkerEvent(f"host:{4000 + n}", "started", begin) for n in range(_WORKERS)]
        journal.record([], worker_events=workers)
        batch: list[SampleRollout] = []
        end = begin
        for rollout in rollouts(count, machines, seed, begin):
            batch.append(rollout)
            end = max(end, rollout.started + rollout.seconds)
            if len(batch) == _BATCH:
                _record(journal, batch)
                batch = []
        _record(journal, batch)
        journal.update_session(session, end - begin, count)


def _record(journal: Journal, batch: list[SampleRollout]) -> None:
    journal.add_tasks(BenchmarkTask(one.task, one.question, one.answer) for one in batch)
    events = [event for one in batch if one.machine for event in _machine_events(one)]
    journal.record([_result(one) for one in batch], machine_events=sorted(events, key=lambda event: event.at))


def _machine_events(one: SampleRollout) -> list[MachineEvent]:
    end = one.started + one.seconds
    return [
        MachineEvent(one.machine, "leased", one.started, holder=f"{one.worker} {one.task}"),
        MachineEvent(one.machine, "resetting", end - 0.1),
        MachineEvent(one.machine, "free", end),
    ]


def _result(one: SampleRollout) -> RolloutResult:
    return RolloutResult(
        one.task,
        1,
        one.status,
        score=one.score,
        scores={"exact": one.score},
        answer=one.answer,
        ending="answered",
        kind=one.kind,
        error=one.error,
        turns=len(one.steps) // 2,
        tool_calls=len(one.steps) // 2,
        requests=len(one.steps) // 2,
        prompt_tokens=one.tokens[0],
        completion_tokens=one.tokens[1],
        cached_tokens=one.tokens[0] // 2,
        reasoning_tokens=one.tokens[1] // 2,
        seconds=one.seconds,
        started=one.started,
        ended=one.started + one.seconds,
        worker=one.worker,
        machine=one.machine,
        activity=pack_activity(one.activity),
        trajectory=pack_trajectory({"messages": one.messages, "tools": [], "steps": one.steps}),
    )


def write_json(path: Path, count: int) -> None:
    """Write the rollouts as one JSON object per line, for the programs that write the logs of peers."""
    names = ("task", "question", "answer", "score", "status", "error", "messages", "started", "seconds", "tokens")
    with path.open("w") as file:
        for one in rollouts(count, begin=time.time()):
            file.write(json.dumps({name: getattr(one, name) for name in names}) + "\n")


if __name__ == "__main__":
    write_run(Path(sys.argv[1]), int(sys.argv[2]), *map(int, sys.argv[3:4]))
