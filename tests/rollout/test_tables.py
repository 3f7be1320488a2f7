"""Benchmarks in Parquet, Arrow, Feather and CSV files and in datasets of the Hugging Face hub."""

from __future__ import annotations

import csv
import datetime as dt
import decimal
import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from paragent._installation import install_command
from paragent.cli import main
from paragent.errors import BadData, ConfigError, MissingExtra
from paragent.rollout.dataset import read_benchmark

ROWS: list[dict[str, Any]] = [
    {"id": "a", "question": "1 + 1?", "answer": "2", "level": 1, "tags": ["x"], "solution": {"steps": 1}},
    {"id": "b", "question": "Größe 日本?", "answer": "3", "level": 2, "tags": [], "solution": {"steps": 2}},
]


def write_table(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows in the format that the name of the file asks for."""
    table = pa.Table.from_pylist(rows)
    if path.suffix == ".parquet":
        pq.write_table(table, path, row_group_size=1)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, path)
    elif path.suffix == ".arrow":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    else:
        delimiter = "\t" if ".tsv" in path.name else ","
        open_file = gzip.open if path.suffix == ".gz" else open
        with open_file(path, "wt", newline="") as file:
            writer_of_rows = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
            writer_of_rows.writeheader()
            writer_of_rows.writerows(rows)
    return path


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow", "a.csv", "a.tsv", "a.csv.gz"])
def test_tables_have_the_tasks_of_the_same_json_lines(name: str, tmp_path: Path) -> None:
    text = any(kind in name for kind in ("csv", "tsv"))
    rows = [{key: str(value) for key, value in row.items()} for row in ROWS] if text else ROWS
    lines = tmp_path / "a.jsonl"
    lines.write_text("".join(json.dumps(row) + "\n" for row in rows))
    table, plain = read_benchmark(write_table(tmp_path / name, rows)), read_benchmark(lines)
    assert list(table) == list(plain)
    assert table.digest == plain.digest, "the run has the same identity"
    assert (table.size, [task.id for task in read_benchmark(tmp_path / name, limit=1)]) == (2, ["a"])


def test_values_without_a_form_in_json_are_converted(tmp_path: Path) -> None:
    row = {
        "question": "?",
        "answer": decimal.Decimal("1.50"),
        "day": dt.date(2026, 1, 2),
        "image": {"bytes": b"\x89PNG", "path": "a.png"},
        "raw": b"\0",
        "nan": float("nan"),
    }
    [task] = read_benchmark(write_table(tmp_path / "a.parquet", [row]))
    assert task.answer == "1.50"
    assert task.metadata == {"day": "2026-01-02", "image": {"path": "a.png"}, "nan": None}


def test_fields_with_other_names_are_chosen(tmp_path: Path) -> None:
    row = {"uid": 7, "problem": "1 + 1?", "question": "not this", "answers": {"text": ["2", "two"]}, "level": 3}
    path = write_table(tmp_path / "a.parquet", [row])
    fields = {"question": "problem", "answer": "answers.text", "id": "uid"}
    [task] = read_benchmark(path, fields=fields)
    assert (task.id, task.question, task.answer) == ("7", "1 + 1?", ["2", "two"])
    assert task.metadata["level"] == 3
    assert task.metadata["original_question"] == "not this"
    lines = tmp_path / "a.jsonl"
    lines.write_text(json.dumps(row) + "\n")
    assert list(read_benchmark(lines, fields=fields)) == [task], "the flag works for JSON, too"


def test_a_field_that_does_not_exist_is_named(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", ROWS)
    with pytest.raises(BadData, match=r"no field 'problem'.*there are: id, question"):
        read_benchmark(path, fields={"question": "problem"})
    with pytest.raises(ConfigError, match="--data-field must be"):
        read_benchmark(path, fields={"prompt": "problem"})


@pytest.mark.parametrize("name", ["a.parquet", "a.feather", "a.arrow", "a.csv.gz"])
def test_damaged_files_are_clear_errors(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"PAR1 this is something else")
    with pytest.raises(ConfigError, match=rf"{name} cannot be read"):
        read_benchmark(tmp_path / name)


def test_a_csv_line_with_too_many_fields_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('id,question\na,"1, 2"\nb,1,2\n')
    with pytest.raises(ConfigError, match="line 3 does not have 2 fields"):
        read_benchmark(tmp_path / "a.csv")


def test_a_long_field_of_a_csv_file_is_read(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.csv", [{"question": "x" * 1_000_000}])
    assert len(next(iter(read_benchmark(path))).question) == 1_000_000


def test_a_rollout_reads_a_table(tmp_path: Path) -> None:
    path = write_table(tmp_path / "a.parquet", [{"n": "a", "problem": "What is 1 + 1?", "answer": "2"}])
    given = ["--mode", "math", "--model", "demo", "--engine", "inline", "--num-rollouts", "1", "--run-name", "r"]
    fields = ["--data-field", "question=problem", "--data-field", "id=n"]
    assert main(["rollout", *given, "--data", str(path), *fields, "--output-dir", str(tmp_path)]) == 0
    [line] = (tmp_path / "r" / "results.jsonl").read_text().splitlines()
    assert json.loads(line)["task"] == "a"
    assert json.loads((tmp_path / "r" / "config.json").read_text())["data_field"] == {"question": "problem", "id": "n"}


def load(data: str, home: Path, *given: str, offline: bool = True) -> tuple[int, str]:
    """Read a benchmark in a new process, because `datasets` reads its variables at import; return exit code and output."""
    code = (
        "import sys; from pathlib import Path; from paragent.rollout.dataset import read_benchmark\n"
        "b = read_benchmark(Path(sys.argv[1]), fields=dict(one.split('=') for one in sys.argv[2:]))\n"
        "print([(task.id, task.question, task.answer) for task in b], b.digest)"
    )
    variables = os.environ | {"HF_HOME": str(home), "HF_HUB_OFFLINE": "1" if offline else "0"}
    done = subprocess.run(
        [sys.executable, "-c", code, data, *given],
        capture_output=True,
        text=True,
        timeout=100,
        env=variables,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.slow
def test_a_dataset_in_the_layout_of_the_hub_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "sums"
    folder.mkdir()
    for split in ("train", "test"):
        write_table(folder / f"{split}.parquet", [{"problem": f"{split}?", "answer": "2"}])
    code, out = load(f"hf:{folder}:test", tmp_path / "home", "question=problem")
    assert code == 0, out
    assert "'test?', '2')]" in out
    code, out = load(f"hf:{folder}", tmp_path / "home")
    assert "has the splits train, test; choose one" in out
    code, out = load(f"hf:{folder}:validation", tmp_path / "home")
    assert code == 1
    assert "cannot load" in out
    assert "validation" in out


@pytest.mark.slow
def test_a_hub_that_cannot_be_reached_is_a_clear_error(tmp_path: Path) -> None:
    code, out = load("hf:openai/gsm8k/main:test", tmp_path / "home")
    assert code == 1
    assert "hub cannot be reached, and 'openai/gsm8k' is not in the local cache" in out


@pytest.mark.parametrize("name", ["hf:", "hf::test", "hf:name:"])
def test_malformed_names_of_datasets_are_rejected(name: str) -> None:
    with pytest.raises(ConfigError, match="not of the form"):
        read_benchmark(Path(name))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=re.escape(install_command(["hf"]))):
        read_benchmark(Path("hf:openai/none:test"))
    with pytest.raises(MissingExtra, match=re.escape(install_command(["parquet"]))):
        read_benchmark(write_table(tmp_path / "a.parquet", ROWS))
