"""Set-up steps of OSWorld's task files: run before an attempt, and by evaluators before they check the result."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import logging
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._installation import install_command
from paragent.errors import EnvironmentFailed
from paragent.osworld.access import fetch
from paragent.osworld.actions import BadAction, command_of, read_action
from paragent.osworld.context import MachineRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

    from paragent.osworld.context import AttemptContext

__all__ = ["STEPS", "missing_for_steps", "set_up"]

_UNTIL_SECONDS = 300.0
"""How long a command with `until` is repeated; OSWorld has no limit."""
_UNTIL_FAILURES = 5
"""The number of tries that the machine could not run after which a command is given up, as in OSWorld."""
_UNTIL_PAUSE = 0.3
"""Seconds between two tries, as in OSWorld."""
_log = logging.getLogger(__name__)


async def set_up(steps: Sequence[Mapping[str, Any]], attempt: AttemptContext) -> None:
    """Run the steps in order.

    Raises:
        InfrastructureError: a step failed; the message has its number and type.
    """
    for number, step in enumerate(steps, 1):
        kind, parameters = str(step.get("type")), dict(step.get("parameters") or {})
        if kind not in STEPS:
            raise EnvironmentFailed(f"set-up step {number}: {_unknown(kind)}")
        try:
            await STEPS[kind](attempt, **parameters)
        except (TypeError, KeyError, ValueError, OSError) as error:
            raise EnvironmentFailed(f"set-up step {number} ({kind}): {type(error).__name__}: {error}") from error


def missing_for_steps(steps: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what these steps need and is missing: unknown steps, accounts, extras."""
    found: dict[str, None] = {}
    for step in steps:
        kind = str(step.get("type"))
        if kind in _ACCOUNTS:
            found[f"{_ACCOUNTS[kind]} (set-up step {kind})"] = None
        elif kind not in STEPS:
            found[_unknown(kind)] = None
        elif kind in _BROWSER and importlib.util.find_spec("playwright") is None:
            found[f"{install_command(['web'])} (set-up step {kind})"] = None
    return list(found)


def _unknown(kind: str) -> str:
    return _ACCOUNTS.get(kind) or f"the unknown set-up step {kind!r}"


@contextlib.contextmanager
def _refusal_logged(what: str) -> Iterator[None]:
    """Log a refusal of the machine and continue, as OSWorld does for these steps; its tasks rely on that.

    Raises:
        InfrastructureError: the machine does not answer.
    """
    try:
        yield
    except MachineRefused as error:
        _log.warning("%s: %s", what, error)


# --- files ----------------------------------------------------------------------------------------------------------------


async def _download(attempt: AttemptContext, files: Sequence[Mapping[str, str]]) -> None:
    """Download files to this host, once for all attempts, and upload them to the machine, which may have no network."""
    for file in files:
        kept = await fetch(file["url"], attempt.access)
        await attempt.controller.upload(file["path"], await asyncio.to_thread(kept.read_bytes))


async def _upload_file(attempt: AttemptContext, files: Sequence[Mapping[str, str]]) -> None:
    for file in files:
        source = attempt.access.file(file["local_path"])
        await attempt.controller.upload(file["path"], await asyncio.to_thread(source.read_bytes))


async def _open(attempt: AttemptContext, path: str) -> None:
    await attempt.controller.open_file(path)


async def _change_wallpaper(attempt: AttemptContext, path: str) -> None:
    with _refusal_logged(f"the wallpaper {path!r} was not set"):
        await attempt.controller.change_wallpaper(path)


# --- commands -------------------------------------------------------------------------------------------------------------


async def _launch(attempt: AttemptContext, command: str | list[str], shell: bool | str = False) -> None:
    in_shell = _truth(shell)
    filled = _filled(command, attempt)
    if isinstance(filled, str) and not in_shell:
        filled = shlex.split(filled)
    with _refusal_logged(f"{filled!r} was not launched"):
        await attempt.controller.launch(filled, shell=in_shell)


async def _execute(
    attempt: AttemptContext,
    command: str | list[str],
    stdout: str = "",
    stderr: str = "",
    shell: bool | str = False,
    until: Mapping[str, Any] | None = None,
) -> None:
    """Run a command, repeatedly if `until` is given; `stdout` and `stderr` name files of the attempt's folder for its output."""
    filled = _filled(command, attempt)
    deadline = asyncio.get_running_loop().time() + _UNTIL_SECONDS
    failures = 0
    while True:
        done = await attempt.controller.execute(filled, shell=_truth(shell))
        if done.status != "success":
            failures += 1
            _log.warning("the set-up command %r could not be run: %s", filled, done.error)
        for name, text in ((stdout, done.output), (stderr, done.error)):
            if name and done.status == "success":
                (attempt.folder / Path(name).name).write_text(text, encoding="utf-8")
        if not until or _came_true(until, done) or failures >= _UNTIL_FAILURES:
            return
        if asyncio.get_running_loop().time() > deadline:
            raise EnvironmentFailed(f"{filled!r} did not give {dict(until)} within {_UNTIL_SECONDS:g} s")
        await asyncio.sleep(_UNTIL_PAUSE)


async def _execute_with_verification(
    attempt: AttemptContext,
    command: str | list[str],
    verification: Mapping[str, Any] | None = None,
    max_wait_time: float = 10.0,
    check_interval: float = 1.0,
    shell: bool | str = False,
) -> None:
    filled = _filled(command, attempt)
    done = await attempt.controller.execute_with_verification(
        filled, verification or {}, shell=_truth(shell), max_wait_time=max_wait_time, check_interval=check_interval
    )
    if done.status != "success":
        raise MachineRefused(f"{filled!r} did not result in {verification}: {done.error}")


async def _sleep(_: AttemptContext, seconds: float) -> None:
    await asyncio.sleep(float(seconds))


def _came_true(until: Mapping[str, Any], done: Any) -> bool:
    if done.status != "success":
        return False
    if "returncode" in until and done.returncode == until["returncode"]:
        return True
    return ("stdout" in until and until["stdout"] in done.output) or (
        "stderr" in until and until["stderr"] in done.error
    )


def _truth(value: bool | str) -> bool:
    """Return a flag that some task files write as the string "true"."""
    return value if isinstance(value, bool) else value.strip().lower() == "true"


def _filled(command: str | list[str], attempt: AttemptContext) -> str | list[str]:
    """Return the command with its placeholders replaced."""
    width, height = attempt.screen
    values = {"CLIENT_PASSWORD": attempt.client_password, "SCREEN_WIDTH": width, "SCREEN_HEIGHT": height}
    values |= {"SCREEN_WIDTH_HALF": width // 2, "SCREEN_HEIGHT_HALF": height // 2}

    def fill(text: str) -> str:
        for name, value in values.items():
            text = text.replace(f"{{{name}}}", str(value))
        return text

    return fill(command) if isinstance(command, str) else [fill(str(word)) for word in command]


# --- windows and actions --------------------------------------------------------------------------------------------------


async def _activate_window(
    attempt: AttemptContext, window_name: str, strict: bool = False, by_class: bool = False
) -> None:
    with _refusal_logged(f"no window {window_name!r} was activated"):
        await attempt.controller.activate_window(window_name, strict=strict, by_class=by_class)


async def _close_window(
    attempt: AttemptContext, window_name: str, strict: bool = False, by_class: bool = False
) -> None:
    with _refusal_logged(f"no window {window_name!r} was closed"):
        await attempt.controller.close_window(window_name, strict=strict, by_class=by_class)


async def _act(attempt: AttemptContext, action_list: Sequence[Any]) -> None:
    """Perform actions of either action space."""
    for said in action_list:
        space = "computer_13" if isinstance(said, dict) and "action_type" in said else "pyautogui"
        try:
            action = read_action(said, space, attempt.screen)
        except BadAction as error:
            raise EnvironmentFailed(f"the action {said!r}: {error}") from error
        if action.code:
            await attempt.controller.execute(command_of(action.code))


async def _replay(attempt: AttemptContext, trajectory: str) -> None:
    """Perform the actions of a recorded trajectory: a JSON list, or OSWorld's `traj.jsonl`."""
    text = await asyncio.to_thread(attempt.access.file(trajectory).read_text, "utf-8")
    steps = json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]
    await _act(attempt, [step["action"] if isinstance(step, dict) and "action" in step else step for step in steps])


# --- browser --------------------------------------------------------------------------------------------------------------


async def _chrome_open_tabs(attempt: AttemptContext, urls_to_open: Sequence[str]) -> None:
    from paragent.osworld.browser import open_tabs

    await open_tabs(attempt.controller.devtools, urls_to_open)


async def _chrome_close_tabs(attempt: AttemptContext, urls_to_close: Sequence[str]) -> None:
    from paragent.osworld.browser import close_tabs

    await close_tabs(attempt.controller.devtools, urls_to_close)


async def _update_browse_history(attempt: AttemptContext, history: Sequence[Mapping[str, Any]]) -> None:
    from paragent.osworld.browser import update_history

    await update_history(attempt.controller, attempt.folder, history)


STEPS: dict[str, Callable[..., Awaitable[None]]] = {
    "act": _act,
    "activate_window": _activate_window,
    "change_wallpaper": _change_wallpaper,
    "chrome_close_tabs": _chrome_close_tabs,
    "chrome_open_tabs": _chrome_open_tabs,
    "close_window": _close_window,
    "command": _execute,
    "download": _download,
    "execute": _execute,
    "execute_with_verification": _execute_with_verification,
    "launch": _launch,
    "open": _open,
    "replay": _replay,
    "sleep": _sleep,
    "update_browse_history": _update_browse_history,
    "upload_file": _upload_file,
}
"""The supported steps, by the names that task files use."""
_BROWSER = {"chrome_open_tabs", "chrome_close_tabs"}
_ACCOUNTS = {
    "googledrive": "a Google account",
    "login": "a Google account",
    "proxy": "a proxy of your own, which the machine's image has to bring",
}
"""Steps of OSWorld that need something that only the user has."""
