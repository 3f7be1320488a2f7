"""Search over all text of a run."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent.view.search import fts_query
from tests.view.recorded import journal_of, result, serving, trajectory, write_run
from tests.waiting import wait_until

CALLS = [{"id": "c", "type": "function", "function": {"name": "browse", "arguments": '{"query": "penguins"}'}}]
RESULTS = [
    result(
        "a",
        trajectory=trajectory(
            {"role": "user", "content": "Count the red apples, please."},
            {"role": "assistant", "content": "", "reasoning_content": "deliberation", "tool_calls": CALLS},
            {"role": "tool", "tool_call_id": "c", "content": "before " * 50 + "Zürich <script>" + " after" * 50},
        ),
    ),
    result("b", trajectory=trajectory({"role": "user", "content": "apples that are red, and pears"})),
    result("c", status="failed", kind="ValueError", error="ValueError: lost spoon"),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("runs")
    write_run(folder, "one", RESULTS)
    with serving(folder) as (_, client):
        wait_for_index(client, 3)
        yield client


def search(client: httpx.Client, text: str) -> Any:
    answer = client.get("/api/runs/one/search", params={"q": text})
    assert answer.status_code == 200, answer.text
    return answer.json()


def wait_for_index(client: httpx.Client, count: int) -> None:
    wait_until(lambda: search(client, "")["indexed"] == count, 20, what="the index is complete")


def places(client: httpx.Client, text: str) -> set[tuple[str, int]]:
    return {(hit["execution"]["task"], hit["step"]) for hit in search(client, text)["hits"]}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("apples", {("a", 0), ("b", 0)}),
        ("APPL", {("a", 0), ("b", 0)}),
        ("red apples", {("a", 0), ("b", 0)}),
        ('"red apples"', {("a", 0)}),
        ("apples -pears", {("a", 0)}),
        ('apples -"are red"', {("a", 0)}),
        ("deliberation", {("a", 1)}),
        ("penguins browse", {("a", 1)}),
        ("zurich", {("a", 2)}),
        ("<script>", {("a", 2)}),
        ("spoon", {("c", 0)}),
        ("nothing like it", set()),
    ],
)
def test_words_prefixes_phrases_and_exclusions(client: httpx.Client, text: str, expected: set[tuple[str, int]]) -> None:
    assert places(client, text) == expected


def test_the_kind_of_a_hit_is_that_of_its_step_or_reasoning(client: httpx.Client) -> None:
    kinds = {text: search(client, text)["hits"][0]["kind"] for text in ("pears", "deliberation", "penguins", "spoon")}
    assert kinds == {"pears": "user", "deliberation": "reasoning", "penguins": "model", "spoon": "error"}


def test_a_hit_shows_the_text_around_the_match(client: httpx.Client) -> None:
    [hit] = search(client, "<script>")["hits"]
    assert hit["match"] == "script"
    assert hit["before"].startswith("…")
    assert hit["before"].endswith("Zürich <")
    assert hit["after"].startswith("> after after")
    assert hit["kind"] == "tool"
    assert hit["execution"]["number"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "apples AND",
        "NEAR(",
        "text : apples",
        "apples ) OR (",
        "col:^x",
        "*",
        "a*b*",
        "'; DROP TABLE steps; --",
        "\x00apples",
    ],
)
def test_no_character_has_a_special_meaning(client: httpx.Client, text: str) -> None:
    assert search(client, text)["indexed"] == 3


@given(st.text())
def test_every_text_is_a_valid_query(text: str) -> None:
    query, _, problem = fts_query(text)
    if query:
        with contextlib.closing(sqlite3.connect(":memory:")) as db:
            db.execute("CREATE VIRTUAL TABLE steps USING fts5 (text, content = '')")
            db.execute("SELECT rowid FROM steps WHERE steps MATCH ?", [query.encode(errors="replace").decode()])
    else:
        assert problem or not text.strip() or not any(one.isalnum() for one in text)


def test_what_cannot_be_searched_is_said(client: httpx.Client) -> None:
    assert search(client, '"open')["problem"] == "a quotation mark is missing"
    assert "no word" in search(client, "?!")["problem"]
    assert search(client, "")["problem"] == ""


def test_what_is_recorded_later_is_found(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", [result("a")], tasks=["a", "b"])
    with serving(path.parent) as (_, client):
        wait_for_index(client, 1)
        with journal_of(path) as journal:
            journal.record([result("b", trajectory=trajectory({"role": "user", "content": "walrus"}))])
        wait_for_index(client, 2)
        assert places(client, "walrus") == {("b", 0)}


def test_a_damaged_index_is_built_again(tmp_path: Path) -> None:
    path = write_run(tmp_path / "runs", "one", RESULTS)
    for content in (b"not a database" * 1000, b""):
        (path / "search.sqlite").write_bytes(content)
        with serving(path.parent) as (_, client):
            wait_for_index(client, 3)
            assert places(client, "spoon") == {("c", 0)}


def test_the_index_of_another_run_is_not_used(tmp_path: Path) -> None:
    first = write_run(tmp_path / "runs", "one", RESULTS)
    with serving(first.parent) as (_, client):
        wait_for_index(client, 3)
    second = write_run(tmp_path / "others", "one", [result("z", status="failed", kind="E", error="fork")])
    (second / "search.sqlite").write_bytes((first / "search.sqlite").read_bytes())
    with serving(second.parent) as (_, client):
        wait_for_index(client, 1)
        assert places(client, "spoon") == set()
        assert places(client, "fork") == {("z", 0)}
