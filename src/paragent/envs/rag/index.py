"""A BM25 index on disk: built once for the contents of a knowledge base, mapped by every process that searches it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import bm25s
import numpy as np

from paragent.envs.rag.knowledge import Document, digest, passages, read_documents
from paragent.errors import EnvironmentFailed
from paragent.vms.folders import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from paragent.envs.rag.embedding import Vectors

__all__ = ["Found", "Index", "build_once", "open_index"]

_FORMAT = f"1-bm25s-{bm25s.__version__}"
"""Part of the name of an index: what another version wrote is built again."""
_FUSION = 60
"""How much less the first place of a list counts than being in both: the constant that is usual for this fusion."""
_BUILD_LIMIT = 3600.0
"""Seconds to wait for another process that builds the same index; some 20 million passages."""


class Found(NamedTuple):
    """A passage that matches a query."""

    document: Document
    passage: str
    score: float


class Index:
    """Searches one knowledge base; safe to use from several threads."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        """Says what is in it: a digest of the documents, and the format."""
        self._ranks = bm25s.BM25.load(folder / "bm25", mmap=True)
        self._places = np.load(folder / "places.npy", mmap_mode="r")
        """For each passage: where its document begins, and which passage of it this is."""
        self._file = (folder / "documents.bin").open("rb")
        self._by_id: dict[str, int] = json.loads((folder / "ids.json").read_text(encoding="utf-8"))

    def search(self, query: str, most: int, vectors: Vectors | None = None) -> list[Found]:
        """Return the best passage of each of the best documents, the best first.

        Without `vectors` only documents that have a word of the query are found; with them also those that are near in
        meaning, and what is high in both lists is the best. Raises as `Vectors.nearest`.
        """
        wanted = min(len(self._places), most * 5)  # several passages of one document may be among the best
        if not wanted:
            return []
        scored = self._by_words(query, wanted)
        if vectors is not None:
            scored = _fused([row for row, _ in scored], vectors.nearest(query, wanted))
        found: dict[int, Found] = {}
        for row, score in scored:
            offset, number = (int(value) for value in self._places[row])
            if offset not in found and len(found) < most:
                document = self._at(offset)
                found[offset] = Found(document, list(passages(document))[number], score)
        return list(found.values())

    def _by_words(self, query: str, wanted: int) -> list[tuple[int, float]]:
        tokens = _tokens([query])
        if not tokens[0]:
            return []
        rows, scores = self._ranks.retrieve(tokens, k=wanted, show_progress=False)
        return [(int(row), float(score)) for row, score in zip(rows[0], scores[0], strict=True) if score > 0]

    def texts(self) -> Iterator[str]:
        """Yield every passage with its document's title, in the order of their numbers."""
        before, parts = -1, []
        for offset, number in self._places:
            if offset != before:
                before, document = int(offset), self._at(int(offset))
                parts = [f"{document.title}\n{passage}" for passage in passages(document)]
            yield parts[int(number)]

    def read(self, document_id: str) -> Document | None:
        """Return the document of this id; None if there is none."""
        offset = self._by_id.get(document_id)
        return None if offset is None else self._at(offset)

    def __len__(self) -> int:
        return len(self._by_id)

    def _at(self, offset: int) -> Document:
        length = int.from_bytes(os.pread(self._file.fileno(), 8, offset), "big")
        return Document(*json.loads(os.pread(self._file.fileno(), length, offset + 8)))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_index(kb: Path) -> Index:
    """Return the index of a knowledge base, built now unless its contents were indexed before. Blocks.

    Raises:
        ConfigError: there is no such knowledge base, or an entry of it is none.
        EnvironmentFailed: another process has been building the same index for an hour.
    """
    folder = cache_folder("indexes") / f"{digest(kb)[:32]}-{_FORMAT}"
    build_once(folder, lambda: _build(kb, folder))
    return Index(folder)


def build_once(place: Path, build: Callable[[], None]) -> None:
    """Build what belongs to `place`, unless it is there; of several processes one builds and the others wait.

    Raises:
        EnvironmentFailed: another process has been building it for an hour.
    """
    if place.exists():
        return
    with Path(f"{place}.lock").open("w") as lock:  # protects the building, so that it is done once
        _acquire(lock)
        if not place.exists():
            build()


def _acquire(lock: IO[str]) -> None:
    limit = time.monotonic() + _BUILD_LIMIT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise EnvironmentFailed(f"another process holds {lock.name} since an hour") from None
            time.sleep(0.1)
        else:
            return


def _build(kb: Path, folder: Path) -> None:
    """Write the index beside its place and move it there whole, so that no half of one is ever found."""
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        ids: dict[str, int] = {}
        places: list[tuple[int, int]] = []
        texts: list[str] = []
        with (draft / "documents.bin").open("wb") as file:
            for document in read_documents(kb):
                record = json.dumps(document).encode()
                ids[document.id] = offset = file.tell()
                file.write(len(record).to_bytes(8, "big") + record)
                for number, passage in enumerate(passages(document)):
                    places.append((offset, number))
                    texts.append(f"{document.title}\n{passage}")
        ranks = bm25s.BM25()
        ranks.index(_tokens(texts or ["nothing"]), show_progress=False)
        ranks.save(draft / "bm25")
        np.save(draft / "places.npy", np.array(places or np.zeros((0, 2)), dtype=np.int64))
        (draft / "ids.json").write_text(json.dumps(ids), encoding="utf-8")
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fused(*lists: list[int]) -> list[tuple[int, float]]:
    """Return the rows of several ranked lists, those first that are high in many: reciprocal rank fusion."""
    scores: dict[int, float] = {}
    for rows in lists:
        for rank, row in enumerate(rows):
            scores[row] = scores.get(row, 0.0) + 1.0 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda one: -one[1])


def _tokens(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    return tokens
