"""`paragent runs`, `show`, `export`, `rescore` and `compare`: commands for stored runs."""

from __future__ import annotations

import json
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.text import counted
from paragent.cli.options import add_command, run_folder
from paragent.cli.tables import COLOURS, console, interval_text, number, plain_table, summary_table
from paragent.errors import UsageError
from paragent.store import ATTEMPTS, JOURNAL_FILE, METRIC, RolloutStatus, task_scores
from paragent.tasks import CUT_ENDINGS

if TYPE_CHECKING:
    import argparse

    from rich.console import Console

    from paragent.cli.options import Subparsers
    from paragent.store import Journal, RolloutResult
    from paragent.store.formats.conversations import BranchMessages
    from paragent.tasks import BenchmarkTask

__all__ = ["add"]

_LISTED = 20
"""Results that `show` lists by default, and changed tasks that `compare` lists."""
_FOLDERS = 3
"""Subfolders that `runs` names."""
_LONGEST_TEXT = 20_000
"""Characters of one text that `show` prints: about 250 lines."""
_TEXT_WIDTH = 60
_QUESTION_WIDTH = 30
"""Characters of a question in tables: the ids of tasks without one say nothing to a reader."""
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
        "task", nargs="?", metavar="TASK", help="id of the task whose rollout to show; TASK#2 is its second attempt"
    )
    show.add_argument("--attempt", type=int, metavar="N", default=1, help="the attempt to show (default: 1)")
    show.add_argument("--status", choices=list(map(str, RolloutStatus)), help="list only results with this status")
    cut = "list only results whose last reply was cut at the limit of tokens, or whose context was full"
    show.add_argument("--cut", action="store_true", help=cut)
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
    rescore = add_command(subparsers, "rescore", "score the answers of a run with another scorer")
    _add_run_argument(rescore)
    rescore.add_argument("--metric", metavar="NAME", required=True, help="the scorer: a name, or MODULE:CLASS")
    rescore.add_argument("--judge-model", metavar="NAME", help="model for `--metric llm_judge`")
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
    """Open the journal of a run for reading; raises as `run_folder`."""
    from paragent.store import Journal

    return Journal(run_folder(path) / JOURNAL_FILE, read_only=True)


def _attempts(journal: Journal) -> int:
    return int(journal.meta(ATTEMPTS) or 1)


def _runs(options: argparse.Namespace) -> int:
    from rich.markup import escape

    from paragent.store import Journal, find_runs, summarise

    folder = options.folder or options.output_dir
    found = find_runs(folder)
    below = _folders_with_runs(folder)
    if not found:
        print(f"no runs in {folder}; " + (_runs_below(below) or "`paragent runs DIR` lists those of another folder"))
        return 0
    headings = ("run", "started", "model", "data", "done", "score", "failed", "cut", "tokens in / out", "time")
    table = plain_table("", *headings)
    table.columns[0].overflow = "fold"  # the name is an argument of other commands
    for path in found:
        with Journal(path / JOURNAL_FILE, read_only=True) as journal:
            summary = summarise(journal, _attempts(journal))
            [(started,)] = journal.rows("SELECT min(started) FROM sessions")
        model, data = _model_and_data(path)
        table.add_row(
            escape(path.name),
            time.strftime("%Y-%m-%d %H:%M", time.localtime(started)) if started else "",
            escape(model),
            escape(data),
            f"{summary.done}/{summary.rollouts}",
            "none" if summary.mean is None else f"{summary.mean:.3f}",
            str(sum(summary.failures.values())),
            str(summary.cut),
            f"{number(summary.prompt_tokens, ',')} / {number(summary.completion_tokens, ',')}",
            f"{summary.seconds:.0f} s",
        )
    console().print(table)
    if below:
        print(_runs_below(below))
    return 0


def _model_and_data(run: Path) -> tuple[str, str]:
    """Return the model and the name of the data of a run, from its config.json; empty if they are unknown."""
    try:
        config = json.loads((run / "config.json").read_text(encoding="utf-8"))
        return str(config.get("model") or ""), Path(str(config.get("data") or "")).name
    except (OSError, ValueError, AttributeError):
        return "", ""


def _folders_with_runs(folder: Path) -> list[Path]:
    """Return the subfolders that contain runs and are not runs themselves."""
    found = {journal.parent.parent for journal in folder.glob(f"*/*/{JOURNAL_FILE}")}
    return sorted(one for one in found if not (one / JOURNAL_FILE).exists())


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
        out.print(summary_table(options.path.name, summary))
        conditions, values = ["final = 1"], []
        if options.status is not None:
            conditions, values = [*conditions, "status = ?"], [options.status]
        if options.cut:
            conditions.append(f"ending IN ({', '.join('?' * len(CUT_ENDINGS))})")
            values += CUT_ENDINGS
        where = " AND ".join(conditions)
        table = plain_table("", "task", "question", "status", "score", "turns", "work", "answer or error")
        for count, result in enumerate(journal.results(where, values)):
            if count == options.limit:
                break
            table.add_row(*_row(result, journal.task(result.task)))
        out.print(table)
        [(total,)] = journal.rows(f"SELECT count(*) FROM results WHERE {where}", values)  # noqa: S608 - from above
        if total > options.limit:
            out.print(f"{total - options.limit} more; show all with --limit {total}")
    return 0


def _row(result: RolloutResult, task: BenchmarkTask | None) -> list[str]:
    from rich.markup import escape

    cut = f"[{result.ending}] " if result.ending in CUT_ENDINGS else ""
    text = cut + (result.error or result.answer or "")
    colour = COLOURS[result.status]
    return [
        escape(result.label),
        _beginning(task.question if task else "", _QUESTION_WIDTH),
        f"[{colour}]{result.status}[/]",
        number(result.score) if result.score is not None else "",
        str(result.turns),
        f"{result.seconds:.1f} s",
        _beginning(text, _TEXT_WIDTH),
    ]


def _beginning(text: str, width: int) -> str:
    """Return the beginning of a text in one line, for a cell of a table."""
    from rich.markup import escape

    line = " ".join(text.split())
    return escape(line if len(line) <= width else f"{line[: width - 1]}…")


def _show_rollout(journal: Journal, task: str, attempt: int) -> int:
    from rich.markup import escape

    from paragent.store import images_folder
    from paragent.store.formats.conversations import conversations, text_of
    from paragent.store.program_step import program_text

    results = list(journal.results("task = ? AND attempt = ?", [task, attempt]))
    name, _, number_of_attempt = task.rpartition("#")
    if not results and name and number_of_attempt.isdecimal():  # the form of tables and of `paragent ctl`
        return _show_rollout(journal, name, int(number_of_attempt))
    if not results:
        raise UsageError(
            f"the run has no result for attempt {attempt} at task {task!r}; without a task, `paragent show` lists the results"
        )
    out = console()
    folder = images_folder(journal.folder, task, attempt)
    stored = journal.task(task)
    for result in results:
        score, ending = number(result.score), escape(result.ending or result.kind)
        replies = (
            f", {counted(result.cached_replies, 'reply', 'replies')} from the cache" if result.cached_replies else ""
        )
        out.print(f"[bold]{escape(task)}[/] attempt {attempt}: {result.status}, score {score}, {ending}{replies}")
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
                out.print(
                    f"[cyan]score {score}[/] {escape(str(step.get('metric')))}: {escape(_shortened(str(step['note'])))}"
                )
    return 0


def _trajectory(out: Console, journal: Journal, result: RolloutResult) -> dict[str, Any]:
    """Return the trajectory of a result; if it cannot be read, print why."""
    from rich.markup import escape

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
    from rich.markup import escape

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
    from paragent.models import ModelSettings
    from paragent.models.credentials import endpoint_from_environment
    from paragent.rollout.rescore import rescore
    from paragent.store import RunDirectory, summarise

    judge = None
    if options.judge_model:
        url, key = endpoint_from_environment(Path.cwd())
        judge = ModelSettings(name=options.judge_model, base_url=url, api_key=key, max_concurrency=16)
    with RunDirectory(run_folder(options.path)) as directory:
        directory.open_existing()
        answers = any(json.loads(body).get("answer") for (body,) in directory.journal.rows("SELECT body FROM tasks"))
        count = rescore(directory.journal, options.metric, judge)
        summary = summarise(directory.journal, _attempts(directory.journal))
        directory.finish(summary)
        metric = directory.journal.meta(METRIC)
    mean = summary.means.get(options.metric)
    if unscored := summary.statuses[RolloutStatus.UNSCORED]:
        again = f"`--metric {metric}`" if metric not in {None, options.metric} else "another try"
        print(
            f"{counted(unscored, 'answer')} of failed scorers still without the score that counts; {again} may give it"
        )
    if mean is None and count:
        reason = "the scorer had nothing to compare" if answers else "no task has an expected answer"
        print(f"{options.metric}: no score for {counted(count, 'answer')}: {reason}")
        return 1
    print(f"{options.metric}: mean {number(mean)}; {counted(count, 'answer')} scored, no rollout was executed again")
    return 0


def _compare(options: argparse.Namespace) -> int:
    from rich.markup import escape

    from paragent.store import compare, match_tasks

    with _journal(options.a) as a, _journal(options.b) as b:
        names = match_tasks([a.tasks(), b.tasks()])
        scores = [_scores(journal, options.metric) for journal in (a, b)]
        questions = {names[0][task.id]: task.question for task in a.tasks()}
    common = set(names[0].values()) & set(names[1].values())
    comparison = compare(
        *({own[task]: score for task, score in run.items()} for own, run in zip(names, scores, strict=True))
    )
    if comparison is None:
        raise UsageError(
            f"{options.a} and {options.b} have no scored task in common: "
            + (f"{counted(len(common), 'task')} in common and none measured in both" if common else _DIFFERENT_TASKS)
            + "; compare runs of the same data, and see `paragent show`"
        )
    if options.json:
        print(json.dumps({name: getattr(comparison, name) for name in comparison.__slots__}))
        return 0
    table = plain_table("", "", escape(options.a.name), escape(options.b.name), "difference", "question")
    table.columns[3].no_wrap = True
    spread = f" (95 % interval {interval_text(comparison.interval, '+.3f')})"
    table.add_row(
        f"mean of {counted(comparison.pairs, 'common task')}",
        f"{comparison.mean_a:.3f}",
        f"{comparison.mean_b:.3f}",
        f"{comparison.difference:+.3f}{spread}",
    )
    for word, colour, changed in (("better", "green", comparison.better), ("worse", "red", comparison.worse)):
        for task, before, after in changed[:_LISTED]:
            table.add_row(
                f"[{colour}]{word}[/] {escape(task)}",
                f"{before:.3f}",
                f"{after:.3f}",
                f"{after - before:+.3f}",
                _beginning(questions[task], _QUESTION_WIDTH),
            )
    console().print(table)
    only = f"{comparison.only_a} and {comparison.only_b}"
    print(f"{len(comparison.better)} better, {len(comparison.worse)} worse; tasks in only one run: {only}")
    return 0


def _scores(journal: Journal, metric: str | None) -> dict[str, float]:
    """Return the mean score of each task, see `task_scores`.

    Raises:
        UsageError: the run has no scores of `metric`.
    """
    if metric is not None:
        rows = journal.rows("SELECT DISTINCT key FROM results, json_each(results.scores) WHERE final = 1")
        known = {name for (name,) in rows}
        if metric not in known:
            raise UsageError(
                f"{journal.folder} has no scores by {metric!r}; it has: {', '.join(sorted(known)) or 'none'}. "
                f"Add them: paragent rescore {journal.folder} --metric {metric}"
            )
    return task_scores(journal, metric)
