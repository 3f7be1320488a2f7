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

from manyhands.envs.rag.knowledge import Document, digest, passages, read_documents
from manyhands.errors import EnvironmentFailed

if TYPE_CHECKING:
    from typing import IO

__all__ = ["Found", "Index", "cache_folder", "open_index"]

_FORMAT = f"1-bm25s-{bm25s.__version__}"
"""Part of the name of an index: what another version wrote is built again."""
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
        self._ranks = bm25s.BM25.load(folder / "bm25", mmap=True)
        self._places = np.load(folder / "places.npy", mmap_mode="r")
        """For each passage: where its document begins, and which passage of it this is."""
        self._file = (folder / "documents.bin").open("rb")
        self._by_id: dict[str, int] = json.loads((folder / "ids.json").read_text(encoding="utf-8"))

    def search(self, query: str, most: int) -> list[Found]:
        """Return the best passage of each of the best documents, the best first; none that has no word of the query."""
        tokens = _tokens([query])
        if not tokens[0]:
            return []
        wanted = min(len(self._places), most * 5)  # several passages of one document may be among the best
        rows, scores = self._ranks.retrieve(tokens, k=wanted, show_progress=False)
        found: dict[int, Found] = {}
        for row, score in zip(rows[0], scores[0], strict=True):
            offset, number = (int(value) for value in self._places[int(row)])
            if score > 0 and offset not in found and len(found) < most:
                document = self._at(offset)
                found[offset] = Found(document, list(passages(document))[number], float(score))
        return list(found.values())

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


def cache_folder() -> Path:
    """Return where indexes are kept: `MANYHANDS_CACHE`, else the user's cache folder."""
    if own := os.environ.get("MANYHANDS_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "manyhands"


def open_index(kb: Path) -> Index:
    """Return the index of a knowledge base, built now unless its contents were indexed before. Blocks.

    Raises:
        ConfigError: there is no such knowledge base, or an entry of it is none.
        EnvironmentFailed: another process has been building the same index for an hour.
    """
    home = cache_folder() / "indexes"
    folder = home / f"{digest(kb)[:32]}-{_FORMAT}"
    if not folder.exists():
        home.mkdir(parents=True, exist_ok=True)
        with Path(f"{folder}.lock").open("w") as lock:  # protects the building, so that it is done once
            _acquire(lock)
            if not folder.exists():
                _build(kb, folder)
    return Index(folder)


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


def _tokens(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    return tokens
