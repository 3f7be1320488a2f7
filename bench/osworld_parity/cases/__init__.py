"""Generated inputs of OSWorld's metrics, by subject."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.osworld_parity.cases import documents, media, pictures, slides, tables, text_files, values

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.osworld_parity.cases.case import Case

SUBJECTS = (values, text_files, tables, slides, documents, pictures, media)


def generate(folder: Path, chosen: list[str] | None = None) -> Iterator[Case]:
    """Yield every case, or those of some subjects; files are written into folders of their subjects. The same every time."""
    for subject in SUBJECTS:
        name = subject.__name__.rpartition(".")[2]
        if chosen and name not in chosen:
            continue
        place = folder / name
        place.mkdir(parents=True)
        yield from subject.cases(place)
