"""One execution for its page: the messages and steps of its trajectory merged into a transcript, and its files."""

from __future__ import annotations

import json
import re
import zlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.messages import reasoning_of
from paragent.rollout.blame import party_of
from paragent.store import images_folder, unpack_activity
from paragent.store.formats.conversations import BranchMessages, conversations, dictionaries
from paragent.store.program_step import program_failed, program_text
from paragent.view.api import ExecutionDetail, RawCall, ReplyTokens, StepNote, TokenSequence, ToolCall, TranscriptStep
from paragent.view.pointers import PointerReader
from paragent.view.queries import EXECUTION, to_ref
from paragent.view.runs import UnknownRun

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from paragent.store import Journal, RolloutResult
    from paragent.view.api import ExecutionRef, Pointer
    from paragent.view.runs import StoredRun

__all__ = [
    "MOST_CHARACTERS",
    "execution_detail",
    "is_recording",
    "raw_call",
    "raw_calls",
    "read_image",
    "step_text",
    "transcript_of",
]

MOST_CHARACTERS = 100_000
"""Characters of one text in a transcript; the route `text` has the rest."""
_MOST_IN_ALL = 10_000_000
"""Characters of all texts of a transcript. Beyond it, texts are cut at `_SHORT`, so that a browser can show the page."""
_SHORT = 2_000
_LARGEST_IMAGE = 64 << 20
"""Bytes of JSON."""
_IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".gif", ".webp")
_MOMENT = re.compile(r"_(\d{8}@\d{12})\.\w+$")
"""The time in the names of files, see `ImageStore`."""


def execution_detail(run: StoredRun, number: int) -> ExecutionDetail:
    """Return everything about one execution.

    Raises:
        UnknownRun: the run has no such execution.
        StoreFailed: the journal cannot be read.
    """
    with run.open() as journal:
        result = _result(journal, number)
        task = journal.task(result.task)
        trajectory = _trajectory(journal, number)
        steps = _Transcript(trajectory, result).build()
        executions = _refs(journal, "task = ? AND attempt = ?", [result.task, result.attempt])
        attempts = _newest(_refs(journal, "task = ?", [result.task]))
        notes = [StepNote(note.number or 0, note.step, note.text, note.at) for note in journal.notes(number)]
    _shorten(steps)
    tools = trajectory.get("tools")
    shown = {name for step in steps for name in step.images}
    return ExecutionDetail(
        run=run.name,
        number=number,
        **{name: getattr(result, name) for name in _SAME},
        status=str(result.status),
        question=task.question[:MOST_CHARACTERS] if task else "",
        reference="\n".join(task.references)[:MOST_CHARACTERS] if task else "",
        party=party_of(result.kind, result.status),
        error=result.error[:MOST_CHARACTERS],
        activity=_activity(result),
        steps=steps,
        tools=[tool for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else [],
        files=_other_files(run, result, shown),
        executions=executions,
        attempts=attempts,
        notes=notes,
        sequences=_sequences(trajectory),
    )


_SAME = (
    "task", "attempt", "final", "score", "scores", "answer", "ending", "kind", "turns", "tool_calls", "prompt_tokens",
    "completion_tokens", "seconds", "waited", "started", "ended", "worker", "machine",
)  # fmt: skip
"""Fields that a result and `ExecutionDetail` have in common."""


def raw_call(run: StoredRun, number: int, index: int) -> RawCall:
    """Return the request and the response of the model's message with this index in the transcript.

    Raises:
        UnknownRun: there is no such execution or message.
    """
    found = raw_calls(run, number)
    if index not in found:
        raise UnknownRun(f"step {index} of execution {number} is not a reply of a model")
    return found[index]


def raw_calls(run: StoredRun, number: int) -> dict[int, RawCall]:
    """Return the requests and responses of all calls of a model, by their indexes in the transcript.

    Raises:
        UnknownRun: there is no such execution.
    """
    with run.open() as journal:
        result = _result(journal, number)
        trajectory = _trajectory(journal, number)
    builder = _Transcript(trajectory, result)
    builder.build()
    found = {}
    for index, (one, position, step) in builder.calls.items():
        sent, own = step.get("messages"), step.get("request")
        messages = (
            own
            if isinstance(own, list)
            else one.messages[: sent if isinstance(sent, int) and 0 < sent <= position else position]
        )
        request: dict[str, Any] = {"model": str(step.get("model") or ""), "messages": messages}
        if trajectory.get("tools") and own is None:
            request["tools"] = trajectory["tools"]
        found[index] = RawCall(request, step.get("response"), _reply_tokens(one, position, step))
    return found


def _reply_tokens(one: BranchMessages, position: int, step: Mapping[str, Any]) -> ReplyTokens | None:
    """Return the tokens of a reply; None if they are not recorded, or are not numbers."""
    tokens = one.tokens.get(position)
    if tokens is None or one.replies.get(position) is not step:
        return None
    ids = [one for one in tokens.ids if isinstance(one, int)]
    numbers = [number for number in map(_real, tokens.logprobs or ()) if number is not None]
    return ReplyTokens(ids, numbers if len(numbers) == len(ids) else None, tokens.start, tokens.version)


def _sequences(trajectory: Mapping[str, Any]) -> list[TokenSequence]:
    found = []
    for one in dictionaries(trajectory.get("tokens")):
        ids, mask = one.get("token_ids"), one.get("mask")
        if isinstance(ids, list):
            sampled = mask.count(1) if isinstance(mask, list) else 0
            calls = len(dictionaries(one.get("turns")))
            found.append(TokenSequence(len(ids), sampled, calls, isinstance(one.get("logprobs"), list)))
    return found


def transcript_of(journal: Journal, number: int, *, pointers: bool = True) -> list[TranscriptStep]:
    """Return the transcript of an execution with whole texts.

    Args:
        journal: the journal of the run.
        number: the execution.
        pointers: whether to read the actions on screenshots, which takes as long as everything else.

    Raises:
        UnknownRun: there is no such execution.
    """
    return _Transcript(_trajectory(journal, number), _result(journal, number), pointers=pointers).build()


def step_text(run: StoredRun, number: int, index: int) -> str:
    """Return the whole text of a step.

    Raises:
        UnknownRun: there is no such execution or step.
    """
    with run.open() as journal:
        steps = transcript_of(journal, number)
    if index >= len(steps):
        raise UnknownRun(f"execution {number} has no step {index}")
    return steps[index].text


class _Transcript:
    """Merges the messages and the recorded steps of a trajectory, which an agent may have changed in any way."""

    def __init__(self, trajectory: dict[str, Any], result: RolloutResult, *, pointers: bool = True) -> None:
        self._conversations = conversations(trajectory) or [BranchMessages(0, 0, 0, [])]
        steps = dictionaries(trajectory.get("steps"))
        self._failed = [step for step in steps if step.get("kind") in {"model", "agent"} and step.get("error")]
        """Calls of the model without a reply."""
        self._others = [step for step in steps if step.get("kind") not in {"model", "agent", "tool"}]
        self._problem = str(trajectory.get("unstorable") or "")
        self._result = result
        self._pointers = PointerReader() if pointers else None
        self._turn = 0
        self._branch = 0
        self._seen = ""
        self.found: list[TranscriptStep] = []
        self.calls: dict[int, tuple[BranchMessages, int, dict[str, Any]]] = {}
        """For each call of a model, by its index: its branch, the position of its reply there, and its step."""
        self._results: dict[tuple[int, str], list[tuple[int, dict[str, Any]]]] = {}
        """Steps of tools with the positions of their messages, by the branch and the id of the call."""
        for one in self._conversations:
            for position, step in one.results.items():
                self._results.setdefault((one.branch, str(step.get("call"))), []).append((position, step))
        shown = {number for one in self._conversations for number in one.numbers.values()}
        self._gateway_tools = [
            step
            for number, step in enumerate(steps)
            if step.get("kind") == "tool" and "result" in step and number not in shown
        ]
        """Calls through the gateway: the agent has its own loop, and its messages have other ids, if there are any."""

    def build(self) -> list[TranscriptStep]:
        """Return the transcript."""
        for step in self._others:
            if step.get("kind") == "machine":
                text = " at ".join(str(step[key]) for key in ("machine", "address") if step.get(key))
                self._add("machine", text, step)
        for one in self._conversations:
            self._add_branch(one)
        self._branch = 0
        for step in self._gateway_tools:
            name, call, error = str(step.get("name") or ""), str(step.get("call") or ""), bool(step.get("error"))
            self._add("tool", str(step["result"]), step, call=call, name=name, error=error)
        for step in self._others:
            if step.get("kind") == "score":
                self._add("score", _score_text(step), step, name=str(step.get("metric") or ""))
            elif step.get("kind") == "judge":
                problem = str(step.get("error") or "")
                reply = self._add("judge", problem or _reply_text(step), step, error=bool(problem))
                self._add_call(reply, self._conversations[0], 0, step)
            elif step.get("kind") == "program":
                self._add("program", program_text(step), step, error=program_failed(step))
            elif step.get("kind") != "machine":
                self._add("agent", json.dumps(step, ensure_ascii=False, default=str), step)
        for problem in (self._problem, self._result.error):
            if problem:
                self._add("error", problem, {}, error=True)
        return self.found

    def _add_branch(self, one: BranchMessages) -> None:
        """Add the messages of a branch, without those that it shares with its parent."""
        self._branch = one.branch
        if one.branch:
            shared = counted(one.shared, "message")
            self._add("branch", f"Branch {one.branch}: shares {shared} with branch {one.parent}", {})
        failed = [step for step in self._failed if (step.get("branch") or 0) == one.branch]
        for position in range(one.shared, len(one.messages)):
            self._add_failed_calls(one, position, failed)
            self._add_message(one, position)
        self._add_failed_calls(one, len(one.messages), failed)

    def _add(self, kind: str, text: str, step: Mapping[str, Any], **given: Any) -> TranscriptStep:
        turn = step.get("turn")
        self._turn = turn if isinstance(turn, int) else self._turn
        at, seconds = _real(step.get("at")), _real(step.get("seconds"))
        given["branch"] = self._branch
        made = TranscriptStep(len(self.found), kind, self._turn, at, seconds, text, len(text), **given)
        self.found.append(made)
        return made

    def _add_message(self, one: BranchMessages, position: int) -> None:
        message = one.messages[position]
        role, text = str(message.get("role") or ""), _text(message.get("content"))
        if role == "assistant":
            self._add_reply(one, position, text)
        elif role == "tool":
            call = str(message.get("tool_call_id") or "")
            step = one.results.get(position, {})
            self._add("tool", text, step, call=call, name=str(step.get("name") or ""), error=bool(step.get("error")))
        else:
            self._add("system" if role in {"system", "developer"} else "user", text, {})
        images = _image_names(message)
        self.found[-1].images = images
        self._seen = images[-1] if images else self._seen

    def _add_failed_calls(self, one: BranchMessages, position: int, failed: list[dict[str, Any]]) -> None:
        """Add the failed calls that were made before the message at this position, and remove them from `failed`."""
        while failed:
            sent = failed[0].get("messages")
            if isinstance(sent, int) and sent > position and position < len(one.messages):
                break
            step = failed.pop(0)
            reply = self._add("model", str(step["error"]), step, error=True, seen=self._seen)
            self._add_call(reply, one, min(position, len(one.messages)), step)

    def _add_call(self, reply: TranscriptStep, one: BranchMessages, position: int, step: dict[str, Any]) -> None:
        """Add what is known about a call of a model, and remember its request and response."""
        _add_usage(reply, step)
        self.calls[reply.index] = (one, position, step)
        reply.raw = True

    def _add_reply(self, one: BranchMessages, position: int, text: str) -> None:
        message, step = one.messages[position], one.replies.get(position, {})
        kind = str(step.get("kind") or "model")
        calls = [_tool_call(call) for call in dictionaries(message.get("tool_calls"))]
        reply = self._add(kind, text, step, calls=calls, seen=self._seen)
        reply.reasoning = reasoning_of(message)
        pointers = self._read_pointers(one, position, calls)
        reply.pointers = pointers if self._seen else []  # without an image, `click` is a tool like any other
        if kind == "model":
            self._add_call(reply, one, position, step)
            tokens = one.tokens.get(position)
            reply.sampled_tokens = tokens.end - tokens.start if tokens else None

    def _read_pointers(self, one: BranchMessages, position: int, calls: Sequence[ToolCall]) -> list[Pointer]:
        found: list[Pointer] = []
        for call in calls:
            if self._pointers is not None:
                results = self._results.get((one.branch, call.id), ())
                step = next((step for after, step in results if after > position), {})
                extras = step.get("extras")
                performed = extras.get("action") if isinstance(extras, dict) else None
                found += self._pointers.read(call.arguments, performed, call.name)
        return found


def _add_usage(reply: TranscriptStep, step: Mapping[str, Any]) -> None:
    usage = step.get("usage")
    for name in ("prompt_tokens", "completion_tokens", "cached_tokens", "reasoning_tokens"):
        value = usage.get(name) if isinstance(usage, dict) else None
        setattr(reply, name, value if isinstance(value, int) else None)
    reply.name = str(step.get("model") or "")
    reply.response_model = str(step.get("response_model") or "")
    reply.cached = step.get("cached") is True
    version = step.get("version")
    reply.version = version if isinstance(version, int) else None
    reply.request_id = str(step.get("request_id") or "")
    reply.retries = step["retries"] if isinstance(step.get("retries"), int) else 0
    reply.waited = _real(step.get("waited")) or 0.0
    reply.finish_reason = str(step.get("finish_reason") or "")


def _tool_call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    given: Mapping[str, Any] = function if isinstance(function, dict) else {}
    arguments = given.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
    return ToolCall(str(call.get("id") or ""), str(given.get("name") or ""), text)


def _reply_text(step: Mapping[str, Any]) -> str:
    """Return the text of a recorded reply of an endpoint."""
    found: Any = step.get("response")
    for key in ("choices", 0, "message"):
        if isinstance(key, int):
            found = found[key] if isinstance(found, list) and found else None
        else:
            found = found.get(key) if isinstance(found, dict) else None
    return _text(found.get("content")) if isinstance(found, dict) else ""


def _score_text(step: Mapping[str, Any]) -> str:
    shown = {name: value for name, value in step.items() if name not in {"kind", "turn", "at", "seconds", "metric"}}
    if set(shown) <= {"note"}:
        return str(shown.get("note") or "")
    return json.dumps(shown, ensure_ascii=False, indent=2, default=str)


def _text(content: Any) -> str:
    """Return the text of a message: a string, or the text parts of a list."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and all(isinstance(part, dict) for part in content):
        return "\n".join(str(part["text"]) for part in content if isinstance(part.get("text"), str))
    return json.dumps(content, ensure_ascii=False, default=str)


def _image_names(message: Mapping[str, Any]) -> list[str]:
    """Return the names of a message's images: those that the model was shown, then those that were only stored."""
    lists = [message.get(key) for key in ("images", "kept")]
    names = [name for given in lists if isinstance(given, list) for name in given if isinstance(name, str)]
    return list(dict.fromkeys(names))


def _real(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _shorten(steps: Iterable[TranscriptStep]) -> None:
    """Cut long texts; `length` keeps the length of the whole text."""
    left = _MOST_IN_ALL
    for step in steps:
        most = MOST_CHARACTERS if left > 0 else _SHORT
        step.text, step.reasoning = step.text[:most], step.reasoning[:most]
        for call in step.calls:
            call.arguments = call.arguments[:most]
        left -= len(step.text) + len(step.reasoning) + sum(len(call.arguments) for call in step.calls)


def _result(journal: Journal, number: int) -> RolloutResult:
    result = next(journal.results("number = ?", [number]), None)
    if result is None:
        raise UnknownRun(f"the run has no execution {number}")
    return result


def _trajectory(journal: Journal, number: int) -> dict[str, Any]:
    try:
        found = journal.trajectory(number)
    except (ValueError, zlib.error) as error:
        return {"unstorable": f"the trajectory is damaged: {error}"}
    return found if isinstance(found, dict) else {}


def _refs(journal: Journal, where: str, values: Sequence[Any]) -> list[ExecutionRef]:
    query = f"SELECT {EXECUTION} FROM results WHERE {where} ORDER BY number"  # noqa: S608 - constants
    return [to_ref(row) for row in journal.rows(query, values)]


def _newest(refs: Iterable[ExecutionRef]) -> list[ExecutionRef]:
    """Return the final or else the newest execution of each attempt."""
    found: dict[int, ExecutionRef] = {}
    for ref in refs:
        if ref.attempt not in found or ref.final >= found[ref.attempt].final:
            found[ref.attempt] = ref
    return [found[attempt] for attempt in sorted(found)]


# --- files ------------------------------------------------------------------------------------------------------------


def read_image(run: StoredRun, number: int, name: str) -> bytes:
    """Return the content of an image of an execution. The name is looked up in the folder's listing.

    Raises:
        UnknownRun: there is no such execution or file.
    """
    with run.open() as journal:
        result = _result(journal, number)
    folder = images_folder(run.path, result.task, result.attempt)
    if name in _listing(run, folder):
        path = folder / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _LARGEST_IMAGE:
            return path.read_bytes()
    raise UnknownRun(f"execution {number} has no file {name[:100]!r}")


def is_recording(content: bytes) -> bool:
    """Return whether the first bytes are those of an MP4 file."""
    return content[4:8] == b"ftyp"


def _listing(run: StoredRun, folder: Path) -> list[str]:
    """Return the names of the files in a folder of a run; none if a link leads out of the run directory."""
    try:
        if not folder.resolve().is_relative_to(run.path.resolve()):
            return []
        return sorted(path.name for path in folder.iterdir())
    except OSError:
        return []


def _activity(result: RolloutResult) -> list[tuple[str, float]]:
    """Return what the rollout did; nothing if that is unknown or damaged."""
    try:
        return [(str(one.activity), one.seconds) for one in unpack_activity(result.activity)]
    except (TypeError, ValueError):
        return []


def _other_files(run: StoredRun, result: RolloutResult, shown: set[str]) -> list[str]:
    """Return the files of an execution that are not images, such as recordings. The folder has those of all retries."""
    names = _listing(run, images_folder(run.path, result.task, result.attempt))
    return [
        name
        for name in names
        if name not in shown and not name.lower().endswith(_IMAGE_SUFFIXES) and _is_during(name, result)
    ]


def _is_during(name: str, result: RolloutResult) -> bool:
    """Return whether the time in a file's name is in the execution; True if one of the times is unknown."""
    match = _MOMENT.search(name)
    if match is None or not result.started:
        return True
    try:
        moment = datetime.strptime(match[1], "%Y%m%d@%H%M%S%f").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return True
    return result.started - 1 <= moment <= result.ended + 60
