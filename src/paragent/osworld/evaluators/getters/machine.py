"""Getters of files and machine state: commands, terminal, accessibility tree, directories, sizes, wallpaper."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from paragent.osworld.access import fetch
from paragent.osworld.context import MachineRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from paragent.osworld.context import GetterContext

__all__ = [
    "accessibility_tree",
    "cache_file",
    "cloud_file",
    "copy_of",
    "default_video_player",
    "list_directory",
    "unless_refused",
    "vm_command_error",
    "vm_command_line",
    "vm_file",
    "vm_screen_size",
    "vm_terminal_output",
    "vm_wallpaper",
    "vm_window_size",
]

Answer = TypeVar("Answer")
_VIDEO = (  # noqa: SIM905 - a table of words
    "3gp 3gpp 3gpp2 avi divx dv fli flv mp2t mp4 mp4v-es mpeg mpeg-system msvideo ogg quicktime vnd.divx vnd.mpegurl "
    "vnd.rn-realvideo webm x-anim x-avi x-flc x-fli x-flv x-m4v x-matroska x-mpeg x-mpeg-system x-mpeg2 x-ms-asf "
    "x-ms-asf-plugin x-ms-asx x-ms-wm x-ms-wmv x-ms-wmx x-ms-wvx x-msvideo x-nsv x-ogm x-ogm+ogg x-theora x-theora+ogg"
).split()
"""MIME subtypes of videos."""


async def _execute(context: GetterContext, config: Mapping[str, Any]) -> Any:
    shell = config.get("shell", False)
    return await context.attempt.controller.execute(config["command"], shell=shell in {True, "true", "True"})


async def vm_command_line(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the output of a command; None if the machine cannot run it."""
    done = await _execute(context, config)
    return None if done.status == "error" else str(done.output)


async def vm_command_error(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the standard error of a command; None if the machine cannot run it."""
    done = await _execute(context, config)
    return None if done.status == "error" else str(done.error)


async def unless_refused(asking: Awaitable[Answer]) -> Answer | None:
    """Return the machine's answer; None if it refuses because there is no such directory or window.

    Raises:
        InfrastructureError: the machine does not answer.
    """
    try:
        return await asking
    except MachineRefused:
        return None


async def vm_terminal_output(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the text of the terminal; None if there is none."""
    return await unless_refused(context.attempt.controller.terminal())


async def accessibility_tree(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the accessibility tree as XML; None if the machine has none."""
    return await unless_refused(context.attempt.controller.accessibility_tree())


async def list_directory(context: GetterContext, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the directory tree below a path; None if it does not exist."""
    tree = await unless_refused(context.attempt.controller.list_directory(config["path"]))
    return None if tree is None else dict(tree)


async def vm_screen_size(context: GetterContext, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of the screen."""
    width, height = await context.attempt.controller.screen_size()
    return {"width": width, "height": height}


async def vm_window_size(context: GetterContext, config: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the size of an application's window; None if it has no window."""
    size = await unless_refused(context.attempt.controller.window_size(config["app_class_name"]))
    return None if size is None else {"width": size[0], "height": size[1]}


async def vm_wallpaper(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the path of a copy of the wallpaper; None if there is none."""
    wallpaper = await unless_refused(context.attempt.controller.wallpaper())
    return None if wallpaper is None else await context.write(config["dest"], wallpaper)


async def default_video_player(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return the application that opens most video types; `unknown` if there is none."""
    question = "; ".join(f"xdg-mime query default video/{kind}" for kind in _VIDEO)
    done = await context.attempt.controller.execute(["/bin/sh", "-c", question])
    answers = [line for line in done.output.splitlines(keepends=True) if line.strip()]
    return Counter(answers).most_common(1)[0][0] if answers else "unknown"


_LARGEST = 1 << 30
"""Maximum size of a file in bytes; the largest one of OSWorld's tasks is a video of 100 MB."""


def _listed(config: Mapping[str, Any]) -> tuple[list[str], list[str], set[int]]:
    """Return the sources, the target names, and the indexes of those that the metric receives."""
    if config.get("multi", False):
        return config["path"], config["dest"], set(config.get("gives", [0]))
    return [config["path"]], [config["dest"]], {0}


def _given(found: list[str | None]) -> str | list[str | None] | None:
    return found[0] if len(found) == 1 else found


async def vm_file(context: GetterContext, config: Mapping[str, Any]) -> str | list[str | None] | None:
    """Return the path of a copy of a file of the machine, None if it does not exist; with `multi`, of those in `gives`."""
    sources, names, gives = _listed(config)
    found: list[str | None] = []
    for number, (source, name) in enumerate(zip(sources, names, strict=False)):
        copy = await copy_of(context, source, name)
        if number in gives:
            found.append(copy)
    return _given(found)


async def copy_of(context: GetterContext, source: str, name: str) -> str | None:
    """Return the path of a copy of a file of the machine; None if it does not exist or is too large."""
    context.path(name).unlink(missing_ok=True)
    data = await context.attempt.controller.file(source)
    if data is None or len(data) > _LARGEST:
        return None
    return await context.write(name, data)


async def cloud_file(context: GetterContext, config: Mapping[str, Any]) -> str | list[str | None] | None:
    """Return the path of a copy of a downloaded file; with `multi`, of those in `gives`.

    As in OSWorld, a file of the same name in the result replaces the download, unless evaluators are strict.

    Raises:
        EnvironmentFailed: the download failed.
    """
    sources, names, gives = _listed(config)
    found: list[str | None] = []
    for number, (source, name) in enumerate(zip(sources, names, strict=False)):
        path = context.path(name)
        if context.result_folder is not None and (kept := context.result_folder / name).is_file():
            path = kept
        else:
            await asyncio.to_thread(shutil.copyfile, await fetch(source, context.attempt.access), path)
        if number in gives:
            found.append(str(path))
    return _given(found)


async def cache_file(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return the path of a file that a step wrote, such as the output of a command.

    Raises:
        FileNotFoundError: no step wrote it.
    """
    root = context.attempt.folder.resolve()
    path = (root / config["path"]).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise FileNotFoundError(f"no step wrote a file {config['path']}")
    return str(path)
