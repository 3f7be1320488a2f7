"""The command line: demo, help, version."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from paragent.cli import main


@pytest.mark.slow
def test_the_demo_shows_every_status(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--tasks", "60", "--workers", "2", "--no-rollouts", "--no-desktops"]) == 0
    shown = capsys.readouterr().out
    for word in ("60 responses", "succeeded", "failed", "timed out", "lost", "ValueError", "times as fast"):
        assert word in shown, shown


@pytest.mark.slow
def test_every_command_has_help() -> None:
    for arguments in (["--help"], ["demo", "-h"], ["rollout", "-h"], ["runs", "-h"], ["compare", "-h"]):
        done = subprocess.run(
            [sys.executable, "-m", "paragent", *arguments], capture_output=True, text=True, check=True, timeout=100
        )
        assert "usage: paragent" in done.stdout


@pytest.mark.parametrize("command", ["rollout", "show", "agent-server", "pool", "pool serve", "vm rm", "osworld check"])
def test_the_help_of_a_command_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    description = capsys.readouterr().out.split("\n\n")[1]
    assert re.fullmatch(r"[A-Z].*\.", description, re.DOTALL)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"paragent {version('paragent')}\n"


@pytest.mark.parametrize(("arguments", "command"), [([], "rollout"), (["pool"], "serve"), (["ctl"], "pause")])
def test_without_a_command_the_commands_are_listed(
    arguments: list[str], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    shown = capsys.readouterr().err
    assert re.search(rf"^    {command}  +\w", shown, re.MULTILINE), shown
    assert "required" not in shown


def test_without_a_command_there_are_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert status_of([]) == 2
    examples, _, rest = capsys.readouterr().err.partition("examples:\n")[2].partition("\n\n")
    assert "  paragent docs tutorials/tasks\n  paragent docs tutorials/remote_agents\n" in rest
    assert "paragent demo" in examples
    assert "paragent agent-server" in examples
    for line in examples.splitlines():
        assert line.startswith("  paragent "), line


@pytest.mark.parametrize(
    ("arguments", "problem", "suggestion"),
    [
        (["rolout"], "there is no command 'rolout'", "rollout"),
        (["run"], "there is no command 'run'", "runs"),
        (["pool", "serv"], "there is no command 'serv'", "serve"),
        (["rollout", "--num-rolouts", "3"], "there is no flag --num-rolouts", "--num-rollouts"),
        (["rollout", "--num-rolouts=3"], "there is no flag --num-rolouts", "--num-rollouts"),
        (["rollout", "--attempt", "3"], "there is no flag --attempt", "--attempts"),
        (["show", "run", "--lim", "3"], "there is no flag --lim", "--limit"),
        (["--versio"], "there is no flag --versio", "--version"),
        (["--verison"], "there is no flag --verison", "--version"),
        (["--verison", "runs"], "there is no flag --verison", "--version"),
        (["vm", "build", "dekstop"], "'dekstop' is not one of tiny, desktop", "desktop"),
    ],
)
def test_unknown_names_suggest_the_nearest(
    arguments: list[str], problem: str, suggestion: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert f"{problem}; did you mean {suggestion}? See `paragent" in line


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["rollout", "--zzz"], "paragent rollout: there is no flag --zzz; see `paragent rollout --help`"),
        (["show", "a", "b", "c"], "paragent show: unexpected argument 'c'; see `paragent show --help`"),
        (["demo", "--", "c"], "paragent demo: unexpected argument 'c'; see `paragent demo --help`"),
        (["show"], "paragent show: missing: RUN; see `paragent show --help`"),
        (
            ["completion"],
            "paragent completion: missing: shell, one of bash, zsh, fish; see `paragent completion --help`",
        ),
        (
            ["completion", "csh"],
            "paragent completion: argument shell: 'csh' is not one of bash, zsh, fish; see `paragent completion --help`",
        ),
        (["zzz"], "paragent: there is no command 'zzz'; see `paragent --help`"),
    ],
)
def test_errors_are_one_line_that_names_the_command(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(arguments) == 2
    assert capsys.readouterr().err == f"{problem}\n"


def test_rollout_without_arguments_shows_examples(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["rollout"]) == 2
    shown = capsys.readouterr().err
    commands = [line.split() for line in shown.splitlines() if line.startswith("    paragent ")]
    assert [command[command.index("--mode") + 1] for command in commands] == ["math", "math", "osworld"]
    assert shown.endswith("Guide: paragent docs guide/rollouts\n")
    assert main([*commands[0][1:], "--dry-run"]) == 0  # it works as it is, with the installed package
    assert "nothing was started" in capsys.readouterr().out


@pytest.mark.parametrize(("program", "mode"), [("bwrap", ["py", "--data"]), ("other", ["py", "--sandbox", "none"])])
def test_the_first_example_needs_only_what_is_installed(
    program: str, mode: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / program).touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "math_verify", None)  # the extra `math` is not installed
    assert main(["rollout"]) == 2
    words = capsys.readouterr().err.split()
    assert words[words.index("--mode") + 1 :][: len(mode)] == mode


@pytest.mark.parametrize("variable", ["PARAGENT_DATA", "PARAGENT_MODE"])
def test_rollout_with_settings_in_variables_names_what_is_missing(
    variable: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "1+1", "answer": "2"}\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(variable, "py" if variable == "PARAGENT_MODE" else "tasks.jsonl")
    assert main(["rollout"]) == 2
    assert "is missing" in capsys.readouterr().err


@pytest.mark.parametrize("data", [[], ["--data", "sample"]])
def test_an_unknown_mode_is_reported_first(data: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "--mode", "maths", *data]) == 2
    assert "there is no environment called 'maths', did you mean 'math'?" in capsys.readouterr().err


def status_of(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def test_a_deleted_current_folder_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, before = tmp_path / "gone", Path.cwd()
    folder.mkdir()
    os.chdir(folder)
    folder.rmdir()
    try:
        assert main(["runs"]) == 1
    finally:
        os.chdir(before)
    assert capsys.readouterr().err == "paragent: the current folder was deleted; change to another one\n"
