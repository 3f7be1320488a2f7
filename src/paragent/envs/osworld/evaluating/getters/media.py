"""Pictures and sounds that a slide shows or plays; runs in a helper."""

from __future__ import annotations

import posixpath
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote
from xml.etree import ElementTree as ET

from paragent.envs.osworld.evaluating.metrics.reading import open_package

if TYPE_CHECKING:
    from zipfile import ZipFile

__all__ = ["linked_media"]

_BACKGROUND = "{http://schemas.openxmlformats.org/presentationml/2006/main}bgPr"
_PICTURE = "{http://schemas.openxmlformats.org/drawingml/2006/main}blip"
_EMBEDDED = "{http://schemas.openxmlformats.org/officeDocument/2006/relationships}embed"


def linked_media(path: str, slide: int, kind: str, target: str) -> str | None:
    """Put the background picture (`image`) or the first sound (`audio`) of a slide to `target`.

    Returns:
        `target`, or the path on the guest if the slide only has a link to a file, or None if it has neither.
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
