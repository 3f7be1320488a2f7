"""Providers whose tools do not run here: their real code against stand-ins that take their real commands and requests."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
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
from paragent.machines.cleanup import Owner
from paragent.machines.providers import PROVIDERS, Provider, open_provider
from paragent.machines.providers.aws import AwsProvider
from paragent.testing.provider_contract import ProviderContract
from tests.machines.fakes import guests
from tests.machines.fakes.docker_engine import Engine
from tests.machines.fakes.vmrun import PORT

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put the stand-ins where the programs would be."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, module in (("vmrun", "vmrun"), ("VBoxManage", "vboxmanage")):
        script = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.machines.fakes.{module} "$@"\n'
        (programs / program).write_text(script)
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN_STATE", str(tmp_path))
    monkeypatch.setattr(guests, "STATE", tmp_path)
    (tmp_path / "base.vmx").touch()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for about in guests.load().values():
        guests.stop_guest(about["pid"]) if about["pid"] else None


@pytest.mark.usefixtures("stand_in")
class TestVmware(ProviderContract):
    provider = "vmware"
    settings: ClassVar[MachineSettings] = MachineSettings(
        path_to_vm="base.vmx", snapshot_name="init_state", options={"port": PORT}
    )


@pytest.mark.usefixtures("stand_in")
class TestVirtualBox(ProviderContract):
    provider = "virtualbox"
    settings: ClassVar[MachineSettings] = MachineSettings(path_to_vm="base", snapshot_name="init_state")


@pytest.fixture
def engine(stand_in: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    engine = Engine()
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    yield engine
    for about in engine.containers.values():
        guests.stop_guest(about["pid"])
    engine.shutdown()
    engine.server_close()


@pytest.mark.usefixtures("engine")
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


def test_the_exact_commands_of_vmware(stand_in: Path) -> None:
    async def story(provider: Provider) -> None:
        machine = await provider.create("m0")
        await provider.reset(machine)
        await provider.stop(machine.id)

    settings = MachineSettings(path_to_vm="base.vmx", snapshot_name="init_state", options={"port": PORT})
    drive("vmware", settings, story)
    said = [words[2:] for words in calls(stand_in, "vmrun")]
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


def test_the_exact_commands_of_virtualbox(stand_in: Path) -> None:
    async def story(provider: Provider) -> None:
        machine = await provider.create("m0")
        await provider.reset(machine)
        await provider.stop(machine.id)

    settings = MachineSettings(path_to_vm="base", snapshot_name="init_state", memory_mib=2048, cores=2)
    drive("virtualbox", settings, story)
    said = calls(stand_in, "vboxmanage")
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


def test_what_a_container_is_given(engine: Engine, stand_in: Path) -> None:
    (stand_in / "disk.qcow2").touch()

    async def story(provider: Provider) -> None:
        machine = await provider.create("m0")
        assert 8006 in machine.ports
        await provider.stop(machine.id)

    drive("docker", MachineSettings(path_to_vm="disk.qcow2", memory_mib=2048, cores=2), story)
    (body,) = engine.created
    assert body["Image"] == "happysixd/osworld-docker"
    assert set(body["Env"]) == {"DISK_SIZE=32G", "RAM_SIZE=2048M", "CPU_CORES=2"}
    assert body["HostConfig"]["Binds"] == [f"{stand_in / 'disk.qcow2'}:/System.qcow2:ro"]
    assert body["HostConfig"]["CapAdd"] == ["NET_ADMIN"]
    assert list(body["Labels"]) == ["paragent.owner"]


def test_a_tool_that_fails_is_named(stand_in: Path) -> None:
    with pytest.raises(UsageError, match="has no snapshot 'other'; snapshots: init_state"):
        VMPoolManager("vmware", 1, path_to_vm="base.vmx", snapshot_name="other", name="others").start()
    with pytest.raises(UsageError, match="snapshot_name"):
        VMPoolManager("virtualbox", 1, path_to_vm="base", name="others").start()


def test_a_program_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "base.vmx").touch()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="vmrun is not installed"):
        VMPoolManager("vmware", 1, path_to_vm=str(tmp_path / "base.vmx"), name="others").start()


def test_a_docker_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(UsageError, match="docker does not answer"):
        VMPoolManager("docker", 1, name="others").start()


# --- aws -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cloud() -> Iterator[MachineSettings]:
    from moto.server import ThreadedMotoServer

    before = dict(os.environ)
    os.environ |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    import boto3

    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=endpoint)
    ami = client.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
    client.close()
    yield MachineSettings(
        path_to_vm=ami, region="us-east-1", options={"endpoint": endpoint, "poll_seconds": 0.05}, boot_seconds=20
    )
    server.stop()
    os.environ.clear()
    os.environ |= before


def test_instances_are_made_marked_replaced_and_ended(cloud: MachineSettings) -> None:
    async def story(provider: Provider) -> None:
        first, second = await asyncio.gather(provider.create("m0"), provider.create("m1"))
        assert first.host != second.host
        assert await provider.alive(first)
        assert await provider.list_owned([provider.owner.id]) == sorted([first.id, second.id])
        assert await provider.list_owned(["somebody-else"]) == []
        fresh = await provider.reset(first)
        assert fresh.id != first.id
        assert not await provider.alive(first)
        assert await provider.list_owned([provider.owner.id]) == sorted([fresh.id, second.id])
        for machine in (fresh, second):
            await provider.stop(machine.id)
            await provider.stop(machine.id)
        assert await provider.list_owned([provider.owner.id]) == []

    drive("aws", cloud, story)


def test_a_root_volume_is_replaced_by_these_requests(cloud: MachineSettings) -> None:
    """The cloud's stand-in does not know this request, so its answers are recorded ones."""
    import boto3
    from botocore.stub import Stubber

    client = boto3.client("ec2", region_name="us-east-1")

    class RecordedAws(AwsProvider):
        def create_client(self) -> Any:
            return client

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

    options = dict(cloud.options) | {"reset": "root-volume"}
    drive(RecordedAws, MachineSettings(path_to_vm="ami-1", region="us-east-1", options=options), story)


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="AMI"):
        VMPoolManager("aws", 1, name="others").start()
    with pytest.raises(ConfigError, match="root-volume"):
        VMPoolManager("aws", 1, path_to_vm="ami-1", options={"reset": "x"}, name="others").start()


def test_the_table_of_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert PROVIDERS.names() == ["aws", "docker", "process", "qemu", "virtualbox", "vmware"]
    with pytest.raises(UnknownName, match="there is no provider called 'xen'"):
        VMPoolManager("xen")
    for module in [name for name in sys.modules if name.startswith("paragent.machines.providers.aws")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r"paragent\[aws\]"):
        VMPoolManager("aws")
