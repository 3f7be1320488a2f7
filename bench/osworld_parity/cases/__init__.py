"""Generated inputs of OSWorld's metrics, by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.osworld_parity.cases import documents, images, media, slides, tables, text_files, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.osworld_parity.cases.case import Case

SUBJECTS = (values, text_files, tables, slides, documents, images, media)


def generate(folder: Path, chosen: list[str] | None = None) -> Iterator[Case]:
    """Yield all cases, or those of some subjects; each subject has its own folder for files. The cases are deterministic."""
    for subject in SUBJECTS:
        name = subject.__name__.rpartition(".")[2]
        if chosen and name not in chosen:
            continue
        target = folder / name
        target.mkdir(parents=True)
        yield from subject.cases(target)
