"""Export format `trl`: datasets that the trainers of TRL read.

The folder has two files for `datasets.load_dataset("json", data_files=...)`:

- `conversations.jsonl`: the conversational prompt-completion format with `tools`, one line for each conversation.
- `tokens.jsonl`: token sequences as they were sampled, if the endpoint returned token ids. TRL does not tokenise a dataset with
  `input_ids` again, and trains on the tokens whose `assistant_masks` is 1.

Both have `reward`, `task`, `attempt` and `status`. Images are files in `images/`; the column `images` has their paths.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, TextIO

from paragent.errors import UsageError
from paragent.messages import reasoning_of
from paragent.store.directory import file_name
from paragent.store.formats.base import ExportFormat
from paragent.store.formats.conversations import dictionaries, text_of
from paragent.store.formats.images import image_names, read_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paragent.store.formats.base import ExportedRollout, RunExport
    from paragent.store.formats.conversations import BranchMessages

__all__ = ["TrlFormat"]


class TrlFormat(ExportFormat):
    """A folder with conversations and, if they are recorded, sampled tokens."""

    folder = True

    def write(self, run: RunExport, target: Path) -> None:
        if target.exists() and any(target.iterdir()):
            raise UsageError(f"--output: {target} is not empty; choose another folder")
        target.mkdir(exist_ok=True)
        tokens: TextIO | None = None
        with contextlib.ExitStack() as stack:
            chats = stack.enter_context((target / "conversations.jsonl").open("w", encoding="utf-8"))
            for rollout in run.rollouts():
                lines = list(_conversations(rollout, target))
                chats.writelines(lines)
                for line in _sequences(rollout):
                    tokens = tokens or stack.enter_context((target / "tokens.jsonl").open("w", encoding="utf-8"))
                    tokens.write(line)
                if not lines:
                    run.leave_out(rollout, "no model replied")


def _facts(rollout: ExportedRollout) -> dict[str, Any]:
    result = rollout.result
    return {"reward": result.score, "task": result.task, "attempt": result.attempt, "status": str(result.status)}


def _conversations(rollout: ExportedRollout, target: Path) -> Iterator[str]:
    for one in rollout.conversations():
        roles = [message.get("role") for message in one.messages]
        if "assistant" not in roles[one.shared :]:
            continue
        # A branch repeats the replies of its parent, which are not to be trained on twice.
        start = roles.index("assistant", one.shared)
        names = _images(rollout, one, target)
        messages = [_message(message, with_parts=bool(names)) for message in one.messages]
        line: dict[str, Any] = {"prompt": messages[:start], "completion": messages[start:]}
        line["tools"] = json.dumps(dictionaries(rollout.trajectory.get("tools")), ensure_ascii=False)
        if names:
            line["images"] = names
        yield json.dumps(line | _facts(rollout) | {"branch": one.branch}, ensure_ascii=False) + "\n"


def _message(message: dict[str, Any], *, with_parts: bool) -> dict[str, Any]:
    text = text_of(message.get("content"))
    found: dict[str, Any] = {"role": str(message.get("role")), "content": text}
    if with_parts:
        images = [{"type": "image"}] * len(image_names(message))
        found["content"] = [*images, {"type": "text", "text": text}]
    if reasoning := reasoning_of(message):
        found["reasoning_content"] = reasoning
    if calls := dictionaries(message.get("tool_calls")):
        found["tool_calls"] = [{"type": "function", "function": _function(call)} for call in calls]
    if message.get("role") == "tool":
        found["tool_call_id"] = str(message.get("tool_call_id") or "")
    return found


def _function(call: dict[str, Any]) -> dict[str, Any]:
    """Return a call with its arguments as an object, as chat templates expect them; text if they are not JSON."""
    function = call.get("function")
    given = function if isinstance(function, dict) else {}
    arguments = given.get("arguments")
    if isinstance(arguments, str):
        with contextlib.suppress(ValueError, RecursionError):
            arguments = json.loads(arguments)
    return {"name": str(given.get("name") or ""), "arguments": arguments}


def _images(rollout: ExportedRollout, one: BranchMessages, target: Path) -> list[str]:
    """Copy the images of a conversation and return their paths in the folder, in the order of the messages."""
    result = rollout.result
    paths = []
    for name in (name for message in one.messages for name in image_names(message)):
        relative = f"images/{file_name(result.task)}/{result.attempt}/{file_name(name)}"
        copy = target / relative
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(read_image(rollout.images, name) or b"")
        paths.append(relative)
    return paths


def _sequences(rollout: ExportedRollout) -> Iterator[str]:
    for number, sequence in enumerate(dictionaries(rollout.trajectory.get("tokens"))):
        line = {
            "input_ids": sequence.get("token_ids"),
            "assistant_masks": sequence.get("mask"),
            "logprobs": sequence.get("logprobs"),
            "versions": [turn.get("version") for turn in dictionaries(sequence.get("turns"))],
        }
        yield json.dumps(line | _facts(rollout) | {"sequence": number}) + "\n"
