"""`aws`: machines are instances of Amazon EC2, controlled with boto3.

`path_to_vm` (or `snapshot_name`) is an AMI. A reset terminates the instance and starts another one from the AMI. With the
option `reset="root-volume"` it replaces the root volume instead, and the instance keeps its address. Instances have the tag
`paragent:owner`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

from paragent._internal.clock import monotonic
from paragent._internal.validation import seconds
from paragent.errors import ConfigError, MachineFailed
from paragent.machines.machine import Machine
from paragent.machines.providers.base import AGENT_PORT, MachineSettings, Provider, complete_or_undo

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from paragent.machines.cleanup import Owner

__all__ = ["AwsProvider"]

TAG = "paragent:owner"
_INSTANCE_TYPE = "t3.medium"
"""The type that OSWorld uses."""
_POLL = 2.0
"""Seconds between requests for the state of an instance: EC2 limits requests, and states do not change faster."""
_UNKNOWN_SECONDS = 60.0
"""How long EC2 may deny the existence of a new instance; some seconds are usual."""
_ENDED = {"shutting-down", "terminated"}
_OPTIONS = ("instance_type", "subnet", "security_groups", "public", "reset", "endpoint", "key_name", "poll_seconds")


class AwsProvider(Provider):
    """Machines in Amazon EC2.

    Options: `instance_type` (default t3.medium), `subnet`, `security_groups`, `key_name`, `public` (whether to use public
    addresses), `reset` (`instance` or `root-volume`), `endpoint` (another service with EC2's interface), `poll_seconds`.
    """

    health_check_seconds: ClassVar[float] = 30.0
    """EC2 limits requests."""
    listing_delay_seconds: ClassVar[float] = _UNKNOWN_SECONDS
    """A request whose sender was killed may still create an instance, which EC2 lists later."""

    def __init__(self, settings: MachineSettings, owner: Owner) -> None:
        super().__init__(settings, owner)
        settings.check_options("aws", *_OPTIONS)
        ami = settings.path_to_vm or settings.snapshot_name
        if not ami:
            raise ConfigError("aws needs path_to_vm (--path-to-vm): the id of an AMI")
        self._ami = ami
        self._reset_method = settings.options.get("reset", "instance")
        if self._reset_method not in {"instance", "root-volume"}:
            raise ConfigError(f"reset must be 'instance' or 'root-volume', not {self._reset_method!r}")
        self._poll = seconds(float(settings.options.get("poll_seconds", _POLL)), "poll_seconds")
        self._client: Any = None
        self._created: set[str] = set()
        """Instances that this provider created and has not terminated yet."""
        self._not_listed: set[str] = set()
        """Those of them that EC2 has not described yet: for a while it may answer as if they did not exist."""

    def create_client(self) -> Any:
        """Return a client of EC2; called once, in a thread."""
        return boto3.client(
            "ec2",
            region_name=self.settings.region,
            endpoint_url=self.settings.options.get("endpoint"),
            config=Config(connect_timeout=10, read_timeout=60, retries={"max_attempts": 8, "mode": "adaptive"}),
        )

    async def request(self, operation: str, **arguments: Any) -> Any:
        """Call an operation of EC2 in a thread.

        Raises:
            MachineFailed: the call failed.
        """

        def work() -> Any:
            if self._client is None:
                self._client = self.create_client()
            return getattr(self._client, operation)(**arguments)

        try:
            return await asyncio.to_thread(work)
        except NoRegionError as error:
            raise ConfigError("aws: no region is set; set --region or the variable AWS_DEFAULT_REGION") from error
        except NoCredentialsError as error:
            raise ConfigError("aws: there are no credentials; run `aws configure`, or set AWS_ACCESS_KEY_ID") from error
        except (BotoCoreError, ClientError) as error:
            raise MachineFailed(f"aws: {operation}: {error}") from error

    async def prepare(self) -> None:
        """Make a first request: it fails before the pool is served if there is no region or there are no credentials."""
        await self.list_owned([self.owner.id])

    async def create(self, machine_id: str) -> Machine:
        instance_id = await complete_or_undo(self.launch(machine_id), self.stop)
        try:
            return await self._running(instance_id)
        except BaseException:
            await complete_or_undo(self.stop(instance_id))
            raise

    async def launch(self, machine_id: str) -> str:
        """Request an instance and return its id, without waiting until it runs.

        Raises:
            MachineFailed: EC2 rejects the request.
        """
        options = self.settings.options
        tags = [{"Key": TAG, "Value": self.owner.id}, {"Key": "Name", "Value": f"{self.owner.pool}-{machine_id}"}]
        more = {
            name: options[given]
            for name, given in (
                ("SubnetId", "subnet"),
                ("SecurityGroupIds", "security_groups"),
                ("KeyName", "key_name"),
            )
            if given in options
        }
        answer = await self.request(
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
        self._created.add(instance_id)
        self._not_listed.add(instance_id)
        return instance_id

    async def _running(self, instance_id: str) -> Machine:
        found = await self._wait(instance_id, lambda about: about["State"]["Name"] == "running")
        field = "PublicIpAddress" if self.settings.options.get("public") else "PrivateIpAddress"
        address = found.get(field)
        if not address:
            raise MachineFailed(f"{instance_id} has no {field}")
        return Machine(instance_id, address, AGENT_PORT, ports={port: port for port in self.settings.forwards})

    async def _wait(self, instance_id: str, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        deadline = monotonic() + self.settings.boot_seconds
        while True:
            about = await self._describe(instance_id)
            if about is not None and condition(about):
                return about
            if about is not None and about["State"]["Name"] in _ENDED:
                raise MachineFailed(f"instance {instance_id} ended: {about.get('StateTransitionReason', '')}")
            if monotonic() > deadline:
                raise MachineFailed(f"instance {instance_id} was not ready within {self.settings.boot_seconds:.0f} s")
            await asyncio.sleep(self._poll)

    async def _describe(self, instance_id: str) -> dict[str, Any] | None:
        """Return the description of an instance; None if EC2 does not know it, as may happen with a new one."""
        filters = [{"Name": "instance-id", "Values": [instance_id]}]
        answer = await self.request("describe_instances", Filters=filters)
        found: list[dict[str, Any]] = [each for group in answer["Reservations"] for each in group["Instances"]]
        if not found:
            return None
        self._not_listed.discard(instance_id)
        return found[0]

    async def reset(self, machine: Machine) -> Machine:
        if self._reset_method == "instance":
            await self.stop(machine.id)
            return await self.create("reset")
        answer = await self.request(
            "create_replace_root_volume_task", InstanceId=machine.id, DeleteReplacedRootVolume=True
        )
        task_id = answer["ReplaceRootVolumeTask"]["ReplaceRootVolumeTaskId"]
        await self._wait_for_volume(task_id)
        return await self._running(machine.id)

    async def _wait_for_volume(self, task_id: str) -> None:
        deadline = monotonic() + self.settings.boot_seconds
        while monotonic() < deadline:
            answer = await self.request("describe_replace_root_volume_tasks", ReplaceRootVolumeTaskIds=[task_id])
            state = answer["ReplaceRootVolumeTasks"][0]["TaskState"]
            if state == "succeeded":
                return
            if state.startswith("fail"):
                break
            await asyncio.sleep(self._poll)
        raise MachineFailed(f"the root volume could not be replaced ({task_id})")

    async def alive(self, machine: Machine) -> bool:
        about = await self._describe(machine.id)
        return about is not None and about["State"]["Name"] == "running"

    async def stop(self, machine_id: str) -> None:
        """Terminate an instance. The request is repeated while EC2 does not know a new instance yet."""
        deadline = monotonic() + _UNKNOWN_SECONDS
        while True:
            try:
                await self.request("terminate_instances", InstanceIds=[machine_id])
                break
            except MachineFailed as error:
                if not _is_unknown(error):
                    raise
                if machine_id not in self._not_listed:
                    break  # it was terminated long ago
                if monotonic() > deadline:
                    raise
                await asyncio.sleep(self._poll)
        self._created.discard(machine_id)
        self._not_listed.discard(machine_id)

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        if not owners:
            return []
        filters = [
            {"Name": f"tag:{TAG}", "Values": list(owners)},
            {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]},
        ]
        found = set(self._created) if self.owner.id in owners else set()
        page: dict[str, Any] = {}
        while True:
            answer = await self.request("describe_instances", Filters=filters, **page)
            found |= {each["InstanceId"] for group in answer["Reservations"] for each in group["Instances"]}
            if not answer.get("NextToken"):
                return sorted(found)
            page = {"NextToken": answer["NextToken"]}

    async def close(self) -> None:
        if self._client is not None:
            await asyncio.to_thread(self._client.close)


def _is_unknown(error: MachineFailed) -> bool:
    """Return whether EC2 answered that there is no instance with this id."""
    cause = error.__cause__
    return isinstance(cause, ClientError) and cause.response["Error"]["Code"] == "InvalidInstanceID.NotFound"
