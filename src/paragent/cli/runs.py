"""`paragent runs`, `show`, `export`, `rescore` and `compare`: commands for stored runs."""

from __future__ import annotations

import json
import shlex
import sys
import time
import zlib
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.cli.options import add_command, run_folder
from paragent.cli.tables import (
    COLOURS,
    console,
    escape,
    fitted_table,
    interval_text,
    number,
    read_config,
    summary_table,
)
from paragent.errors import UsageError
from paragent.store import ATTEMPTS, JOURNAL_FILE, METRIC, RolloutStatus, task_scores
from paragent.store.summary import SOLVED, STOPPED
from paragent.tasks import CUT_ENDINGS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from rich.console import Console

    from paragent.cli.options import Subparsers
    from paragent.models import ModelSettings
    from paragent.rollout.rescore import JudgeUsage
    from paragent.store import Journal, RolloutResult
    from paragent.store.formats.conversations import BranchMessages
    from paragent.tasks import BenchmarkTask

__all__ = ["add"]

_LISTED = 20
"""Results that `show` lists by default, and changed tasks that `compare` lists."""
_MATCHES = 10
"""Tasks that `show` names if several begin with the given characters."""
_UNSCORED = 5
"""Answers that `rescore` names for each reason why they have no score."""
_FOLDERS = 3
"""Subfolders that `runs` names."""
_LONGEST_TEXT = 20_000
"""Characters of one text that `show` prints: about 250 lines."""
_ERROR_WIDTH, _ANSWER_WIDTH, _REFERENCE_WIDTH, _QUESTION_WIDTH = 60, 40, 16, 24
"""Characters of texts in the table of `show`: its rows with an answer have room in 140 columns."""
_HEADINGS = ("task", "question", "status", "score", "turns", "work", "reference", "answer or error")
_COMPARED_WIDTH = 30
"""Characters of a question in the table of `compare`: the ids of tasks without one say nothing to a reader."""
_DIFFERENT_TASKS = "no task of one has the question and the reference answer of a task of the other"


def add(subparsers: Subparsers) -> None:
    """Add the commands."""
    _add_reading_commands(subparsers)
    _add_format_commands(subparsers)
    _add_score_commands(subparsers)


def _add_reading_commands(subparsers: Subparsers) -> None:
    runs = add_command(subparsers, "runs", "list the runs in a folder")
    runs.add_argument(
        "folder", nargs="?", type=Path, metavar="DIR", help="folder of run directories (default: results)"
    )
    _add_output_argument(runs)
    runs.set_defaults(run=_runs)

    show = add_command(subparsers, "show", "show a run, or all messages of one rollout")
    _add_run_argument(show)
    show.add_argument(
        "task",
        nargs="?",
        metavar="TASK",
        help="id of the task whose rollout to show, or its beginning; TASK#2 is its second attempt",
    )
    show.add_argument("--attempt", type=int, metavar="N", default=1, help="the attempt to show (default: 1)")
    show.add_argument("--status", choices=list(map(str, RolloutStatus)), help="list only results with this status")
    cut = "list only results whose last reply was cut at the limit of tokens, or whose context was full"
    show.add_argument("--cut", action="store_true", help=cut)
    show.add_argument("--wrong", action="store_true", help="list only completed results with a score of 0")
    metric = "the score to list, such as one that `rescore` has added (default: the main score of the run)"
    show.add_argument("--metric", metavar="NAME", help=metric)
    limit = f"maximum number of results (default: {_LISTED})"
    show.add_argument("--limit", type=int, metavar="N", default=_LISTED, help=limit)
    show.set_defaults(run=_show)


def _add_format_commands(subparsers: Subparsers) -> None:
    export = add_command(subparsers, "export", "write the results of a run for other tools")
    _add_run_argument(export)
    formats = "jsonl (the default), atif, inspect, openai-chat, osworld, parquet, trl, or a plug-in"
    export.add_argument("--format", metavar="NAME", default="jsonl", help=formats)
    output = "the file to write; a folder for atif, osworld and trl"
    export.add_argument("--output", type=Path, metavar="PATH", required=True, help=output)
    export.add_argument("--with-reasoning", action="store_true", help="keep reasoning in the format openai-chat")
    export.set_defaults(run=_export)

    importing = add_command(subparsers, "import", "import ATIF trajectories, Harbor jobs or logs of inspect as a run")
    files = "a trajectory (.json), a log of inspect (.eval, .json), or a folder of them, such as a job of Harbor"
    importing.add_argument("files", nargs="+", type=Path, metavar="FILE", help=files)
    importing.add_argument(
        "--run-name", metavar="NAME", help="name of the new run (default: the name of the first file)"
    )
    _add_output_argument(importing)
    importing.set_defaults(run=_import)


def _add_score_commands(subparsers: Subparsers) -> None:
    rescore = add_command(
        subparsers, "rescore", "score the answers of a run with another scorer, or again after it failed"
    )
    _add_run_argument(rescore)
    metric = "the scorer: a name, or MODULE:CLASS (default: the run's, only for the answers for which it failed)"
    rescore.add_argument("--metric", metavar="NAME", help=metric)
    judge = "model for `--metric llm_judge` (default: the judge of the run)"
    rescore.add_argument("--judge-model", metavar="NAME", help=judge)
    rescore.set_defaults(run=_rescore)

    compare = add_command(subparsers, "compare", "compare two runs of the same tasks")
    _add_run_argument(compare, "a")
    _add_run_argument(compare, "b")
    compare.add_argument("--metric", metavar="NAME", help="the score to compare (default: the main score of the runs)")
    compare.add_argument("--json", action="store_true", help="print the comparison as JSON")
    compare.set_defaults(run=_compare)


def _add_output_argument(parser: argparse.ArgumentParser) -> None:
    folder = "folder of run directories (default: results)"
    parser.add_argument("--output-dir", type=Path, metavar="DIR", default=Path("results"), help=folder)


def _add_run_argument(parser: argparse.ArgumentParser, name: str = "path") -> None:
    parser.add_argument(name, type=Path, metavar="RUN", help="run directory, or its name in ./results")


def _journal(path: Path) -> Journal:
    """Open the journal of a run for reading; raises the same errors as `run_folder`."""
    from paragent.store import Journal

    return Journal(run_folder(path) / JOURNAL_FILE, read_only=True)


def _attempts(journal: Journal) -> int:
    return int(journal.meta(ATTEMPTS) or 1)


def _runs(options: argparse.Namespace) -> int:
    from paragent.store import Journal, find_folders, find_runs, summarise

    folder = options.folder or options.output_dir
    found = find_runs(folder)
    below = find_folders(folder)
    if not found:
        print(f"no runs in {folder}; " + (_runs_below(below) or "`paragent runs DIR` lists those of another folder"))
        return 0
    rows: list[tuple[float, dict[str, str]]] = []
    for path in found:
        with Journal(path / JOURNAL_FILE, read_only=True) as journal:
            summary = summarise(journal, _attempts(journal))
            [(started,)] = journal.rows("SELECT min(started) FROM sessions")
            metric = journal.meta(METRIC)
        config = read_config(path)
        cells = {
            "run": escape(path.name),
            "started": _short_time(started) if started else "",
            "model": escape(str(config.get("model") or "")),
            "data": escape(Path(str(config.get("data") or "")).name),
            "scorer": escape(metric or ""),
            "done": f"{summary.done}/{summary.rollouts}",
            "score": "none" if summary.mean is None else number(summary.mean),
            "failed": str(sum(summary.failures.values())),
            "cut": str(summary.cut),
            "tokens": _compact(summary.prompt_tokens, summary.completion_tokens),
            "time": f"{summary.seconds:.0f} s",
        }
        rows.append((started or 0.0, cells))
    listed = [cells for _, cells in sorted(rows, key=lambda row: (row[0], row[1]["run"]))]
    if all(cells["cut"] == "0" for cells in listed):
        for cells in listed:
            del cells["cut"]
    out = console()
    optional = ("time", "tokens", "started", "data", "scorer", "model")
    out.print(fitted_table(out.width, listed, wrapped=("model", "data"), optional=optional))
    if below:
        print(_runs_below(below))
    return 0


def _short_time(epoch: float) -> str:
    """Return day and time, with the year if it is not this one."""
    moment = time.localtime(epoch)
    year = "" if moment.tm_year == time.localtime().tm_year else f" {moment.tm_year}"
    return f"{moment.tm_mday} {time.strftime('%b', moment)}{year}, {time.strftime('%H:%M', moment)}"


def _compact(*counts: int | None) -> str:
    """Return a sum in three digits, such as `27.9K`."""
    if None in counts:
        return "unknown"
    value = float(sum(count for count in counts if count is not None))
    for unit in ("", "K", "M"):
        if value < 999.5:
            return f"{value:.3g}{unit}"
        value /= 1000
    return f"{value:.3g}G"


def _runs_below(folders: list[Path]) -> str:
    """Return the commands that list the runs of subfolders."""
    commands = [f"`paragent runs {one}`" for one in folders[:_FOLDERS]]
    return f"more runs: {', '.join(commands)}" if commands else ""


def _show(options: argparse.Namespace) -> int:
    from paragent.store import summarise

    with _journal(options.path) as journal:
        if options.task is not None:
            return _show_rollout(journal, options.task, options.attempt)
        out = console()
        summary = summarise(journal, _attempts(journal))
        out.print(summary_table(journal.folder, summary, journal.meta(METRIC)))
        if summary.pending and (stopped := journal.meta(STOPPED)):
            out.print(f"[yellow]stopped early: {escape(_shortened(stopped))}[/]")
        conditions, values = ["final = 1"], []
        if options.status is not None:
            conditions, values = [*conditions, "status = ?"], [options.status]
        if options.cut:
            conditions.append(f"ending IN ({', '.join('?' * len(CUT_ENDINGS))})")
            values += CUT_ENDINGS
        if options.metric is not None:
            _check_has_scores(journal, options.metric)
        if options.wrong:
            score = "score" if options.metric is None else "json_extract(scores, ?)"
            conditions = [*conditions, f"status = ? AND {score} <= 0"]
            paths = [] if options.metric is None else [f'$."{options.metric}"']
            values = [*values, RolloutStatus.COMPLETED, *paths]
        where = " AND ".join(conditions)
        rows = []
        ordered = (
            f"SELECT number FROM results LEFT JOIN tasks ON id = task WHERE {where} ORDER BY position, attempt LIMIT ?"  # noqa: S608 - from above
        )
        for (row,) in journal.rows(ordered, [*values, options.limit]):
            [result] = journal.results("number = ?", [row])
            if options.metric is not None:
                result.score = result.scores.get(options.metric)
            rows.append(dict(zip(_HEADINGS, _row(result, journal.task(result.task)), strict=True)))
        if rows:
            wrapped, optional = ("question", "reference", "answer or error"), ("turns", "work", "question", "reference")
            out.print(fitted_table(out.width, rows, wrapped=wrapped, optional=optional))
        else:
            _print_no_results(options, summary.statuses)
        [(total,)] = journal.rows(f"SELECT count(*) FROM results WHERE {where}", values)  # noqa: S608 - from above
        if total > options.limit:
            out.print(f"{total - options.limit} more; show all with --limit {total}")
    return 0


def _print_no_results(options: argparse.Namespace, statuses: Mapping[str, int]) -> None:
    """Print that no result was selected, and the commands that list failures if the user looked for wrong answers."""
    kind = "wrong answers" if options.wrong else "cut replies" if options.cut else "results"
    print(f"no {kind}" + (f" with the status {options.status}" if options.status else ""))
    for status, count in statuses.items() if options.wrong and not options.status else ():
        if count and status not in {RolloutStatus.COMPLETED, RolloutStatus.CANCELLED}:
            print(f"{count:,} {status}; list them: paragent show {options.path} --status {shlex.quote(status)}")


def _row(result: RolloutResult, task: BenchmarkTask | None) -> list[str]:
    cut = f"[{result.ending}] " if result.ending in CUT_ENDINGS else ""
    text = (
        _beginning(result.error.partition("\n")[0], _ERROR_WIDTH)
        if result.error
        else _end(_last_line(result.answer or ""), _ANSWER_WIDTH)
    )
    status, colour = _verdict(result)
    return [
        escape(result.label),
        _beginning(task.question if task else "", _QUESTION_WIDTH),
        f"[{colour}]{status}[/]",
        number(result.score) if result.score is not None else "",
        str(result.turns),
        f"{result.seconds:.1f} s",
        _end(" | ".join(map(_last_line, task.references)) if task else "", _REFERENCE_WIDTH),
        escape(cut) + text,
    ]


def _verdict(result: RolloutResult) -> tuple[str, str]:
    """Return the status, or the word for the score of a completed rollout as the pages have it; and its colour."""
    status, colour = str(result.status), COLOURS[result.status]
    if result.status is not RolloutStatus.COMPLETED or result.score is None:
        return status, colour
    if result.score >= SOLVED:
        return "right", colour
    return ("partly right", "yellow") if result.score > 0 else ("wrong", "red")


def _beginning(text: str, width: int) -> str:
    """Return the beginning of a text in one line, for a cell of a table."""
    line = " ".join(text.split())
    return escape(line if len(line) <= width else f"{line[: width - 1]}…")


def _end(line: str, width: int) -> str:
    """Return the end of a line, for a cell of a table."""
    return escape(line if len(line) <= width else f"…{line[1 - width :]}")


def _last_line(text: str) -> str:
    """Return the last line that has a letter or a digit: in solutions and answers, it has the final value."""
    lines = [line for line in text.splitlines() if any(map(str.isalnum, line))]
    return " ".join((lines[-1] if lines else text).split())


def _show_rollout(journal: Journal, task: str, attempt: int) -> int:
    from paragent.store import images_folder
    from paragent.store.formats.conversations import conversations, text_of
    from paragent.store.program_step import program_text

    results = list(journal.results("task = ? AND attempt = ?", [task, attempt]))
    name, _, number_of_attempt = task.rpartition("#")
    if not results and name and number_of_attempt.isdecimal():  # the form of tables and of `paragent ctl`
        return _show_rollout(journal, name, int(number_of_attempt))
    if not results:
        if journal.task(task) is None and (found := _task_beginning(journal, task)) is not None:
            return _show_rollout(journal, found, attempt)
        raise UsageError(
            f"the run has no result for attempt {attempt} at task {task!r}; without a task, `paragent show` lists the results"
        )
    out = console()
    folder = images_folder(journal.folder, task, attempt)
    stored, attempts = journal.task(task), _attempts(journal)
    of_attempts = f" of {attempts}" if attempts > 1 else ""
    for execution, result in enumerate(results, 1):
        of_several = f", execution {execution} of {len(results)}" if len(results) > 1 else ""
        score, ending = number(result.score), escape(result.ending or result.kind)
        replies = (
            f", {counted(result.cached_replies, 'reply', 'replies')} from the cache" if result.cached_replies else ""
        )
        verdict, colour = _verdict(result)
        title = f"[bold]{escape(task)}[/] attempt {attempt}{of_attempts}{of_several}"
        out.print(f"{title}: [{colour}]{verdict}[/], score {score}, {ending}{replies}")
        if stored is not None and stored.references:
            out.print(f"[cyan]reference[/] {escape(' | '.join(stored.references))}")
        if result.error:
            out.print(f"[red]{escape(_shortened(result.error))}[/]")
        trajectory = _trajectory(out, journal, result)
        last = ""
        for one in conversations(trajectory):
            _show_conversation(out, one, folder)
            last = text_of(one.messages[-1].get("content")) if one.messages else last
        steps = trajectory.get("steps", ())
        for step in steps:
            if step.get("kind") == "program":
                out.print(f"[cyan]program[/] {escape(_shortened(program_text(step)))}")
        if result.answer and result.answer.strip() != last.strip():
            out.print(f"[cyan]answer[/] {escape(_shortened(result.answer))}")
        for step in steps:
            if step.get("kind") == "score" and step.get("note"):
                metric = str(step.get("metric"))
                noted = number(result.scores.get(metric, result.score))
                out.print(f"[cyan]score {noted}[/] {escape(metric)}: {escape(_shortened(str(step['note'])))}")
    return 0


def _task_beginning(journal: Journal, beginning: str) -> str | None:
    """Return the id of the task that begins with these characters, or None.

    Raises:
        UsageError: several tasks do.
    """
    query = "SELECT id FROM tasks WHERE substr(id, 1, ?) = ? ORDER BY position"
    found = [task for (task,) in journal.rows(query, [len(beginning), beginning])]
    if len(found) > 1:
        more = ", ..." if len(found) > _MATCHES else ""
        listed = ", ".join(found[:_MATCHES]) + more
        raise UsageError(f"{len(found)} tasks begin with {beginning!r}: {listed}; type more of the id")
    return found[0] if found else None


def _trajectory(out: Console, journal: Journal, result: RolloutResult) -> dict[str, Any]:
    """Return the trajectory of a result; if it cannot be read, print why."""
    try:
        found = journal.trajectory(result.number)
    except (ValueError, zlib.error) as error:
        out.print(f"[red]the trajectory cannot be read: {escape(str(error))}[/]")
        return {}
    return found if isinstance(found, dict) else {}


def _shortened(text: str) -> str:
    """Return the beginning and the end of a text that is too long for a terminal."""
    left_out = len(text) - _LONGEST_TEXT
    if left_out <= 0:
        return text
    half = _LONGEST_TEXT // 2
    return f"{text[:half]}\n[... {left_out:,} characters are left out; `paragent export` has them ...]\n{text[-half:]}"


def _show_conversation(out: Console, one: BranchMessages, folder: Path) -> None:
    """Print the messages of a branch, without those that it shares with its parent."""
    from paragent.messages import images_in, reasoning_of
    from paragent.store.formats.conversations import dictionaries, text_of

    if one.branch:
        shared = counted(one.shared, "message")
        out.print(f"[bold]branch {one.branch}[/]: shares {shared} with branch {one.parent}")
    for position, message in enumerate(one.messages[one.shared :], one.shared):
        mark = " (cached)" if one.replies.get(position, {}).get("cached") else ""
        if reasoning := reasoning_of(message):
            out.print(f"[cyan]reasoning[/] [dim]{escape(_shortened(reasoning))}[/]")
        out.print(
            f"[cyan]{escape(str(message.get('role')))}{mark}[/] {escape(_shortened(text_of(message.get('content'))))}"
        )
        for name in images_in(message):
            out.print(f"  [magenta]image[/] {escape(str(folder / name))}", soft_wrap=True)
        for function in dictionaries([call.get("function") for call in dictionaries(message.get("tool_calls"))]):
            out.print(
                f"  [yellow]{escape(str(function.get('name')))}[/] {escape(_shortened(str(function.get('arguments'))))}"
            )


def _export(options: argparse.Namespace) -> int:
    from paragent.store.formats import export

    with _journal(options.path) as journal:
        done = export(journal, options.format, options.output, reasoning=options.with_reasoning)
    print(f"{counted(done.written, 'result')} written to {options.output}")
    for reason, left_out in done.left_out.items():
        more = ", ..." if left_out.count > len(left_out.names) else ""
        print(f"{counted(left_out.count, 'result')} left out because {reason}: {', '.join(left_out.names)}{more}")
    return 0


def _import(options: argparse.Namespace) -> int:
    from paragent._internal.text import printable
    from paragent.store.directory import file_name
    from paragent.store.formats.importing import import_files

    name = options.run_name or options.files[0].resolve().stem
    if file_name(name) != name:
        raise UsageError(f"--run-name: {name!r} cannot be the name of a folder")
    target = options.output_dir / name
    report = import_files(options.files, target)
    print(f"{counted(report.written, 'result')} imported to {target}; look at them: paragent view {target}")
    if not report.failed:
        return 0
    more = f"\n  ... and {report.failed - len(report.problems)} more" if report.failed > len(report.problems) else ""
    problems = "".join(f"\n  {printable(problem)}" for problem in report.problems)
    print(f"{report.failed} could not be imported:{problems}{more}")
    return 1


def _rescore(options: argparse.Namespace) -> int:
    from paragent.rollout.rescore import rescore
    from paragent.store import RunDirectory, summarise

    with RunDirectory(run_folder(options.path)) as directory:
        directory.open_existing()
        journal = directory.journal
        own = journal.meta(METRIC)
        metric = options.metric or own
        if metric is None:
            raise UsageError("the run has no scorer of its own: name one with --metric")
        answers = any(json.loads(body).get("answer") for (body,) in journal.rows("SELECT body FROM tasks"))
        config = read_config(directory.path)
        judge = _judge(options.judge_model, metric, config, is_own=metric == own)
        models = config.get("model"), config.get("judge_model")
        try:
            rescored = rescore(journal, metric, judge, only_unscored=options.metric is None, models=models)
        finally:  # scores before a failure of the judge's endpoint are kept
            summary = summarise(journal, _attempts(journal))
            directory.finish(summary)
    mean, count = summary.means.get(metric), rescored.answers
    _print_failures(rescored.failures)
    if judge is not None and rescored.usage.requests:
        _print_usage(judge.name, rescored.usage)
    if not count:
        none = "no answer could be scored" if rescored.failures else "no answer needs a score"
        print(f"{metric}: {none}")
        return int(bool(rescored.failures))
    if own not in {None, metric} and (unscored := summary.statuses[RolloutStatus.UNSCORED]):
        missing = f"no {own} score, which is the main score of the run, for {counted(unscored, 'answer')}"
        print(f"{missing}, because the scorer failed; to try again: paragent rescore {options.path}")
    if mean is None:
        reason = "the scorer had nothing to compare" if answers else "no task has an expected answer"
        print(f"{metric}: no score for {counted(count, 'answer')}: {reason}")
        return 1
    scored = f"{count - len(rescored.unscored):,} of " if rescored.unscored else ""
    print(f"{metric}: mean {number(mean)}; {scored}{counted(count, 'answer')} scored, no rollout was executed again")
    _print_unscored(rescored.unscored)
    return 0


def _judge(name: str | None, metric: str, config: Mapping[str, Any], *, is_own: bool) -> ModelSettings | None:
    """Return the settings of the judge model; None if there is none.

    Args:
        name: the model that the user named; otherwise it is the judge of the run, if the scorer needs one.
        metric: the scorer.
        config: the settings of the run.
        is_own: whether the scorer is that of the run. Without `judge_model`, the agent's model was its judge.
    """
    from paragent.models import ModelSettings
    from paragent.models.credentials import endpoint_from_environment
    from paragent.scorers import scorer_class

    api = "chat"
    if name is None and scorer_class(metric).needs_model:
        name = config.get("judge_model") or (config.get("model") if is_own else None)
        api = config.get("api") or api
    if name is None:
        return None
    url, key = endpoint_from_environment(Path.cwd(), api)
    return ModelSettings(name=name, api=api, base_url=url, api_key=key, max_concurrency=16)


def _print_usage(judge: str, usage: JudgeUsage) -> None:
    tokens = f"{number(usage.prompt_tokens, ',')} tokens in, {number(usage.completion_tokens, ',')} out"
    added = "" if usage.is_counted else "; not added to the counts of the run, which has no price for this model"
    print(f"judge {judge}: {counted(usage.requests, 'request')}, {tokens}{added}")


def _print_unscored(notes: Mapping[str, str]) -> None:
    """Print for which answers a scorer returned no score, by its reason."""
    reasons: dict[str, list[str]] = {}
    for label, note in notes.items():
        reasons.setdefault(note or "the scorer gives no reason", []).append(label)
    for reason, labels in reasons.items():
        more = ", ..." if len(labels) > _UNSCORED else ""
        print(f"  no score for {counted(len(labels), 'answer')}: {reason}: {', '.join(labels[:_UNSCORED])}{more}")


def _print_failures(failures: dict[str, str]) -> None:
    """Print for which answers a scorer failed, and why."""
    if not failures:
        return
    print(f"the scorer failed for {counted(len(failures), 'answer')}:", file=sys.stderr)
    for label, reason in sorted(failures.items())[:_LISTED]:
        print(f"  {label}: {reason.partition(chr(10))[0]}", file=sys.stderr)
    if len(failures) > _LISTED:
        print(f"  ... and {len(failures) - _LISTED:,} more", file=sys.stderr)


def _compare(options: argparse.Namespace) -> int:
    from paragent.store import compare, match_tasks, unscored_tasks

    with _journal(options.a) as a, _journal(options.b) as b:
        names = match_tasks([a.tasks(), b.tasks()])
        scores = [_scores(journal, options.metric) for journal in (a, b)]
        questions = {names[0][task.id]: task.question for task in a.tasks()}
        scorers = [journal.meta(METRIC) for journal in (a, b)]
        unscored = [unscored_tasks(journal, options.metric) for journal in (a, b)]
    common = set(names[0].values()) & set(names[1].values())
    scores_by_name = [{own[task]: score for task, score in run.items()} for own, run in zip(names, scores, strict=True)]
    comparison = compare(scores_by_name[0], scores_by_name[1], (names[0].values(), names[1].values()))
    if comparison is None:
        raise UsageError(
            f"{options.a} and {options.b} have no scored task in common: "
            + (f"{counted(len(common), 'task')} in common and none measured in both" if common else _DIFFERENT_TASKS)
            + "; compare runs of the same data, and see `paragent show`"
        )
    if options.metric is None and all(scorers) and scorers[0] != scorers[1]:
        print(
            f"paragent: different scorers: {options.a.name} by {scorers[0]}, {options.b.name} by {scorers[1]}. The difference "
            "may come from the scorers. `--metric NAME` compares the scores of one; `paragent rescore` adds them to a run",
            file=sys.stderr,
        )
    for run, own, missing in zip((options.a, options.b), names, unscored, strict=True):
        _warn_of_unscored(run, {task: reason for task, reason in missing.items() if own[task] in common}, len(common))
    if options.json:
        print(json.dumps({name: getattr(comparison, name) for name in comparison.__slots__}))
        return 0
    means = comparison.mean_a, comparison.mean_b, comparison.difference
    first = _compared(f"mean of {counted(comparison.pairs, 'common task')}", *means)
    interval = {"difference": interval_text(comparison.interval, "+.3f")}
    rows = [first, dict.fromkeys(first, "") | {"task": "95 % interval"} | interval]
    for word, colour, changed in (("better", "green", comparison.better), ("worse", "red", comparison.worse)):
        for task, before, after in changed[:_LISTED]:
            question = _beginning(questions[task], _COMPARED_WIDTH)
            rows.append(_compared(f"[{colour}]{word}[/] {escape(task)}", before, after, after - before, question))
    headings = {"task": "", "a": escape(options.a.name), "b": escape(options.b.name)}
    out = console()
    out.print(fitted_table(out.width, rows, wrapped=("a", "b", "question"), optional=("question",), headings=headings))
    only = f"{comparison.only_a} and {comparison.only_b}"
    print(f"{len(comparison.better)} better, {len(comparison.worse)} worse; tasks in only one run: {only}")
    return 0


def _warn_of_unscored(run: Path, reasons: Mapping[str, str], common: int) -> None:
    """Print how many of the common tasks have no score in a run, and why."""
    if reasons:
        listed = ", ".join(f"{reason}: {count:,}" for reason, count in Counter(reasons.values()).most_common())
        print(
            f"paragent: without a score in {run.name}: {len(reasons):,} of {counted(common, 'common task')} ({listed}). "
            f"The comparison leaves them out; see `paragent show {run}`",
            file=sys.stderr,
        )


def _compared(title: str, a: float, b: float, difference: float, question: str = "") -> dict[str, str]:
    """Return a row of the table of `compare`."""
    scores = {"a": number(a), "b": number(b), "difference": number(difference, "+.3f")}
    return {"task": title, **scores, "question": question}


def _scores(journal: Journal, metric: str | None) -> dict[str, float]:
    """Return the mean score of each task, see `task_scores`.

    Raises:
        UsageError: the run has no scores of `metric`.
    """
    if metric is not None:
        _check_has_scores(journal, metric)
    return task_scores(journal, metric)


def _check_has_scores(journal: Journal, metric: str) -> None:
    rows = journal.rows("SELECT DISTINCT key FROM results, json_each(results.scores) WHERE final = 1")
    known = {name for (name,) in rows}
    if metric not in known:
        raise UsageError(
            f"{journal.folder} has no scores by {metric!r}; it has: {', '.join(sorted(known)) or 'none'}. "
            f"Add them: paragent rescore {journal.folder} --metric {metric}"
        )
