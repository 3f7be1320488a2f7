"""`aws`: instances of Amazon EC2, through boto3.

`path_to_vm` (or `snapshot_name`) is an AMI. A reset ends the instance and starts another one from the AMI, or, with the option
`reset="root-volume"`, replaces the root volume of the same instance, which keeps its address. Instances bear the tag
`paragent:run`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from paragent._internal.clock import monotonic
from paragent._internal.validation import seconds
from paragent.errors import ConfigError, MachineFailed
from paragent.machines.providers.base import GUEST_PORT, Instance, MachineSettings, Provider, uncancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from paragent.machines.cleanup import Run

__all__ = ["AwsProvider"]

TAG = "paragent:run"
_INSTANCE_TYPE = "t3.medium"
"""What OSWorld's own runs use."""
_POLL = 2.0
"""Seconds between questions about an instance: EC2 counts requests, and nothing there changes faster."""
_UNKNOWN_SECONDS = 60.0
"""For EC2 to know an instance that it has made itself; seconds are usual."""
_OVER = {"shutting-down", "terminated"}
_OPTIONS = ("instance_type", "subnet", "security_groups", "public", "reset", "endpoint", "key_name", "poll_seconds")


class AwsProvider(Provider):
    """Machines in the cloud.

    Options: `instance_type` (default t3.medium), `subnet`, `security_groups`, `key_name`, `public` (whether to use public
    addresses), `reset` (`instance` or `root-volume`), `endpoint` (another service with EC2's interface), `poll_seconds`.
    """

    health_seconds: ClassVar[float] = 30.0
    """EC2 counts requests."""
    late_seconds: ClassVar[float] = _UNKNOWN_SECONDS
    """A request that was under way when its sender was killed may still make an instance, which EC2 lists later."""

    def __init__(self, settings: MachineSettings, run: Run) -> None:
        super().__init__(settings, run)
        settings.only("aws", *_OPTIONS)
        ami = settings.path_to_vm or settings.snapshot_name
        if not ami:
            raise ConfigError("aws needs path_to_vm: the id of an AMI")
        self._ami = ami
        self._way = settings.options.get("reset", "instance")
        if self._way not in {"instance", "root-volume"}:
            raise ConfigError(f"reset must be 'instance' or 'root-volume', not {self._way!r}")
        self._poll = seconds(float(settings.options.get("poll_seconds", _POLL)), "poll_seconds")
        self._client: Any = None
        self._made: set[str] = set()
        """Instances that were made here and not ended yet."""
        self._unseen: set[str] = set()
        """Those of them that EC2 has not described yet: it may answer for a while as if they did not exist."""

    async def _do(self, operation: str, **arguments: Any) -> Any:
        """Call EC2, off the loop."""

        def work() -> Any:
            if self._client is None:
                config = Config(connect_timeout=10, read_timeout=60, retries={"max_attempts": 8, "mode": "adaptive"})
                self._client = boto3.client(
                    "ec2",
                    region_name=self.settings.region,
                    endpoint_url=self.settings.options.get("endpoint"),
                    config=config,
                )
            return getattr(self._client, operation)(**arguments)

        try:
            return await asyncio.to_thread(work)
        except (BotoCoreError, ClientError) as error:
            raise MachineFailed(f"aws: {operation}: {error}") from error

    async def create(self, machine_id: str) -> Instance:
        instance_id = await uncancelled(self._launch(machine_id), self.stop)
        try:
            return await self._running(instance_id)
        except BaseException:
            await uncancelled(self.stop(instance_id))
            raise

    async def _launch(self, machine_id: str) -> str:
        """Have an instance made and return its id."""
        options = self.settings.options
        tags = [{"Key": TAG, "Value": self.run.id}, {"Key": "Name", "Value": f"{self.run.pool}-{machine_id}"}]
        more = {
            name: options[given]
            for name, given in (
                ("SubnetId", "subnet"),
                ("SecurityGroupIds", "security_groups"),
                ("KeyName", "key_name"),
            )
            if given in options
        }
        answer = await self._do(
            "run_instances",
            ImageId=self._ami,
            InstanceType=options.get("instance_type", _INSTANCE_TYPE),
            MinCount=1,
            MaxCount=1,
            InstanceInitiatedShutdownBehavior="terminate",
            TagSpecifications=[{"ResourceType": kind, "Tags": tags} for kind in ("instance", "volume")],
            **more,
        )
        instance_id: str = answer["Instances"][0]["InstanceId"]
        self._made.add(instance_id)
        self._unseen.add(instance_id)
        return instance_id

    async def _running(self, instance_id: str) -> Instance:
        found = await self._wait(instance_id, lambda about: about["State"]["Name"] == "running")
        field = "PublicIpAddress" if self.settings.options.get("public") else "PrivateIpAddress"
        address = found.get(field)
        if not address:
            raise MachineFailed(f"{instance_id} has no {field}")
        return Instance(instance_id, address, GUEST_PORT, {port: port for port in self.settings.forwards})

    async def _wait(self, instance_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = monotonic() + self.settings.boot_seconds
        while True:
            about = await self._about(instance_id)
            if about is not None and condition(about):
                return about
            if about is not None and about["State"]["Name"] in _OVER:
                raise MachineFailed(f"{instance_id} ended: {about.get('StateTransitionReason', '')}")
            if monotonic() > deadline:
                raise MachineFailed(f"{instance_id} was not ready within {self.settings.boot_seconds:.0f} s")
            await asyncio.sleep(self._poll)

    async def _about(self, instance_id: str) -> dict[str, Any] | None:
        """A new instance may be unknown for a moment; a request by filter answers with nothing instead of an error."""
        filters = [{"Name": "instance-id", "Values": [instance_id]}]
        answer = await self._do("describe_instances", Filters=filters)
        found: list[dict[str, Any]] = [each for group in answer["Reservations"] for each in group["Instances"]]
        if not found:
            return None
        self._unseen.discard(instance_id)
        return found[0]

    async def reset(self, instance: Instance) -> Instance:
        if self._way == "instance":
            await self.stop(instance.id)
            return await self.create("reset")
        answer = await self._do(
            "create_replace_root_volume_task", InstanceId=instance.id, DeleteReplacedRootVolume=True
        )
        task_id = answer["ReplaceRootVolumeTask"]["ReplaceRootVolumeTaskId"]
        await self._wait_for_volume(task_id)
        return await self._running(instance.id)

    async def _wait_for_volume(self, task_id: str) -> None:
        deadline = monotonic() + self.settings.boot_seconds
        while monotonic() < deadline:
            answer = await self._do("describe_replace_root_volume_tasks", ReplaceRootVolumeTaskIds=[task_id])
            state = answer["ReplaceRootVolumeTasks"][0]["TaskState"]
            if state == "succeeded":
                return
            if state.startswith("fail"):
                break
            await asyncio.sleep(self._poll)
        raise MachineFailed(f"the root volume could not be replaced ({task_id})")

    async def alive(self, instance: Instance) -> bool:
        about = await self._about(instance.id)
        return about is not None and about["State"]["Name"] == "running"

    async def stop(self, instance_id: str) -> None:
        """End an instance by its id, whatever EC2 says about it: it may not know a new one yet."""
        deadline = monotonic() + _UNKNOWN_SECONDS
        while True:
            try:
                await self._do("terminate_instances", InstanceIds=[instance_id])
                break
            except MachineFailed as error:
                if not _says_unknown(error):
                    raise
                if instance_id not in self._unseen:
                    break  # it ended long ago
                if monotonic() > deadline:
                    raise
                await asyncio.sleep(self._poll)
        self._made.discard(instance_id)
        self._unseen.discard(instance_id)

    async def list_own(self, runs: Collection[str]) -> list[str]:
        if not runs:
            return []
        filters = [
            {"Name": f"tag:{TAG}", "Values": list(runs)},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        found = set(self._made) if self.run.id in runs else set()
        page: dict[str, Any] = {}
        while True:
            answer = await self._do("describe_instances", Filters=filters, **page)
            found |= {each["InstanceId"] for group in answer["Reservations"] for each in group["Instances"]}
            if not answer.get("NextToken"):
                return sorted(found)
            page = {"NextToken": answer["NextToken"]}

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


def _says_unknown(error: MachineFailed) -> bool:
    """Return whether EC2 says that there is no instance of this id."""
    cause = error.__cause__
    return isinstance(cause, ClientError) and cause.response["Error"]["Code"] == "InvalidInstanceID.NotFound"
