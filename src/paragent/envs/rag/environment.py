"""The environment `rag`: tools to search and read a knowledge base; scores of answers and citations."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path  # noqa: TC003 - pydantic reads the annotations of the options
from typing import TYPE_CHECKING, Annotated, Any

from paragent._internal.registry import require
from paragent._internal.validation import integer
from paragent.envs.base import Environment
from paragent.envs.tools import ToolFailed, ToolResult, tool
from paragent.errors import ConfigError, MissingExtra
from paragent.scorers.text import exact_match, f1, final_answer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.envs.rag.embedding import Vectors
    from paragent.envs.rag.index import Index
    from paragent.tasks import BenchmarkTask

__all__ = ["RagEnvironment", "RagOptions", "citation", "cited", "expected_documents", "shared_index"]

require("bm25s", "numpy")

_PAGE = 8_000
"""Characters of a document that are shown at a time: about 2,000 tokens."""
_CITATION = re.compile(r"\[([^\[\]\n]{1,300})\]")
_CITATION_AND_SPACE = re.compile(r"(?<!\s)\s*\[[^\[\]\n]*\]")
"""A citation of any length and the spaces before it."""
_KEYS = ("documents", "document", "evidence", "supporting_facts", "source", "sources")


def expected_documents(task: BenchmarkTask) -> set[str]:
    """Return the documents that support the answer, as ids or titles; empty if the task names none.

    Uses the first of `documents`, `document`, `evidence`, `supporting_facts`, `source` and `sources`: a text, a list of
    texts, HotpotQA's list of `[title, sentence]` or its `{"title": [...]}`.
    """
    given: Any = next((task.metadata[key] for key in _KEYS if task.metadata.get(key)), ())
    if isinstance(given, dict):
        given = given.get("title", ())
    if isinstance(given, str):
        given = (given,)
    firsts = (one[0] if isinstance(one, (list, tuple)) and one else one for one in given)
    return {_plain(one) for one in firsts if isinstance(one, str)}


def cited(answer: str) -> set[str]:
    """Return the citations of an answer: the texts in square brackets, separated by `;` or `,`."""
    return {_plain(part) for found in _CITATION.findall(answer) for part in re.split(r"[;,]", found) if part.strip()}


def citation(task: BenchmarkTask, answer: str) -> float | None:
    """Return the F1 score of the cited documents against the expected ones; None if the task names none.

    F1 counts precision too, so citing every document does not help.
    """
    expected = expected_documents(task)
    if not expected:
        return None
    given = cited(answer)
    right = {one for one in expected if any(one in (name, name.partition("#")[0]) for name in given)}
    useful = {name for name in given if name in expected or name.partition("#")[0] in expected}
    if not right:
        return 0.0
    precision, recall = len(useful) / len(given), len(right) / len(expected)
    return 2 * precision * recall / (precision + recall)


def _plain(name: str) -> str:
    return " ".join(name.split()).casefold()


@dataclass(frozen=True, slots=True)
class RagOptions:
    """The options of the environment `rag`."""

    kb: Annotated[Path | None, "the knowledge base: a .json or .jsonl file, or a folder of text and Markdown"] = None
    top_k: Annotated[int, "how many documents a search shows"] = 5
    embeddings: Annotated[str | None, "an embedding model of the endpoint, to find passages also by meaning"] = None

    def __post_init__(self) -> None:
        integer(self.top_k, "top_k", least=1)


@asynccontextmanager
async def shared_index(kb: Path) -> AsyncIterator[Index]:
    """Open the index of a knowledge base as a context manager, without blocking the event loop.

    Raises:
        ConfigError: the knowledge base does not exist or has an invalid document.
    """
    from paragent.envs.rag.index import open_index  # numpy is slow to import

    index = await asyncio.to_thread(open_index, kb)
    try:
        yield index
    finally:
        index.close()


@asynccontextmanager
async def _shared_vectors(index: Index, model: str) -> AsyncIterator[Vectors]:
    """Open the embeddings of an index as a context manager, without blocking the event loop. Raises like `open_vectors`."""
    if importlib.util.find_spec("openai") is None:
        raise MissingExtra("the option `embeddings`", "rollout", "openai")
    from paragent.envs.rag.embedding import open_vectors

    vectors = await asyncio.to_thread(open_vectors, index, model)
    try:
        yield vectors
    finally:
        vectors.close()


class RagEnvironment(Environment):
    """Questions to answer from documents, found with BM25 and optionally embeddings.

    Task metadata: the documents that support the answer (see `expected_documents`). Own scores: `exact_match` and `f1` with
    SQuAD's normalisation, and `citation` if the task names documents.
    """

    name = "rag"
    metric = "f1"
    needs_reference = True
    own_scores = ("citation", "exact_match")
    options_type = RagOptions
    instructions = (
        "Answer the question from the knowledge base. Find documents with `search`, read them with `read`. "
        "Cite the documents that the answer rests on by their ids in square brackets, such as [id]. "
        "End with a line `Answer: ...` that has the answer alone, as short as possible."
    )
    options: RagOptions

    async def check(self) -> None:
        if self.options.kb is None:
            raise ConfigError(
                "the environment 'rag' needs a knowledge base: set --kb to a .json or .jsonl file or a folder"
            )
        await self._vectors(await self._index())

    async def open(self, task: BenchmarkTask, machine: Any = None) -> str:
        await self.check()
        return await super().open(task, machine)

    async def _index(self) -> Index:
        kb = self.options.kb
        assert kb is not None, "check() comes first"
        return await self.shared.get(("index", str(kb)), lambda: shared_index(kb))

    async def _vectors(self, index: Index) -> Vectors | None:
        model = self.options.embeddings
        if model is None:
            return None
        return await self.shared.get(("vectors", index.name, model), lambda: _shared_vectors(index, model))

    @tool
    async def search(self, query: Annotated[str, "a few words that the document should have"]) -> ToolResult:
        """Find documents by words. Shows the id, the title and the best passage of each."""
        index = await self._index()
        vectors = await self._vectors(index)
        found = await asyncio.to_thread(index.search, query, self.options.top_k, vectors)
        if not found:
            return ToolResult("No document has any of these words; try others.", extras={"ids": []})
        passages = [f"[{one.document.id}] {one.document.title}\n{one.passage}" for one in found]
        return ToolResult("\n\n".join(passages), extras={"ids": [one.document.id for one in found]})

    @tool
    async def read(
        self, document: Annotated[str, "the id of the document, as search shows it"], page: Annotated[int, "from 1"] = 1
    ) -> str:
        """Read a document, in pages if it is long."""
        found = (await self._index()).read(document.strip().removeprefix("[").removesuffix("]"))
        if found is None:
            raise ToolFailed(f"there is no document {document!r}; search shows the ids")
        pages = max(1, -(-len(found.text) // _PAGE))
        if not 1 <= page <= pages:
            raise ToolFailed(f"the document {document!r} has pages 1 to {pages}")
        return f"[{found.id}] {found.title} (page {page} of {pages})\n{found.text[(page - 1) * _PAGE : page * _PAGE]}"

    async def score(
        self, task: BenchmarkTask, answer: str, transcript: Sequence[Mapping[str, Any]] = ()
    ) -> dict[str, float] | None:
        scores = {}
        if task.references:
            final = _CITATION_AND_SPACE.sub("", final_answer(answer))
            scores["exact_match"] = max(exact_match(final, one) for one in task.references)
            scores["f1"] = max(f1(final, one) for one in task.references)
        if (citation_score := citation(task, answer)) is not None:
            scores["citation"] = citation_score
        return scores or None
