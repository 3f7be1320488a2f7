"""The rollout service on worker processes: killed trainers and workers, clusters, machines, control and programs as agents."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from paragent import Environment, tool
from paragent.cli import main
from paragent.errors import ServiceStopped
from paragent.runners.retry import RetryPolicy
from paragent.store import JOURNAL_FILE, GroupState, GroupStore
from paragent.testing import OpenAIServer, Script
from paragent.training import Groups, RolloutService, replay
from tests.training.policy import LOOK, config, task
from tests.waiting import wait_until

TRAINER = """
import json, sys
from pathlib import Path
from paragent.training import Groups, RolloutService
from tests.training.policy import config, task

folder, url = Path(sys.argv[1]), sys.argv[2]
with RolloutService(config(folder, workers=2), url, Groups(n=2), max_staleness=2) as service:
    service.add([task(f"t{number}") for number in range(20)])
    version = service.status().version
    for group in service.groups(timeout=60):
        group.accept()
        line = json.dumps([group.id, group.staleness, [s.token_ids for s in group.samples]]) + "\\n"
        with (folder / "accepted.jsonl").open("ab", buffering=0) as file:
            file.write(line.encode())  # one call, which a kill does not cut
        version += 1
        service.published(version)
"""


class Guarded(Environment):
    """An environment on a machine."""

    name = "guarded"
    metric = "exact_match"

    @property
    def needs_machine(self) -> bool:
        return True

    @tool
    async def look(self) -> str:
        """Use the machine."""
        return str((await self.machine.aexecute("echo here", timeout=10)).output)


@pytest.fixture
def server() -> Iterator[OpenAIServer]:
    with OpenAIServer(Script(default=[LOOK, "42"], latency=0.02)) as started:
        yield started


def start_trainer(folder: Path, server: OpenAIServer) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    return subprocess.Popen([sys.executable, "-c", TRAINER, str(folder), server.url], env=environment)


def lines(folder: Path) -> list[Any]:
    """Return the complete lines; the trainer may be writing one."""
    path = folder / "accepted.jsonl"
    written = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in written if line.endswith("\n")]


def wait_for_groups(folder: Path, number: int) -> None:
    wait_until(lambda: len(lines(folder)) >= number, what="the trainer accepted some groups")


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_a_trainer_that_is_killed_again_and_again_accepts_each_group_once(tmp_path: Path, server: OpenAIServer) -> None:
    chance = random.Random(7)
    for _ in range(3):
        trainer = start_trainer(tmp_path, server)
        wait_for_groups(tmp_path, len(lines(tmp_path)) + chance.randint(1, 4))
        workers = psutil.Process(trainer.pid).children(recursive=True)
        trainer.send_signal(signal.SIGKILL)
        trainer.wait(60)
        psutil.wait_procs(workers, timeout=60)
        assert not any(one.is_running() for one in workers), "its workers have ended"
    assert start_trainer(tmp_path, server).wait(120) == 0
    logged = Counter(name for name, _, _ in lines(tmp_path))
    assert max(logged.values()) == 1
    assert max(staleness for _, staleness, _ in lines(tmp_path)) <= 2
    store = GroupStore(tmp_path / "results" / "run" / JOURNAL_FILE)
    try:
        counts = store.counts()
    finally:
        store.close()
    assert counts[GroupState.ACCEPTED] == sum(counts.values()) == 20


@pytest.mark.slow
def test_rollouts_of_a_killed_worker_are_replayed(
    tmp_path: Path, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "RETRIES", RetryPolicy(pause=0.01))
    release = tmp_path / "release"
    others = psutil.Process().children(recursive=True)  # of other tests, for example the Java process of Spark
    with RolloutService(config(tmp_path, workers=2), server.url, Groups(n=4)) as service:
        service.add([task("a", waits=str(release))])
        wait_until(lambda: server.seen.answered >= 4, what="all attempts have sampled a turn")
        for process in psutil.Process().children(recursive=True):
            if process not in others:
                process.kill()
        release.touch()
        [group] = service.groups(timeout=60)
    assert group.rewards == [1.0] * 4
    assert group.failures == []
    assert all(len(sample.turns) == 2 for sample in group.samples)


@pytest.mark.slow
def test_the_commands_for_runs_work_on_a_training_run(
    tmp_path: Path, server: OpenAIServer, capsys: pytest.CaptureFixture[str]
) -> None:
    release = tmp_path / "release"
    with RolloutService(config(tmp_path, engine="inline"), server.url, Groups(n=2)) as service:
        service.add([task("a", waits=str(release)), task("b")])
        run = str(service.path)
        wait_until(lambda: service.status().rollouts == 2, what="`a` is under way and `b` has ended")
        assert main(["ctl", run, "status"]) == 0
        assert main(["ctl", run, "cancel", "a#2"]) == 0
        wait_until(lambda: service.status().rollouts == 1, what="`a#2` is cancelled")
        release.touch()
        groups = {group.id: group for group in service.groups(timeout=60)}
        assert [(one.attempt, one.status) for one in groups["a"].failures] == [(2, "cancelled")]
        assert groups["a"].rewards == [1.0], "a rollout that a user cancelled is not reward 0"
        service.add([task("c", waits=str(tmp_path / "never"))])
        assert main(["ctl", run, "stop", "--cancel"]) == 0
        with pytest.raises(ServiceStopped, match="stopped by a user"):
            service.next_group(timeout=60)
    assert main(["runs", "--output-dir", str(tmp_path / "results")]) == 0
    assert "run" in capsys.readouterr().out


def test_rollouts_on_machines(tmp_path: Path, server: OpenAIServer) -> None:
    machines = {"env": f"{__name__}:Guarded", "provider_name": "process", "use_vm_pool": True, "num_vms": 2}
    settings = config(tmp_path, agent=None, engine="inline", **machines)
    with RolloutService(settings, server.url, Groups(n=3)) as service:
        service.add([task("a"), task("b")])
        groups = list(service.groups(timeout=60))
    assert sorted(group.id for group in groups) == ["a", "b"]
    assert all(len(group.samples) == 3 for group in groups)


@pytest.mark.slow
def test_a_program_as_the_agent_has_samples(tmp_path: Path, server: OpenAIServer) -> None:
    program = (
        "import json, os, urllib.request as u; "
        "body = json.dumps({'model': 'any', 'messages': [{'role': 'user', 'content': input()}]}).encode(); "
        "request = u.Request(os.environ['OPENAI_BASE_URL'] + '/chat/completions', body, "
        "{'Authorization': 'Bearer ' + os.environ['OPENAI_API_KEY'], 'Content-Type': 'application/json'}); "
        "print(json.load(u.urlopen(request))['choices'][0]['message']['content'])"
    )
    command = f'cmd: {sys.executable} -c "{program}"'
    server.script.default = "42"
    settings = config(tmp_path, agent=command, agent_in="host", workers=1)
    with RolloutService(settings, server.url, Groups(n=2)) as service:
        service.add([task("a")])
        [group] = service.groups(timeout=60)
    assert group.rewards == [1.0, 1.0], [sample.status for sample in group.samples]
    assert [len(sample.turns) for sample in group.samples] == [1, 1]
    assert [sample.versions for sample in group.samples] == [[0], [0]]


@pytest.mark.parametrize(
    "engine", [pytest.param("ray", marks=pytest.mark.ray), pytest.param("spark", marks=pytest.mark.spark)]
)
@pytest.mark.timeout(240)
def test_rollouts_on_clusters(tmp_path: Path, server: OpenAIServer, engine: str) -> None:
    release = tmp_path / "release"
    with RolloutService(config(tmp_path, engine=engine, workers=2), server.url, Groups(n=2)) as service:
        service.published(1)
        service.add([task("a", waits=str(release)), task("b")])
        wait_until(lambda: server.seen.answered >= 2, 120, what="the first turns are sampled")
        service.pause()
        service.published(2)
        service.resume()
        release.touch()
        groups = {group.id: group for group in service.groups(timeout=120)}
        for group in groups.values():
            group.accept()
    assert [turn.version for turn in groups["a"].samples[0].turns] == [1, 2]
