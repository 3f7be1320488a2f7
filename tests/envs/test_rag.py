"""The environment `rag`: formats of knowledge bases, the index, citations, embeddings."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from paragent.demo.samples import sample_options, sample_path
from paragent.envs import open_environment
from paragent.envs.rag.environment import citation, cited
from paragent.envs.rag.index import Document, open_index, passages, read_documents
from paragent.errors import ConfigError, EnvironmentFailed
from paragent.machines.cleanup import cache_folder
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_a_folder_of_texts_is_a_knowledge_base(tmp_path: Path) -> None:
    (tmp_path / "birds").mkdir()
    (tmp_path / "birds" / "heron.md").write_text("# Grey heron\n\nIt eats frogs.")
    (tmp_path / "otter.txt").write_text("Otters eat crabs.")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    assert [(one.id, one.title) for one in read_documents(tmp_path)] == [
        ("birds/heron.md", "Grey heron"),
        ("otter.txt", "otter"),
    ]


@pytest.mark.parametrize("form", ["jsonl", "list", "wrapped"])
def test_json_is_a_knowledge_base(tmp_path: Path, form: str) -> None:
    entries: list[Any] = [
        {"id": 7, "title": "T", "text": "one"},
        {"title": "T", "sentence_id": 3, "text": "two"},
        "three",
    ]
    if form == "jsonl":
        path = tmp_path / "kb.jsonl"
        path.write_text("\n\n".join(map(json.dumps, entries)))
    else:
        path = tmp_path / "kb.json"
        path.write_text(json.dumps(entries if form == "list" else {"documents": entries}))
    found = list(read_documents(path))
    assert [one.text for one in found] == ["one", "two", "three"]
    assert [one.id for one in found][:2] == ["7", "T#3"]


def test_duplicate_ids_get_a_number(tmp_path: Path) -> None:
    path = tmp_path / "kb.json"
    path.write_text(json.dumps([{"title": "T", "text": "one"}, {"title": "T", "text": "two"}]))
    assert [one.id for one in read_documents(path)] == ["T", "T~2"]


@pytest.mark.parametrize(
    ("name", "text", "reported"),
    [
        ("kb.jsonl", '{"text": "a"}\n{"text": ', "line 2 is not valid JSON"),
        ("kb.jsonl", '{"text": "a"}\n{"title": "b"}', "line 2 has no text"),
        ("kb.json", "3", "list of documents"),
        ("kb.json", "[3]", "entry 1 has no text"),
        ("kb.jsonl", '{"text": "\udcff"}', "not UTF-8 text"),
    ],
)
def test_an_invalid_document_is_reported_with_its_line(tmp_path: Path, name: str, text: str, reported: str) -> None:
    (tmp_path / name).write_text(text, errors="surrogateescape")
    with pytest.raises(ConfigError, match=reported):
        list(read_documents(tmp_path / name))


def test_check_reports_a_missing_or_empty_knowledge_base(tmp_path: Path) -> None:
    for kb, problem in ((None, "--kb"), (tmp_path / "none", "does not exist"), (tmp_path, "has no")):
        with pytest.raises(ConfigError, match=problem):
            run(open_environment("rag", {"kb": kb}).check())


def test_passages_contain_every_word() -> None:
    text = "\n\n".join(" ".join(f"word{i}-{j}" for j in range(i * 7)) for i in range(60)) + "\n\n" + "x" * 5000
    pieces = list(passages(Document("a", "", text)))
    assert max(map(len, pieces)) <= 1010
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_the_right_document_is_found_among_many(tmp_path: Path) -> None:
    path = tmp_path / "kb.jsonl"
    lines = [
        {"id": f"d{i}", "text": f"Town {i} has a tower of {i * 3} metres near river number{i}."} for i in range(3000)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    index = open_index(path)
    assert len(index) == 3000
    assert index.search("river number1234 tower", 3)[0].document.id == "d1234"
    assert index.search("zebra", 3) == []
    assert index.search("", 3) == []
    assert index.read("d5") == Document("d5", "", lines[5]["text"])
    assert index.read("none") is None
    index.close()


def _open(path: str) -> int:
    index = open_index(Path(path))
    found = len(index)
    index.close()
    return found


@pytest.mark.slow
def test_many_processes_build_an_index_once(tmp_path: Path) -> None:
    kb = tmp_path / "kb.jsonl"
    kb.write_text("\n".join(json.dumps({"id": str(i), "text": f"text {i} {tmp_path}"}) for i in range(500)))
    before = set(cache_folder("indexes").glob("*"))
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert pool.map(_open, [str(kb)] * 6) == [500] * 6
    kb.rename(tmp_path / "moved.jsonl")
    _open(str(tmp_path / "moved.jsonl"))
    new = [path for path in set(cache_folder("indexes").glob("*")) - before if path.is_dir()]
    assert len(new) == 1
    (tmp_path / "moved.jsonl").write_text(json.dumps({"text": f"other {tmp_path}"}))
    assert _open(str(tmp_path / "moved.jsonl")) == 1


def test_long_documents_are_read_in_pages(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("a " * 10_000)

    async def scenario() -> list[str]:
        async with open_environment("rag", {"kb": tmp_path}) as environment:
            await environment.open(BenchmarkTask("a", "?"))
            asked: list[dict[str, Any]] = [{}, {"page": 3}, {"page": 9}]
            return [(await environment.call("read", {"document": "[long.txt]", **one})).text for one in asked]

    first, third, ninth = run(scenario())
    assert "page 1 of 3" in first
    assert "page 3 of 3" in third
    assert "1 to 3" in ninth


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("It is so [a].", 1.0),
        ("It is so [A; b].", 2 / 3),
        ("It is so [b].", 0.0),
        ("It is so.", 0.0),
        ("It is so [a#3].", 1.0),
        ("[a][b][c][d]", 0.4),
    ],
)
def test_citation_scores_precision_and_recall(answer: str, expected: float) -> None:
    task = BenchmarkTask("i", "?", "x", {"documents": ["a"]})
    assert citation(task, answer) == pytest.approx(expected)


def test_expected_documents_are_read_in_the_formats_of_benchmarks() -> None:
    for key, value in (
        ("documents", ["Big Ben"]),
        ("document", "Big Ben"),
        ("supporting_facts", [["Big Ben", 0], ["Big Ben", 2]]),
        ("supporting_facts", {"title": ["Big Ben"], "sent_id": [1]}),
    ):
        assert citation(BenchmarkTask("i", "?", "x", {key: value}), "so [big ben]") == 1.0
    assert citation(BenchmarkTask("i", "?", "x"), "so [big ben]") is None
    assert cited("[a, b] and [c]") == {"a", "b", "c"}


def test_the_demo_model_solves_the_sample_tasks() -> None:
    async def scenario(entry: dict[str, Any]) -> None:
        async with open_environment("rag", sample_options("rag")) as environment:
            task = BenchmarkTask(entry["id"], entry["question"], entry["answer"], entry)
            found = await environment.call("search", {"query": await environment.open(task)})
            assert found.extras["ids"][0] == entry["documents"][0]
            assert task.references[0].lower() in found.text.lower()
            scores = await environment.score(task, f"See [{found.extras['ids'][0]}].\nAnswer: {task.references[0]}")
            assert scores == {"exact_match": 1.0, "f1": 1.0, "citation": 1.0}

    for line in sample_path("rag").read_text().splitlines():
        run(scenario(json.loads(line)))


def test_embeddings_find_documents_without_common_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vectors of the scripted endpoint are letter frequencies, so anagrams are near to each other."""
    kb = tmp_path / "kb"
    kb.mkdir()
    for name, text in {"listen": "listen silent", "ox": "ox box fox", "rag": "zzz zzz"}.items():
        (kb / f"{name}.txt").write_text(text)

    async def search(model: str | None) -> list[str]:
        options = {"kb": str(kb), "top_k": 1, "embeddings": model}
        async with open_environment("rag", options) as environment:
            await environment.open(BenchmarkTask("i", "?"))
            found = await environment.call("search", {"query": "enlist tinsel"})
            ids: list[str] = found.extras["ids"]
            return ids

    with OpenAIServer() as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        assert run(search(None)) == []
        assert run(search("letters")) == ["listen.txt"]
        assert run(search("letters")) == ["listen.txt"]
    vectors = list(cache_folder("indexes").glob("*-letters.npy"))
    assert len(vectors) == 1, "the passages were embedded once"
    monkeypatch.setattr("paragent.envs.rag.embedding.RETRIES", 0)
    with pytest.raises(EnvironmentFailed, match="embeddings"):
        run(search_fails(kb))


async def search_fails(kb: Path) -> None:
    async with open_environment("rag", {"kb": str(kb), "embeddings": "other"}) as environment:
        await environment.check()


def test_embeddings_need_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.txt").write_text("one")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        run(search_fails(tmp_path))
