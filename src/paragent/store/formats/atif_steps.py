"""Steps of ATIF trajectories, made from the messages of a conversation and the recorded steps."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paragent.messages import reasoning_of
from paragent.store.directory import file_name
from paragent.store.formats.conversations import call_arguments, dictionaries
from paragent.store.formats.images import image_names, image_type, image_urls, read_data_url, read_image
from paragent.store.summary import cost_of

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.store.formats.base import ExportedRollout
    from paragent.store.formats.conversations import BranchMessages, CallTokens

__all__ = ["AtifSteps"]

_SUFFIXES = {"image/png": ".png", "image/jpeg": ".jpg", "image/gif": ".gif", "image/webp": ".webp"}
_EXTRAS = (
    "step", "at", "seconds", "turn", "request_id", "waited", "retries", "finish_reason", "cached", "version",
    "extras", "requested_model",
)  # fmt: skip
"""Fields of recorded steps that ATIF has no field for."""


class AtifSteps:
    """Makes the steps of one rollout.

    Args:
        rollout: the rollout.
        prices: of its model; None if unknown.
        folder: where `trajectory.json` will be; images are written to `images` in it.
    """

    def __init__(self, rollout: ExportedRollout, prices: dict[str, float] | None, folder: Path) -> None:
        self._rollout = rollout
        self._prices = prices
        self._folder = folder
        self._started = rollout.result.started

    def build(self, one: BranchMessages) -> list[dict[str, Any]]:
        """Return the steps of a conversation; at least one, because ATIF requires it."""
        steps: list[dict[str, Any]] = []
        open_step: dict[str, Any] | None = None
        for position, message in enumerate(one.messages):
            if message.get("role") == "tool":
                result = self._result(message, _numbered(one.results.get(position), one.numbers.get(position)))
                calls = open_step.get("tool_calls", ()) if open_step else ()
                if open_step and any(call["tool_call_id"] == result.get("source_call_id") for call in calls):
                    open_step.setdefault("observation", {"results": []})["results"].append(result)
                    continue
                facts = result.setdefault("extra", {"paragent": {}})["paragent"]
                facts["tool_call_id"] = result.pop("source_call_id", None)
                step: dict[str, Any] = {"source": "system", "message": "", "observation": {"results": [result]}}
            else:
                recorded = _numbered(one.replies.get(position), one.numbers.get(position))
                step = self._message(message, recorded, one.tokens.get(position))
                open_step = step if step["source"] == "agent" else open_step
            if position < one.shared:
                step["is_copied_context"] = True
            steps.append(step)
        if not steps:
            question = self._rollout.task.question
            steps.append({"source": "user", "message": question, "extra": {"paragent": {"not_sent": True}}})
        return [{"step_id": number, **step} for number, step in enumerate(steps, 1)]

    def cost(self, prompt: int | None, completion: int | None) -> float | None:
        """Return the cost of tokens; None if prices or counts are unknown."""
        if self._prices is None or prompt is None or completion is None:
            return None
        return cost_of({"model": self._prices}, prompt, completion, 0, 0)

    def _message(self, message: dict[str, Any], recorded: dict[str, Any], tokens: CallTokens | None) -> dict[str, Any]:
        role = str(message.get("role"))
        source = {"assistant": "agent", "user": "user"}.get(role, "system")
        step: dict[str, Any] = {"source": source, "message": self._content(message)}
        if source != "agent":
            return step | _extra(message, {"role": role} if role not in {"user", "system"} else {})
        by_model = recorded.get("kind") != "agent"
        if calls := dictionaries(message.get("tool_calls")):
            step["tool_calls"] = [_call(call, number) for number, call in enumerate(calls)]
        if by_model and (reasoning := reasoning_of(message)):
            step["reasoning_content"] = reasoning
        if recorded:
            step["llm_call_count"] = 1 if by_model else 0
        if model := recorded.get("response_model") or recorded.get("model"):
            step["model_name"] = str(model)
        if recorded.get("response_model"):
            recorded = recorded | {"requested_model": recorded.get("model")}
        if moment := self._time(recorded):
            step["timestamp"] = moment
        if by_model and (metrics := self._metrics(recorded, tokens)):
            step["metrics"] = metrics
        facts = {name: recorded[name] for name in _EXTRAS if name in recorded}
        if tokens is not None and tokens.version is not None:
            facts["token_version"] = tokens.version
        return step | _extra(message, facts)

    def _time(self, recorded: dict[str, Any]) -> str | None:
        at = recorded.get("at")
        if not self._started or isinstance(at, bool) or not isinstance(at, int | float):
            return None
        with suppress(OverflowError, ValueError, OSError):
            return datetime.fromtimestamp(self._started + at, UTC).isoformat()
        return None

    def _metrics(self, recorded: dict[str, Any], tokens: CallTokens | None) -> dict[str, Any]:
        usage = recorded.get("usage")
        counts = {name: value for name, value in usage.items() if isinstance(value, int)} if usage else {}
        known = ("prompt_tokens", "completion_tokens", "cached_tokens")
        metrics: dict[str, Any] = {name: counts.pop(name) for name in known if name in counts}
        cost = self.cost(metrics.get("prompt_tokens"), metrics.get("completion_tokens"))
        if cost is not None:
            metrics["cost_usd"] = cost
        if tokens is not None:
            metrics |= {"prompt_token_ids": tokens.prompt_ids, "completion_token_ids": tokens.ids}
            if tokens.logprobs is not None:
                metrics["logprobs"] = tokens.logprobs
        return metrics | ({"extra": counts} if counts else {})

    def _result(self, message: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {"content": self._content(message)}
        if message.get("tool_call_id") is not None:
            found["source_call_id"] = str(message["tool_call_id"])
        facts = {name: recorded[name] for name in (*_EXTRAS, "name", "error") if name in recorded}
        return found | _extra(message, facts)

    def _content(self, message: dict[str, Any]) -> str | list[dict[str, Any]]:
        """Return text, or a list of parts if there are images; a deleted image is named in a text."""
        content = message.get("content")
        texts = [content] if isinstance(content, str) else []
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and isinstance(part.get("text"), str):
                texts.append(part["text"])
            elif not image_urls([part]):
                texts.append(json.dumps(part, ensure_ascii=False, default=str))
        if isinstance(content, dict):
            texts.append(json.dumps(content, ensure_ascii=False, default=str))
        images = [self._stored(name) for name in image_names(message)]
        images += [self._inline(url) for url in image_urls(content)]
        if not images and len(texts) < 2:
            return texts[0] if texts else ""
        return [{"type": "text", "text": text} for text in texts] + images

    def _stored(self, name: str) -> dict[str, Any]:
        content = read_image(self._rollout.images, name)
        kind = image_type(content) if content else None
        if content is None or kind is None:
            return {"type": "text", "text": f"[the image {name} was deleted]"}
        return self._image(file_name(name), content, kind)

    def _inline(self, url: str) -> dict[str, Any]:
        content = read_data_url(url)
        if content is not None and (kind := image_type(content)):
            return self._image(hashlib.sha256(content).hexdigest()[:16] + _SUFFIXES[kind], content, kind)
        if "://" in url:
            return {"type": "image", "source": {"media_type": "image/png", "path": url}}
        return {"type": "text", "text": "[an image that cannot be read]"}

    def _image(self, name: str, content: bytes, kind: str) -> dict[str, Any]:
        folder = self._folder / "images"
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(content)
        return {"type": "image", "source": {"media_type": kind, "path": f"images/{name}"}}


def _numbered(step: dict[str, Any] | None, number: int | None) -> dict[str, Any]:
    """Return a recorded step with its number in the trajectory; empty without a step."""
    return {} if step is None else step | {"step": number}


def _extra(message: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
    """Return the field `extra`, empty if there is nothing to store."""
    if kept := image_names(message, "kept"):
        facts = facts | {"kept": kept}
    if message.get("name"):
        facts = facts | {"name": message["name"]}
    return {"extra": {"paragent": facts}} if facts else {}


def _call(call: dict[str, Any], number: int) -> dict[str, Any]:
    function = call.get("function")
    arguments, text = call_arguments(function)
    name = function.get("name") if isinstance(function, dict) else None
    found: dict[str, Any] = {
        "tool_call_id": str(call.get("id") or f"call_{number}"),
        "function_name": str(name or ""),
        "arguments": arguments,
    }
    return found | ({"extra": {"paragent": {"arguments": text}}} if text is not None else {})
