"""Rollouts on machines: shared and not shared, lost machines, served pools, clean-up."""

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
    MachineState,
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
from paragent.rollout.live_status import RolloutProgress
from paragent.rollout.machines import PausingModel, PoolAccess, WorkerLeases, lease_limit
from paragent.rollout.pool_file import read_pool_file
from paragent.rollout.prepare import prepare
from paragent.rollout.resources import RolloutSettings
from paragent.rollout.session import RolloutSession
from paragent.runners.retry import RetryPolicy
from paragent.store import (
    MACHINES,
    Journal,
    MachineEvent,
    RolloutActivity,
    RolloutResult,
    RolloutStatus,
    WorkerEvent,
    unpack_activity,
)
from paragent.tasks import BenchmarkTask
from paragent.testing import OpenAIServer, Script
from paragent.testing.programs import alive
from tests.machines.certificates import certify
from tests.waiting import wait_until

HERE = "tests.rollout.test_machines"


class Room(Environment):
    """An environment on a machine, with tools that kill the machine."""

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

    @tool
    async def ask_pool(self, folder: Annotated[str, "the folder `live` of the run"]) -> str:
        """Return who holds this machine, as the web view learns it."""
        access = read_pool_file(Path(folder))
        assert access is not None
        with access.client() as client:
            status = await asyncio.to_thread(client.status)
        [row] = [row for row in status.machines if row.id == self.machine.id]
        return row.holder


class NeverBoots(ProcessProvider):
    """A provider whose machines never boot."""

    async def create(self, machine_id: str) -> Any:
        raise MachineFailed(f"the image of {machine_id} is no image")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A separate folder of runs; images and golden states are shared, because building them takes long."""
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


def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replies: Any, **settings: Any) -> Any:
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
    """Check that no process and no folder of a machine of this test remains."""
    runs = tmp_path / "cache/owners/rollout"
    return not runs.exists() or not any(runs.iterdir())


LOOK = [{"tool": "look"}, "It was clean: 42."]


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["inline", "local"])
def test_rollouts_share_machines(engine: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: dict[str, Any] = {"use_vm_pool": True, "num_vms": 2, "num_rollouts": 4, "engine": engine}
    summary = run(tmp_path, monkeypatch, LOOK, data=data, **chosen)
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


def recorded_events(tmp_path: Path) -> tuple[list[RolloutResult], list[MachineEvent], list[WorkerEvent]]:
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        return list(journal.results("1")), list(journal.machine_events()), list(journal.worker_events())


@pytest.mark.slow
def test_the_journal_says_what_machines_and_workers_did(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: dict[str, Any] = {"use_vm_pool": True, "num_vms": 2, "num_rollouts": 4, "engine": "local", "workers": 2}
    run(tmp_path, monkeypatch, LOOK, data=data, **chosen)
    results, machine_events, worker_events = recorded_events(tmp_path)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        first_calls = {result.number: journal.trajectory(result.number)["steps"][1]["at"] for result in results}
    for result in results:
        machine = [event for event in machine_events if event.machine == result.machine]
        states = [event.state for event in machine]
        assert states[:3] == ["booting", "free", "leased"]
        assert states[-1] == "stopped"
        [leased] = [event for event in machine if event.holder == f"{result.worker} {result.task}"]
        released = next(event for event in machine if (event.number or 0) > (leased.number or 0))
        assert result.started - 0.1 <= leased.at <= released.at <= result.ended + 0.1
        intervals = {interval.activity: interval.seconds for interval in unpack_activity(result.activity or b"")}
        waited = intervals[RolloutActivity.WAITING_FOR_MACHINE]
        assert waited == pytest.approx(leased.at - result.started, abs=1.0)
        assert first_calls[result.number] >= 0.9 * waited, "steps are recorded relative to the start of the execution"
    for worker in {result.worker for result in results}:
        assert [event.event for event in worker_events if event.worker == worker] == ["started", "ready", "stopped"]


@pytest.mark.slow
def test_events_of_a_served_pool_begin_with_the_state_of_its_machines(
    pool: VMPoolManager, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: pool.status().count(MachineState.FREE) == len(pool.status().machines), 20)
    with pool.lease(timeout=20, holder="another user") as other:
        before = pool.status()
        run(tmp_path, monkeypatch, LOOK, data=data, pool_address=str(pool.serve().address), limit=1)
    [result], events, _ = recorded_events(tmp_path)
    first = events[: len(before.machines)]
    assert {(event.machine, event.state, event.holder) for event in first} == {
        (machine.id, machine.state, machine.holder) for machine in before.machines
    }
    assert ("leased", "another user") in {(event.state, event.holder) for event in first if event.machine == other.id}
    later = [(event.machine, event.state) for event in events[len(first) :]]
    assert later[0] == (result.machine, "leased")


@pytest.mark.slow
def test_without_a_pool_each_concurrent_rollout_has_its_own_machine(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[RolloutProgress] = []
    monkeypatch.setattr("paragent.rollout.report.WATCH_INTERVAL", 0.0)
    with OpenAIServer(Script(default=LOOK)) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        chosen: dict[str, Any] = {"env": f"{HERE}:Room", "provider_name": "process", "output_dir": tmp_path / "results"}

        def watch(progress: RolloutProgress) -> None:
            if progress.machines is not None:
                seen.append(progress)
                assert (progress.machines.total, "machines" in progress_line(progress)) == (3, True)

        config = RolloutConfig(**chosen, data=data, num_rollouts=3)
        with RolloutSession(prepare(config)) as session:
            earlier = {"leases_granted": 10, "leased_seconds": 1000.0, "machine_seconds": 4000.0}
            session.directory.journal.set_meta(MACHINES, json.dumps(earlier))
        summary = run_parallel_rollout(config, watch)
    assert summary.machines is not None
    assert (summary.mean, summary.machines["leases_granted"]) == (1.0, 16), "earlier sessions are included"
    assert summary.machines["leased_seconds"] > 1000
    assert summary.machines["machine_seconds"] > 4000
    assert seen
    assert nothing_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("then", ["ask", "sleep", "fail", "go on"])
def test_a_rollout_whose_machine_dies_is_retried(
    then: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paragent.rollout.blame.RETRIES", RetryPolicy(pause=0.1))
    kill = {"tool": "kill", "arguments": {"marker": str(tmp_path / "killed"), "then": then}}
    summary = run(tmp_path, monkeypatch, [kill, LOOK[0], "42"], data=data, limit=1, use_vm_pool=True, num_vms=1)
    assert (summary.mean, summary.pending, summary.executions) == (1.0, 0, 2)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        first, second = (result for result in journal.results("1"))
    assert (first.status, first.kind, first.final) == (RolloutStatus.INFRASTRUCTURE, "machine", False)
    assert second.status is RolloutStatus.COMPLETED
    assert nothing_is_left(tmp_path)


def test_the_view_finds_the_pool_and_the_holders_of_a_live_run(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    live = tmp_path / "results/run/live"
    replies = [{"tool": "ask_pool", "arguments": {"folder": str(live)}}, "42"]
    run(tmp_path, monkeypatch, replies, data=data, limit=1, attempts=2, num_rollouts=1)
    with Journal(tmp_path / "results/run/journal.sqlite", read_only=True) as journal:
        answers = [journal.trajectory(one.number)["messages"][-2]["content"] for one in journal.results()]
    assert [answer.partition(" ")[2] for answer in answers] == ["t0", "t0#2"]
    assert not (live / "pool.json").exists()


def test_a_failed_pool_stops_the_run(data: Path, tmp_path: Path, capsys: Any) -> None:
    arguments = ["rollout", "--env", f"{HERE}:Room", "--engine", "inline", "--data", str(data), "--model", "demo"]
    arguments += ["--provider-name", f"{HERE}:NeverBoots", "--use-vm-pool", "--output-dir", str(tmp_path / "results")]
    assert main(arguments) == 1
    said = capsys.readouterr().err
    assert "is no image" in said
    assert "in a row did not boot" in said
    assert nothing_is_left(tmp_path)


def test_unavailable_machines_are_reported_before_the_run(data: Path, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"data": data, "model": "demo", "output_dir": tmp_path / "results"}
    for settings, message in (
        ({"env": f"{HERE}:Room", "provider_name": "qeum"}, "qemu"),
        ({"env": f"{HERE}:Room", "pool_address": "nonsense"}, "host:port"),
        ({"env": f"{HERE}:Room", "pool_address": "127.0.0.1:1"}, "paragent pool serve"),
        ({"env": f"{HERE}:Room", "provider_name": "process", "vm_option": {"x": "1"}}, "no option 'x'"),
        ({"env": f"{HERE}:Room", "path_to_vm": "no-such-image"}, "is neither a file nor a built image"),
        ({"mode": "math", "use_vm_pool": True}, "needs no machine"),
    ):
        with pytest.raises((UsageError, LookupError), match=message):
            run_parallel_rollout(RolloutConfig(**chosen, **settings))
    assert not (tmp_path / "results").exists(), "a run that did not start leaves no directory"


@pytest.mark.slow
def test_fresh_restores_the_old_run_if_machines_cannot_start(tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"data": sample_path("math"), "limit": 1, "model": "demo", "engine": "inline"}
    chosen |= {"output_dir": tmp_path / "results", "run_name": "run"}
    run_parallel_rollout(RolloutConfig(**chosen, mode="math"))
    before = sorted((path, path.is_dir() or path.read_bytes()) for path in (tmp_path / "results").rglob("*"))
    with pytest.raises(UsageError, match="nor a built image"):
        run_parallel_rollout(RolloutConfig(**chosen, env=f"{HERE}:Room", fresh=True, path_to_vm=Path("no-such-image")))
    assert before == sorted((path, path.is_dir() or path.read_bytes()) for path in (tmp_path / "results").rglob("*"))


def test_dry_run_prints_the_machines(data: Path, capsys: Any) -> None:
    arguments = ["rollout", "--env", f"{HERE}:Room", "--data", str(data), "--model", "demo", "--dry-run"]
    assert main([*arguments, "--provider-name", "process", "--use-vm-pool"]) == 0
    assert "machines of process: 3 shared" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("provider", "image", "message"),
    [("qemu", "Ubuntu.qcow2", "neither a file nor a built image"), ("vmware", "Ubuntu.vmx", "is not a file")],
)
def test_dry_run_checks_the_image(
    data: Path, tmp_path: Path, capsys: Any, provider: str, image: str, message: str
) -> None:
    arguments = ["rollout", "--env", f"{HERE}:Room", "--data", str(data), "--model", "demo", "--dry-run"]
    arguments += ["--provider-name", provider, "--path-to-vm", str(tmp_path / image)]
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    (tmp_path / image).touch()
    assert main(arguments) == 0


@pytest.fixture
def pool() -> Iterator[VMPoolManager]:
    with VMPoolManager("process", 2, name="others") as made:
        yield made


@pytest.mark.slow
def test_a_served_pool_with_tls(
    pool: VMPoolManager, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    tls = certify(tmp_path, "127.0.0.1")
    address = str(pool.serve(tls=tls).address)
    with pytest.raises(ConfigError, match=r"connect with TLS \(--tls-ca\)"):
        run(tmp_path, monkeypatch, LOOK, data=data, pool_address=address)
    with pytest.raises(ConfigError, match=r"ca='/.*none.pem' cannot be read"):
        run(tmp_path, monkeypatch, LOOK, data=data, pool_address=address, tls_ca="none.pem")
    with pytest.raises(ConfigError, match="settings are for a served pool"):
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
        reported = ["rollout", "--env", f"{HERE}:Room", "--data", str(data), "--config", str(written), "--json"]
        assert main(reported) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["mean"], summary["machines"]["leases_granted"]) == (1.0, 6)
    assert pool.failure is None
    wait_until(lambda: not any(row.holder for row in pool.status().machines))


@pytest.mark.slow
def test_a_lease_has_a_hard_limit(pool: VMPoolManager) -> None:
    assert lease_limit(None) is None
    assert lease_limit(3600.0) == 3600 + 3600 + 600 + 630
    assert lease_limit(60.0) == 60 + 1800 + 600 + 630

    async def hang() -> None:
        leases = WorkerLeases(PoolAccess(address=str(pool.serve().address), limit=0.5))
        try:
            async with leases.lease("somebody") as held, held.watched():
                await asyncio.sleep(0.6)
        finally:
            await leases.close()

    with pytest.raises(LeaseLost):
        asyncio.run(hang())


def test_a_single_rollout_worker_leases_from_a_served_pool(pool: VMPoolManager, tmp_path: Path) -> None:
    place = PoolAccess(address=str(pool.serve().address), limit=60.0)
    assert "secret" not in repr(PoolAccess(address="a:1", secret="x" * 20))
    with OpenAIServer(Script(default=LOOK)) as server:
        model = ModelSettings(name="m", base_url=server.url, api_key="k")
        settings = RolloutSettings(run="r", environment=f"{HERE}:Room", model=model, judge=model, machines=place)
        done = RolloutWorker(settings).run(BenchmarkTask("a", "what is it?", "42"))
        alone = RolloutWorker(RolloutSettings(run="s", environment=f"{HERE}:Room", model=model, judge=model))
        refused = alone.run(BenchmarkTask("a", "what is it?", "42"))
    assert (done.status, done.score) == (RolloutStatus.COMPLETED, 1.0)
    assert (refused.status, refused.kind) == (RolloutStatus.INFRASTRUCTURE, "settings")


@pytest.mark.timeout(300)  # the tiny image is built if nobody has yet
@pytest.mark.slow
@pytest.mark.parametrize("provider", ["process", pytest.param("qemu", marks=pytest.mark.qemu)])
def test_programs_run_on_machines(provider: str, tmp_path: Path) -> None:
    chosen: dict[str, Any] = {"mode": "py", "sandbox": "vm", "provider_name": provider, "use_vm_pool": True}
    chosen |= {"num_vms": 1, "data": sample_path("py"), "model": "demo", "output_dir": tmp_path / "results"}
    if provider == "qemu":  # emulated: a dozen times slower
        chosen |= {"limit": 2, "num_rollouts": 2, "num_spares": 0}
    summary = run_parallel_rollout(RolloutConfig(**chosen))
    assert (summary.mean, summary.pending, summary.failures) == (1.0, 0, {})
    assert nothing_is_left(tmp_path)


class RecordingProvider(ProcessProvider):
    """Records when a machine is paused and resumed."""

    async def pause(self, machine: Any) -> None:
        with Path(os.environ["NOTES"]).open("a") as notes:
            notes.write("pause\n")

    async def resume(self, machine: Any) -> None:
        with Path(os.environ["NOTES"]).open("a") as notes:
            notes.write("resume\n")


@pytest.mark.parametrize("pauses", [False, True])
def test_machines_are_paused_during_model_requests(
    pauses: bool, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES", str(tmp_path / "notes"))
    chosen: dict[str, Any] = {
        "provider_name": f"{HERE}:RecordingProvider",
        "limit": 1,
        "num_spares": 0,
        "pause_machines": pauses,
    }
    summary = run(tmp_path, monkeypatch, LOOK, data=data, **chosen)
    assert summary.mean == 1.0
    seen = (tmp_path / "notes").read_text().split()
    assert seen[:2] == ["pause", "resume"], "it is paused while free, and resumed when leased"
    assert seen[2:6] == (["pause", "resume"] * 2 if pauses else seen[2:6])
    assert seen.count("resume") == (3 if pauses else 1)


def test_a_rollout_cancelled_while_pausing_resumes_its_machine() -> None:
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


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_no_processes_remain_after_a_signal(how: signal.Signals, data: Path, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_a_stopped_run_releases_machines_of_a_served_pool(pool: VMPoolManager, data: Path, tmp_path: Path) -> None:
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
