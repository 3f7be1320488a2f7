"""Import of inspect logs: `.eval` archives and `.json` logs. Epochs become attempts."""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._installation import install_command
from paragent._internal.registry import import_object
from paragent.store.formats.conversations import dictionaries, text_of
from paragent.store.formats.images import image_type, read_data_url
from paragent.store.formats.imported import BranchBuilder, real, result_from, string, structure, timestamp, whole
from paragent.store.formats.importing import LARGEST_DOCUMENT, BadImport, ImportedRollout, parse_document
from paragent.store.records import RolloutStatus, pack_trajectory
from paragent.tasks import ANSWER_CUT, ANSWERED, CONTEXT_FULL, TURNS_USED_UP, BenchmarkTask

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paragent.store.formats.importing import ImportReport

__all__ = ["is_inspect_log", "read_archive", "read_log"]

_MOST_MEMBERS = 1_000_000
_LARGEST_RATIO = 200
"""How many times as large as an archive its content may be, if it has more than `_SMALL` bytes; logs reach about 30."""
_SMALL = 1 << 30
_ZSTANDARD = 93
"""The compression method with which inspect writes logs. Python's own `zipfile` supports it from Python 3.14 on."""
_LOCAL_HEADER = struct.Struct("<26xHH")
"""What precedes a file in an archive: 26 bytes, and the lengths of its name and of the extra field, which follow."""
_LARGEST_WINDOW = 128 << 20
"""The most memory in bytes that a compressed file may demand; that of inspect's logs is 8 MiB at most."""
_SUFFIXES = {"image/png": "png", "image/jpeg": "jpg", "image/gif": "gif", "image/webp": "webp"}
_ENDINGS = {"turn": TURNS_USED_UP, "message": TURNS_USED_UP, "context": CONTEXT_FULL}
_CUT = {"max_tokens": ANSWER_CUT, "length": ANSWER_CUT, "model_length": CONTEXT_FULL}
_GRADES = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""The letters that inspect's scorers give: correct, partly correct, incorrect, no answer."""


def is_inspect_log(document: Any) -> bool:
    """Return whether a document is a log of inspect."""
    return isinstance(document, dict) and isinstance(document.get("eval"), dict) and "samples" in document


def read_log(path: Path, document: dict[str, Any], report: ImportReport) -> Iterator[ImportedRollout]:
    """Yield the results of a `.json` log; samples that cannot be read are added to `report`."""
    facts = _facts_of_log(document)
    for number, sample in enumerate(dictionaries(document.get("samples"))):
        yield from _read_sample(f"{path}: sample {number}", sample, facts, report)


def read_archive(path: Path, report: ImportReport) -> Iterator[ImportedRollout]:
    """Yield the results of an `.eval` log; samples that cannot be read are added to `report`.

    Raises:
        BadImport: it is not such a log, or its content is suspiciously large.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            _check(path, members)
            names = {member.filename for member in members}
            head = next((name for name in ("header.json", "_journal/start.json") if name in names), None)
            if head is None:
                raise BadImport(
                    "the archive has neither header.json nor _journal/start.json, so it is not a log of inspect"
                )
            facts = _facts_of_log(structure(parse_document(_content(archive, head))))
            samples = [one.filename for one in members if one.filename.startswith("samples/")]
            for name in samples:
                try:
                    sample = structure(parse_document(_content(archive, name)))
                except BadImport as error:
                    report.add_problem(f"{path}: {name[:200]}: {error}")
                    continue
                yield from _read_sample(f"{path}: {name[:200]}", sample, facts, report)
    except (zipfile.BadZipFile, struct.error, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise BadImport(f"the archive cannot be read: {error}") from error


def _check(path: Path, members: list[zipfile.ZipInfo]) -> None:
    """Check the sizes that an archive declares; `_content` checks what is really read."""
    total, size = sum(member.file_size for member in members), path.stat().st_size
    if len(members) > _MOST_MEMBERS:
        raise BadImport(f"the archive has {len(members):,} files; the most is {_MOST_MEMBERS:,}")
    if total > _SMALL and total > _LARGEST_RATIO * size:
        raise BadImport(f"the archive has {size:,} bytes and would expand to {total:,}, so it is not a log")


def _content(archive: zipfile.ZipFile, name: str) -> bytes:
    """Return a file of an archive; never more than the limit is decompressed."""
    member = archive.getinfo(name)
    if member.compress_type == _ZSTANDARD and not hasattr(zipfile, "ZIP_ZSTANDARD"):
        content = _decompressed(Path(archive.filename or ""), member)
    else:
        with archive.open(name) as file:
            content = file.read(LARGEST_DOCUMENT + 1)
    if len(content) > LARGEST_DOCUMENT:
        raise BadImport(f"the file has more than {LARGEST_DOCUMENT:,} bytes")
    return content


def _decompressed(path: Path, member: zipfile.ZipInfo) -> bytes:
    """Return the content of a file that is compressed with Zstandard, but at most a byte more than the limit.

    Raises:
        BadImport: the content is damaged, or the package that reads it is not installed.
    """
    try:
        decompressor = import_object("zstandard:ZstdDecompressor")
        failure: type[Exception] = import_object("zstandard:ZstdError")
    except ModuleNotFoundError as error:
        raise BadImport(
            "inspect has compressed the log with Zstandard, which needs the package zstandard: "
            f"{install_command(['inspect'])}. Or convert the log: inspect log convert --to json --output-dir DIR LOG"
        ) from error
    with path.open("rb") as file:
        file.seek(member.header_offset)
        name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
        file.seek(name + extra, 1)
        packed = file.read(member.compress_size)
    try:
        with decompressor(max_window_size=_LARGEST_WINDOW).stream_reader(packed, read_across_frames=True) as reader:
            content: bytes = reader.read(LARGEST_DOCUMENT + 1)
    except failure as error:
        raise BadImport(f"the file cannot be decompressed: {error}") from error
    if len(content) <= LARGEST_DOCUMENT and zlib.crc32(content) != member.CRC:
        raise BadImport("the file is damaged: its checksum is wrong")
    return content


def _facts_of_log(document: dict[str, Any]) -> dict[str, Any]:
    spec = structure(document.get("eval"))
    return {"format": "inspect", "mode": string(spec.get("task")) or "imported", "model": string(spec.get("model"))}


def _read_sample(
    where: str, sample: dict[str, Any], facts: dict[str, Any], report: ImportReport
) -> Iterator[ImportedRollout]:
    identity = sample.get("id")
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        report.add_problem(f"{where}: not a sample: it has no id")
        return
    yield _Reader(sample, facts["model"]).read(str(identity), facts)


class _Reader:
    """Converts one sample."""

    def __init__(self, sample: dict[str, Any], model: str) -> None:
        self._sample = sample
        self._model = model
        self._attachments = structure(sample.get("attachments"))
        self._metadata = structure(sample.get("metadata"))
        self._facts = structure(self._metadata.get("paragent"))
        self._started = real(self._facts.get("started")) or timestamp(sample.get("started_at"))
        self._pool = dictionaries(structure(sample.get("events_data")).get("messages"))
        self._turn = 0
        self._files: dict[str, bytes] = {}

    def read(self, identity: str, facts: dict[str, Any]) -> ImportedRollout:
        """Return the result of the sample."""
        trajectory = self._trajectory()
        values = dict(self._facts) if self._facts else self._values(trajectory)
        result = result_from(identity, values | {"attempt": self._sample.get("epoch")})
        result.trajectory = pack_trajectory(trajectory)
        result.files = self._files
        return ImportedRollout(self._task(result.task), result, dict(facts))

    def _task(self, identity: str) -> BenchmarkTask:
        given = self._sample.get("input")
        texts = [text_of(one.get("content")) for one in dictionaries(given) if one.get("role") == "user"]
        question = given if isinstance(given, str) else "\n".join(texts)
        metadata = {name: value for name, value in self._metadata.items() if name != "paragent"}
        answer = (
            self._facts["answer_expected"] if "answer_expected" in self._facts else self._sample.get("target") or None
        )
        return BenchmarkTask(identity, question, answer, metadata)

    def _values(self, trajectory: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a result that paragent did not write."""
        sample = self._sample
        error, limit = structure(sample.get("error")), structure(sample.get("limit"))
        scores = {name: _value(structure(score)) for name, score in structure(sample.get("scores")).items()}
        known = [score for score in scores.values() if score is not None]
        usage = [structure(one) for one in structure(sample.get("model_usage")).values()]
        replies = [message for message in trajectory["messages"] if message["role"] == "assistant"]
        timed_out = string(limit.get("type")) in {"time", "working"}
        status = RolloutStatus.FAILED if error else RolloutStatus.TIMED_OUT if timed_out else RolloutStatus.COMPLETED
        started, ended = self._started or 0.0, timestamp(sample.get("completed_at"))
        total, working = real(sample.get("total_time")) or 0.0, real(sample.get("working_time"))
        return {
            "status": status,
            "kind": "error" if error else "time limit" if timed_out else "",
            "error": string(error.get("message")),
            "ending": _ENDINGS.get(string(limit.get("type")), string(limit.get("type"))) or self._ending(trajectory),
            "score": known[0] if known else None,
            "scores": scores,
            "answer": replies[-1]["content"] if replies else None,
            "turns": len(replies),
            "requests": len(replies),
            "tool_calls": sum(len(message.get("tool_calls") or ()) for message in replies),
            "started": started,
            "ended": ended or started + total,
            "seconds": total if working is None else working,
            "waited": max(0.0, total - working) if working is not None else 0.0,
            **_counts(usage),
        }

    def _ending(self, trajectory: dict[str, Any]) -> str:
        """Return how a conversation ended that reached no limit of inspect's own."""
        choices = dictionaries(structure(self._sample.get("output")).get("choices"))
        reasons = [string(choice.get("stop_reason")) for choice in choices[:1]]
        reasons += [string(step.get("finish_reason")) for step in trajectory["steps"] if step.get("kind") == "model"][
            -1:
        ]
        return next((_CUT[reason] for reason in reasons if reason in _CUT), ANSWERED)

    def _trajectory(self) -> dict[str, Any]:
        messages = [self._message(one) for one in dictionaries(self._sample.get("messages"))]
        builder = BranchBuilder(messages)
        steps: list[dict[str, Any]] = []
        for event in dictionaries(self._sample.get("events")):
            step = self._step(event, builder)
            if step is not None:
                steps.append(step)
        found: dict[str, Any] = {"messages": messages, "tools": dictionaries(self._facts.get("tools")), "steps": steps}
        if builder.branches:
            found["branches"] = builder.branches
        for name in ("tokens", "unstorable"):
            if self._facts.get(name):
                found[name] = self._facts[name]
        return found

    def _step(self, event: dict[str, Any], builder: BranchBuilder) -> dict[str, Any] | None:
        facts = structure(structure(event.get("metadata")).get("paragent"))
        step = {name: value for name, value in facts.items() if name != "step"}
        kind = event.get("event")
        if kind == "model":
            return self._model_step(event, step, builder)
        if kind == "tool":
            found = {"kind": "tool", "turn": self._turn, **self._times(event), "call": string(event.get("id"))}
            found |= {"name": string(event.get("function"))} | ({"error": True} if event.get("error") else {})
            return found | step
        return step if kind == "info" and step.get("kind") else None

    def _model_step(self, event: dict[str, Any], step: dict[str, Any], builder: BranchBuilder) -> dict[str, Any]:
        output = structure(event.get("output"))
        sent = [self._message(one) for one in self._input(event)]
        found: dict[str, Any] = {
            "kind": "model",
            **self._times(event),
            "model": string(event.get("model")) or self._model,
        }
        found |= {"messages": len(sent), "usage": _counts([structure(output.get("usage"))], none={}) or None}
        choices = dictionaries(output.get("choices"))
        if event.get("error") or not choices:
            return found | {"turn": self._turn + 1, "error": string(event.get("error")) or "no reply"} | step
        self._turn += 1
        reply = structure(choices[0].get("message"))
        branch, _ = builder.add(sent, self._message(reply | {"role": "assistant"}))
        found |= {"turn": self._turn, "finish_reason": string(choices[0].get("stop_reason"))}
        answered = string(output.get("model"))
        found |= {"response_model": answered} if answered and answered != found["model"] else {}
        found |= {"retries": whole(event.get("retries")) or 0, "cached": event.get("cache") == "read"}
        return found | step | ({"branch": branch} if branch else {})

    def _input(self, event: dict[str, Any]) -> list[dict[str, Any]]:
        refs = event.get("input_refs")
        if not isinstance(refs, list):
            return dictionaries(event.get("input"))
        found: list[dict[str, Any]] = []
        for one in refs:
            if isinstance(one, list) and len(one) == 2 and all(isinstance(end, int) and end >= 0 for end in one):
                found += self._pool[one[0] : one[1]]
            if len(found) > len(self._pool):
                raise BadImport("a model call refers to more messages than there are")
        return found

    def _times(self, event: dict[str, Any]) -> dict[str, float]:
        began, ended = timestamp(event.get("timestamp")), timestamp(event.get("completed"))
        times = {}
        if began is not None and self._started:
            times["at"] = round(began - self._started, 4)
        if began is not None and ended is not None:
            times["seconds"] = round(ended - began, 4)
        return times

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        role = string(message.get("role"))
        content = message.get("content")
        parts = dictionaries(content)
        text = self._resolved(content) if isinstance(content, str) else self._text(parts)
        facts = structure(structure(message.get("metadata")).get("paragent"))
        found: dict[str, Any] = {"role": string(facts.get("role")) or role or "user", "content": text}
        if calls := dictionaries(message.get("tool_calls")):
            found |= {"content": text or None, "tool_calls": [_call(call) for call in calls]}
        reasoning = [self._resolved(string(one.get("reasoning"))) for one in parts if one.get("type") == "reasoning"]
        if any(reasoning):
            found["reasoning_content"] = "\n".join(reasoning)
        if role == "tool":
            found["tool_call_id"] = string(message.get("tool_call_id"))
        images = [self._image(string(part.get("image"))) for part in parts if part.get("type") == "image"]
        return found | ({"images": [name for name in images if name]} if any(images) else {})

    def _text(self, parts: list[dict[str, Any]]) -> str:
        texts = [self._resolved(string(part.get("text"))) for part in parts if part.get("type") == "text"]
        other = {str(part.get("type")) for part in parts} - {"text", "image", "reasoning"}
        return "\n".join([*texts, *(f"[{kind[:40]} that was not imported]" for kind in sorted(other))])

    def _resolved(self, text: str) -> str:
        """Return a text; a long one may be stored as an attachment."""
        if text.startswith("attachment://"):
            return string(self._attachments.get(text.removeprefix("attachment://"))) or text
        return text

    def _image(self, url: str) -> str:
        content = read_data_url(self._resolved(url))
        if content is None:
            return ""
        name = f"image_{zlib.crc32(content):08x}_{len(content)}.{_SUFFIXES[image_type(content) or 'image/png']}"
        self._files[name] = content
        return name


def _value(score: dict[str, Any]) -> float | None:
    value = score.get("value")
    if isinstance(value, bool):
        return float(value)
    return _GRADES.get(value) if isinstance(value, str) else real(value)


def _counts(usages: list[dict[str, Any]], none: Any = None) -> dict[str, Any]:
    """Return token counts as paragent names them, which include cached tokens; of unknown ones, the empty `none` or None."""
    totals = {name: [whole(one.get(name)) for one in usages] for name in ("input_tokens", "output_tokens")}
    if not usages or None in totals["input_tokens"] or None in totals["output_tokens"]:
        return {} if none is not None else {"prompt_tokens": None, "completion_tokens": None}
    read = [whole(one.get("input_tokens_cache_read")) for one in usages]
    written = sum(whole(one.get("input_tokens_cache_write")) or 0 for one in usages)
    reasoning = [whole(one.get("reasoning_tokens")) for one in usages]
    cached = sum(one or 0 for one in read)
    counts: dict[str, Any] = {
        "prompt_tokens": sum(one or 0 for one in totals["input_tokens"]) + cached + written,
        "completion_tokens": sum(one or 0 for one in totals["output_tokens"]),
    }
    counts |= {} if all(one is None for one in read) else {"cached_tokens": cached}
    return counts | (
        {} if all(one is None for one in reasoning) else {"reasoning_tokens": sum(one or 0 for one in reasoning)}
    )


def _call(call: dict[str, Any]) -> dict[str, Any]:
    problem = string(call.get("parse_error")).partition("not a JSON object: ")[2]
    arguments = problem or json.dumps(structure(call.get("arguments")), ensure_ascii=False)
    return {
        "id": string(call.get("id")),
        "type": "function",
        "function": {"name": string(call.get("function")), "arguments": arguments},
    }
