"""Fixtures of machine tests: fakes of the programs and services that providers control."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paragent import MachineSettings
from tests.machines.fakes import machines
from tests.machines.fakes.docker_engine import DockerEngine

ROOT = Path(__file__).parents[2]


@pytest.fixture
def fake_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Put fakes of `vmrun` and `VBoxManage` into the search path; return the folder of their state."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for program, module in (("vmrun", "vmrun"), ("VBoxManage", "vboxmanage")):
        script = f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m tests.machines.fakes.{module} "$@"\n'
        (programs / program).write_text(script)
        (programs / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_STATE", str(tmp_path))
    monkeypatch.setattr(machines, "STATE", tmp_path)
    (tmp_path / "base.vmx").touch()
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for about in machines.load().values():
        if about["pid"]:
            machines.stop(about["pid"])


@pytest.fixture
def docker_engine(fake_tools: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DockerEngine]:
    """A fake of docker's engine, at DOCKER_HOST."""
    engine = DockerEngine()
    monkeypatch.setenv("DOCKER_HOST", engine.url)
    yield engine
    for about in engine.containers.values():
        machines.stop(about["pid"])
    engine.shutdown()
    engine.server_close()


@pytest.fixture(scope="session")
def ec2() -> Iterator[MachineSettings]:
    """Settings for a fake of EC2."""
    import boto3
    from moto.server import ThreadedMotoServer

    with pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            patch.setenv(name, "test")
        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
        host, port = server.get_host_and_port()
        endpoint = f"http://{host}:{port}"
        client = boto3.client("ec2", region_name="us-east-1", endpoint_url=endpoint)
        ami = client.describe_images(Owners=["amazon"])["Images"][0]["ImageId"]
        client.close()
        options = {"endpoint": endpoint, "poll_seconds": 0.02}
        yield MachineSettings(path_to_vm=ami, region="us-east-1", options=options, boot_seconds=30)
        server.stop()
