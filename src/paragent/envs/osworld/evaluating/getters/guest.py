"""What the guest says: commands, terminal, accessibility tree, folders, sizes, wallpaper."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

from paragent.envs.osworld.ground import GuestRefused

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping

    from paragent.envs.osworld.evaluating.place import Place

__all__ = [
    "accessibility_tree",
    "default_video_player",
    "list_directory",
    "unless_refused",
    "vm_command_error",
    "vm_command_line",
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
"""Kinds of films that a desktop may open with one program or another."""


async def _execute(place: Place, config: Mapping[str, Any]) -> Any:
    shell = config.get("shell", False)
    return await place.ground.controller.execute(config["command"], shell=shell in {True, "true", "True"})


async def vm_command_line(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return what a command prints, None if the guest cannot run it."""
    done = await _execute(place, config)
    return None if done.status == "error" else str(done.output)


async def vm_command_error(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return what a command prints to its standard error, None if the guest cannot run it."""
    done = await _execute(place, config)
    return None if done.status == "error" else str(done.error)


async def unless_refused(asking: Awaitable[Answer]) -> Answer | None:
    """Return what the guest answers, None if it says no: there is no such folder, no such window.

    Raises:
        InfrastructureError: it does not answer.
    """
    try:
        return await asking
    except GuestRefused:
        return None


async def vm_terminal_output(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return what the terminal shows, None if there is none."""
    return await unless_refused(place.ground.controller.terminal())


async def accessibility_tree(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return the accessibility tree as XML, None if the guest cannot tell."""
    return await unless_refused(place.ground.controller.accessibility_tree())


async def list_directory(place: Place, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tree below a folder, None if there is none."""
    tree = await unless_refused(place.ground.controller.list_directory(config["path"]))
    return None if tree is None else dict(tree)


async def vm_screen_size(place: Place, config: Mapping[str, Any]) -> dict[str, int]:
    """Return the size of the screen."""
    width, height = await place.ground.controller.screen_size()
    return {"width": width, "height": height}


async def vm_window_size(place: Place, config: Mapping[str, Any]) -> dict[str, int] | None:
    """Return the size of an application's window, None if it has none."""
    size = await unless_refused(place.ground.controller.window_size(config["app_class_name"]))
    return None if size is None else {"width": size[0], "height": size[1]}


async def vm_wallpaper(place: Place, config: Mapping[str, Any]) -> str | None:
    """Return the path of a copy of the picture behind the desktop, None if there is none."""
    picture = await unless_refused(place.ground.controller.wallpaper())
    return None if picture is None else await place.keep(config["dest"], picture)


async def default_video_player(place: Place, config: Mapping[str, Any]) -> str:
    """Return which application opens most kinds of films, `unknown` if none does."""
    question = "; ".join(f"xdg-mime query default video/{kind}" for kind in _VIDEO)
    done = await place.ground.controller.execute(["/bin/sh", "-c", question])
    answers = [line for line in done.output.splitlines(keepends=True) if line.strip()]
    return Counter(answers).most_common(1)[0][0] if answers else "unknown"
