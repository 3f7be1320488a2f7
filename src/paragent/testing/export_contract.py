"""Contract suite for export formats: subclass it in a test file, name the format, say how to read it, and run pytest.

::

    class TestMine(ExportFormatContract):
        format = "mine"

        def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
            return [(line["task"], line["attempt"]) for line in map(json.loads, target.open())]
"""

from __future__ import annotations

import abc
import base64
import itertools
import re
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from paragent.errors import UsageError
from paragent.store import JOURNAL_FILE, Journal, RolloutResult, RolloutStatus, RunDirectory
from paragent.store.formats import FORMATS, export
from paragent.store.formats.images import image_type
from paragent.store.records import pack_trajectory
from paragent.tasks import BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import Iterable

    from paragent.store.formats import RunExport

__all__ = ["ExportFormatContract", "sample_rollouts", "sample_run", "write_run"]

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
TEXT = "größer als 日本 😀 \u202e\x07 </script>"
_TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
_GROWTH = 4 << 20
"""Bytes by which an export of 2,000 results may need more memory than one of 200; their trajectories have 20 MB."""


class ExportFormatContract(abc.ABC):
    """Tests that every export format must pass."""

    format: ClassVar[str]
    """A registered name."""
    has_images: ClassVar[bool] = True
    """Whether the content of images is part of the format."""

    @abc.abstractmethod
    def rollouts_in(self, target: Path) -> list[tuple[str, int]]:
        """Return the task id and the attempt of each result in an export; a result may be there several times."""

    def content_of(self, target: Path) -> str:
        """Return all text of an export; override it for formats that are not text."""
        files = [target] if target.is_file() else sorted(path for path in target.rglob("*") if path.is_file())
        return "\n".join(path.read_bytes().decode(errors="replace") for path in files)

    def images_in(self, target: Path) -> list[bytes]:
        """Return the images of an export: files, and data URLs in the text."""
        files = [path.read_bytes() for path in target.rglob("*") if path.is_file()]
        urls = re.findall(r"data:image/\w+;base64,([\w+/=]+)", self.content_of(target))
        return [content for content in [*files, *map(base64.b64decode, urls)] if image_type(content)]

    # --- the tests ----------------------------------------------------------------------------------------------------

    def test_every_result_is_there_or_named_as_left_out(self) -> None:
        with _exported(self.format, sample_rollouts()) as (run, target):
            found = set(self.rollouts_in(target))
            left_out = {name for one in run.left_out.values() for name in one.names}
            expected = {(result.task, result.attempt) for _, result in sample_rollouts()}
            labels = {result.label for _, result in sample_rollouts() if (result.task, result.attempt) not in found}
            assert found <= expected
            assert left_out == labels, "a result is neither in the export nor named as left out"
            assert run.written == len(found)

    def test_results_with_messages_are_written_in_all_statuses(self) -> None:
        statuses = [status for status in RolloutStatus if status is not RolloutStatus.CANCELLED]
        results = [(_task(str(status)), _result(str(status), status=status)) for status in statuses]
        with _exported(self.format, results) as (run, target):
            assert {task for task, _ in self.rollouts_in(target)} == {str(status) for status in statuses}
            assert run.written == len(statuses)

    def test_text_keeps_its_characters(self) -> None:
        with _exported(self.format, [(_task("a"), _result("a", text=TEXT))]) as (_, target):
            content = self.content_of(target)
            assert "größer als 日本 😀" in content or "gr\\u00f6\\u00dfer" in content

    def test_images_are_included(self) -> None:
        with _exported(self.format, [(_task("a"), _result("a", image="step_1.png"))]) as (_, target):
            assert (PNG in self.images_in(target)) == self.has_images

    def test_a_name_of_an_image_cannot_lead_out_of_the_run(self) -> None:
        results = [(_task("a"), _result("a", image="../../../../secret.png"))]
        with _exported(self.format, results, secret=PNG) as (run, target):
            assert run.written == 1
            assert not self.images_in(target)

    def test_a_run_without_results_is_an_empty_export(self) -> None:
        with _exported(self.format, []) as (run, target):
            assert (run.written, run.left_out) == (0, {})
            assert target.exists()
            assert self.rollouts_in(target) == []

    def test_a_result_whose_trajectory_is_damaged_is_there_or_named(self) -> None:
        odd: list[Any] = [
            b"no zlib",
            pack_trajectory([1, 2]),
            pack_trajectory(
                {"messages": [3, {"role": "assistant", "tool_calls": [7, {"function": "x"}], "images": 5}]}
            ),
            pack_trajectory(
                {"messages": {"a": 1}, "steps": "x", "branches": [{"parent": 9}], "tokens": [{"turns": 1}]}
            ),
        ]
        results = [(_task(str(n)), _result(str(n), trajectory=body)) for n, body in enumerate(odd)]
        with _exported(self.format, results) as (run, target):
            left_out = {name for one in run.left_out.values() for name in one.names}
            assert {task for task, _ in self.rollouts_in(target)} | left_out == set("0123")

    def test_its_memory_does_not_grow_with_the_number_of_results(self) -> None:
        few, many = (_peak(self.format, count) for count in (200, 2_000))
        assert many - few < _GROWTH, f"200 results: {few:,} bytes, 2,000 results: {many:,} bytes"

    def test_a_target_of_the_wrong_kind_is_rejected(self) -> None:
        folder = FORMATS.load(self.format).folder
        with tempfile.TemporaryDirectory() as name:
            target = Path(name) / "target"
            target.touch() if folder else target.mkdir()
            assert "--output" in self._error(Path(name), target, UsageError)

    def test_a_target_that_cannot_be_written_is_reported(self) -> None:
        with tempfile.TemporaryDirectory() as name:
            (Path(name) / "file").touch()
            assert self._error(Path(name), Path(name) / "file" / "below", OSError)

    def _error(self, folder: Path, target: Path, kind: type[Exception]) -> str:
        """Export to `target`, which must fail, and return the message of the error."""
        with write_run(folder / "run", sample_rollouts()) as journal:
            try:
                export(journal, self.format, target)
            except kind as error:
                return str(error)
        raise AssertionError(f"the format wrote to {target}")


def sample_rollouts(*, images: bool = False) -> list[tuple[BenchmarkTask, RolloutResult]]:
    """Return results of all kinds: several attempts, failures, branches, tokens, no messages and, if chosen, images."""
    with_image = [(_task("image"), _result("image", image="step_1.png"))] if images else []
    failed: dict[str, Any] = {
        "status": RolloutStatus.FAILED,
        "error": "ValueError: no",
        "kind": "ValueError",
        "score": 0.0,
    }
    return [
        *with_image,
        (_task("a"), _result("a")),
        (_task("a"), _result("a", attempt=2, score=0.0)),
        (_task("b/../ü"), _result("b/../ü", text=TEXT)),
        (_task("failed"), _result("failed", **failed)),
        (_task("branches"), _result("branches", branches=True)),
        (_task("tokens"), _result("tokens", tokens=True)),
        (_task("out of turns"), _result("out of turns", ending="turns used up", score=0.0)),
        (_task("cancelled"), _result("cancelled", status=RolloutStatus.CANCELLED, score=None)),
        (
            _task("lost"),
            _result("lost", status=RolloutStatus.INFRASTRUCTURE, score=None, kind="worker", trajectory=None),
        ),
    ]


def _task(name: str) -> BenchmarkTask:
    return BenchmarkTask(name, f"What is {name}?", ["42", "43"], {"domain": "sums", "level": 3})


def _result(
    name: str, *, text: str = "42", image: str = "", branches: bool = False, tokens: bool = False, **given: Any
) -> RolloutResult:
    if "trajectory" not in given:
        given["trajectory"] = pack_trajectory(_trajectory(text, image, branches=branches, tokens=tokens))
    facts: dict[str, Any] = {
        "status": RolloutStatus.COMPLETED, "attempt": 1, "score": 1.0, "scores": {"exact": 1.0}, "answer": text,
        "ending": "answered", "turns": 2, "tool_calls": 1, "requests": 2, "prompt_tokens": 30, "completion_tokens": 12,
        "cached_tokens": 10, "reasoning_tokens": 4, "seconds": 2.5, "waited": 0.5, "started": 1_700_000_000.0,
        "ended": 1_700_000_003.0, "worker": "host:1", **given,
    }  # fmt: skip
    if image:
        facts["files"] = {image: PNG}
    return RolloutResult(name, facts.pop("attempt"), **facts)


def _trajectory(text: str, image: str, *, branches: bool, tokens: bool) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 40, "b": 2}'}}
    observation = {"role": "tool", "tool_call_id": "c1", "content": "42", **({"images": [image]} if image else {})}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Answer."},
        {"role": "user", "content": "What is 40 + 2?"},
        {"role": "assistant", "content": None, "reasoning_content": "I add.", "tool_calls": [call]},
        observation,
        {"role": "assistant", "content": text},
    ]
    steps: list[dict[str, Any]] = [
        _model_step(2, at=0.1, turn=1),
        {"kind": "tool", "turn": 1, "at": 0.6, "seconds": 0.2, "name": "add", "call": "c1"},
        _model_step(4, at=0.9, turn=2),
        {"kind": "tool", "turn": 2, "at": 1.3, "seconds": 0.1, "name": "ask", "call": "g1", "result": "by the gateway"},
        {"kind": "score", "turn": 2, "at": 1.5, "seconds": 0.1, "metric": "exact", "score": 1.0},
    ]
    found: dict[str, Any] = {"messages": messages, "tools": _TOOLS, "steps": steps}
    if branches:
        rewritten = [{"role": "user", "content": "Again."}, {"role": "assistant", "content": "43"}]
        found["branches"] = [{"parent": 0, "shared": 2, "messages": rewritten}]
        steps.append(_model_step(3, at=1.6, turn=3) | {"branch": 1})
    if tokens:
        found["tokens"] = [
            {
                "token_ids": [1, 2, 3, 4, 5, 6],
                "mask": [0, 0, 1, 0, 1, 1],
                "logprobs": [0.0, 0.0, -0.5, 0.0, -0.1, -2.0],
                "turns": [
                    {"step": 0, "start": 2, "end": 3, "version": 7},
                    {"step": 2, "start": 4, "end": 6, "version": 8},
                ],
            }
        ]
    return found


def _model_step(messages: int, *, at: float, turn: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 15, "completion_tokens": 6, "cached_tokens": 5, "reasoning_tokens": 2}
    return {
        "kind": "model", "turn": turn, "at": at, "seconds": 0.4, "model": "small", "messages": messages, "usage": usage,
        "finish_reason": "stop", "retries": 1, "waited": 0.1, "request_id": "req",
    }  # fmt: skip


def sample_run(path: Path) -> Journal:
    """Write a run directory with results of all kinds and return its journal, open for reading."""
    return write_run(path, sample_rollouts(images=True))


def write_run(path: Path, rollouts: Iterable[tuple[BenchmarkTask, RolloutResult]]) -> Journal:
    """Write a run directory with these results and return its journal, open for reading."""
    rollouts = iter(rollouts)
    with RunDirectory(path) as directory:
        directory.open({"mode": "math", "model": "small", "metric": "exact", "attempts": 2}, "identity")
        for batch in iter(lambda: list(itertools.islice(rollouts, 500)), []):
            results = [result for _, result in batch]
            directory.journal.add_tasks(task for task, _ in batch)
            directory.write_files(results)
            directory.journal.record(results)
        directory.journal.set_meta("attempts", "2")
    return Journal(path / JOURNAL_FILE, read_only=True)


class _exported:  # noqa: N801 - a context manager that reads like a function
    """Writes a run with these results and exports it; yields the export and its target."""

    def __init__(self, form: str, results: list[tuple[BenchmarkTask, RolloutResult]], secret: bytes = b"") -> None:
        self._form, self._results, self._secret = form, results, secret

    def __enter__(self) -> tuple[RunExport, Path]:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "secret.png").write_bytes(self._secret)
        target = folder / "export"
        with write_run(folder / "runs" / "run", self._results) as journal:
            return export(journal, self._form, target), target

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()


def _peak(form: str, count: int) -> int:
    """Return the most bytes that Python objects used during an export of this many results."""
    body = pack_trajectory(_trajectory("42" * 5_000, "", branches=False, tokens=False))
    results = ((_task(str(n)), _result(str(n), trajectory=body)) for n in range(count))
    with _exported(form, sample_rollouts()):  # imports and caches are not counted
        pass
    with tempfile.TemporaryDirectory() as name, write_run(Path(name) / "run", results) as journal:
        tracemalloc.start()
        try:
            export(journal, form, Path(name) / "export")
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
