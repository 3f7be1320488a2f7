"""`paragent runs`, `show`, `export`, `rescore`, `compare`: what to do with runs that were played."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from paragent._internal.text import counted
from paragent.cli.tables import COLOURS, console, number, plain_table, summary_table
from paragent.errors import ConfigError, UsageError
from paragent.store import RolloutStatus

if TYPE_CHECKING:
    import argparse

    from paragent.store import Journal, RolloutResult

__all__ = ["add"]

_SHOWN = 20
"""Results that `show` lists, and changed tasks that `compare` does, unless told otherwise."""
_CUT = 80


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands."""
    runs = subparsers.add_parser("runs", help="list the runs of a folder")
    runs.add_argument("--output-dir", type=Path, default=Path("results"), help="where they are (default: results)")
    runs.set_defaults(run=_runs)

    show = subparsers.add_parser("show", help="show a run, or one rollout of it with every message")
    _run_argument(show)
    show.add_argument("task", nargs="?", help="the id of a task: show its rollout")
    show.add_argument("--attempt", type=int, default=1, help="which attempt at it (default: 1)")
    show.add_argument("--status", choices=list(map(str, RolloutStatus)), help="only results with this status")
    show.add_argument("--limit", type=int, default=_SHOWN, help=f"how many results to list (default: {_SHOWN})")
    show.set_defaults(run=_show)

    export = subparsers.add_parser("export", help="write the results of a run for other tools")
    _run_argument(export)
    export.add_argument("--format", default="jsonl", help="jsonl (the default), openai-chat, osworld, parquet")
    export.add_argument("--output", type=Path, required=True, help="the file to write; for osworld a folder")
    export.set_defaults(run=_export)

    rescore = subparsers.add_parser("rescore", help="score the answers of a run with another metric")
    _run_argument(rescore)
    rescore.add_argument("--metric", required=True, help="its name, or MODULE:CLASS")
    rescore.add_argument("--judge-model", help="the model of llm_judge")
    rescore.set_defaults(run=_rescore)

    compare = subparsers.add_parser("compare", help="compare two runs over the same tasks, paired")
    _run_argument(compare, "a")
    _run_argument(compare, "b")
    compare.add_argument("--metric", help="by which score (default: the one that decided)")
    compare.add_argument("--json", action="store_true", help="print it as JSON")
    compare.set_defaults(run=_compare)


def _run_argument(parser: argparse.ArgumentParser, name: str = "path") -> None:
    parser.add_argument(name, type=Path, metavar="RUN", help="the run's directory, or its name under ./results")


def _folder(path: Path) -> Path:
    """Return the directory of a run.

    Raises:
        ConfigError: there is no such run.
    """
    for folder in (path, Path("results") / path):
        if (folder / "journal.sqlite").exists():
            return folder
    raise ConfigError(f"there is no run {path}; `paragent runs` lists those under ./results")


def _journal(path: Path) -> Journal:
    """Open the journal of a run to read it; raises as `_folder`."""
    from paragent.store import Journal

    return Journal(_folder(path) / "journal.sqlite", read_only=True)


def _attempts(journal: Journal) -> int:
    return int(journal.meta("attempts") or 1)


def _runs(options: argparse.Namespace) -> int:
    from rich.markup import escape

    from paragent.store import Journal, find_runs, summarise

    found = find_runs(options.output_dir)
    if not found:
        print(f"no runs under {options.output_dir}")
        return 0
    table = plain_table("", "run", "done", "score", "failed", "tokens in / out", "time")
    table.title = None
    for path in found:
        with Journal(path / "journal.sqlite", read_only=True) as journal:
            summary = summarise(journal, _attempts(journal))
        table.add_row(
            escape(path.name),
            f"{summary.rollouts - summary.owed}/{summary.rollouts}",
            number(summary.mean),
            str(sum(summary.failures.values())),
            f"{number(summary.prompt_tokens, ',')} / {number(summary.completion_tokens, ',')}",
            f"{summary.seconds:.0f} s",
        )
    console().print(table)
    return 0


def _show(options: argparse.Namespace) -> int:
    from paragent.store import summarise

    with _journal(options.path) as journal:
        if options.task is not None:
            return _show_rollout(journal, options.task, options.attempt)
        out = console()
        summary = summarise(journal, _attempts(journal))
        out.print(summary_table(options.path.name, summary))
        chosen = ("decides = 1", []) if options.status is None else ("decides = 1 AND status = ?", [options.status])
        table = plain_table("", "task", "status", "score", "turns", "work", "answer or error")
        table.title = None
        for count, (_, play) in enumerate(journal.results(*chosen)):
            if count == options.limit:
                break
            table.add_row(*_row(play))
        out.print(table)
        there = summary.done if options.status is None else summary.statuses[options.status]
        if there > options.limit:
            out.print(f"{there - options.limit} more; all of them with --limit {there}")
    return 0


def _row(play: RolloutResult) -> list[str]:
    from rich.markup import escape

    label = play.task if play.attempt == 1 else f"{play.task}#{play.attempt}"
    said = " ".join((play.error or play.answer or "").split())
    colour = COLOURS[play.status]
    return [
        escape(label),
        f"[{colour}]{play.status}[/]",
        number(play.score) if play.score is not None else "",
        str(play.turns),
        f"{play.seconds:.1f} s",
        escape(said if len(said) <= _CUT else f"{said[: _CUT - 1]}…"),
    ]


def _show_rollout(journal: Journal, task: str, attempt: int) -> int:
    from rich.markup import escape

    from paragent.messages import images_in
    from paragent.store import images_folder

    plays = list(journal.results("task = ? AND attempt = ?", [task, attempt]))
    if not plays:
        raise UsageError(f"the run has no result for attempt {attempt} at task {task!r}")
    out = console()
    for play_number, play in plays:
        out.print(
            f"[bold]{escape(task)}[/] attempt {attempt}: {play.status}, score {number(play.score)}, {escape(play.ending)}"
        )
        if play.error:
            out.print(f"[red]{escape(play.error)}[/]")
        folder = images_folder(journal.folder, task, attempt)
        for message in (journal.trajectory(play_number) or {}).get("messages", ()):
            out.print(f"[cyan]{escape(str(message['role']))}[/] {escape(str(message.get('content') or ''))}")
            for name in images_in(message):
                out.print(f"  [magenta]picture[/] {escape(str(folder / name))}", soft_wrap=True)
            for call in message.get("tool_calls", ()):
                out.print(
                    f"  [yellow]{escape(call['function']['name'])}[/] {escape(str(call['function']['arguments']))}"
                )
    return 0


def _export(options: argparse.Namespace) -> int:
    from paragent.store.export import export

    with _journal(options.path) as journal:
        count = export(journal, options.format, options.output)
    print(f"{counted(count, 'result')} in {options.output}")
    return 0


def _rescore(options: argparse.Namespace) -> int:
    from paragent.models import ModelSettings
    from paragent.models.credentials import endpoint_from_environment
    from paragent.rollout.rescore import rescore
    from paragent.store import RunDirectory, summarise

    judge = None
    if options.judge_model:
        url, key = endpoint_from_environment(Path.cwd())
        judge = ModelSettings(name=options.judge_model, base_url=url, api_key=key, most_requests=16)
    with RunDirectory(_folder(options.path)) as directory:
        directory.hold()
        count = rescore(directory.journal, options.metric, judge)
        summary = summarise(directory.journal, _attempts(directory.journal))
        directory.finish(summary)
    print(
        f"{options.metric}: {number(summary.means.get(options.metric))} over {counted(count, 'answer')}; nothing was played again"
    )
    return 0


def _compare(options: argparse.Namespace) -> int:
    from rich.markup import escape

    from paragent.store.compare import compare

    with _journal(options.a) as a, _journal(options.b) as b:
        found = compare(_scores(a, options.metric), _scores(b, options.metric))
    if found is None:
        raise UsageError("the two runs have no task in common that was scored in both")
    if options.json:
        print(json.dumps({name: getattr(found, name) for name in found.__slots__}))
        return 0
    table = plain_table("", "", escape(options.a.name), escape(options.b.name), "difference")
    table.title = None
    spread = "" if found.interval is None else f" (95 %: {found.interval[0]:+.3f} to {found.interval[1]:+.3f})"
    table.add_row(
        f"mean of {counted(found.pairs, 'common task')}",
        f"{found.mean_a:.3f}",
        f"{found.mean_b:.3f}",
        f"{found.difference:+.3f}{spread}",
    )
    for word, colour, changed in (("better", "green", found.better), ("worse", "red", found.worse)):
        for task, before, after in changed[:_SHOWN]:
            table.add_row(
                f"[{colour}]{word}[/] {escape(task)}", f"{before:.3f}", f"{after:.3f}", f"{after - before:+.3f}"
            )
    console().print(table)
    print(f"{len(found.better)} better, {len(found.worse)} worse; only in one run: {found.only_a} and {found.only_b}")
    return 0


def _scores(journal: Journal, metric: str | None) -> dict[str, float]:
    """Return the mean score of each task; what failed is 0, and what was played and could not be scored is left out.

    Raises:
        UsageError: the run has no scores by `metric`.
    """
    sums: dict[str, list[float]] = {}
    known: set[str] = set()
    for _, play in journal.results():
        known |= play.scores.keys()
        value = play.score if metric is None else play.scores.get(metric)
        if value is not None or play.status is not RolloutStatus.COMPLETED:
            sums.setdefault(play.task, []).append(value or 0.0)
    if metric is not None and metric not in known:
        raise UsageError(
            f"{journal.folder} has no scores by {metric!r}; it has: {', '.join(sorted(known)) or 'none'}. "
            f"Add them: paragent rescore {journal.folder} --metric {metric}"
        )
    return {task: sum(values) / len(values) for task, values in sums.items()}
