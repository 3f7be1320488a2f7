"""A BM25 index on disk: built once per content of a knowledge base, memory-mapped by all processes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import bm25s
import numpy as np

from paragent._internal.text import read_json
from paragent.errors import ConfigError, EnvironmentFailed
from paragent.machines.cleanup import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import IO

    from paragent.envs.rag.embedding import Vectors

__all__ = ["Document", "Found", "Index", "build_once", "digest", "open_index", "passages", "read_documents"]

_TEXTS = {".md", ".markdown", ".rst", ".txt"}
_ID_KEYS = ("id", "doc_id", "_id", "docid", "url")
_TEXT_KEYS = ("text", "content", "contents", "body", "passage")
_PASSAGE = 1_000
"""Characters of a passage: about 200 words, for which BM25 was tuned."""


class Document(NamedTuple):
    """One document of a knowledge base."""

    id: str
    title: str
    text: str


def digest(kb: Path) -> str:
    """Return a hash of the contents of a knowledge base.

    Raises:
        ConfigError: the file or folder does not exist or is empty.
    """
    hashed = hashlib.sha256()
    for path in _files(kb):
        hashed.update(f"{path.relative_to(kb) if path != kb else kb.suffix}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                hashed.update(chunk)
    return hashed.hexdigest()


def read_documents(kb: Path) -> Iterator[Document]:
    """Yield the documents of a knowledge base; a number is added to duplicate ids.

    Raises:
        ConfigError: the file or folder does not exist, or has an invalid document; the message says where.
    """
    seen: dict[str, int] = {}
    try:
        for document in _documents(kb):
            times = seen[document.id] = seen.get(document.id, 0) + 1
            yield document if times == 1 else Document(f"{document.id}~{times}", document.title, document.text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"the knowledge base {str(kb)!r} is not UTF-8 text: {error}") from error


def passages(document: Document) -> Iterator[str]:
    """Yield the passages of a document: about 1,000 characters each, split between paragraphs, otherwise between words."""
    piece = ""
    for paragraph in document.text.split("\n\n"):
        for block in _blocks(paragraph):
            if piece and len(piece) + len(block) > _PASSAGE:
                yield piece
                piece = ""
            piece = f"{piece}\n\n{block}" if piece else block
    if piece:
        yield piece


def _blocks(paragraph: str) -> Iterator[str]:
    while len(paragraph) > _PASSAGE:
        cut = paragraph.rfind(" ", 0, _PASSAGE)
        cut = cut if cut > 0 else _PASSAGE
        yield paragraph[:cut].strip()
        paragraph = paragraph[cut:]
    if paragraph.strip():
        yield paragraph.strip()


def _files(kb: Path) -> list[Path]:
    if kb.is_file():
        return [kb]
    found = sorted(path for path in kb.rglob("*") if path.suffix.lower() in _TEXTS and path.is_file())
    if not found:
        problem = f"has no {', '.join(sorted(_TEXTS))} files" if kb.is_dir() else "does not exist"
        raise ConfigError(f"the knowledge base {str(kb)!r} {problem}; give a .json or .jsonl file or a folder of texts")
    return found


def _documents(kb: Path) -> Iterator[Document]:
    for path in _files(kb):
        if path.suffix.lower() == ".jsonl":
            with path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield _entry(_parse(line, f"{path}, line {number}"), f"{path}, line {number}", number)
        elif path.suffix.lower() == ".json":
            parsed = _parse(path.read_text(encoding="utf-8"), str(path))
            if isinstance(parsed, dict):
                parsed = next((parsed[key] for key in ("documents", "docs", "items", "data") if key in parsed), parsed)
            if not isinstance(parsed, list):
                raise ConfigError(f"{path} must be a JSON list of documents")
            for number, entry in enumerate(parsed, 1):
                yield _entry(entry, f"{path}, entry {number}", number)
        else:
            text = path.read_text(encoding="utf-8", errors="replace")
            name = path.name if path == kb else str(path.relative_to(kb))
            yield Document(name, _heading(text) or path.stem, text)


def _parse(text: str, where: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise ConfigError(f"{where} is not valid JSON: {error}") from None


def _entry(entry: Any, where: str, number: int) -> Document:
    if isinstance(entry, str):
        return Document(str(number), "", entry)
    texts = [entry[key] for key in _TEXT_KEYS if isinstance(entry.get(key), str)] if isinstance(entry, dict) else []
    if not texts:
        raise ConfigError(f"{where} has no text; a document is {{'id': ..., 'title': ..., 'text': ...}}")
    title = str(entry.get("title") or "")
    given = next((str(entry[key]) for key in _ID_KEYS if entry.get(key) not in (None, "")), None)
    sentence = entry.get("sentence_id")
    named = f"{title}#{sentence}" if title and sentence is not None else title
    return Document(given or named or str(number), title, texts[0])


def _heading(text: str) -> str:
    first = text.lstrip().partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


_FORMAT = f"2-bm25s-{bm25s.__version__}"
"""Part of the name of an index, so that indexes of another version are built again."""
_FUSION = 60
"""The usual constant of reciprocal rank fusion: it damps the weight of the first ranks."""
_BUILD_LIMIT = 3600.0
"""Seconds to wait for another process that builds the same index; enough for about 20 million passages."""


class Found(NamedTuple):
    """A passage that matches a query."""

    document: Document
    passage: str
    score: float


class Index:
    """The index of one knowledge base. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        """A hash of the documents, and the format."""
        self._ranks = bm25s.BM25.load(folder / "bm25", mmap=True)
        self._passages = np.load(folder / "passages.npy", mmap_mode="r")
        """For each passage: the offset of its document, and its number within the document."""
        self._file = (folder / "documents.bin").open("rb")
        self._by_id: dict[str, int] = json.loads((folder / "ids.json").read_text(encoding="utf-8"))

    def search(self, query: str, most: int, vectors: Vectors | None = None) -> list[Found]:
        """Return the best passage of each of the best documents, best first.

        Without `vectors`, only documents that contain a word of the query are found. With them, documents of similar
        meaning are found too, and both rankings are merged. Raises like `Vectors.nearest`.
        """
        wanted = min(len(self._passages), most * 5)  # several passages of one document may be among the best
        if not wanted:
            return []
        scored = self._by_words(query, wanted)
        if vectors is not None:
            scored = _fused([row for row, _ in scored], vectors.nearest(query, wanted))
        found: dict[int, Found] = {}
        for row, score in scored:
            offset, number = (int(value) for value in self._passages[row])
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
        """Yield every passage with the title of its document, in the order of the passages."""
        before, parts = -1, []
        for offset, number in self._passages:
            if offset != before:
                before, document = int(offset), self._at(int(offset))
                parts = [f"{document.title}\n{passage}" for passage in passages(document)]
            yield parts[int(number)]

    def read(self, document_id: str) -> Document | None:
        """Return the document with this id; None if there is none."""
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
    """Return the index of a knowledge base, built now unless it is cached. Blocking.

    Raises:
        ConfigError: the knowledge base does not exist or has an invalid document.
        EnvironmentFailed: another process has been building the same index for an hour.
    """
    folder = cache_folder("indexes") / f"{digest(kb)[:32]}-{_FORMAT}"
    build_once(folder, lambda: _build(kb, folder))
    return Index(folder)


def build_once(path: Path, build: Callable[[], None]) -> None:
    """Call `build`, which creates `path`, unless it exists. Of several processes one builds and the others wait.

    Raises:
        EnvironmentFailed: another process has been building it for an hour.
    """
    if path.exists():
        return
    with Path(f"{path}.lock").open("w") as lock:
        _acquire(lock)
        if not path.exists():
            build()


def _acquire(lock: IO[str]) -> None:
    limit = time.monotonic() + _BUILD_LIMIT
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > limit:
                raise EnvironmentFailed(f"another process has held {lock.name} for an hour") from None
            time.sleep(0.1)
        else:
            return


def _build(kb: Path, folder: Path) -> None:
    """Write the index to a temporary folder and rename it, so that no process sees an incomplete index."""
    draft = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        ids: dict[str, int] = {}
        rows: list[tuple[int, int]] = []
        texts: list[str] = []
        with (draft / "documents.bin").open("wb") as file:
            for document in read_documents(kb):
                record = json.dumps(document).encode()
                ids[document.id] = offset = file.tell()
                file.write(len(record).to_bytes(8, "big") + record)
                for number, passage in enumerate(passages(document)):
                    rows.append((offset, number))
                    texts.append(f"{document.title}\n{passage}")
        ranks = bm25s.BM25()
        ranks.index(_tokens(texts or ["nothing"]), show_progress=False)
        ranks.save(draft / "bm25")
        np.save(draft / "passages.npy", np.array(rows or np.zeros((0, 2)), dtype=np.int64))
        (draft / "ids.json").write_text(json.dumps(ids), encoding="utf-8")
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _fused(*lists: list[int]) -> list[tuple[int, float]]:
    """Merge ranked lists by reciprocal rank fusion."""
    scores: dict[int, float] = {}
    for rows in lists:
        for rank, row in enumerate(rows):
            scores[row] = scores.get(row, 0.0) + 1.0 / (_FUSION + rank)
    return sorted(scores.items(), key=lambda one: -one[1])


def _tokens(texts: list[str]) -> list[list[str]]:
    tokens: list[list[str]] = bm25s.tokenize(texts, stopwords="en", return_ids=False, show_progress=False)
    return tokens
