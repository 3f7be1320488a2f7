"""What the guest's browser remembers of pages that were visited."""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from paragent.envs.osworld.access import Access
from paragent.envs.osworld.setting_up.fetching import fetch
from paragent.errors import EnvironmentFailed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from paragent.envs.osworld.controller import Controller

__all__ = ["update_history"]

_EMPTY = (
    "https://huggingface.co/datasets/xlangai/ubuntu_osworld_file_cache/resolve/main/chrome/"
    "44ee5668-ecd5-4366-a6ce-c1c9b8d4e938/history_empty.sqlite?download=true"
)
"""An empty history, for a browser that has not been started yet; published with OSWorld's tasks."""
_WHERE = 'for d in google-chrome chromium; do test -d "$HOME/.config/$d" && echo "$HOME/.config/$d/Default/History"; done; true'
_EPOCH = 11_644_473_600
"""Seconds from 1601, where Chrome's clock begins, to 1970."""


async def update_history(guest: Controller, folder: Path, history: Sequence[Mapping[str, Any]]) -> None:
    """Add visits to the history of the guest's browser, which should not be running.

    Raises:
        EnvironmentFailed: the guest has no browser, or what it has as its history is none.
    """
    looked = await guest.execute(_WHERE, shell=True)  # noqa: S604 - a shell of the guest, with a constant
    found = looked.output.split("\n")[0].strip()
    if not found:
        raise EnvironmentFailed("the guest has no folder of Google Chrome or Chromium in ~/.config")
    database = folder / "history.sqlite"
    known = await guest.file(found)
    if known is None:
        shutil.copyfile(await fetch(_EMPTY, Access()), database)
    else:
        database.write_bytes(known)
    try:
        await asyncio.to_thread(_add, database, history)
    except sqlite3.Error as error:
        raise EnvironmentFailed(f"the browser's history {found}: {error}") from error
    await guest.upload(found, await asyncio.to_thread(database.read_bytes))


def _add(database: Path, history: Sequence[Mapping[str, Any]]) -> None:
    with closing(sqlite3.connect(database)) as connection, connection:
        for visit in history:
            ago = float(visit["visit_time_from_now_in_seconds"])
            moment = int((time.time() - ago + _EPOCH) * 1_000_000)
            cursor = connection.execute(
                "INSERT INTO urls (url, title, visit_count, typed_count, last_visit_time, hidden) VALUES (?, ?, 1, 0, ?, 0)",
                (visit["url"], visit["title"], moment),
            )
            connection.execute(
                "INSERT INTO visits (url, visit_time, from_visit, transition, segment_id, visit_duration) "
                "VALUES (?, ?, 0, 805306368, 0, 0)",
                (cursor.lastrowid, moment),
            )
