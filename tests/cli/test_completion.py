"""`paragent completion`, with a real bash."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paragent import RolloutConfig, run_parallel_rollout
from paragent.cli import main
from tests.children import BoundedPopen

PROGRAMS = Path(sys.executable).parent
ENVIRONMENT = os.environ | {"PATH": f"{PROGRAMS}:{os.environ['PATH']}", "TERM": "dumb", "PS1": "$ "}
COMPLETE = r"""
source "$2"
registered="$(complete -p paragent)"
function="${registered##*-F }"
COMP_LINE="$1" COMP_POINT="${#1}"
"${function%% *}" paragent 2> /dev/null
printf '%s\n' "${COMPREPLY[@]}"
"""
"""Prints what bash would suggest after the text `$1`, with the script in the file `$2`."""


def suggested(line: str, folder: Path, **variables: str) -> list[str]:
    done = subprocess.run(
        ["bash", "--norc", "-c", COMPLETE, "complete", line, str(folder / "script")],
        cwd=folder,
        env=ENVIRONMENT | variables,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return done.stdout.split()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with files, two runs, and the script for bash."""
    folder = tmp_path_factory.mktemp("completion")
    (folder / "tasks.jsonl").write_text('{"id": "first", "question": "1"}\n{"id": "second", "question": "2"}\n')
    (folder / "tables").mkdir()
    with (folder / "script").open("w") as script:
        subprocess.run([PROGRAMS / "paragent", "completion", "bash"], stdout=script, check=True, timeout=100)
    for run in ("monday", "tuesday"):
        data, results = folder / "tasks.jsonl", folder / "results"
        run_parallel_rollout(
            RolloutConfig(mode="math", data=data, model="demo", engine="inline", output_dir=results, run_name=run)
        )
    return folder


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("paragent rol", ["rollout"]),
        ("paragent pool re", ["retire"]),
        ("paragent rollout --num-r", ["--num-rollouts"]),
        ("paragent rollout --engine ", ["inline", "local", "ray", "spark"]),
        ("paragent rollout --engine=s", ["spark"]),
        ("paragent rollout --agent-in ", ["worker", "sandbox", "host", "machine"]),
        ("paragent rollout --num-rollouts ", []),
        ("paragent rollout --data ta", ["tables/", "tasks.jsonl"]),
        ("paragent rollout --data sa", ["sample"]),
        ("paragent rollout --output-dir ta", ["tables/"]),
        ("paragent show mo", ["monday"]),
        ("paragent show results/t", ["results/tuesday/"]),
        ("paragent show monday ", ["first", "second"]),
        ("paragent show no-run ", []),
        ("paragent export monday --format a", ["atif"]),
        ("paragent completion ", ["bash", "zsh", "fish"]),
    ],
)
def test_bash_suggests(line: str, values: list[str], folder: Path) -> None:
    found = suggested(line, folder)
    if not values:  # flags are suggested where no value is known, but never in place of a value
        assert not [one for one in found if not one.startswith("-")]
        return
    assert found == values


def test_flags_are_suggested_if_nothing_else_fits(folder: Path) -> None:
    assert {"--mode", "--data", "--model"} <= set(suggested("paragent rollout ", folder))
    assert set(suggested("paragent compare ", folder)) == {
        "monday",
        "tuesday",
        "results/",
        "tables/",
        "tasks.jsonl",
        "script",
    }


def test_plug_ins_are_suggested_without_being_imported(folder: Path, tmp_path: Path) -> None:
    about = tmp_path / "plug_in-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[paragent.envs]\nmaze = absent_module:Maze\n")
    assert suggested("paragent rollout --mode ma", folder, PYTHONPATH=str(tmp_path)) == ["math", "maze"]


def test_the_tab_key_completes_in_an_interactive_bash(folder: Path) -> None:
    terminal, inner = pty.openpty()
    command = ["bash", "--norc", "--noprofile", "-i"]
    with BoundedPopen(
        command, cwd=folder, env=ENVIRONMENT, stdin=inner, stdout=inner, stderr=inner, start_new_session=True
    ) as shell:
        os.close(inner)
        try:
            read_until(terminal, "$ ")
            os.write(terminal, b'eval "$(paragent completion bash)"; echo lo""aded\n')
            read_until(terminal, "loaded")
            os.write(terminal, b"paragent sho\t")
            read_until(terminal, "paragent show ")
            os.write(terminal, b"tu\t")
            read_until(terminal, "tuesday")
        finally:
            shell.kill()
            os.close(terminal)


def read_until(terminal: int, text: str, seconds: float = 60) -> None:
    shown, end = "", time.monotonic() + seconds
    while text not in shown:
        ready, _, _ = select.select([terminal], [], [], max(0, end - time.monotonic()))
        assert ready, f"no {text!r} in {shown!r}"
        shown += os.read(terminal, 1 << 16).decode()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_instructions(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert re.search(rf"^\s*({'complete .*' if shell != 'zsh' else 'compdef .*'})\bparagent\b", script, re.MULTILINE)
    with pytest.raises(SystemExit):
        main(["completion", "--help"])
    assert re.search(rf"^  {shell}:\n    .*paragent completion {shell}.* >", capsys.readouterr().out, re.MULTILINE)
