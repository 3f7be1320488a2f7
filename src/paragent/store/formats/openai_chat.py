"""Export format `openai-chat`: conversations as OpenAI's fine-tuning reads them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from paragent.messages import with_images
from paragent.store.formats.base import ExportFormat
from paragent.store.formats.images import image_names, read_image

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from paragent.store.formats.base import ExportedRollout, RunExport

__all__ = ["OpenAIChatFormat", "chat_lines"]

REASONING = ("reasoning_content", "reasoning")
"""The keys of a message with what a model wrote before its answer."""


class OpenAIChatFormat(ExportFormat):
    """One conversation per line, images included; a branch is a line of its own.

    Endpoints for fine-tuning reject unknown keys, so reasoning is left out unless the user asks for it.
    """

    def write(self, run: RunExport, target: Path) -> None:
        with target.open("w", encoding="utf-8") as file:
            for rollout in run.rollouts():
                lines = 0
                for line in chat_lines(rollout, reasoning=run.reasoning):
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
                    lines += 1
                if not lines:
                    run.leave_out(rollout, "there are no messages")


def chat_lines(rollout: ExportedRollout, *, reasoning: bool) -> Iterator[dict[str, Any]]:
    """Yield a line for each conversation of a rollout."""
    result = rollout.result
    for one in rollout.conversations():
        if not one.messages:
            continue
        messages: list[dict[str, Any]] = []
        images: dict[str, bytes] = {}
        for message in one.messages:
            images |= _images(message, rollout.images)
            messages.append(_sendable(message, images, reasoning=reasoning))
        line: dict[str, Any] = {"messages": with_images(messages, images.__getitem__)}
        if rollout.trajectory.get("tools"):
            line["tools"] = rollout.trajectory["tools"]
        line["metadata"] = {"task": result.task, "attempt": result.attempt, "score": result.score}
        if one.branch:
            line["metadata"]["branch"] = one.branch
        yield line


def _images(message: dict[str, Any], folder: Path) -> dict[str, bytes]:
    """Return the images of a message that exist, by name."""
    found = {name: read_image(folder, name) for name in image_names(message)}
    return {name: content for name, content in found.items() if content is not None}


def _sendable(message: dict[str, Any], images: dict[str, bytes], *, reasoning: bool) -> dict[str, Any]:
    """Return a message with the names of images that exist and, unless `reasoning` is set, without reasoning."""
    left_out = {"images", "kept", *(() if reasoning else REASONING)}
    found = {name: value for name, value in message.items() if name not in left_out}
    if names := [name for name in image_names(message) if name in images]:
        found["images"] = names
    return found
