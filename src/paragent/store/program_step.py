"""The step of a program that ran as the agent, as text for people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["program_failed", "program_text"]

_PLACES = {"sandbox": "in the sandbox", "host": "on the host", "machine": "in the machine"}


def program_text(step: Mapping[str, Any]) -> str:
    """Return the command, how it ended, and its output. The step may be malformed: a trajectory can come from anywhere."""
    command, place, seconds = step.get("command"), step.get("place"), step.get("seconds")
    words = [str(word) for word in command] if isinstance(command, list) else []
    time = f" after {seconds:.1f} s" if isinstance(seconds, int | float) else ""
    lines = [f"$ {shlex.join(words)}", f"{_ending(step)}{time} {_PLACES.get(str(place), '')}".rstrip()]
    for name in ("stdout", "stderr"):
        if text := step.get(name):
            lines += ["", f"{name}:", str(text).rstrip("\n")]
    return "\n".join(lines)


def program_failed(step: Mapping[str, Any]) -> bool:
    """Return whether the program failed or was stopped."""
    return step.get("exit_code") != 0 or bool(step.get("problem"))


def _ending(step: Mapping[str, Any]) -> str:
    if step.get("problem"):
        return str(step["problem"])
    return "exit code unknown" if step.get("exit_code") is None else f"exit code {step['exit_code']}"
