"""Knowledge bases as people have them: JSON, JSONL, or a folder of text and Markdown."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any, NamedTuple

from paragent._text import read_json
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Document", "digest", "passages", "read_documents"]

_TEXTS = {".md", ".markdown", ".rst", ".txt"}
_ID_KEYS = ("id", "doc_id", "_id", "docid", "url")
_TEXT_KEYS = ("text", "content", "contents", "body", "passage")
_PASSAGE = 1_000
"""Characters of a passage: about 200 words, which is what BM25 was tuned on."""


class Document(NamedTuple):
    """One document of a knowledge base."""

    id: str
    title: str
    text: str


def digest(kb: Path) -> str:
    """Return a name for the contents of a knowledge base: the same contents, the same name.

    Raises:
        ConfigError: there is no such file or folder, or nothing in it.
    """
    hashed = hashlib.sha256()
    for path in _files(kb):
        hashed.update(f"{path.relative_to(kb) if path != kb else kb.suffix}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(1 << 20):
                hashed.update(chunk)
    return hashed.hexdigest()


def read_documents(kb: Path) -> Iterator[Document]:
    """Yield the documents of a knowledge base; ids that stand twice get a number.

    Raises:
        ConfigError: there is no such file or folder, or an entry is none; the message says where.
    """
    seen: dict[str, int] = {}
    try:
        for document in _documents(kb):
            times = seen[document.id] = seen.get(document.id, 0) + 1
            yield document if times == 1 else document._replace(id=f"{document.id}~{times}")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the knowledge base {str(kb)!r} is no text in UTF-8: {error}") from error


def passages(document: Document) -> Iterator[str]:
    """Yield a document in pieces of about 1,000 characters, cut between paragraphs, else between words."""
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
    found = (
        sorted(path for path in kb.rglob("*") if path.suffix.lower() in _TEXTS and path.is_file())
        if kb.is_dir()
        else []
    )
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


def _parse(text: str, place: str) -> Any:
    try:
        return read_json(text)
    except ValueError as error:
        raise ConfigError(f"{place} is no valid JSON: {error}") from None


def _entry(entry: Any, place: str, number: int) -> Document:
    if isinstance(entry, str):
        return Document(str(number), "", entry)
    text = (
        next((entry[key] for key in _TEXT_KEYS if isinstance(entry.get(key), str)), None)
        if isinstance(entry, dict)
        else None
    )
    if text is None:
        raise ConfigError(f"{place} has no text; a document is {{'id': ..., 'title': ..., 'text': ...}}")
    title = str(entry.get("title") or "")
    given = next((str(entry[key]) for key in _ID_KEYS if entry.get(key) not in (None, "")), None)
    sentence = entry.get("sentence_id")
    named = f"{title}#{sentence}" if title and sentence is not None else title
    return Document(given or named or str(number), title, text)


def _heading(text: str) -> str:
    first = text.lstrip().partition("\n")[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""
