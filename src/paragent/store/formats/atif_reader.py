"""Import of ATIF trajectories: single files, folders of them, and the jobs of Harbor."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent.store.directory import file_name
from paragent.store.formats.conversations import dictionaries
from paragent.store.formats.images import image_type, read_image
from paragent.store.formats.imported import TokenJoiner, real, result_from, string, structure, timestamp, whole
from paragent.store.formats.importing import BadImport, ImportedRollout, read_document
from paragent.store.records import RolloutStatus, pack_trajectory
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["is_atif", "read_atif"]

_MOST_IMAGES = 10_000
_ROLES = {"system": "system", "user": "user", "agent": "assistant"}


def is_atif(document: Any) -> bool:
    """Return whether a document says that it is an ATIF trajectory."""
    return isinstance(document, dict) and string(document.get("schema_version")).startswith("ATIF-")


def read_atif(path: Path, document: dict[str, Any]) -> ImportedRollout:
    """Return the result in a trajectory; the score and the failure of a Harbor trial are in a file beside it.

    Args:
        path: the file, to find images and the result of the trial.
        document: its content.

    Raises:
        BadImport: it has no steps.
    """
    if not dictionaries(document.get("steps")):
        raise BadImport("the trajectory has no steps")
    reader = _Reader(document, path.parent)
    trajectory = reader.trajectory()
    facts = structure(structure(document.get("extra")).get("paragent"))
    task = structure(facts.get("task"))
    if facts:
        values = dict(facts)
    else:
        trial = _trial(path)
        values = _facts_of_trial(trial, trajectory) | _totals(document)
        values["started"] = values.get("started") or reader.started or 0.0
        values["ended"] = values.get("ended") or reader.ended or values["started"]
        values["seconds"] = max(0.0, values["ended"] - values["started"])
        task = {"id": trial.get("task_name") or _name(path, document), "question": _question(trajectory)}
    identity = string(task.get("id")) or _name(path, document)
    result = result_from(identity, values)
    result.trajectory = pack_trajectory(trajectory)
    result.files = reader.files
    question, metadata = string(task.get("question")), structure(task.get("metadata"))
    agent = structure(document.get("agent"))
    about = {"format": "atif", "agent": string(agent.get("name")), "model": string(agent.get("model_name"))}
    return ImportedRollout(BenchmarkTask(result.task, question, task.get("answer"), metadata), result, about)


class _Reader:
    """Converts the steps of a trajectory and of those that are embedded in it."""

    def __init__(self, document: dict[str, Any], folder: Path) -> None:
        self._document = document
        self._folder = folder
        self._facts = structure(structure(document.get("extra")).get("paragent"))
        self._steps: list[tuple[int | None, dict[str, Any], dict[str, Any]]] = []
        """The number of each step in the original trajectory, if it is known; the step; its metrics."""
        self._turn = 0
        self.files: dict[str, bytes] = {}
        times = [timestamp(step.get("timestamp")) for step in dictionaries(document.get("steps"))]
        known = [moment for moment in times if moment is not None]
        self.started = real(self._facts.get("started")) or (min(known) if known else None)
        self.ended = max(known) if known else None

    def trajectory(self) -> dict[str, Any]:
        """Return the trajectory for the store."""
        document = self._document
        found: dict[str, Any] = {"messages": self._messages(document, 0)}
        branches = []
        for number, sub in enumerate(dictionaries(document.get("subagent_trajectories")), 1):
            facts = structure(structure(sub.get("extra")).get("paragent"))
            parent, shared = whole(facts.get("parent")) or 0, max(0, whole(facts.get("shared")) or 0)
            messages = self._messages(sub, number)
            branches.append({"parent": parent, "shared": shared, "messages": messages[shared:]})
        tools = structure(document.get("agent")).get("tool_definitions")
        found["tools"] = dictionaries(tools)
        for step in dictionaries(self._facts.get("steps")):
            self._steps.append((whole(step.get("step")), {k: v for k, v in step.items() if k != "step"}, {}))
        self._order()
        found["steps"] = [step for _, step, _ in self._steps]
        if branches:
            found["branches"] = branches
        tokens = TokenJoiner()
        for number, (_, _, metrics) in enumerate(self._steps):
            ids, logprobs = metrics.get("completion_token_ids"), metrics.get("logprobs")
            tokens.add(metrics.get("prompt_token_ids"), ids, logprobs, number, metrics.get("version"))
        return found | ({"tokens": tokens.sequences} if tokens.sequences else {})

    def _order(self) -> None:
        """Restore the order of the steps, if the numbers of all of them are known."""
        if all(number is not None for number, _, _ in self._steps):
            self._steps.sort(key=lambda one: one[0] or 0)

    def _messages(self, document: dict[str, Any], branch: int) -> list[dict[str, Any]]:
        messages: list[dict[str, Any]] = []
        for step in dictionaries(document.get("steps")):
            facts = structure(structure(step.get("extra")).get("paragent"))
            copied = step.get("is_copied_context") is True
            if facts.get("not_sent") is True:
                continue
            source = string(step.get("source"))
            results = dictionaries(structure(step.get("observation")).get("results"))
            if source == "agent":
                self._turn += not copied
                messages.append(self._reply(step, facts))
                if not copied:
                    self._add_call(step, facts, len(messages) - 1, branch)
            elif step.get("message") or not results:
                role = string(facts.get("role")) or _ROLES.get(source, "user")
                messages.append(self._message(role, step.get("message")))
            for number, result in enumerate(results):
                calls = dictionaries(step.get("tool_calls"))
                messages.append(self._result(result, calls, number, copied=copied))
        return messages

    def _reply(self, step: dict[str, Any], facts: dict[str, Any]) -> dict[str, Any]:
        message = self._message("assistant", step.get("message"))
        calls = [_call(call) for call in dictionaries(step.get("tool_calls"))]
        if calls:
            message |= {"content": message["content"] or None, "tool_calls": calls}
        if reasoning := string(step.get("reasoning_content")):
            message["reasoning_content"] = reasoning
        return message | ({"name": facts["name"]} if isinstance(facts.get("name"), str) else {})

    def _add_call(self, step: dict[str, Any], facts: dict[str, Any], sent: int, branch: int) -> None:
        metrics = structure(step.get("metrics"))
        usage = {name: metrics.get(name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
        usage |= {"reasoning_tokens": structure(metrics.get("extra")).get("reasoning_tokens")}
        usage = {name: value for name, value in usage.items() if whole(value) is not None}
        known = {"request_id", "waited", "retries", "finish_reason", "cached", "version"}
        by_model = step.get("llm_call_count") != 0
        found: dict[str, Any] = {
            "kind": "model" if by_model else "agent",
            "turn": self._turn,
            **self._times(step, facts),
        }
        found |= {name: facts[name] for name in known if name in facts}
        if by_model:
            model = string(step.get("model_name")) or string(structure(self._document.get("agent")).get("model_name"))
            found |= {"model": model, "messages": sent, "usage": usage or None}
            if requested := string(facts.get("requested_model")):
                found |= {"model": requested, "response_model": model}
        found |= {"branch": branch} if branch else {}
        metrics = metrics | {"version": whole(facts.get("token_version"))}
        self._steps.append((whole(facts.get("step")), found, metrics))

    def _times(self, step: dict[str, Any], facts: dict[str, Any]) -> dict[str, float]:
        at, moment = real(facts.get("at")), timestamp(step.get("timestamp"))
        if at is None and moment is not None and self.started is not None:
            at = round(moment - self.started, 4)
        seconds = real(facts.get("seconds"))
        return {name: value for name, value in (("at", at), ("seconds", seconds)) if value is not None}

    def _result(
        self, result: dict[str, Any], calls: list[dict[str, Any]], number: int, *, copied: bool
    ) -> dict[str, Any]:
        facts = structure(structure(result.get("extra")).get("paragent"))
        call = string(result.get("source_call_id")) or string(facts.get("tool_call_id"))
        if not call and number < len(calls):
            call = string(calls[number].get("tool_call_id"))
        names = {string(one.get("tool_call_id")): string(one.get("function_name")) for one in calls}
        if not copied:
            step: dict[str, Any] = {"kind": "tool", "turn": self._turn, **self._times(result, facts), "call": call}
            step["name"] = string(facts.get("name")) or names.get(call, "")
            step |= {name: facts[name] for name in ("error", "extras") if facts.get(name)}
            self._steps.append((whole(facts.get("step")), step, {}))
        return self._message("tool", result.get("content")) | {"tool_call_id": call}

    def _message(self, role: str, content: Any) -> dict[str, Any]:
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else dictionaries(content)
        texts = [string(part.get("text")) for part in parts if part.get("type") == "text"]
        message: dict[str, Any] = {"role": role, "content": "\n".join(texts)}
        images = []
        for part in parts:
            kind, path = string(part.get("type")), string(structure(part.get("source")).get("path"))
            if kind in {"image", "audio"} and (name := self._file(path)):
                images.append(name)
            elif kind in {"image", "audio"}:
                message["content"] += f"\n[{kind} that was not imported: {path[:200]}]"
        return message | ({"images": images} if images else {})

    def _file(self, path: str) -> str:
        """Add the image at a path in the folder of the trajectory and return its name; empty if it cannot be imported."""
        if not path or "://" in path or len(self.files) >= _MOST_IMAGES:
            return ""
        found = self._folder / path
        home = self._folder.resolve()
        try:
            inside = found.resolve().is_relative_to(home) and ".." not in found.relative_to(self._folder).parts
        except (OSError, ValueError):  # an absolute path, or one with a null character
            return ""
        content = read_image(found.parent, found.name) if inside else None
        if content is None or image_type(content) is None:
            return ""
        name = file_name(found.relative_to(self._folder).as_posix().removeprefix("images/"))
        self.files[name] = content
        return name


def _call(call: dict[str, Any]) -> dict[str, Any]:
    facts = structure(structure(call.get("extra")).get("paragent"))
    given = facts.get("arguments")
    arguments = given if isinstance(given, str) else json.dumps(structure(call.get("arguments")), ensure_ascii=False)
    function = {"name": string(call.get("function_name")), "arguments": arguments}
    return {"id": string(call.get("tool_call_id")), "type": "function", "function": function}


def _name(path: Path, document: dict[str, Any]) -> str:
    """Return an id for the task of a trajectory that names none."""
    if path.name != "trajectory.json":
        return path.stem
    folder = path.parent.parent if path.parent.name == "agent" else path.parent
    return folder.name or string(document.get("session_id")) or path.stem


def _trial(path: Path) -> dict[str, Any]:
    """Return the result of the Harbor trial that a trajectory belongs to; empty if there is none."""
    beside = path.parent.parent / "result.json"
    if path.parent.name != "agent" or beside.is_symlink() or not beside.is_file():
        return {}
    return structure(read_document(beside))


def _facts_of_trial(trial: dict[str, Any], trajectory: dict[str, Any]) -> dict[str, Any]:
    replies = [message for message in trajectory["messages"] if message["role"] == "assistant"]
    rewards = structure(structure(trial.get("verifier_result")).get("rewards"))
    scores = {name: real(value) for name, value in rewards.items() if real(value) is not None}
    failure = structure(trial.get("exception_info"))
    kind, message = string(failure.get("exception_type")), string(failure.get("exception_message"))
    status = RolloutStatus.COMPLETED
    if failure:
        status = RolloutStatus.TIMED_OUT if "Timeout" in kind else RolloutStatus.FAILED
    return {
        "status": status,
        "kind": kind,
        "error": f"{kind}: {message}" if failure else "",
        "score": scores.get("reward", next(iter(scores.values()), None)),
        "scores": scores,
        "answer": replies[-1]["content"] if replies else None,
        "turns": len(replies),
        "requests": len(replies),
        "tool_calls": sum(len(message.get("tool_calls") or ()) for message in replies),
        "started": timestamp(trial.get("started_at")),
        "ended": timestamp(trial.get("finished_at")),
    }


def _totals(document: dict[str, Any]) -> dict[str, Any]:
    totals = structure(document.get("final_metrics"))
    names = ("prompt_tokens", "completion_tokens", "cached_tokens")
    return {name: whole(totals.get(f"total_{name}")) for name in names}


def _question(trajectory: dict[str, Any]) -> str:
    texts = [message["content"] for message in trajectory["messages"] if message["role"] == "user"]
    return texts[0] if texts else ""
