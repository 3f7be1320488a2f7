"""The contract of export formats, for each format of paragent."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from paragent.store.formats import FORMATS
from paragent.testing import ExportFormatContract

pytestmark = pytest.mark.slow


def lines_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class TestJsonl(ExportFormatContract):
    format = "jsonl"
    has_images = False

    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        return [(str(line["task"]), int(str(line["attempt"]))) for line in lines_of(target)]


class TestOpenAIChat(ExportFormatContract):
    format = "openai-chat"

    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        found = [line["metadata"] for line in lines_of(target)]
        return [(one["task"], one["attempt"]) for one in found if isinstance(one, dict)]


class TestTrl(ExportFormatContract):
    format = "trl"

    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        return [(str(line["task"]), int(str(line["attempt"]))) for line in lines_of(target / "conversations.jsonl")]


class TestAtif(ExportFormatContract):
    format = "atif"

    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        documents = [json.loads(path.read_text()) for path in target.glob("*/agent/trajectory.json")]
        facts = [document["extra"]["paragent"] for document in documents]
        return [(one["task"]["id"], one["attempt"]) for one in facts]


class TestOSWorld(ExportFormatContract):
    format = "osworld"

    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        found = json.loads((target / "summary" / "results.json").read_text())
        counts: dict[str, int] = {}
        for one in found:
            counts[one["task_id"]] = counts.get(one["task_id"], 0) + 1
        return [(task, attempt) for task, count in counts.items() for attempt in range(1, count + 1)]


class TestParquet(ExportFormatContract):
    format = "parquet"
    has_images = False

    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        rows = pq.read_table(target).to_pylist()
        return [(row["task"], row["attempt"]) for row in rows]

    def content_of(self, target: Path) -> str:
        return json.dumps(pq.read_table(target).to_pylist(), ensure_ascii=False)


class TestInspect(ExportFormatContract):
    format = "inspect"

    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        with zipfile.ZipFile(target) as archive:
            names = [name for name in archive.namelist() if name.startswith("samples/")]
            samples = [json.loads(archive.read(name)) for name in names]
        return [(sample["id"], sample["epoch"]) for sample in samples]

    def content_of(self, target: Path) -> str:
        with zipfile.ZipFile(target) as archive:
            return "\n".join(archive.read(name).decode() for name in archive.namelist())


def test_every_format_has_a_contract_test() -> None:
    tested = {one.format for one in ExportFormatContract.__subclasses__()}
    assert tested == set(FORMATS.names())
