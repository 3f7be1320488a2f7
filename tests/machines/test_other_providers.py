"""Providers whose tools do not run here: their real code against fakes that accept the real commands and requests."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paragent import (
    ConfigError,
    Machine,
    MachineFailed,
    MachineSettings,
    MissingExtra,
    UnknownName,
    UsageError,
    VMPoolManager,
)
from paragent._installation import install_command
from paragent.machines.cleanup import Owner
from paragent.machines.providers import PROVIDERS, Provider, open_provider
from paragent.machines.providers.aws import AwsProvider
from paragent.testing.provider_contract import ProviderContract
from tests.machines.fakes.docker_engine import DockerEngine
from tests.machines.fakes.vmrun import PORT


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tools")
class TestVmware(ProviderContract):
    provider = "vmware"
    settings: ClassVar[MachineSettings] = MachineSettings(
        path_to_vm="base.vmx", snapshot_name="init_state", options={"port": PORT}
    )


@pytest.mark.slow
@pytest.mark.usefixtures("fake_tools")
class TestVirtualBox(ProviderContract):
    provider = "virtualbox"
    settings: ClassVar[MachineSettings] = MachineSettings(path_to_vm="base", snapshot_name="init_state")


@pytest.mark.usefixtures("docker_engine")
class TestDocker(ProviderContract):
    provider = "docker"


def drive(provider_type: str | type[Provider], settings: MachineSettings, story: Any) -> None:
    async def whole() -> None:
        owner = Owner("others")
        provider = open_provider(provider_type, settings, owner)
        try:
            await provider.prepare()
            await story(provider)
        finally:
            await provider.close()
            owner.close()

    asyncio.run(asyncio.wait_for(whole(), 60))


def calls(folder: Path, tool: str) -> list[list[str]]:
    return [json.loads(line) for line in (folder / f"{tool}.calls").read_text().splitlines()]


@pytest.mark.slow
def test_commands_of_vmware(fake_tools: Path) -> None:
    async def story(provider: Provider) -> None:
        machine = await provider.create("m0")
        await provider.reset(machine)
        await provider.stop(machine.id)

    settings = MachineSettings(path_to_vm="base.vmx", snapshot_name="init_state", options={"port": PORT})
    drive("vmware", settings, story)
    said = [words[2:] for words in calls(fake_tools, "vmrun")]
    clone = said[1][2]
    assert said == [
        ["listSnapshots", "base.vmx"],
        ["clone", "base.vmx", clone, "linked", "-snapshot=init_state", f"-cloneName={Path(clone).stem}"],
        ["snapshot", clone, "paragent-clean"],
        ["start", clone, "nogui"],
        ["getGuestIPAddress", clone, "-wait"],
        ["revertToSnapshot", clone, "paragent-clean"],
        ["start", clone, "nogui"],
        ["getGuestIPAddress", clone, "-wait"],
        ["list"],
        ["stop", clone, "hard"],
        ["deleteVM", clone],
    ]


@pytest.mark.slow
def test_commands_of_virtualbox(fake_tools: Path) -> None:
    async def story(provider: Provider) -> None:
        machine = await provider.create("m0")
        await provider.reset(machine)
        await provider.stop(machine.id)

    settings = MachineSettings(path_to_vm="base", snapshot_name="init_state", memory_mib=2048, cores=2)
    drive("virtualbox", settings, story)
    said = calls(fake_tools, "vboxmanage")
    name, port = said[1][7], said[2][5].split(",")[3]
    assert said[2] == [
        *("modifyvm", name, "--nic1", "nat", "--natpf1", f"port5000,tcp,127.0.0.1,{port},,5000"),
        *("--memory", "2048", "--cpus", "2"),
    ]
    assert [words[0] + " " + words[2] if words[0] == "snapshot" else words[0] for words in said] == [
        *("snapshot list", "clonevm", "modifyvm", "snapshot take", "startvm"),
        *("list", "controlvm", "snapshot restore", "startvm"),
        *("list", "controlvm", "list", "unregistervm", "list"),
    ]


def test_settings_of_a_container(docker_engine: DockerEngine, fake_tools: Path) -> None:
    (fake_tools / "disk.qcow2").touch()

    async def story(provider: Provider) -> None:
        machine = await provider.create("m0")
        assert 8006 in machine.ports
        assert provider.has_log(machine)
        assert await provider.read_log(machine) == f"{machine.id} boots\n"
        await provider.stop(machine.id)

    drive("docker", MachineSettings(path_to_vm="disk.qcow2", memory_mib=2048, cores=2), story)
    (body,) = docker_engine.created
    assert body["Image"] == "happysixd/osworld-docker"
    assert set(body["Env"]) == {"DISK_SIZE=32G", "RAM_SIZE=2048M", "CPU_CORES=2"}
    assert body["HostConfig"]["Binds"] == [f"{fake_tools / 'disk.qcow2'}:/System.qcow2:ro"]
    assert body["HostConfig"]["CapAdd"] == ["NET_ADMIN"]
    assert list(body["Labels"]) == ["paragent.owner"]


@pytest.mark.slow
def test_a_missing_snapshot_is_reported(fake_tools: Path) -> None:
    with pytest.raises(UsageError, match="has no snapshot 'other'; snapshots: init_state"):
        VMPoolManager("vmware", 1, path_to_vm="base.vmx", snapshot_name="other", name="others").start()
    with pytest.raises(UsageError, match="snapshot_name"):
        VMPoolManager("virtualbox", 1, path_to_vm="base", name="others").start()


def test_a_missing_program_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "base.vmx").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="vmrun is not installed"):
        VMPoolManager("vmware", 1, path_to_vm=str(tmp_path / "base.vmx"), name="others").start()


def test_a_docker_engine_that_does_not_answer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(UsageError, match="docker does not answer"):
        VMPoolManager("docker", 1, name="others").start()


# --- aws -------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_instances_are_created_tagged_replaced_and_terminated(ec2: MachineSettings) -> None:
    async def story(provider: Provider) -> None:
        first, second = await asyncio.gather(provider.create("m0"), provider.create("m1"))
        assert first.host != second.host
        assert await provider.alive(first)
        assert await provider.list_owned([provider.owner.id]) == sorted([first.id, second.id])
        assert await provider.list_owned(["another-owner"]) == []
        fresh = await provider.reset(first)
        assert fresh.id != first.id
        assert not await provider.alive(first)
        assert await provider.list_owned([provider.owner.id]) == sorted([fresh.id, second.id])
        for machine in (fresh, second):
            await provider.stop(machine.id)
            await provider.stop(machine.id)
        assert await provider.list_owned([provider.owner.id]) == []

    drive("aws", ec2, story)


@pytest.mark.slow
def test_requests_that_replace_a_root_volume(ec2: MachineSettings) -> None:
    """The fake EC2 does not support this request, so the answers are recorded ones."""
    import boto3
    from botocore.stub import Stubber

    client = boto3.client("ec2", region_name="us-east-1")

    class RecordedAws(AwsProvider):
        def create_client(self) -> Any:
            return client

        async def prepare(self) -> None:
            """The first request is not recorded."""

    async def story(provider: Provider) -> None:
        task, machine = "replacevol-0123", Machine("i-0123", "10.0.0.9", 5000)
        described = {"InstanceId": "i-0123", "State": {"Name": "running"}, "PrivateIpAddress": "10.0.0.9"}
        with Stubber(client) as stub:
            stub.add_response(
                "create_replace_root_volume_task",
                {"ReplaceRootVolumeTask": {"ReplaceRootVolumeTaskId": task, "TaskState": "pending"}},
                {"InstanceId": "i-0123", "DeleteReplacedRootVolume": True},
            )
            for state in ("in-progress", "succeeded"):
                stub.add_response(
                    "describe_replace_root_volume_tasks",
                    {"ReplaceRootVolumeTasks": [{"ReplaceRootVolumeTaskId": task, "TaskState": state}]},
                    {"ReplaceRootVolumeTaskIds": [task]},
                )
            stub.add_response("describe_instances", {"Reservations": [{"Instances": [described]}]})
            assert await provider.reset(machine) == machine
            stub.add_client_error("create_replace_root_volume_task", "IncorrectState")
            with pytest.raises(MachineFailed, match=r"create_replace_root_volume_task.*IncorrectState"):
                await provider.reset(machine)

    options = dict(ec2.options) | {"reset": "root-volume"}
    drive(RecordedAws, MachineSettings(path_to_vm="ami-1", region="us-east-1", options=options), story)


def test_aws_without_a_region_is_reported_before_machines_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"AWS_CONFIG_FILE": "none", "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    pool = VMPoolManager("aws", 1, path_to_vm="ami-1", name="never-used-before")
    with pytest.raises(ConfigError, match="no region is set"):
        pool.start()


def test_invalid_settings_are_rejected() -> None:
    with pytest.raises(ConfigError, match="AMI"):
        VMPoolManager("aws", 1, name="others").start()
    with pytest.raises(ConfigError, match="root-volume"):
        VMPoolManager("aws", 1, path_to_vm="ami-1", options={"reset": "x"}, name="others").start()


def test_unknown_and_missing_providers_are_different_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROVIDERS.names() == ["aws", "docker", "process", "qemu", "virtualbox", "vmware"]
    with pytest.raises(UnknownName, match="there is no provider called 'xen'"):
        VMPoolManager("xen")
    for module in [name for name in sys.modules if name.startswith("paragent.machines.providers.aws")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=re.escape(install_command(["aws"]))):
        VMPoolManager("aws")
