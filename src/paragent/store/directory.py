"""The run directory: its files and its lock.

::

    <output-dir>/<name>/
        config.json       the resolved configuration, without secrets
        journal.sqlite    tasks, results, trajectories, events, notes; the next two files are made from it
        results.jsonl     one line for each final result
        summary.json      the statistics
        images/           what agents saw: <task>/<attempt>/step_<number>_<moment>.png, and recordings
        live/             what workers are doing now, and files of the session; only used while the run is active
        session.log       the output of sessions in the background
        search.sqlite     the index of `paragent view`; may be deleted
        lock              locked by the process that runs it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from dataclasses import fields
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Self

from paragent._internal.file_errors import unwritable
from paragent._internal.files import read_small_file
from paragent._internal.text import well_formed
from paragent.errors import RunBusy, StoreFailed, UsageError
from paragent.store.journal import Journal
from paragent.store.records import RolloutResult, storable_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from paragent.store.summary import Summary

__all__ = [
    "IMPORTED",
    "JOURNAL_FILE",
    "RunDirectory",
    "file_name",
    "find_folders",
    "find_runs",
    "images_folder",
    "result_line",
]

IMPORTED = "imported"
"""Journal key of runs that were imported: the format that they were imported from."""
JOURNAL_FILE = "journal.sqlite"
_LISTED = 5
"""Settings that a message lists."""
_LONGEST_NAME = 160
"""Maximum length of a file name in bytes, before a digest is appended; file systems allow 255."""
_LINE_FIELDS = [
    field.name
    for field in fields(RolloutResult)
    if field.name not in {"final", "activity", "trajectory", "files", "number"}
]


class RunDirectory:
    """A run directory, locked for writing from `open` to `close`.

    Raises:
        RunBusy: (by `open`) another process is using this run directory.
        UsageError: (by `open`) the directory belongs to a run with other settings.
        StoreFailed: (by every method) a file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.journal: Journal
        self._lock: int | None = None
        self._results: Any = None
        self._before: set[Path] = set()
        """Files and parent folders that existed before `open`."""
        self._renamed: Path | None = None
        """The new path of an earlier run that `open` renamed."""

    @property
    def live(self) -> Path:
        """The folder in which workers on this host report what they are doing."""
        return self.path / "live"

    def open(self, config: Mapping[str, Any], identity: str, *, fresh: bool = False) -> bool:
        """Lock the directory and open its journal; return whether it has results of an earlier session.

        Args:
            config: the content of config.json.
            identity: a digest of all settings that influence results.
            fresh: rename an existing run directory and start a new one.
        """
        with self._errors_for_files(), contextlib.ExitStack() as old_lock:
            if fresh and (self.path / JOURNAL_FILE).exists():
                self._acquire_lock()
                old, self._lock = self._lock, None
                assert old is not None
                old_lock.callback(os.close, old)  # held until the new directory is locked
                self._rename_old_run()
            self._before = {folder for folder in (self.path, *self.path.parents) if folder.exists()}
            self.path.mkdir(parents=True, exist_ok=True)
            self._before.update(self.path.iterdir())
            self._acquire_lock()
            self.live.mkdir(exist_ok=True)
        self.journal = Journal(self.path / JOURNAL_FILE)
        known = self.journal.meta("identity")
        if known not in {None, identity} and (source := self.journal.meta(IMPORTED)):
            self.close()
            raise UsageError(
                f"{self.path} was imported from {source} files, so it cannot be continued; choose another --run-name, or use "
                "--fresh to rename it and start a new run"
            )
        if known not in {None, identity}:
            self.close()
            raise UsageError(
                f"{self.path} is a run with other settings ({self._differences(config)}); choose another --run-name, or use "
                "--fresh to rename it and start a new run"
            )
        if known is None:
            self.journal.set_meta("identity", identity)
            self.write("config.json", config)
        resumed = any(True for _ in self.journal.results())
        self._rewrite_results()
        return resumed

    def clear_live(self, keep: Iterable[Path] = ()) -> None:
        """Remove the files of earlier sessions from `live`, except those of workers that may still be active."""
        kept = {path.stem for path in keep}
        with self._errors_for_files():
            for stale in self.live.iterdir():
                if stale.stem not in kept:
                    stale.unlink(missing_ok=True)

    def open_existing(self) -> None:
        """Lock an existing run and open its journal, to add scores to it."""
        with self._errors_for_files():
            self._acquire_lock()
        self.journal = Journal(self.path / JOURNAL_FILE)

    def append_results(self, results: Iterable[RolloutResult]) -> None:
        """Append final results to results.jsonl, for programs that follow the file."""
        with self._errors_for_files():
            self._results.writelines(result_line(result) for result in results if result.final)
            self._results.flush()

    def write_files(self, results: Iterable[RolloutResult]) -> None:
        """Write the images and recordings of results, before the results are recorded, and remove them from memory."""
        with self._errors_for_files():
            for result in results:
                folder = images_folder(self.path, well_formed(result.task), result.attempt)
                files = storable_files(result)
                if files:
                    folder.mkdir(parents=True, exist_ok=True)
                for name, content in files.items():
                    (folder / file_name(name)).write_bytes(content)
                result.files = {}

    def write(self, name: str, content: Any) -> None:
        """Replace a JSON file of the directory atomically."""
        with self._errors_for_files():
            _replace(self.path / name, [json.dumps(content, indent=2, ensure_ascii=False) + "\n"])

    def finish(self, summary: Summary) -> None:
        """Write results.jsonl again, with one line for each final result of the journal, and summary.json."""
        self._rewrite_results()
        self.write("summary.json", {"run": self.path.name, **summary.as_json()})

    def close(self) -> None:
        """Close all files and release the lock; idempotent."""
        self._close_files()
        self._release_lock()

    def undo(self) -> None:
        """Close the directory and restore what existed before `open`, for a run that could not start."""
        self._close_files()
        with self._errors_for_files():
            for created in set(self.path.iterdir()) - self._before:  # while the lock is held
                shutil.rmtree(created) if created.is_dir() else created.unlink()
            self._release_lock()
            for folder in (self.path, *self.path.parents):
                if folder in self._before or any(folder.iterdir()):
                    break
                folder.rmdir()
            if self._renamed is not None:
                self._renamed.rename(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _close_files(self) -> None:
        if self._results is not None:
            self._results.close()
            self._results = None
        if hasattr(self, "journal"):
            self.journal.close()

    def _rewrite_results(self) -> None:
        with self._errors_for_files():
            if self._results is not None:
                self._results.close()
            path = self.path / "results.jsonl"
            _replace(path, map(result_line, self.journal.results()))
            self._results = path.open("a", encoding="utf-8")

    def _acquire_lock(self) -> None:
        self._lock = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._lock, 32, 0).decode() or "unknown"
            self._release_lock()
            raise RunBusy(
                f"{self.path} is in use by process {holder}; wait until it ends, or choose another --run-name"
            ) from None
        if not self._holds_current_lock():
            self._release_lock()
            raise RunBusy(
                f"{self.path} was renamed by another process, which starts a new run; choose another --run-name"
            )
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, str(os.getpid()).encode(), 0)

    def _holds_current_lock(self) -> bool:
        """Return whether the locked file is still that of the directory: another process may have renamed the directory."""
        assert self._lock is not None
        try:
            return os.path.samestat(os.fstat(self._lock), (self.path / "lock").stat())
        except FileNotFoundError:
            return False

    def _release_lock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _differences(self, config: Mapping[str, Any]) -> str:
        """Return the settings in which config.json and `config` differ."""
        try:
            stored = json.loads(read_small_file(self.path / "config.json"))
            changed = [name for name, value in config.items() if name in stored and stored[name] != value]
        except (OSError, ValueError, AttributeError):  # removed or edited by somebody
            return "see its config.json"
        shown = [f"{name} was {stored[name]!r} and is {config[name]!r}" for name in changed]
        return ", ".join(shown[:_LISTED]) or "the tasks have changed"

    def _rename_old_run(self) -> None:
        number = 1
        while (renamed := self.path.with_name(f"{self.path.name}~{number}")).exists():
            number += 1
        self.path.rename(renamed)
        self._renamed = renamed

    @contextlib.contextmanager
    def _errors_for_files(self) -> Any:
        """Raise `StoreFailed` for errors of the file system."""
        try:
            yield
        except OSError as error:
            raise StoreFailed(
                f"cannot write in {self.path}: {unwritable(error)}. --output-dir sets the folder; what was recorded before is "
                "safe"
            ) from error


def find_runs(output_dir: Path) -> list[Path]:
    """Return the run directories in a folder, the newest first."""
    found = []
    for journal in output_dir.glob(f"*/{JOURNAL_FILE}"):
        with contextlib.suppress(OSError):  # removed or renamed meanwhile, or not accessible
            status = journal.stat()
            if stat.S_ISREG(status.st_mode):  # opening a named pipe would wait forever
                found.append((status.st_mtime, journal.parent))
    return [path for _, path in sorted(found, reverse=True)]


def find_folders(output_dir: Path) -> list[Path]:
    """Return the folders that contain runs, up to two levels below a folder. Nothing is looked for inside of runs."""
    folders = set()
    for depth in ("*", "*/*"):
        for journal in output_dir.glob(f"{depth}/*/{JOURNAL_FILE}"):
            folder = journal.parent.parent
            inside = (folder, *folder.parents)
            if not any((one / JOURNAL_FILE).exists() for one in inside[: inside.index(output_dir)]):
                folders.add(folder)
    return sorted(folders)


def images_folder(run: Path, task: str, attempt: int) -> Path:
    """Return the folder with the images of all executions of one attempt."""
    return run / "images" / file_name(task) / str(attempt)


def file_name(name: str) -> str:
    """Return a name for a file or folder that cannot lead out of its parent folder.

    Different names stay different: a digest is appended to a name that has to be changed.
    """
    encoded = name.encode("utf-8", "surrogatepass")
    plain = name.replace("/", "_").replace("\0", "_").lstrip(".").encode("utf-8", "replace")[:_LONGEST_NAME]
    if plain == encoded and plain:
        return name
    return f"{plain.decode(errors='ignore')}-{sha256(encoded).hexdigest()[:12]}"


def result_line(result: RolloutResult) -> str:
    """Return a result as a line of results.jsonl."""
    return json.dumps({name: getattr(result, name) for name in _LINE_FIELDS}, ensure_ascii=False) + "\n"


def _replace(path: Path, lines: Iterable[str]) -> None:
    """Write a file atomically: readers see the old content or the new content."""
    draft = path.with_name(f".{path.name}.draft")
    with draft.open("w", encoding="utf-8") as file:
        file.writelines(map(well_formed, lines))
    draft.replace(path)
