"""Getters of application state: settings of VLC and GIMP, VLC's status, reports of VS Code, media in slides."""

from __future__ import annotations

import asyncio
import posixpath
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from paragent.osworld.evaluators.getters.machine import unless_refused
from paragent.osworld.evaluators.metrics.reading import open_package

if TYPE_CHECKING:
    from collections.abc import Mapping
    from zipfile import ZipFile

    from paragent.osworld.context import GetterContext

__all__ = [
    "audio_in_slide",
    "background_image_in_slide",
    "gimp_config_file",
    "home_folder",
    "linked_media",
    "vlc_config",
    "vlc_playing_info",
    "vscode_config",
]

VLC_STATUS = """
import base64, urllib.request
address = "http://127.0.0.1:8080/requests/status.xml"
login = {"Authorization": "Basic " + base64.b64encode(b":password").decode()}
print(urllib.request.urlopen(urllib.request.Request(address, headers=login), timeout=10).read().decode())
"""
"""Runs on the machine; port and password are those of OSWorld's images."""
_VLC_TRIES = 5
"""One second apart, because VLC's web interface starts a moment after VLC."""
_OPENED_FOLDERS = 'cat "$HOME"/.config/Code/User/workspaceStorage/*/workspace.json 2>/dev/null; true'
_MEDIA = "paragent.osworld.evaluators.getters.applications:linked_media"


async def home_folder(context: GetterContext) -> str:
    """Return the home folder of the machine's user."""
    done = await context.attempt.controller.execute(["/bin/sh", "-c", 'printf %s "$HOME"'])
    return str(done.output).strip() or "/home/user"


async def _of_home(context: GetterContext, path: str, name: str) -> str:
    """Return the path of a copy of a file below the home folder.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    data = await context.attempt.controller.file(posixpath.join(await home_folder(context), path))
    if data is None:
        raise FileNotFoundError(f"the machine has no ~/{path}")
    return await context.write(name, data)


async def vlc_config(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return the path of a copy of VLC's settings.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    return await _of_home(context, ".config/vlc/vlcrc", config["dest"])


async def gimp_config_file(context: GetterContext, config: Mapping[str, Any]) -> str:
    """Return the path of a copy of one of GIMP's settings files.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    return await _of_home(context, f".config/GIMP/2.10/{config['file_name']}", config["dest"])


async def vlc_playing_info(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the path of a copy of VLC's status from its web interface; None if it does not answer."""
    for _ in range(_VLC_TRIES):
        done = await context.attempt.controller.execute(["python3", "-c", VLC_STATUS])
        if done.returncode == 0 and done.output.strip():
            return await context.write(config["dest"], done.output.encode())
        await asyncio.sleep(1.0)
    return None


async def vscode_config(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Let an extension of VS Code write its report, by a command of the palette, and return the path of a copy.

    The window of VS Code is activated first, because it must receive the keys. If the extension has written nothing, the copy
    is VS Code's own record of the opened folders.
    """
    controller = context.attempt.controller
    await unless_refused(controller.activate_window("Visual Studio Code"))
    keys = (
        "import pyautogui, time; pyautogui.FAILSAFE = False; pyautogui.hotkey('ctrl', 'shift', 'p'); time.sleep(0.5); "
        f"pyautogui.typewrite({config['vscode_extension_command']!r}); time.sleep(0.5); pyautogui.press('enter')"
    )
    await controller.execute(["python3", "-c", keys])
    await asyncio.sleep(1.0)  # the extension does not report when its file is complete
    data = await controller.file(config["path"])
    if data is None:
        kept = await controller.execute(["/bin/sh", "-c", _OPENED_FOLDERS])
        data = kept.output.encode() or None
    return None if data is None else await context.write(config["dest"], data)


async def background_image_in_slide(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the path of a copy of a slide's background image; None if there is none."""
    return await _medium(context, config, "image")


async def audio_in_slide(context: GetterContext, config: Mapping[str, Any]) -> str | None:
    """Return the path of a copy of the first sound of a slide; None if there is none."""
    return await _medium(context, config, "audio")


async def _medium(context: GetterContext, config: Mapping[str, Any], kind: str) -> str | None:
    """Return a copy of a medium, which is inside the presentation or a linked file of the machine."""
    data = await context.attempt.controller.file(config["ppt_file_path"])
    if data is None:
        return None
    path = await context.write(posixpath.basename(config["ppt_file_path"]), data)
    target = str(context.path(config["dest"]))
    found = await context.parse(_MEDIA, path, int(config["slide_index"]), kind, target)
    if found is None or found == target:
        return target if found else None
    linked = await context.attempt.controller.file(found)
    return None if linked is None else await context.write(config["dest"], linked)


_BACKGROUND = "{http://schemas.openxmlformats.org/presentationml/2006/main}bgPr"
_PICTURE = "{http://schemas.openxmlformats.org/drawingml/2006/main}blip"
_EMBEDDED = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}embed"


def linked_media(path: str, slide: int, kind: str, target: str) -> str | None:
    """Write the background image (`image`) or the first sound (`audio`) of a slide to `target`.

    Returns:
        `target`, or the path on the machine if the slide links to a file, or None if it has neither.
    """
    with open_package(path) as package:
        name, links = f"ppt/slides/slide{slide + 1}.xml", f"ppt/slides/_rels/slide{slide + 1}.xml.rels"
        if name not in package.namelist() or links not in package.namelist():
            return None
        wanted = _background(package, name) if kind == "image" else None
        if kind == "image" and wanted is None:
            return None
        for link in ET.fromstring(package.read(links)):
            if kind in link.get("Type", "") and wanted in {None, link.get("Id")}:
                return _resolved(package, link.get("Target", ""), target)
    return None


def _background(package: ZipFile, name: str) -> str | None:
    slide = ET.fromstring(package.read(name))
    for background in slide.iter(_BACKGROUND):
        for picture in background.iter(_PICTURE):
            return picture.get(_EMBEDDED)
    return None


def _resolved(package: ZipFile, link: str, target: str) -> str | None:
    if link.startswith("file://"):
        return unquote(link.removeprefix("file://"))
    inside = posixpath.normpath(posixpath.join("ppt/slides", link)) if link.startswith("..") else link.lstrip("/")
    if inside not in package.namelist():
        return None
    Path(target).write_bytes(package.read(inside))
    return target
