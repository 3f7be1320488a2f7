"""`paragent rollout`: play a benchmark."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from paragent._internal.text import counted
from paragent.errors import ConfigError, Interrupted

if TYPE_CHECKING:
    from paragent.rollout import RolloutConfig
    from paragent.rollout.prepare import Prepared
    from paragent.rollout.session import Session
    from paragent.store import Summary

__all__ = ["add"]

_PREFIX = "PARAGENT_"


def add(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command; its flags are the fields of `RolloutConfig`."""
    parser = subparsers.add_parser(
        "rollout",
        help="play a benchmark: every task is played, scored and kept; the same command again continues",
        description="Play a benchmark. Every flag can also be an environment variable (--num-rollouts: "
        "PARAGENT_NUM_ROLLOUTS) or a key of the --config file (num_rollouts); a flag wins over a variable, a variable over "
        "the file. The model's endpoint: OPENAI_BASE_URL and OPENAI_API_KEY, from the environment or a file .env.",
    )
    _add_flags(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """RolloutResult, show and tell what came of it."""
    from paragent.rollout.prepare import prepare

    config, chosen = _config(options)
    signal.signal(signal.SIGTERM, _as_ctrl_c)
    prepared = prepare(config)
    _tell_left_out(prepared)
    if options.dry_run:
        return _dry_run(prepared)
    if not chosen and not options.yes:
        _confirm(prepared)
    return _play(prepared, as_json=options.json, command=_again(options.arguments, fresh=config.fresh))


def _confirm(prepared: Prepared) -> None:
    """Ask whether to use the default model: nobody chose it, and its endpoint may bill for it.

    Raises:
        ConfigError: the answer is no, or nobody can be asked.
    """
    config, rollouts = prepared.config, prepared.benchmark.size * prepared.config.attempts
    plan = f"{counted(rollouts, 'rollout')} with the default model, {config.model}, at {_endpoint(prepared)}"
    if not sys.stdin.isatty():
        raise ConfigError(f"{plan}: nothing was started. Choose a model with --model, or accept this one with --yes")
    print(f"paragent: {plan}. It may be billed. Go on? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in {"y", "yes"}:
        raise ConfigError("nothing was started. Choose a model with --model; `--model demo` needs no endpoint")


def _endpoint(prepared: Prepared) -> str:
    """Return the address of the model's endpoint, without a password that may be in it; empty for a model without one."""
    from urllib.parse import urlsplit, urlunsplit

    from paragent.models.base import MODELS
    from paragent.models.credentials import DEFAULT_URL

    if prepared.config.model in MODELS.names():
        return ""
    parts = urlsplit(prepared.play.model.base_url or DEFAULT_URL)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))


def _tell_left_out(prepared: Prepared) -> None:
    """Name the tasks that --skip-unsupported leaves out."""
    for task, needs in prepared.benchmark.left_out.items():
        print(f"paragent: {task} is left out: it needs {', '.join(needs)}", file=sys.stderr)


def _play(prepared: Prepared, *, as_json: bool, command: str) -> int:
    from paragent.cli.display import open_display
    from paragent.cli.tables import console, summary_table
    from paragent.rollout.session import Session

    out = console(stderr=True)
    with Session(prepared) as session:
        if not session.owed:
            out.print(
                f"Nothing left to do: every rollout of {prepared.path} has its result ({session.tally.total:,} in all).",
                markup=False,
            )
        elif session.resumed:
            out.print(f"Continuing {prepared.path}: {_done(session)}.", markup=False)
        if session.owed:
            where = _endpoint(prepared)
            out.print(f"Model {prepared.config.model}" + (f" at {where}" if where else ", built in"), markup=False)
        try:
            with open_display(session):
                summary = session.play()
        except (Interrupted, KeyboardInterrupt):
            out.print(
                f"Stopped: {_done(session)} and kept. To continue:\n  {command}",
                markup=False,
                soft_wrap=True,
            )
            return 130
    if as_json:
        print(json.dumps({"run": prepared.path.name, "path": str(prepared.path), **summary.as_json()}))
    else:
        console().print(summary_table(prepared.path.name, summary))
        print(f"{prepared.path}: results.jsonl, summary.json, trajectories. See: paragent show {prepared.path}")
    return _status(summary, session.stopped, command)


def _done(session: Session) -> str:
    return f"{session.tally.done:,} of {counted(session.tally.total, 'rollout')} done"


def _status(summary: Summary, stopped: str, command: str) -> int:
    """Tell what is missing; return 0 if nothing is, else 1."""
    from paragent.store import RolloutStatus

    failed = {
        name: summary.statuses[name]
        for name in (RolloutStatus.FAILED, RolloutStatus.TIMED_OUT)
        if summary.statuses[name]
    }
    if stopped:
        print(f"paragent: stopped early: {stopped}", file=sys.stderr)
    if failed:
        counts = ", ".join(f"{count:,} {name}" for name, count in failed.items())
        print(f"paragent: {counted(sum(failed.values()), 'rollout')} without a score: {counts}", file=sys.stderr)
    if summary.unscored:
        what = f"{counted(summary.unscored, 'rollout')} completed without a score"
        print(
            f"paragent: {what}: the scorer had nothing to compare; see --metric, and `paragent show`", file=sys.stderr
        )
    if summary.owed:
        print(f"paragent: {counted(summary.owed, 'rollout')} left without a result", file=sys.stderr)
    if summary.out_of_turns:
        print(
            "paragent: every rollout used up its turns and none scored above 0; see --max-turns, and `paragent show`",
            file=sys.stderr,
        )
    if failed or summary.owed:
        again = f"{command} --retry-failed" if failed and "--retry-failed" not in command else command
        what = "To continue, and play what failed again" if failed else "To continue"
        print(f"{what}:\n  {again}", file=sys.stderr)
    return int(bool(failed or summary.owed or summary.unscored or summary.out_of_turns))


def _dry_run(prepared: Prepared) -> int:
    """Say what would be played; write nothing."""
    from paragent.store import Journal

    journal = prepared.path / "journal.sqlite"
    total = prepared.benchmark.size * prepared.config.attempts
    owed = total
    if journal.exists() and not prepared.config.fresh:
        with Journal(journal, read_only=True) as known:
            owed = known.count_owed(prepared.config.attempts)
    engine = prepared.engine
    tasks, attempts = counted(prepared.benchmark.size, "task"), counted(prepared.config.attempts, "attempt")
    at_a_time, workers = counted(prepared.config.num_rollouts, "rollout"), counted(engine.workers, "worker")
    machines = f"\n{_machines_of(prepared)}" if prepared.machines else ""
    print(
        f"{tasks} x {attempts} = {counted(total, 'rollout')}, {owed:,} owed\n"
        f"model {prepared.config.model}, {at_a_time} at a time on engine {engine.engine_name} with {workers}{machines}\n"
        f"directory {prepared.path}\nnothing was started"
    )
    return 0


def _machines_of(prepared: Prepared) -> str:
    """Say which machines a run would use."""
    from paragent.rollout.machines import DEFAULT_PROVIDER

    config = prepared.config
    if config.pool_address:
        return f"machines of the pool at {config.pool_address}"
    number = (
        f"{config.num_vms} shared" if config.use_vm_pool else f"{config.num_rollouts}, one for each rollout at a time"
    )
    return f"machines of {config.provider_name or DEFAULT_PROVIDER}: {number}"


def _add_flags(parser: argparse.ArgumentParser) -> None:
    from paragent.rollout.config import RolloutConfig, flag_of

    parser.add_argument("--config", type=Path, metavar="FILE", help="settings from a YAML, TOML or JSON file")
    parser.add_argument("--dry-run", action="store_true", help="check everything, say what would be played, and stop")
    parser.add_argument(
        "--yes", action="store_true", help="use the default model without being asked, if --model names none"
    )
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    groups: dict[str, Any] = {}
    hints = get_type_hints(RolloutConfig)
    for spec in dataclasses.fields(RolloutConfig):
        title = spec.metadata["group"]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        group = groups[title]
        default = spec.default if spec.default is not dataclasses.MISSING else None
        about = spec.metadata["help"] + ("" if default in (None, "", False) else f" (default: {default})")
        settings: dict[str, Any] = {"dest": spec.name, "default": None, "help": about.replace("%", "%%")}
        if hints[spec.name] is bool:
            group.add_argument(flag_of(spec.name), action=argparse.BooleanOptionalAction, **settings)
        elif "list" in str(hints[spec.name]) or "dict" in str(hints[spec.name]):
            group.add_argument(flag_of(spec.name), action="append", metavar=spec.metadata.get("metavar"), **settings)
        else:
            group.add_argument(
                flag_of(spec.name), metavar=spec.metadata.get("metavar", _metavar(hints[spec.name])), **settings
            )


def _metavar(hint: Any) -> str:
    """Return how a value of this type is called in the help."""
    return next((word for kind, word in (("int", "N"), ("float", "NUMBER")) if kind in str(hint)), "NAME")


def _config(given: argparse.Namespace) -> tuple[RolloutConfig, bool]:
    """Return the configuration, and whether somebody chose the model: by the flag, a variable or the file."""
    from paragent.rollout.config import RolloutConfig
    from paragent.rollout.prepare import read_settings

    names = [spec.name for spec in dataclasses.fields(RolloutConfig)]
    written = read_settings(given.config) if given.config else {}
    settings = {name.replace("-", "_"): value for name, value in written.items()}
    settings |= {name: os.environ[_PREFIX + name.upper()] for name in names if _PREFIX + name.upper() in os.environ}
    settings |= {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    return RolloutConfig.from_settings(settings), "model" in settings


def _again(arguments: list[str], *, fresh: bool) -> str:
    """Return the command that continues this run, also where a variable or a file says that it is to start anew."""
    kept = [argument for argument in arguments if argument != "--fresh"]
    return shlex.join(["paragent", *kept, *(["--no-fresh"] if fresh else [])])


def _as_ctrl_c(number: int, frame: Any) -> None:  # noqa: ARG001 - the form of a signal handler
    raise KeyboardInterrupt
