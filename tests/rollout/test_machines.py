"""Rollouts that need machines: pool and non-pool, lost machines, pools of others, and nothing left running."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import psutil
import pytest

from paragent import (
    Environment,
    MachineFailed,
    RolloutConfig,
    RolloutWorker,
    VMPoolManager,
    run_parallel_rollout,
    tool,
)
from paragent.cli import main
from paragent.cli.display import progress_line
from paragent.demo.policy import DemoModel
from paragent.demo.samples import sample_path
from paragent.errors import ConfigError, LeaseLost, UsageError
from paragent.machines.cleanup import cache_folder
from paragent.machines.providers.process import ProcessProvider
from paragent.models import ModelSettings
from paragent.rollout.leases import PausingModel, PoolAccess, WorkerLeases
from paragent.rollout.live_status import RolloutProgress
from paragent.rollout.machines import lease_limit
from paragent.rollout.prepare import prepare
from paragent.rollout.resources import RolloutSettings
from paragent.rollout.session import Session
from paragent.runners.retry import RetryPolicy
from paragent.store import MACHINES, Journal, RolloutStatus
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script
from paragent.testing.programs import alive, wait_until
from tests.machines.certificates import certify

HERE = "tests.rollout.test_machines"


class Room(Environment):
    """A world on a machine, with ways to lose it."""

    name = "room"
    metric = "contains"

    @property
    def needs_machine(self) -> bool:
        return True

    @tool
    async def look(self) -> str:
        """See that nobody was here before; leave something behind."""
        seen = await self.machine.aexecute("ls; echo mine > left-behind", timeout=5)
        return "42" if not seen.output.strip() else f"not clean: {seen.output}"

    @tool
    async def kill(self, marker: Annotated[str, "a file that says that it happened"], then: str) -> str:
        """Kill the machine, the first time."""
        if not Path(marker).exists():
            Path(marker).touch()
            os.kill(int(self.machine.details["pid"]), signal.SIGKILL)
            if then == "ask":
                await self.machine.aexecute("true")
            elif then == "sleep":
                await asyncio.sleep(100)
            elif then == "fail":
                raise KeyError("a bug, because nothing is as it was")
        return "42"

    @tool
    async def hold(self, note: Annotated[str, "a file for the machine's process id"]) -> str:
        """Keep the machine for long."""
        Path(note).write_text(self.machine.details["pid"])
        await asyncio.sleep(100)
        return "42"


class NeverBoots(ProcessProvider):
    """A provider whose image is bad."""

    async def create(self, machine_id: str) -> Any:
        raise MachineFailed(f"the image of {machine_id} is no image")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of its own; images and golden states, which take long to make, are shared."""
    shared = [cache_folder(name) for name in ("images", "golden", "snapshots")]
    (tmp_path / "cache").mkdir()
    for folder in shared:
        (tmp_path / "cache" / folder.name).symlink_to(folder)
    monkeypatch.setenv("PARAGENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(json.dumps({"id": f"t{i}", "question": f"{i}?", "answer": "42"}) + "\n" for i in range(6)))
    return path


def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replies: Any, **settings: Any) -> Any:
    chosen: dict[str, Any] = {
        "env": f"{HERE}:Room",
        "engine": "inline",
        "provider_name": "process",
        "output_dir": tmp_path / "results",
        "run_name": "run",
    } | settings
    with OpenAIServer(Script(default=replies)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        return run_parallel_rollout(RolloutConfig(**chosen))


def nothing_is_left(tmp_path: Path) -> bool:
    """Every process with the mark of a pool of this test is gone, and so is every folder of a machine."""
    runs = tmp_path / "cache/runs/rollout"
    return not runs.exists() or not any(runs.iterdir())


LOOK = [{"tool": "look"}, "It was clean: 42."]


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_rollouts_share_machines(engine: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: dict[str, Any] = {"use_vm_pool": True, "num_vms": 2, "num_rollouts": 4, "engine": engine}
    summary = play(tmp_path, monkeypatch, LOOK, data=data, **chosen)
    assert (summary.mean, summary.pending, summary.failures) == (1.0, 0, {})
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        trajectories = [journal.trajectory(one.number) for one in journal.results()]
    assert all(t["messages"][-2]["content"] == "42" for t in trajectories), "each machine was clean"
    assert all(t["steps"][0]["kind"] == "machine" for t in trajectories)
    figures = json.loads((tmp_path / "results/run/summary.json").read_text())["machines"]
    assert figures["leases_granted"] == 6
    assert 0 < figures["leased_seconds"] <= figures["machine_seconds"]
    assert 0 < figures["utilisation"] <= 1
    assert nothing_is_left(tmp_path)


def test_without_a_pool_every_rollout_has_a_machine_of_its_own(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RolloutProgress] = []
    monkeypatch.setattr("paragent.rollout.session.WATCH_INTERVAL", 0.0)
    with OpenAIServer(Script(default=LOOK)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        chosen: dict[str, Any] = {"env": f"{HERE}:Room", "provider_name": "process", "output_dir": tmp_path / "results"}

        def watch(tally: RolloutProgress) -> None:
            if tally.machines is not None:
                seen.append(tally)
                assert (tally.machines.total, "machines" in progress_line(tally)) == (3, True)

        config = RolloutConfig(**chosen, data=data, num_rollouts=3)
        with Session(prepare(config)) as session:
            earlier = {"leases_granted": 10, "leased_seconds": 1000.0, "machine_seconds": 4000.0}
            session.directory.journal.set_meta(MACHINES, json.dumps(earlier))
        summary = run_parallel_rollout(config, watch)
    assert summary.machines is not None
    assert (summary.mean, summary.machines["leases_granted"]) == (1.0, 16), "those of earlier sessions count"
    assert summary.machines["leased_seconds"] > 1000
    assert summary.machines["machine_seconds"] > 4000
    assert seen
    assert nothing_is_left(tmp_path)


@pytest.mark.parametrize("then", ["ask", "sleep", "fail", "go on"])
def test_a_machine_that_dies_is_nobodys_failure(
    then: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.rollout.session.RETRIES", RetryPolicy(pause=0.1))
    kill = {"tool": "kill", "arguments": {"marker": str(tmp_path / "killed"), "then": then}}
    summary = play(tmp_path, monkeypatch, [kill, LOOK[0], "42"], data=data, limit=1, use_vm_pool=True, num_vms=1)
    assert (summary.mean, summary.pending, summary.executions) == (1.0, 0, 2)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        first, second = (play for play in journal.results("1"))
    assert (first.status, first.kind, first.final) == (RolloutStatus.INFRASTRUCTURE, "machine", False)
    assert second.status is RolloutStatus.COMPLETED
    assert nothing_is_left(tmp_path)


def test_a_pool_that_cannot_work_stops_the_run(data: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = ["rollout", "--env", f"{HERE}:Room", "--engine", "inline", "--data", str(data), "--model", "demo"]
    arguments += ["--provider-name", f"{HERE}:NeverBoots", "--use-vm-pool", "--output-dir", str(tmp_path / "results")]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "is no image" in said
    assert "in a row did not boot" in said
    assert nothing_is_left(tmp_path)


def test_machines_that_do_not_exist_are_told_before_anything_runs(data: Path, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"data": data, "model": "demo", "output_dir": tmp_path / "results"}
    for settings, message in (
        ({"env": f"{HERE}:Room", "provider_name": "qeum"}, "qemu"),
        ({"env": f"{HERE}:Room", "pool_address": "nonsense"}, "host:port"),
        ({"env": f"{HERE}:Room", "pool_address": "127.0.0.1:1"}, "paragent pool serve"),
        ({"env": f"{HERE}:Room", "provider_name": "process", "vm_option": {"x": "1"}}, "no option 'x'"),
        ({"env": f"{HERE}:Room", "path_to_vm": "no-such-image"}, "is no file and no built image"),
        ({"mode": "math", "use_vm_pool": True}, "needs no machine"),
    ):
        with pytest.raises((UsageError, LookupError), match=message):
            run_parallel_rollout(RolloutConfig(**chosen, **settings))
    assert not (tmp_path / "results").exists(), "nothing is left of what never began"


def test_an_earlier_run_stays_where_it_is_when_there_are_no_machines_to_start_anew(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"data": sample_path("math"), "limit": 1, "model": "demo", "engine": "inline"}
    chosen |= {"output_dir": tmp_path / "results", "run_name": "run"}
    run_parallel_rollout(RolloutConfig(**chosen, mode="math"))
    before = sorted((path, path.is_dir() or path.read_bytes()) for path in (tmp_path / "results").rglob("*"))
    with pytest.raises(UsageError, match="no built image"):
        run_parallel_rollout(RolloutConfig(**chosen, env=f"{HERE}:Room", fresh=True, path_to_vm=Path("no-such-image")))
    assert before == sorted((path, path.is_dir() or path.read_bytes()) for path in (tmp_path / "results").rglob("*"))


def test_a_dry_run_says_which_machines(data: Path, capsys: Any) -> None:
    arguments = ["rollout", "--env", f"{HERE}:Room", "--data", str(data), "--model", "demo", "--dry-run"]
    assert main([*arguments, "--provider-name", "process", "--use-vm-pool"]) == 0
    assert "machines of process: 3 shared" in capsys.readouterr().out


@pytest.fixture
def pool() -> Iterator[VMPoolManager]:
    with VMPoolManager("process", 2, name="others") as made:
        yield made


def test_a_pool_that_others_serve_with_tls(
    pool: VMPoolManager, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tls = certify(tmp_path, "127.0.0.1")
    address = str(pool.serve(tls=tls).address)
    with pytest.raises(ConfigError, match=r"connect with TLS \(--tls-ca\)"):
        play(tmp_path, monkeypatch, LOOK, data=data, pool_address=address)
    with pytest.raises(ConfigError, match=r"ca='/.*none.pem' cannot be read"):
        play(tmp_path, monkeypatch, LOOK, data=data, pool_address=address, tls_ca="none.pem")
    with pytest.raises(ConfigError, match="TLS is for a pool that others serve"):
        RolloutConfig(tls_server_name="pool")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARAGENT_TLS_CA", "cert.pem")
    written = tmp_path / "settings.json"
    written.write_text(
        json.dumps({"tls_server_name": "127.0.0.1", "pool_address": address, "engine": "local", "model": "m"})
    )
    with OpenAIServer(Script(default=LOOK)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        told = ["rollout", "--env", f"{HERE}:Room", "--data", str(data), "--config", str(written), "--json"]
        assert main(told) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["mean"], summary["machines"]["leases_granted"]) == (1.0, 6)
    assert pool.failure is None
    wait_until(lambda: not any(row.holder for row in pool.status().machines))


def test_a_lease_has_a_hard_limit(pool: VMPoolManager) -> None:
    assert lease_limit(None) is None
    assert lease_limit(3600.0) == 3600 + 3600 + 630
    assert lease_limit(60.0) == 60 + 1800 + 630

    async def hang() -> None:
        desk = WorkerLeases(PoolAccess(address=str(pool.serve().address), limit=0.5))
        try:
            async with desk.lease("somebody") as held, held.watched():
                await asyncio.sleep(0.6)
        finally:
            await desk.close()

    with pytest.raises(LeaseLost):
        asyncio.run(hang())


def test_a_worker_of_its_own_leases_too(pool: VMPoolManager, tmp_path: Path) -> None:
    place = PoolAccess(address=str(pool.serve().address), limit=60.0)
    assert "secret" not in repr(PoolAccess(address="a:1", secret="x" * 20))
    with OpenAIServer(Script(default=LOOK)) as server:
        model = ModelSettings(name="m", base_url=server.url, api_key="k")
        settings = RolloutSettings(run="r", environment=f"{HERE}:Room", model=model, judge=model, machines=place)
        done = RolloutWorker(settings).run(BenchmarkTask("a", "what is it?", "42"))
        alone = RolloutWorker(RolloutSettings(run="s", environment=f"{HERE}:Room", model=model, judge=model))
        refused = alone.run(BenchmarkTask("a", "what is it?", "42"))
    assert (done.status, done.score) == (RolloutStatus.COMPLETED, 1.0)
    assert (refused.status, refused.kind) == (RolloutStatus.INFRASTRUCTURE, "refused")


@pytest.mark.timeout(300)  # the tiny image is built if nobody has yet
@pytest.mark.parametrize("provider", ["process", "qemu"])
def test_programs_run_on_machines(provider: str, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"mode": "py", "sandbox": "vm", "provider_name": provider, "use_vm_pool": True}
    chosen |= {"num_vms": 1, "data": sample_path("py"), "model": "demo", "output_dir": tmp_path / "results"}
    if provider == "qemu":  # emulated: a dozen times slower
        chosen |= {"limit": 2, "num_rollouts": 2, "num_spares": 0}
    summary = run_parallel_rollout(RolloutConfig(**chosen))
    assert (summary.mean, summary.pending, summary.failures) == (1.0, 0, {})
    assert nothing_is_left(tmp_path)


class Sleepy(ProcessProvider):
    """Notes when a machine is to stand still."""

    async def rest(self, instance: Any) -> None:
        with Path(os.environ["NOTES"]).open("a") as notes:
            notes.write("rest\n")

    async def wake(self, instance: Any) -> None:
        with Path(os.environ["NOTES"]).open("a") as notes:
            notes.write("wake\n")


@pytest.mark.parametrize("pauses", [False, True])
def test_machines_stand_still_while_the_model_thinks(
    pauses: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    chosen: dict[str, Any] = {"provider_name": f"{HERE}:Sleepy", "limit": 1, "num_spares": 0, "pause_machines": pauses}
    summary = play(tmp_path, monkeypatch, LOOK, data=data, **chosen)
    assert summary.mean == 1.0
    seen = (tmp_path / "notes").read_text().split()
    assert seen[:2] == ["rest", "wake"], "it is free, then handed out"
    assert seen[2:6] == (["rest", "wake"] * 2 if pauses else seen[2:6])
    assert seen.count("wake") == (3 if pauses else 1)


def test_a_rollout_that_is_stopped_while_it_pauses_lets_its_machine_go_on() -> None:
    notes: list[str] = []

    class SlowLease:
        async def apause(self) -> None:
            notes.append("pause")
            await asyncio.sleep(100)

        async def aresume(self) -> None:
            notes.append("resume")

    async def stop_it() -> None:
        lease: Any = SlowLease()
        async with asyncio.timeout(0.05):
            await PausingModel(DemoModel(ModelSettings(name="demo")), lease).complete([], [])

    with pytest.raises(TimeoutError):
        asyncio.run(stop_it())
    assert notes == ["pause", "resume"]


def start(tmp_path: Path, server: OpenAIServer, data: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "paragent", "rollout", "--env", f"{HERE}:Room", "--data", str(data)]
    command += ["--model", "m", "--run-name", "run", "--output-dir", str(tmp_path / "results"), *more]
    environment = os.environ | {"OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "any"}
    return subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True, process_group=0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_running(how: signal.Signals, data: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    with OpenAIServer(Script(default={"tool": "hold", "arguments": {"note": str(note)}})) as server:
        process = start(tmp_path, server, data, "--provider-name", "process", "--use-vm-pool", "--num-vms", "2")
        try:
            wait_until(lambda: note.exists() and note.read_text(), 60)
            family = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
            assert int(note.read_text()) in family
        finally:
            process.send_signal(how)
            _, said = process.communicate(timeout=60)
    wait_until(lambda: not any(map(alive, family)), 60)
    if how is signal.SIGINT:
        assert process.returncode == 130, said
        assert "Traceback" not in said
        assert nothing_is_left(tmp_path)


def test_a_run_that_is_stopped_gives_machines_of_others_back(pool: VMPoolManager, data: Path, tmp_path: Path) -> None:
    note = tmp_path / "pid"
    address = str(pool.serve().address)
    with OpenAIServer(Script(default={"tool": "hold", "arguments": {"note": str(note)}})) as server:
        process = start(tmp_path, server, data, "--pool-address", address)
        try:
            wait_until(lambda: note.exists(), 60)
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
    wait_until(lambda: not any(row.holder for row in pool.status().machines), 20)
