"""`paragent rollout`: run a benchmark."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paragent._internal.signals import interrupt, signals_handled
from paragent._internal.text import counted
from paragent._internal.validation import reject_unknown
from paragent.cli.options import add_command, add_setting
from paragent.cli.view import check_installed, view_of
from paragent.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from paragent.cli.options import Subparsers
    from paragent.rollout import RolloutConfig
    from paragent.rollout.live_run import LiveBudget
    from paragent.rollout.prepare import RolloutPlan
    from paragent.rollout.session import RolloutSession
    from paragent.store import Summary

__all__ = ["add"]

_PREFIX = "PARAGENT_"
_WITHOUT_VARIABLE = frozenset({"cache"})
"""Settings that have no variable: `PARAGENT_CACHE` is the folder of all caches."""
_GROUPS = {
    "data": "tasks",
    "agent": "agent",
    "model": "model",
    "environment": "environment and score",
    "machines": "machines",
    "run": "run",
}
"""The titles of the sections in the help text."""
_EXAMPLES = """paragent rollout: nothing was run, because no tasks are given. Three examples:

  Sample tasks with a scripted policy instead of a model; it needs no key:
    {first}

  Your own tasks and a model; each line of the file is {{"question": "...", "answer": "..."}}:
    export OPENAI_API_KEY=...
    paragent rollout --mode math --data tasks.jsonl --model gpt-4.1-mini --num-rollouts 20

  Tasks of OSWorld on its image, where 8 rollouts share 4 virtual machines:
    paragent rollout --mode osworld --data test_all.json --path-to-vm Ubuntu.qcow2 --model gpt-4.1 --num-rollouts 8 \\
        --use-vm-pool --num-vms 4

All flags: paragent rollout --help. What this machine can run: paragent doctor. Guide: paragent docs guide/rollouts"""

_NO_ANSWERS = (
    "paragent: no task has an expected answer, so nothing is scored: its key is answer, ground_truth or expected, or the one "
    "that --data-field answer=NAME names"
)
_DESKTOP = "desktop"
"""The default image of OSWorld's tasks at the provider `qemu`."""
_OSWORLD_DOMAINS = frozenset({
    "chrome", "gimp", "libreoffice_calc", "libreoffice_impress", "libreoffice_writer", "multi_apps", "thunderbird", "vlc",
    "vs_code",
})  # fmt: skip
"""Domains of OSWorld whose tasks need applications that the image `desktop` does not have."""


def add(subparsers: Subparsers) -> None:
    """Add the command; its flags are the settings of `RolloutConfig`."""
    parser = add_command(
        subparsers,
        "rollout",
        "run the tasks of a benchmark; the same command again continues a stopped run",
        "Run the tasks of a benchmark, score the answers and store the results. Each flag can also be set by an "
        "environment variable (--num-rollouts: PARAGENT_NUM_ROLLOUTS) or a key of the --config file (num_rollouts). Flags "
        "have priority over variables, variables over the file. The endpoint of the model is set by OPENAI_BASE_URL and "
        "OPENAI_API_KEY, in the environment or in a file .env.",
    )
    _add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the benchmark and print the summary."""
    if len(options.arguments) == 1 and not any(_PREFIX + name in os.environ for name in ("DATA", "MODE", "ENV")):
        print(_EXAMPLES.format(first=_first_example()), file=sys.stderr)
        return 2
    config, model_chosen = _config(options)
    if options.view:
        check_installed()
        if options.detach:
            raise ConfigError("--view ends with this command, so it cannot be used with --detach; use `paragent view`")
    with signals_handled(interrupt, signal.SIGTERM):
        return _execute(config, options, confirmed=model_chosen or options.yes)


def _execute(config: RolloutConfig, options: argparse.Namespace, *, confirmed: bool) -> int:
    from paragent.rollout.prepare import prepare

    if options.detach and confirmed and not options.dry_run:
        return _detach(options)
    plan = prepare(config)
    _print_skipped(plan)
    _print_missing_applications(plan)
    if plan.lacks_answers:
        print(_NO_ANSWERS, file=sys.stderr)
    if options.dry_run:
        return _dry_run(plan)
    if not confirmed:
        _confirm(plan)
    return _detach(options) if options.detach else _run(plan, options)


def _first_example() -> str:
    """Return a command that works on this machine with what is installed."""
    import importlib.util
    import shutil

    if all(importlib.util.find_spec(package) for package in ("math_verify", "sympy")):
        mode = "math"
    else:
        # The programs that the scripted policy writes are known, so they may run without a sandbox.
        mode = "py" if shutil.which("bwrap") else "py --sandbox none"
    return f"paragent rollout --mode {mode} --data sample --model demo"


@contextlib.contextmanager
def _view(plan: RolloutPlan, options: argparse.Namespace) -> Iterator[None]:
    """Show the run in the web view while it is executed, if that was requested."""
    if not options.view:
        yield
        return
    with view_of(plan.path) as link:
        print(f"View: {link}", file=sys.stderr, flush=True)
        yield


def _detach(options: argparse.Namespace) -> int:
    """Start the same command in the background. It checks the settings itself, and does not ask about the model again."""
    from paragent.cli.detach import start_detached

    return start_detached([*(one for one in options.arguments if one != "--detach"), "--yes"])


def _confirm(plan: RolloutPlan) -> None:
    """Ask whether to use the default model, because the user did not choose it and its endpoint may bill for it.

    Raises:
        ConfigError: the answer is no, or standard input is not a terminal.
    """
    config, rollouts = plan.config, plan.benchmark.size * plan.config.data.attempts
    summary = f"{counted(rollouts, 'rollout')} with the default model, {config.model.name}, at {_endpoint(plan)}"
    if not sys.stdin.isatty():
        raise ConfigError(f"{summary}: nothing was started. Choose a model with --model, or accept this one with --yes")
    print(f"paragent: {summary}. It may be billed. Continue? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise ConfigError("nothing was started. Choose a model with --model; `--model demo` needs no endpoint")


def _endpoint(plan: RolloutPlan) -> str:
    """Return the URL of the endpoint without credentials; empty for a model without an endpoint."""
    from paragent.models.base import MODELS
    from paragent.models.credentials import default_url, shown_address

    if plan.config.model.name in MODELS.names():
        return ""
    return shown_address(plan.settings.model.base_url or default_url(plan.settings.model.api))


def _print_skipped(plan: RolloutPlan) -> None:
    """Print the tasks that --skip-unsupported skips."""
    for task, needs in plan.benchmark.skipped.items():
        print(f"paragent: skipping {task}: it needs {', '.join(needs)}", file=sys.stderr)


def _print_missing_applications(plan: RolloutPlan) -> None:
    """Warn if tasks of OSWorld would run on the image `desktop`, which does not have their applications."""
    from paragent.rollout.machines import DEFAULT_PROVIDER

    machines = plan.config.machines
    provider = None if machines.pool_address else machines.provider_name or DEFAULT_PROVIDER
    image = str(machines.path_to_vm or _DESKTOP)
    if plan.config.environment.mode != "osworld" or provider != "qemu" or image != _DESKTOP:
        return
    count = sum(task.metadata.get("domain") in _OSWORLD_DOMAINS for task in plan.benchmark)
    if count:
        print(
            f"paragent: the image `{_DESKTOP}` has no LibreOffice, Chrome, GIMP or other application of OSWorld's image: the "
            f"scores of {counted(count, 'task')} are meaningless. Use OSWorld's image: --path-to-vm Ubuntu.qcow2",
            file=sys.stderr,
        )


def _run(plan: RolloutPlan, options: argparse.Namespace) -> int:
    from paragent.cli.detach import DetachedStart
    from paragent.cli.display import open_display
    from paragent.cli.tables import console, summary_table
    from paragent.rollout.session import RolloutSession

    out = console(stderr=True)
    command = _continue_command(options.arguments, fresh=plan.config.run.fresh)
    with RolloutSession(plan) as session:
        if options.detached is not None:
            session.watch(DetachedStart(options.detached))
        if not session.pending:
            total = session.progress.total
            out.print(f"Nothing to do: {plan.path} is complete ({counted(total, 'rollout')}).", markup=False)
        elif session.resumed:
            out.print(f"Continuing {plan.path}: {_done(session)}.", markup=False)
        if session.pending:
            endpoint = _endpoint(plan)
            name = plan.config.model.name
            out.print(f"Model {name}" + (f" at {endpoint}" if endpoint else ", built in"), markup=False)
        try:
            with _view(plan, options), open_display(session):
                summary = session.run()
        except (Interrupted, KeyboardInterrupt):
            out.print(f"Stopped: {_done(session)} and stored. To continue:\n  {command}", markup=False, soft_wrap=True)
            _print_unsent(session)
            return 130
    if options.json:
        print(json.dumps({"run": plan.path.name, "path": str(plan.path), **summary.as_json()}))
    else:
        console().print(summary_table(plan.path, summary, plan.metric))
        print(f"{plan.path}: results.jsonl, summary.json, trajectories")
        print(f"Show them: paragent show {plan.path}, or in a browser: paragent view {plan.path}")
    _print_unsent(session)
    silent = _print_hints(plan, summary)
    return _exit_status(plan, summary, session.stopped, command, session.used_up) or int(silent and not summary.mean)


def _print_hints(plan: RolloutPlan, summary: Summary) -> bool:
    """Print what probably went wrong in rollouts that did not fail; return whether the program never called the model."""
    from paragent.rollout.program_settings import is_command
    from paragent.store import RolloutStatus

    completed = summary.statuses[RolloutStatus.COMPLETED]
    silent = is_command(plan.config.agent.location) and not summary.requests + summary.cached_replies
    if completed and silent:
        print(
            "paragent: no rollout called the model: the program must use the address in OPENAI_BASE_URL or ANTHROPIC_BASE_URL, "
            "which each rollout sets",
            file=sys.stderr,
        )
    if completed and not summary.scored and not summary.unscored and not plan.lacks_answers:
        print(_NO_ANSWERS, file=sys.stderr)  # otherwise it was printed at the beginning
    return bool(completed and silent)


def _print_unsent(session: RolloutSession) -> None:
    """Print which spans could not be sent; that does not change the exit status."""
    if session.unsent_spans:
        print(f"paragent: {session.unsent_spans}", file=sys.stderr)


def _done(session: RolloutSession) -> str:
    return f"{session.progress.done:,} of {counted(session.progress.total, 'rollout')} done"


def _exit_status(plan: RolloutPlan, summary: Summary, stopped: str, command: str, used_up: LiveBudget | None) -> int:
    """Print what is missing; return 0 if nothing is, else 1."""
    from paragent.store import RolloutStatus

    statuses = (RolloutStatus.FAILED, RolloutStatus.TIMED_OUT, RolloutStatus.CANCELLED)
    failed = {status: summary.statuses[status] for status in statuses if summary.statuses[status]}
    problems = []
    known = [] if stopped else [reason for messages in summary.reasons.values() for reason in messages if reason]
    reason = f"; reason: {known[0]}" if len(known) == 1 else ""  # several are in the table of the summary
    if stopped and (summary.pending or used_up is None):  # a budget may be used up by the last rollouts
        problems.append(f"stopped early: {stopped}")
    if failed:
        zero = " (counted as 0)"
        counts = ", ".join(f"{count:,} {status}{zero * status.measured}" for status, count in failed.items())
        problems.append(f"{counted(sum(failed.values()), 'rollout')} without a score: {counts}{reason}")
    if unscored := summary.statuses[RolloutStatus.UNSCORED]:
        problems.append(
            f"the scorer failed for {counted(unscored, 'answer')}{reason}; {_scoring_again(plan, unscored)}"
        )
    if summary.unscored > unscored:
        completed = f"{counted(summary.unscored - unscored, 'rollout')} completed without a score"
        problems.append(f"{completed}: the scorer had nothing to compare; see --metric and `paragent show`")
    if summary.pending:
        problems.append(f"{counted(summary.pending, 'rollout')} without a result{reason}")
    if summary.out_of_turns:
        problems.append("all rollouts used up their turns and none scored above 0; see --max-turns and `paragent show`")
    for problem in problems:
        print(f"paragent: {problem}", file=sys.stderr)
    if failed or summary.pending:
        again = f"{command} --retry-failed" if failed and "--retry-failed" not in command else command
        purpose = "To continue, and run failed rollouts again" if failed else "To continue"
        if used_up is not None:
            change, again = _with_higher_budget(again, used_up)
            purpose += f" {change}"
        print(f"{purpose}:\n  {again}", file=sys.stderr)
    return int(bool(failed or summary.pending or summary.unscored or summary.out_of_turns))


def _scoring_again(plan: RolloutPlan, unscored: int) -> str:
    """Return how answers get their score whose scorer failed."""
    from paragent.scorers import SCORERS

    if ":" not in plan.metric and plan.metric not in SCORERS.names():  # the environment scores them
        return f"`--retry-failed` executes {'its rollout' if unscored == 1 else 'their rollouts'} again"
    command = f"`paragent rescore {shlex.quote(str(plan.path))}`"
    return f"{command} scores {'it' if unscored == 1 else 'them'} without another rollout"


def _dry_run(plan: RolloutPlan) -> int:
    """Print what would be run; write nothing."""
    from paragent.store import JOURNAL_FILE, Journal

    config = plan.config
    path = plan.path / JOURNAL_FILE
    total = pending = plan.benchmark.size * config.data.attempts
    if path.exists() and not config.run.fresh:
        with Journal(path, read_only=True) as journal:
            pending = journal.count_pending(config.data.attempts)
    engine = plan.engine
    tasks, attempts = counted(plan.benchmark.size, "task"), counted(config.data.attempts, "attempt")
    concurrent, workers = counted(config.run.num_rollouts, "concurrent rollout"), counted(engine.workers, "worker")
    machines = f"\n{_machines_of(config)}" if plan.machines else ""
    print(
        f"{tasks} x {attempts} = {counted(total, 'rollout')}, {pending:,} pending\n"
        f"model {config.model.name}, {concurrent} on engine {engine.engine_name} with {workers}{machines}\n"
        f"directory {plan.path}\nnothing was started"
    )
    return 0


def _machines_of(config: RolloutConfig) -> str:
    from paragent.rollout.machines import DEFAULT_PROVIDER

    machines = config.machines
    if machines.pool_address:
        return f"machines of the pool at {machines.pool_address}"
    number = f"{machines.num_vms} shared" if machines.use_vm_pool else f"{config.run.num_rollouts}, one per rollout"
    return f"machines of {machines.provider_name or DEFAULT_PROVIDER}: {number}"


def _add_flags(parser: argparse.ArgumentParser) -> None:
    from paragent.rollout.config import all_settings

    parser.add_argument("--config", type=Path, metavar="FILE", help="read settings from a YAML, TOML or JSON file")
    parser.add_argument("--dry-run", action="store_true", help="check all settings and print what would be run")
    parser.add_argument(
        "--yes", action="store_true", help="use the default model without asking, if --model is not set"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    parser.add_argument(
        "--detach",
        action="store_true",
        help="run in the background, with the output in session.log of the run directory, and print how to watch and stop it",
    )
    view = "serve the web view while the run is executed, and print the link"
    parser.add_argument("--view", action="store_true", help=view)
    parser.add_argument("--detached", type=int, help=argparse.SUPPRESS)
    groups = {section: parser.add_argument_group(title) for section, title in _GROUPS.items()}
    for setting in all_settings():
        add_setting(groups[setting.section], setting)


def _config(options: argparse.Namespace) -> tuple[RolloutConfig, bool]:
    """Return the configuration, and whether the user chose the model: by a flag, a variable or the file."""
    from paragent.rollout.config import RolloutConfig, all_settings
    from paragent.rollout.settings_file import read_settings_file

    names = [setting.name for setting in all_settings()]
    given = read_settings_file(options.config) if options.config else {}
    file = {name.replace("-", "_"): value for name, value in given.items()}
    described = "`paragent rollout --help` describes all settings"
    reject_unknown(f"{options.config}: paragent rollout", "setting", file, names, described)
    settings = dict(file)
    variables = {name: _PREFIX + name.upper() for name in names if name not in _WITHOUT_VARIABLE}
    settings |= {name: os.environ[variable] for name, variable in variables.items() if variable in os.environ}
    settings |= {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    try:
        return RolloutConfig(**settings), "model" in settings
    except ConfigError as error:
        raise ConfigError(f"{error}{_source(str(error), options, file)}") from error


def _source(problem: str, options: argparse.Namespace, file: Mapping[str, Any]) -> str:
    """Return where the setting was set that a message begins with, if not by its flag."""
    name = problem.partition(" ")[0].removeprefix("--").replace("-", "_")
    variable = f"{_PREFIX}{name.upper()}"
    if getattr(options, name, None) is not None:
        return ""
    if variable in os.environ:
        return f" (set by {variable})"
    return f" (set in {options.config})" if name in file else ""


def _continue_command(arguments: list[str], *, fresh: bool) -> str:
    """Return the command that continues this run, even if a variable or a file sets `fresh`."""
    removed = {"--fresh", "--detach"}
    kept = [argument for argument in _without_flag(arguments, "--detached") if argument not in removed]
    return shlex.join(["paragent", *kept, *(["--no-fresh"] if fresh else [])])


def _without_flag(arguments: Sequence[str], flag: str) -> list[str]:
    """Return a command line without a flag and its value."""
    kept: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and argument != flag and not argument.startswith(f"{flag}="):
            kept.append(argument)
        skip = argument == flag and not skip
    return kept


def _with_higher_budget(command: str, budget: LiveBudget) -> tuple[str, str]:
    """Return what is changed, and a command with twice the budget, or without it if it is unknown how much is used."""
    from paragent.rollout.budgets import budget_flag

    flag = budget_flag(budget.name)
    others = _without_flag(shlex.split(command), flag)
    if budget.used is None:
        return "without this budget", shlex.join(others)
    higher = 2 * max(budget.limit, budget.used)
    return "with a higher budget", shlex.join(
        [*others, flag, f"{higher:.6g}" if flag == "--max-cost" else f"{math.ceil(higher)}"]
    )
