"""Rollouts on desktops: sample tasks, OSWorld's files, skipped tasks, stored files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paragent import BadData, RolloutConfig, UsageError, run_parallel_rollout
from paragent.cli import main
from paragent.demo.samples import sample_options, sample_path
from paragent.osworld.env import OSWorldEnvironment
from paragent.rollout.dataset import read_benchmark
from paragent.rollout.prepare import prepare
from paragent.store import Journal, images_folder
from tests.demo.desktop_tasks import desktop_tasks

pytestmark = [pytest.mark.slow, pytest.mark.browser]

MACHINES = [
    "--provider-name",
    "process",
    "--screen-width",
    "1280",
    "--screen-height",
    "800",
]


def command(tmp_path: Path, *more: str) -> list[str]:
    data = ["--data", str(sample_path("osworld")), "--output-dir", str(tmp_path), "--run-name", "run"]
    return ["rollout", "--mode", "osworld", "--model", "demo", *data, *MACHINES, *more]


def scores(path: Path) -> dict[str, float | None]:
    with Journal(path / "journal.sqlite", read_only=True) as journal:
        for result in journal.results():
            assert not result.error, result.error
        return {result.task: result.score for result in journal.results()}


def test_the_sample_file_matches_its_generator() -> None:
    tasks = [json.loads(line) for line in sample_path("osworld").read_text().splitlines()]
    assert tasks == desktop_tasks()
    assert len(tasks) == 60
    assert len({task["id"].partition("-")[2] for task in tasks}) == 15
    assert len({task["instruction"] for task in tasks}) == 60
    benchmark = read_benchmark(sample_path("osworld"), lacking=OSWorldEnvironment().missing_requirements)
    assert (benchmark.size, dict(benchmark.skipped)) == (60, {})


def test_rollouts_share_desktops_with_the_accessibility_tree(tmp_path: Path) -> None:
    chosen = ["01-note", "03-compute", "05-impossible", "07-setting"]
    flags = [flag for task in chosen for flag in ("--task-id", task)]
    pool = ["--num-rollouts", "3", "--num-vms", "2", "--use-vm-pool", "--observation-type", "a11y_tree"]
    assert main(command(tmp_path, *flags, *pool)) == 0
    assert scores(tmp_path / "run") == dict.fromkeys(chosen, 1.0)
    assert main(["export", str(tmp_path / "run"), "--format", "osworld", "--output", str(tmp_path / "out")]) == 0
    home = tmp_path / "out/computer_13/a11y_tree/demo"
    assert json.loads((home / "args.json").read_text())["action_space"] == "computer_13"
    note = home / "editor/01-note"
    steps = [json.loads(line) for line in (note / "traj.jsonl").read_text().splitlines()]
    assert steps[-1]["action"] == {"action_type": "DONE"}
    assert [step["done"] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert all((note / step["screenshot_file"]).read_bytes().startswith(b"\x89PNG") for step in steps)
    assert (note / "result.txt").read_text() == "1.0\n"
    impossible = (home / "os/05-impossible/traj.jsonl").read_text()
    assert json.loads(impossible)["action"] == {"action_type": "FAIL"}
    listed = json.loads((tmp_path / "out/summary/results.json").read_text())
    assert {entry["task_id"] for entry in listed} == set(chosen)


def test_rollouts_with_own_desktops_use_screenshots_and_are_recorded(tmp_path: Path) -> None:
    chosen = ["01-note", "10-delete"]
    flags = [flag for task in chosen for flag in ("--task-id", task)]
    assert main(command(tmp_path, *flags, "--num-rollouts", "2", "--action-space", "pyautogui", "--record")) == 0
    assert scores(tmp_path / "run") == dict.fromkeys(chosen, 1.0)
    folder = images_folder(tmp_path / "run", "10-delete", 1)
    assert len(list(folder.glob("step_*.png"))) >= 4
    assert len(list(folder.glob("recording_*.mp4"))) == 1
    assert main(["export", str(tmp_path / "run"), "--format", "osworld", "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out/pyautogui/screenshot/demo/files/10-delete/recording.mp4").stat().st_size > 0


class Careless:
    """Replaces the evaluated file by a folder, deletes the file that is opened at the end, and reports success."""

    def predict(self, instruction: str, obs: dict[str, Any]) -> tuple[str, list[str]]:
        broken = "import os; os.remove('note.txt'); os.mkdir('note.txt'); os.remove('other.txt')"
        return "Broken.", [broken, "DONE"]


def test_damage_by_the_agent_is_scored_and_not_retried(tmp_path: Path) -> None:
    config = [
        {"type": "execute", "parameters": {"command": "echo x > ~/note.txt; echo y > ~/other.txt", "shell": True}}
    ]
    steps = [
        {"type": "launch", "parameters": {"command": ["no-such-program-at-all"]}},
        {"type": "change_wallpaper", "parameters": {"path": "/no/such.png"}},
    ]
    opening = {"type": "open", "parameters": {"path": "~/other.txt"}}
    result = {"type": "vm_file", "path": "~/note.txt", "dest": "note.txt"}
    expected = {"type": "rule", "rules": {"expected": "x"}}
    evaluator = {"func": "exact_match", "result": result, "expected": expected}
    tasks = [
        task("folder", config=config, evaluator=evaluator | {"postconfig": steps}),
        task("deleted", config=config, evaluator=evaluator | {"postconfig": [opening]}),
    ]
    (tmp_path / "tasks.json").write_text(json.dumps(tasks))
    agent = ["--agent", "tests.rollout.test_desktop_rollouts:Careless", "--action-space", "pyautogui"]
    data = ["--data", str(tmp_path / "tasks.json"), "--output-dir", str(tmp_path), "--run-name", "run"]
    assert main(["rollout", "--mode", "osworld", "--model", "demo", *data, *agent, *MACHINES]) == 0
    assert scores(tmp_path / "run") == {"folder": 0.0, "deleted": 0.0}
    with Journal(tmp_path / "run/journal.sqlite", read_only=True) as journal:
        assert [result.ending for result in journal.results()] == ["done", "done"]
        assert len(list(journal.results("1 = 1"))) == 2


# --- task files -----------------------------------------------------------------------------------------------------------------


def task(name: str, **more: Any) -> dict[str, Any]:
    return {"id": name, "instruction": f"Do {name}.", "config": [], "evaluator": {"func": "infeasible"}, **more}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """OSWorld's layout: an index and a folder of examples; one task needs an account."""
    login = {"type": "login", "parameters": {"settings_file": "x", "platform": "googledrive"}}
    for domain, one in (("os", task("a")), ("os", task("b")), ("chrome", task("c", config=[login]))):
        file = tmp_path / "examples" / domain / f"{one['id']}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(one, indent=2))
    path = tmp_path / "test_all.json"
    path.write_text(json.dumps({"os": ["b", "a"], "chrome": ["c"]}, indent=2))
    return path


def test_an_index_is_read_with_its_examples(index: Path) -> None:
    for spaces in (2, None):
        index.write_text(json.dumps(json.loads(index.read_text()), indent=spaces))
        found = list(read_benchmark(index, load_tasks=OSWorldEnvironment.load_tasks))
        assert [(one.id, one.metadata["domain"]) for one in found] == [("b", "os"), ("a", "os"), ("c", "chrome")]
        assert found[0].question == "Do b."
    index.write_text('{"os": ["a",\n "b"]}')
    assert read_benchmark(index, task_ids=["a"], load_tasks=OSWorldEnvironment.load_tasks).size == 1
    index.write_text(json.dumps({"os": ["a", "gone", "../os/b"]}))
    with pytest.raises(BadData, match="gone") as caught:
        read_benchmark(index, load_tasks=OSWorldEnvironment.load_tasks)
    assert len(caught.value.problems) == 2


def test_single_tasks_lists_and_lines_are_read(tmp_path: Path) -> None:
    forms = {
        "one.json": json.dumps(task("a"), indent=2),
        "line.json": json.dumps(task("a")),
        "list.json": json.dumps([task("a")]),
        "items.json": json.dumps({"items": [task("a")]}),
        "lines.jsonl": json.dumps(task("a")) + "\n",
    }
    for name, text in forms.items():
        (tmp_path / name).write_text(text)
        assert [one.id for one in read_benchmark(tmp_path / name)] == ["a"], name


def test_unsupported_tasks_are_named_before_the_run(index: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"mode": "osworld", "data": index, "model": "demo", "provider_name": "process"}
    settings |= {"output_dir": tmp_path / "out", "run_name": "run"}
    with pytest.raises(UsageError, match=r"c: needs a Google account[^\n]*\nUse --skip-unsupported"):
        run_parallel_rollout(RolloutConfig(**settings))
    assert not (tmp_path / "out").exists()
    prepared = prepare(RolloutConfig(**settings, skip_unsupported=True))
    assert [one.id for one in prepared.benchmark] == ["b", "a"]
    assert prepared.benchmark.size == 2
    with pytest.raises(UsageError, match="that this environment supports"):
        prepare(RolloutConfig(**settings, skip_unsupported=True, task_id=["c"]))


def test_skipped_tasks_are_printed(index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["rollout", "--mode", "osworld", "--data", str(index), "--model", "demo", "--output-dir", str(tmp_path)]
    assert main([*arguments, *MACHINES, "--skip-unsupported", "--dry-run"]) == 0
    reported = capsys.readouterr()
    assert "skipping c: it needs a Google account" in reported.err
    assert "2 tasks" in reported.out


def test_tasks_of_osworld_on_the_built_image_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = {"instruction": "Do it.", "evaluator": {"func": "infeasible"}}
    for domain in ("gimp", "own"):
        folder = tmp_path / "examples" / domain
        folder.mkdir(parents=True)
        (folder / f"{domain}1.json").write_text(json.dumps({"id": f"{domain}1", **one}))
    index = tmp_path / "all.json"
    index.write_text(json.dumps({"gimp": ["gimp1"], "own": ["own1"]}))
    arguments = ["rollout", "--mode", "osworld", "--data", str(index), "--model", "demo", "--dry-run"]
    assert main([*arguments, "--path-to-vm", "desktop"]) == 0
    assert "the scores of 1 task are meaningless" in capsys.readouterr().err
    (tmp_path / "Ubuntu.qcow2").touch()
    for more in (
        ["--task-id", "own1"],
        ["--path-to-vm", str(tmp_path / "Ubuntu.qcow2")],
        ["--provider-name", "process"],
    ):
        assert main([*arguments, *more]) == 0
        assert "meaningless" not in capsys.readouterr().err


def test_flags_reach_the_environment(index: Path) -> None:
    flags: dict[str, Any] = {
        "action_space": "pyautogui",
        "observation_type": "som",
        "pause": 0.5,
        "record": True,
        "client_password": "x",
    }
    config = RolloutConfig(mode="osworld", data=index, model="demo", task_id=["a"], screen_width=800, **flags)
    options = OSWorldEnvironment(prepare(config).settings.options).options
    assert {name: getattr(options, name) for name in flags} == flags
    assert (options.screen_width, options.screen_height) == (800, 1080)
    mistakes: list[dict[str, Any]] = [{"observation_type": "smell"}, {"action_space": "legs"}]
    for wrong in mistakes:
        with pytest.raises(UsageError, match="must be"):
            prepare(RolloutConfig(mode="osworld", data=index, model="demo", task_id=["a"], **wrong))
    web = RolloutConfig(
        mode="web", data=index.parent / "examples/os/a.json", model="demo", env_option=_texts(sample_options("web"))
    )
    assert not {"screen_width", "pause"} & set(prepare(web).settings.options)


def _texts(options: dict[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in options.items()}
