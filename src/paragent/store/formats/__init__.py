"""Export of runs to the formats of other tools, and import of their trajectories and logs: one module for each format."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paragent._internal.registry import Implementation, Registry
from paragent.errors import UsageError
from paragent.store.formats.base import ExportedRollout, ExportFormat, LeftOut, RunExport

if TYPE_CHECKING:
    from pathlib import Path

    from paragent.store.journal import Journal

__all__ = ["FORMATS", "ExportFormat", "ExportedRollout", "LeftOut", "RunExport", "export"]

FORMATS = Registry(
    kind="export format",
    implementations={
        "atif": Implementation("paragent.store.formats.atif:AtifFormat"),
        "inspect": Implementation("paragent.store.formats.inspect_log:InspectFormat"),
        "jsonl": Implementation("paragent.store.formats.jsonl:JsonlFormat"),
        "openai-chat": Implementation("paragent.store.formats.openai_chat:OpenAIChatFormat"),
        "osworld": Implementation("paragent.osworld.formats:OSWorldFormat"),
        "parquet": Implementation("paragent.store.formats.parquet:ParquetFormat", extra="parquet"),
        "trl": Implementation("paragent.store.formats.trl:TrlFormat"),
    },
    entry_points="paragent.export_formats",
)
"""Classes that implement `ExportFormat`."""


def export(journal: Journal, form: str, target: Path, *, reasoning: bool = False) -> RunExport:
    """Write every final result of a run to `target`; return which of them were written.

    Args:
        journal: the journal of the run.
        form: a name in `FORMATS`.
        target: the file to write, or the folder for a format with many files. A file is replaced when all of it is written.
        reasoning: keep reasoning in formats that leave it out unless they are told otherwise.

    Raises:
        UnknownName: the format is unknown.
        MissingExtra: the format needs packages that are not installed.
        UsageError: `target` cannot be used: it is a folder instead of a file, a file instead of a folder, or a folder that
            must be empty and is not.
        OSError: a file cannot be written.
    """
    chosen: ExportFormat = FORMATS.load(form)()
    run = RunExport(journal, reasoning=reasoning)
    if chosen.folder and target.exists() and not target.is_dir():
        raise UsageError(f"--output: the format {form!r} writes a folder, and {target} is a file")
    if not chosen.folder and target.is_dir():
        raise UsageError(f"--output: the format {form!r} writes a file, and {target} is a folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    if chosen.folder:
        chosen.write(run, target)
    else:
        _write_file(chosen, run, target)
    return run


def _write_file(chosen: ExportFormat, run: RunExport, target: Path) -> None:
    """Write a draft beside `target` and rename it, so that `target` never has half of the results."""
    draft = target.with_name(f".{target.name}.draft")
    try:
        chosen.write(run, draft)
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
