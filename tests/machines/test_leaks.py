"""No machine is left behind: machines that fail at once, and pools that stop while machines are being created."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import Any, ClassVar

import boto3
import pytest
from botocore.exceptions import ClientError

from paragent import MachineFailed, MachineSettings, VMPoolManager
from paragent.machines import Machine, controller
from paragent.machines.cleanup import Owner, dead_owners
from paragent.machines.providers import Provider
from paragent.machines.providers.aws import TAG, AwsProvider
from paragent.machines.providers.base import complete_or_undo
from tests.machines.fakes.docker_engine import DockerEngine
from tests.waiting import wait_until


class Cloud(Provider):
    """Machines that exist only as names; tests control their state."""

    health_check_seconds: ClassVar[float] = 0.02
    existing: ClassVar[dict[str, str]] = {}
    """Existing machines and their owners."""
    dead: ClassVar[bool] = False
    refusals: ClassVar[int] = 0
    """Number of further stop requests that fail."""

    async def create(self, machine_id: str) -> Machine:
        self.existing[f"{self.owner.id}-{machine_id}"] = self.owner.id
        return Machine(f"{self.owner.id}-{machine_id}", "127.0.0.1", 1)

    async def wait_until_ready(self, machine: Machine) -> None:
        if self.dead:
            await asyncio.sleep(300)

    async def reset(self, machine: Machine) -> Machine:
        return machine

    async def alive(self, machine: Machine) -> bool:
        return not self.dead

    async def stop(self, machine_id: str) -> None:
        if Cloud.refusals:
            Cloud.refusals -= 1
            raise MachineFailed("too many requests")
        self.existing.pop(machine_id, None)

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        return sorted(name for name, run in self.existing.items() if run in owners)


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> type[Cloud]:
    async def clean(*_: Any) -> None:
        """There is no agent to ask."""

    monkeypatch.setattr(controller, "verify_clean", clean)
    monkeypatch.setattr(controller, "LIST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(Cloud, "existing", {})
    monkeypatch.setattr(Cloud, "dead", False)
    monkeypatch.setattr(Cloud, "refusals", 0)
    return Cloud


def test_eighty_machines_that_fail_at_once_are_all_stopped(cloud: type[Cloud], monkeypatch: pytest.MonkeyPatch) -> None:
    with VMPoolManager(cloud, 80, name="leaks", max_failures=1000) as pool:
        pool.wait_until_free(80, 30)
        first = set(cloud.existing)
        monkeypatch.setattr(Cloud, "dead", True)
        wait_until(lambda: not first & set(cloud.existing))
        assert len(first) == 80
    assert cloud.existing == {}
    assert dead_owners("leaks") == []


def test_stopping_a_machine_is_retried_when_the_pool_stops(cloud: type[Cloud]) -> None:
    with VMPoolManager(cloud, 3, name="leaks") as pool:
        pool.wait_until_free(3, 30)
        cloud.refusals = 4
    assert cloud.existing == {}
    assert dead_owners("leaks") == []


def test_the_folder_of_an_owner_stays_until_its_machines_are_gone(cloud: type[Cloud]) -> None:
    pool = VMPoolManager(cloud, 2, name="leaks").start(wait_for=2)
    cloud.refusals = 1000
    pool.stop()
    assert len(cloud.existing) == 2
    assert len(dead_owners("leaks")) == 1
    cloud.refusals = 0
    with VMPoolManager(cloud, 1, name="leaks"):
        assert len(cloud.existing) == 1
    assert cloud.existing == {}
    assert dead_owners("leaks") == []


def test_cancelled_work_is_completed_and_undone() -> None:
    done: list[str] = []

    async def attack() -> None:
        may_end = asyncio.Event()

        async def work() -> str:
            await may_end.wait()
            return "made"

        async def undo(what: str) -> None:
            await asyncio.sleep(0)
            done.append(f"undone {what}")

        task = asyncio.create_task(complete_or_undo(work(), undo))
        for _ in range(3):  # repeated cancellation changes nothing
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done()
        may_end.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert done == ["undone made"]
        assert await complete_or_undo(asyncio.sleep(0, "plain")) == "plain"

    asyncio.run(attack())


# --- EC2 ------------------------------------------------------------------------------------------------------------------


def instances(settings: MachineSettings) -> list[dict[str, Any]]:
    """Return the instances of all pools from the fake EC2."""
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=settings.options["endpoint"])
    answer = client.describe_instances(Filters=[{"Name": "tag-key", "Values": [TAG]}])
    client.close()
    return [dict(each) for group in answer["Reservations"] for each in group["Instances"]]


def running(settings: MachineSettings) -> list[str]:
    over = {"shutting-down", "terminated"}
    return [each["InstanceId"] for each in instances(settings) if each["State"]["Name"] not in over]


class SlowAws(AwsProvider):
    """A slow EC2: creating instances takes long, and new instances are unknown for a while."""

    asked: ClassVar[threading.Event]
    answer: ClassVar[threading.Event]
    unknown_for: ClassVar[int] = 0
    """How many questions about a new machine are answered as if it did not exist."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.questions: dict[str, int] = {}

    def create_client(self) -> Any:
        client = super().create_client()
        client.meta.events.register("before-send.ec2.RunInstances", self._hold)
        return client

    async def request(self, operation: str, **arguments: Any) -> Any:
        names = arguments.get("InstanceIds") or [
            value for one in arguments.get("Filters", ()) if one["Name"] == "instance-id" for value in one["Values"]
        ]
        for name in names:
            self.questions[name] = self.questions.get(name, 0) + 1
            if self.questions[name] <= self.unknown_for:
                return self._nothing(operation)
        found = await super().request(operation, **arguments)
        if self.unknown_for and operation == "describe_instances" and not names:
            return {"Reservations": []}  # a search by tag finds new instances last
        return found

    def _hold(self, **_: Any) -> None:
        self.asked.set()
        assert self.answer.wait(60)

    def _nothing(self, operation: str) -> Any:
        if operation == "describe_instances":
            return {"Reservations": []}
        cause = ClientError({"Error": {"Code": "InvalidInstanceID.NotFound", "Message": "?"}}, operation)
        raise MachineFailed("aws: no such machine") from cause


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[SlowAws]:
    monkeypatch.setattr(SlowAws, "asked", threading.Event(), raising=False)
    monkeypatch.setattr(SlowAws, "answer", threading.Event(), raising=False)
    monkeypatch.setattr(SlowAws, "unknown_for", 0)
    return SlowAws


@pytest.mark.slow
@pytest.mark.parametrize("unknown_for", [0, 5])
def test_a_pool_that_stops_while_instances_are_created_terminates_them(
    slow: type[SlowAws], ec2: MachineSettings, unknown_for: int
) -> None:
    slow.unknown_for = unknown_for
    pool = VMPoolManager(slow, 3, spares=0, name="leaks", settings=ec2).start(wait_for=0)
    assert slow.asked.wait(60)
    before = len(instances(ec2))
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    wait_until(lambda: pool.draining)
    slow.answer.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert len(instances(ec2)) > before, "the request was not interrupted"
    assert running(ec2) == []
    assert dead_owners("leaks") == []


def drive(provider: type[Provider], settings: MachineSettings, story: Any) -> None:
    async def whole() -> None:
        run = Owner("leaks")
        made = provider(settings, run)
        try:
            await story(made)
        finally:
            await made.close()
            run.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


@pytest.mark.slow
def test_an_instance_that_ec2_does_not_know_yet_is_terminated(slow: type[SlowAws], ec2: MachineSettings) -> None:
    slow.answer.set()
    slow.unknown_for = 4

    async def story(provider: SlowAws) -> None:
        name = await provider.launch("m0")
        assert await provider.list_owned([provider.owner.id]) == [name], "its provider knows it"
        await provider.stop(name)
        assert await provider.list_owned([provider.owner.id]) == []
        await provider.stop(name)
        await provider.stop("i-0123456789abcdef0")

    drive(slow, ec2, story)
    assert running(ec2) == []


@pytest.mark.slow
def test_an_instance_that_does_not_become_ready_is_terminated(
    slow: type[SlowAws], ec2: MachineSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.answer.set()

    async def story(provider: SlowAws) -> None:
        async def never(*_: Any) -> Any:
            raise MachineFailed("no address")

        monkeypatch.setattr(provider, "_running", never)
        with pytest.raises(MachineFailed, match="no address"):
            await provider.create("m0")

    drive(slow, ec2, story)
    assert running(ec2) == []


# --- containers -----------------------------------------------------------------------------------------------------------


def test_a_pool_that_stops_while_containers_are_created_removes_them(docker_engine: DockerEngine) -> None:
    asked, answer = threading.Event(), threading.Event()

    def wait() -> None:
        asked.set()
        assert answer.wait(60)

    docker_engine.before_create = wait
    pool = VMPoolManager("docker", 2, spares=0, name="leaks").start(wait_for=0)
    assert asked.wait(60)
    stopping = threading.Thread(target=pool.stop)
    stopping.start()
    wait_until(lambda: pool.draining)
    answer.set()
    stopping.join(60)
    assert not stopping.is_alive()
    assert docker_engine.created
    assert docker_engine.containers == {}
    assert dead_owners("leaks") == []


def test_a_machine_that_is_listed_late_is_stopped_by_the_next_pool(
    cloud: type[Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request was in progress when its pool was killed: its machine appears after the first listing of the next pool."""
    monkeypatch.setattr(Cloud, "listing_delay_seconds", 0.3)
    killed = Owner("leaks")
    killed.close(keep=True)
    with VMPoolManager(cloud, 1, name="leaks"):
        cloud.existing["late"] = killed.id
        wait_until(lambda: "late" not in cloud.existing)
        wait_until(lambda: dead_owners("leaks") == [])
    assert cloud.existing == {}


def test_a_pool_that_stops_before_its_second_listing_leaves_it_to_the_next(
    cloud: type[Cloud], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cloud, "listing_delay_seconds", 300.0)
    killed = Owner("leaks")
    killed.close(keep=True)
    with VMPoolManager(cloud, 1, name="leaks"):
        cloud.existing["late"] = killed.id
    assert [folder.name for folder in dead_owners("leaks")] == [killed.id]
    with VMPoolManager(cloud, 1, name="leaks"):
        assert "late" not in cloud.existing
    monkeypatch.setattr(Cloud, "listing_delay_seconds", 0.0)
    with VMPoolManager(cloud, 1, name="leaks"):
        assert dead_owners("leaks") == []
