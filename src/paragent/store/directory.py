"""The directory of a run: where it is, who may write into it, and the files in it that people read.

::

    <output-dir>/<name>/
        config.json       the resolved configuration, without secrets
        journal.sqlite    tasks, results, trajectories: the only file that counts
        results.jsonl     one line for each result, made from the journal
        summary.json      the statistics, made from the journal
        images/         what agents saw: <task>/<attempt>/step_<number>_<moment>.png, and recordings
        live/             what workers are doing now; means nothing once the run is over
        lock              held by the process that plays
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from dataclasses import fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.text import well_formed
from paragent.errors import RunBusy, StoreFailed, UsageError
from paragent.store.journal import Journal
from paragent.store.records import RolloutResult, storable_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from paragent.store.summary import Summary

__all__ = ["RunDirectory", "find_runs", "images_folder", "plain_name", "result_line"]

_JOURNAL = "journal.sqlite"
_LONGEST_NAME = 160
"""Bytes of a name, before what is added to it; file systems allow 255."""
_SHOWN = [
    field.name for field in fields(RolloutResult) if field.name not in {"decides", "trajectory", "files", "number"}
]


class RunDirectory:
    """A run's directory, locked for writing from `open` to `close`.

    Raises:
        RunBusy: (by `open`) another process is playing this run.
        UsageError: (by `open`) the directory belongs to a run with other settings.
        StoreFailed: (by any) the disk does not take what has to be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal: Journal
        self._lock: int | None = None
        self._results: Any = None
        self._before: set[Path] = set()
        """What was there before `open`, of the folders above and of what is in this one."""
        self._aside: Path | None = None
        """Where `open` moved an earlier run to."""

    @property
    def live(self) -> Path:
        """Where workers on this machine say what they are doing."""
        return self.path / "live"

    def open(self, config: Mapping[str, Any], identity: str, *, fresh: bool = False) -> bool:
        """Take hold of the directory; return whether it has results of an earlier session.

        Args:
            config: what to show as the run's configuration.
            identity: a digest of everything that makes this run this run.
            fresh: move what is there out of the way (nothing is deleted) and start anew.
        """
        with self._guarded():
            if fresh and (self.path / _JOURNAL).exists():
                self._take_lock()
                self._release_lock()
                self._move_away()
            self._before = {folder for folder in (self.path, *self.path.parents) if folder.exists()}
            self.path.mkdir(parents=True, exist_ok=True)
            self._before.update(self.path.iterdir())
            self._take_lock()
            self.live.mkdir(exist_ok=True)
        self.journal = Journal(self.path / _JOURNAL)
        known = self.journal.meta("identity")
        if known not in {None, identity}:
            self.close()
            raise UsageError(
                f"{self.path} is a run with other settings (its config.json has them); choose another --run-name, or --fresh "
                "to move it away and start anew"
            )
        if known is None:
            self.journal.set_meta("identity", identity)
            self.write("config.json", config)
        resumed = any(True for _ in self.journal.results())
        self._rewrite_results()
        return resumed

    def forget_live(self) -> None:
        """Remove what workers of earlier sessions said that they were doing."""
        with self._guarded():
            for stale in self.live.iterdir():
                stale.unlink(missing_ok=True)

    def hold(self) -> None:
        """Take hold of a run that exists, to add to it what is no result."""
        with self._guarded():
            self._take_lock()
        self.journal = Journal(self.path / _JOURNAL)

    def append_results(self, plays: Iterable[RolloutResult]) -> None:
        """Add lines to results.jsonl for those who follow it; it is the journal that counts."""
        with self._guarded():
            self._results.writelines(result_line(play) for play in plays if play.decides)
            self._results.flush()

    def keep_files(self, plays: Iterable[RolloutResult]) -> None:
        """Write the pictures and recordings of plays, before their results are recorded, and let go of them."""
        with self._guarded():
            for play in plays:
                folder = images_folder(self.path, well_formed(play.task), play.attempt)
                files = storable_files(play)
                if files:
                    folder.mkdir(parents=True, exist_ok=True)
                for name, content in files.items():
                    (folder / plain_name(name)).write_bytes(content)
                play.files = {}

    def write(self, name: str, content: Any) -> None:
        """Replace a JSON file of the directory in one step."""
        with self._guarded():
            _replace(self.path / name, [json.dumps(content, indent=2, ensure_ascii=False) + "\n"])

    def finish(self, summary: Summary) -> None:
        """Make results.jsonl exactly what the journal has (rollouts that were played again have one line), and summary.json."""
        self._rewrite_results()
        self.write("summary.json", {"run": self.path.name, **summary.as_json()})

    def close(self) -> None:
        """Let go of everything; idempotent."""
        self._close_files()
        self._release_lock()

    def undo(self) -> None:
        """Let go, and leave what was there before `open` and nothing else: for a run that could not begin."""
        self._close_files()
        with self._guarded():
            for made in set(self.path.iterdir()) - self._before:  # as long as nobody else can take hold of it
                shutil.rmtree(made) if made.is_dir() else made.unlink()
            self._release_lock()
            for folder in (self.path, *self.path.parents):
                if folder in self._before or any(folder.iterdir()):
                    break
                folder.rmdir()
            if self._aside is not None:
                self._aside.rename(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _close_files(self) -> None:
        if self._results is not None:
            self._results.close()
            self._results = None
        if hasattr(self, "journal"):
            self.journal.close()

    def _rewrite_results(self) -> None:
        with self._guarded():
            if self._results is not None:
                self._results.close()
            path = self.path / "results.jsonl"
            _replace(path, (result_line(play) for _, play in self.journal.results()))
            self._results = path.open("a", encoding="utf-8")

    def _take_lock(self) -> None:
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode() or "unknown"
            self._release_lock()
            raise RunBusy(
                f"{self.path} is being played by process {holder}; wait for it, or give this run another --run-name"
            ) from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _move_away(self) -> None:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}~{number}")).exists():
            number += 1
        self.path.rename(aside)
        self._aside = aside

    @contextlib.contextmanager
    def _guarded(self) -> Any:
        try:
            yield
        except OSError as error:
            raise StoreFailed(f"cannot write in {self.path}: {error}. What was recorded before is safe") from error


def find_runs(output_dir: Path) -> list[Path]:
    """Return the directories of runs under a folder, the newest first."""
    found = [journal.parent for journal in output_dir.glob(f"*/{_JOURNAL}")]
    return sorted(found, key=lambda path: (path / _JOURNAL).stat().st_mtime, reverse=True)


def images_folder(run: Path, task: str, attempt: int) -> Path:
    """Return the folder with the pictures of all plays of one attempt."""
    return run / "images" / plain_name(task) / str(attempt)


def plain_name(name: str) -> str:
    """Return a name that can be a file's or a folder's: an id from somewhere else must not lead out of the directory.

    Different names stay different: one that has to be changed gets a digest of itself.
    """
    encoded = name.encode("utf-8", "surrogatepass")
    plain = name.replace("/", "_").replace("\0", "_").lstrip(".").encode("utf-8", "replace")[:_LONGEST_NAME]
    if plain == encoded and plain:
        return name
    return f"{plain.decode(errors='ignore')}-{sha256(encoded).hexdigest()[:12]}"


def result_line(play: RolloutResult) -> str:
    """Return a result as a line of JSON."""
    return json.dumps({name: getattr(play, name) for name in _SHOWN}, ensure_ascii=False) + "\n"


def _replace(path: Path, lines: Iterable[str]) -> None:
    """Write a file so that readers see the old one or the new one, never a part."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("w", encoding="utf-8") as file:
        file.writelines(map(well_formed, lines))
    draft.replace(path)
