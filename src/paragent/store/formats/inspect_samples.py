"""Samples of inspect logs: one result with its messages, events, scores, usage and times."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from paragent.messages import reasoning_of
from paragent.store.formats.atif import RESULT_FIELDS, iso_time
from paragent.store.formats.conversations import call_arguments, dictionaries, text_of
from paragent.store.formats.images import data_url, image_names, image_urls, read_image
from paragent.store.records import RolloutStatus

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from paragent.store.formats.base import ExportedRollout
    from paragent.store.formats.conversations import BranchMessages
    from paragent.store.records import RolloutResult

__all__ = ["inspect_sample", "usage_of"]

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_calls", "content_filter": "content_filter", "stop": "stop"}
_LIMITS = {"turns used up": "turn", "context full": "context"}
"""Endings of conversations that inspect calls limits."""
_ERRORS = {status for status in RolloutStatus if status not in (RolloutStatus.COMPLETED, RolloutStatus.TIMED_OUT)}


def inspect_sample(rollout: ExportedRollout, model: str) -> dict[str, Any]:
    """Return the sample of a result.

    Args:
        rollout: the result.
        model: the model of the run, for steps that name none.
    """
    return _Sample(rollout, model).build()


def usage_of(counts: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return token counts as inspect names them, which counts cached tokens apart from the others; None if unknown."""
    prompt, completion = counts.get("prompt_tokens"), counts.get("completion_tokens")
    if not isinstance(prompt, int) or not isinstance(completion, int):
        return None
    cached, reasoning = counts.get("cached_tokens"), counts.get("reasoning_tokens")
    usage = {"input_tokens": prompt - (cached or 0), "output_tokens": completion, "total_tokens": prompt + completion}
    usage |= {} if cached is None else {"input_tokens_cache_read": cached}
    return usage | ({} if reasoning is None else {"reasoning_tokens": reasoning})


class _Sample:
    def __init__(self, rollout: ExportedRollout, model: str) -> None:
        self._rollout = rollout
        self._result = rollout.result
        self._model = model
        self._messages = _Messages(rollout.images)
        self._conversations = rollout.conversations()
        self._pool: list[dict[str, Any]] = []
        """The messages of all branches; events refer to them by position."""
        self._positions: list[list[int]] = []
        """For each branch, the positions of its messages in the pool."""

    def build(self) -> dict[str, Any]:
        """Return the sample."""
        rollout, result = self._rollout, self._result
        for one in self._conversations:
            self._add_to_pool(one)
        events = self._events()
        main = self._conversations[0] if self._conversations else None
        sample: dict[str, Any] = {
            "id": result.task,
            "epoch": result.attempt,
            "input": rollout.task.question,
            "target": list(rollout.task.references),
            "messages": [self._pool[position] for position in self._positions[0]] if main else [],
            "output": self._last_output(events),
            "scores": self._scores(),
            "metadata": self._metadata(),
            "events": events,
            "events_data": {"messages": self._pool, "calls": []},
            "attachments": self._messages.attachments,
            "model_usage": self._usage(),
            "total_time": max(0.0, result.ended - result.started) if result.started else result.seconds + result.waited,
            "working_time": result.seconds,
            "uuid": hashlib.sha256(f"{result.task}#{result.attempt}#{result.ended}".encode()).hexdigest()[:22],
        }
        if result.started:
            sample |= {"started_at": iso_time(result.started), "completed_at": iso_time(result.ended)}
        return sample | _problem(result)

    def _add_to_pool(self, one: BranchMessages) -> None:
        positions = self._positions[one.parent][: one.shared] if one.branch else []
        for position in range(one.shared, len(one.messages)):
            positions.append(len(self._pool))
            self._pool.append(self._messages.convert(one.messages[position], one.results.get(position, {})))
        self._positions.append(positions)

    def _events(self) -> list[dict[str, Any]]:
        """Return model calls and tool calls in the order of the recorded steps; messages without a step are left out."""
        found: dict[int, dict[str, Any]] = {}
        for one in self._conversations:
            for position, step in one.replies.items():
                number = one.numbers[position]
                if step.get("kind") == "model":
                    found[number] = self._model_event(step, number, one, position)
                else:
                    found[number] = self._event(
                        step, number, "info", source="agent", data="reply made by the agent's code"
                    )
            for position, step in one.results.items():
                number = one.numbers[position]
                found[number] = self._tool_event(step, number, one, position)
        for number, step in enumerate(dictionaries(self._rollout.trajectory.get("steps"))):
            if number not in found:
                found[number] = self._other_event(step, number)
        return [found[number] for number in sorted(found)]

    def _event(self, step: dict[str, Any], number: int, kind: str, **fields: Any) -> dict[str, Any]:
        at, seconds = _real(step.get("at")), _real(step.get("seconds"))
        left_out = {"response", "request", "usage", "messages", "at", "seconds"}
        facts = {name: value for name, value in step.items() if name not in left_out} | {"step": number}
        event: dict[str, Any] = {
            "event": kind,
            "uuid": f"step-{number}",
            "timestamp": iso_time((self._result.started or 0.0) + at),
            "working_start": at,
            "metadata": {"paragent": facts | {"at": at, "seconds": seconds}},
            **fields,
        }
        if kind in {"model", "tool"}:
            event |= {"completed": iso_time((self._result.started or 0.0) + at + seconds), "working_time": seconds}
        return event

    def _model_event(self, step: dict[str, Any], number: int, one: BranchMessages, position: int) -> dict[str, Any]:
        message = self._pool[self._positions[one.branch][position]]
        reason = _STOP_REASONS.get(str(step.get("finish_reason")), "unknown")
        model = str(step.get("response_model") or step.get("model") or self._model)
        output: dict[str, Any] = {
            "model": model,
            "choices": [{"message": message, "stop_reason": reason}],
            "completion": text_of(one.messages[position].get("content")),
        }
        usage = step.get("usage")
        if isinstance(usage, dict) and (counted := usage_of(usage)):
            output["usage"] = counted
        if isinstance(step.get("seconds"), int | float):
            output["time"] = step["seconds"]
        fields = self._request(one.branch, position) | {
            "model": str(step.get("model") or self._model),
            "output": output,
        }
        if step.get("cached"):
            fields["cache"] = "read"
        if isinstance(step.get("retries"), int) and step["retries"]:
            fields["retries"] = step["retries"]
        return self._event(step, number, "model", **fields)

    def _request(self, branch: int, sent: int) -> dict[str, Any]:
        positions = self._positions[branch][:sent] if branch < len(self._positions) else []
        return {
            "input": [],
            "input_refs": _ranges(positions),
            "tools": [],
            "tool_choice": "auto",
            "config": {},
        }

    def _tool_event(self, step: dict[str, Any], number: int, one: BranchMessages, position: int) -> dict[str, Any]:
        message = one.messages[position]
        call = str(message.get("tool_call_id") or "")
        earlier = (m for m in reversed(one.messages[:position]) if m.get("role") == "assistant")
        calls = (c for m in earlier for c in dictionaries(m.get("tool_calls")) if c.get("id") == call)
        arguments, _ = call_arguments(next(calls, {}).get("function"))
        result = text_of(message.get("content"))
        fields: dict[str, Any] = {
            "id": call,
            "function": str(step.get("name") or ""),
            "arguments": arguments,
            "result": result,
        }
        if step.get("error"):
            fields["error"] = {"type": "unknown", "message": result}
        return self._event(step, number, "tool", **fields)

    def _other_event(self, step: dict[str, Any], number: int) -> dict[str, Any]:
        """Return the event of a step without a message: a failed call, a score, a judge, a machine or a program."""
        sent, branch = step.get("messages"), step.get("branch")
        if step.get("kind") == "model":
            fields = self._request(branch if isinstance(branch, int) else 0, sent if isinstance(sent, int) else 0)
            output = {"model": self._model, "choices": [], "error": str(step.get("error") or "")}
            model = str(step.get("model") or self._model)
            return self._event(step, number, "model", **fields, model=model, output=output, error=output["error"])
        if step.get("kind") == "tool":
            facts = {"id": str(step.get("call") or ""), "function": str(step.get("name") or ""), "arguments": {}}
            return self._event(step, number, "tool", **facts, result=str(step.get("result") or ""))
        return self._event(step, number, "info", source=str(step.get("kind") or ""), data=str(step.get("error") or ""))

    def _last_output(self, events: list[dict[str, Any]]) -> dict[str, Any]:
        outputs = [event["output"] for event in events if event["event"] == "model" and event["output"]["choices"]]
        answer = {"role": "assistant", "content": self._result.answer or ""}
        if outputs:
            return dict(outputs[-1])
        return {"model": self._model, "choices": [{"message": answer, "stop_reason": "unknown"}]}

    def _scores(self) -> dict[str, Any]:
        scores = dict(self._result.scores)
        if self._result.score is not None and self._result.score not in scores.values():
            scores["score"] = self._result.score
        answer = self._result.answer
        return {name: {"value": value, "answer": answer} for name, value in scores.items() if value is not None}

    def _metadata(self) -> dict[str, Any]:
        rollout, trajectory = self._rollout, self._rollout.trajectory
        facts: dict[str, Any] = {name: getattr(self._result, name) for name in RESULT_FIELDS}
        facts |= {"status": str(self._result.status), "answer_expected": rollout.task.answer}
        facts["tools"] = dictionaries(trajectory.get("tools"))
        for name in ("tokens", "unstorable"):
            if trajectory.get(name):
                facts[name] = trajectory[name]
        return {**rollout.task.metadata, "paragent": facts}

    def _usage(self) -> dict[str, Any]:
        counts = {name: getattr(self._result, name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
        usage = usage_of(counts | {"reasoning_tokens": self._result.reasoning_tokens})
        return {self._model: usage} if usage else {}


class _Messages:
    """Converts messages; images become attachments, which several messages can refer to."""

    def __init__(self, images: Path) -> None:
        self._images = images
        self.attachments: dict[str, str] = {}

    def convert(self, message: dict[str, Any], step: dict[str, Any]) -> dict[str, Any]:
        """Return a message in the format of inspect."""
        role = str(message.get("role"))
        content = message.get("content")
        images = [read_image(self._images, name) for name in image_names(message)]
        urls = [data_url(image) for image in images if image is not None] + image_urls(content)
        parts: list[dict[str, Any]] = [{"type": "image", "image": self._attached(url)} for url in urls]
        text = text_of(content)
        if role == "assistant" and (reasoning := reasoning_of(message)):
            parts.insert(0, {"type": "reasoning", "reasoning": reasoning})
        found: dict[str, Any] = {"content": [*parts, {"type": "text", "text": text}] if parts else text}
        known = {"system", "user", "assistant", "tool"}
        found["role"] = role if role in known else ("system" if role == "developer" else "user")
        if role not in known:
            found["metadata"] = {"paragent": {"role": role}}
        if calls := dictionaries(message.get("tool_calls")):
            found["tool_calls"] = [_tool_call(call, number) for number, call in enumerate(calls)]
        if role == "tool":
            found |= {"tool_call_id": str(message.get("tool_call_id") or ""), "function": str(step.get("name") or "")}
            if step.get("error"):
                found["error"] = {"type": "unknown", "message": text}
        return found

    def _attached(self, url: str) -> str:
        if not url.startswith("data:"):
            return url
        name = hashlib.sha256(url.encode()).hexdigest()[:22]
        self.attachments[name] = url
        return f"attachment://{name}"


def _tool_call(call: dict[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function")
    arguments, text = call_arguments(function)
    name = function.get("name") if isinstance(function, dict) else None
    found = {"id": str(call.get("id") or f"call_{number}"), "function": str(name or ""), "arguments": arguments}
    return found | ({"parse_error": f"not a JSON object: {text}"} if text is not None else {})


def _problem(result: RolloutResult) -> dict[str, Any]:
    """Return the fields `error` or `limit` of a sample."""
    if result.status in _ERRORS:
        text = result.error or f"{result.status} {result.kind}".strip()
        return {"error": {"message": text, "traceback": "", "traceback_ansi": ""}}
    if result.status is RolloutStatus.TIMED_OUT:
        return {"limit": {"type": "working", "limit": result.seconds, "reason": result.error}}
    if kind := _LIMITS.get(result.ending):
        return {"limit": {"type": kind, "limit": float(result.turns), "reason": result.ending}}
    return {}


def _ranges(positions: list[int]) -> list[tuple[int, int]]:
    """Return positions as ranges: the start, and the position after the end."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found


def _real(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
