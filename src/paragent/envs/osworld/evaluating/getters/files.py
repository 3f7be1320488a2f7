"""Files: of the guest, from the network, and those that steps have kept."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.setting_up.fetching import fetch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.envs.osworld.evaluating.place import Place

__all__ = ["cache_file", "cloud_file", "copy_of", "vm_file"]

_LARGEST = 1 << 30
"""Bytes of a guest's file; the largest that a task of OSWorld asks for, a film, has 100 MB."""


def _listed(config: Mapping[str, Any]) -> tuple[list[str], list[str], set[int]]:
    """Return sources, names and which of them are given to the metric."""
    if config.get("multi", False):
        return config["path"], config["dest"], set(config.get("gives", [0]))
    return [config["path"]], [config["dest"]], {0}


def _given(found: list[str | None]) -> str | list[str | None] | None:
    return found[0] if len(found) == 1 else found


async def vm_file(place: Place, config: Mapping[str, Any]) -> str | list[str | None] | None:
    """Return the path of a copy of a file of the guest, None if there is none; with `multi`, of those that `gives` names."""
    sources, names, gives = _listed(config)
    found: list[str | None] = []
    for number, (source, name) in enumerate(zip(sources, names, strict=False)):
        copy = await copy_of(place, source, name)
        if number in gives:
            found.append(copy)
    return _given(found)


async def copy_of(place: Place, source: str, name: str) -> str | None:
    """Return the path of a copy of a file of the guest, None if there is none of a bearable size."""
    place.path(name).unlink(missing_ok=True)
    data = await place.ground.controller.file(source)
    if data is None or len(data) > _LARGEST:
        return None
    return await place.keep(name, data)


async def cloud_file(place: Place, config: Mapping[str, Any]) -> str | list[str | None] | None:
    """Return the path of a copy of a file from the network; with `multi`, of those that `gives` names.

    As in OSWorld, a file that the result has under the same name is taken for it, unless evaluators are strict.

    Raises:
        EnvironmentFailed: it cannot be downloaded.
    """
    sources, names, gives = _listed(config)
    found: list[str | None] = []
    for number, (source, name) in enumerate(zip(sources, names, strict=False)):
        path = place.path(name)
        if place.found is not None and (kept := place.found / name).is_file():
            path = kept
        else:
            await asyncio.to_thread(shutil.copyfile, await fetch(source, place.ground.access), path)
        if number in gives:
            found.append(str(path))
    return _given(found)


async def cache_file(place: Place, config: Mapping[str, Any]) -> str:
    """Return the path of a file that a step has kept, such as the output of a command.

    Raises:
        FileNotFoundError: no step has.
    """
    root = place.ground.folder.resolve()
    path = (root / config["path"]).resolve()
    if not path.is_relative_to(root) or not path.is_file():
        raise FileNotFoundError(f"no step has kept a file {config['path']}")
    return str(path)
