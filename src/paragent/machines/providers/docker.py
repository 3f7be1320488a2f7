"""`docker`: machines are OSWorld's containers, which run QEMU inside, controlled with the docker SDK.

`path_to_vm` is the disk, mounted read-only at `/System.qcow2`. A reset removes the container and starts another one, which
boots; that image has no faster way. Containers have the label `paragent.owner`. Docker chooses the ports.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import docker
import docker.errors
import requests.exceptions

from paragent._internal.ids import new_id
from paragent.errors import MachineFailed, UsageError
from paragent.machines.machine import Machine
from paragent.machines.providers.base import (
    AGENT_PORT,
    LOG_BYTES,
    MachineSettings,
    Provider,
    check_file,
    complete_or_undo,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from paragent.machines.cleanup import Owner

__all__ = ["DockerProvider"]

_IMAGE = "happysixd/osworld-docker"
_LABEL = "paragent.owner"
_DISPLAY, _DEVTOOLS, _VLC = 8006, 9222, 8080
_SECONDS = 120.0
"""For one request; starting a container takes seconds if the image is present."""


_LOG_LINES = 2_000
"""Lines of a container's output that are requested."""


class DockerProvider(Provider):
    """Machines in containers of this host's docker.

    Options: `image` (default: OSWorld's), `disk_size` (default `32G`), `environment` (additional variables of the container).
    """

    health_check_seconds: ClassVar[float] = 5.0
    """Each check is a request."""

    def __init__(self, settings: MachineSettings, owner: Owner) -> None:
        super().__init__(settings, owner)
        settings.check_options("docker", "image", "disk_size", "environment")
        self._image = str(settings.options.get("image", _IMAGE))
        self._client: Any = None

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Call docker in a thread. Each request has a time limit, after which the thread ends.

        Raises:
            MachineFailed: the call failed.
        """
        try:
            return await asyncio.to_thread(work)
        except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
            raise MachineFailed(f"docker: {str(error) or type(error).__name__}") from error

    async def _docker(self) -> Any:
        if self._client is None:
            try:
                self._client = await self._do(lambda: docker.from_env(timeout=int(_SECONDS)))
            except MachineFailed as error:
                raise UsageError(
                    f"docker does not answer: {error}. Check that its service is running and that you may use it"
                ) from error
        return self._client

    @classmethod
    def check_image(cls, settings: MachineSettings) -> None:
        check_file(settings.path_to_vm)

    async def prepare(self) -> None:
        client = await self._docker()
        self.check_image(self.settings)
        try:
            await self._do(lambda: client.images.get(self._image))
        except MachineFailed as error:
            raise UsageError(
                f"docker has no image {self._image}; get it with: docker pull {self._image} ({error})"
            ) from error

    async def create(self, machine_id: str) -> Machine:
        client, name, settings = await self._docker(), new_id(machine_id), self.settings
        environment = {
            "DISK_SIZE": str(settings.options.get("disk_size", "32G")),
            "RAM_SIZE": f"{settings.memory_mib or 4096}M",
            "CPU_CORES": str(settings.cores or 4),
        } | dict(settings.options.get("environment", {}))
        inner_ports = dict.fromkeys((AGENT_PORT, _DISPLAY, _DEVTOOLS, _VLC, *settings.forwards))
        volumes = {}
        if settings.path_to_vm:
            volumes[str(Path(settings.path_to_vm).resolve())] = {"bind": "/System.qcow2", "mode": "ro"}
        creation = self._do(
            lambda: client.containers.run(
                self._image,
                name=f"{self.owner.id}-{name}",
                labels={_LABEL: self.owner.id},
                environment=environment,
                cap_add=["NET_ADMIN"],
                devices=["/dev/kvm"] if Path("/dev/kvm").exists() else [],
                volumes=volumes,
                ports={f"{port}/tcp": (settings.host, None) for port in inner_ports},
                detach=True,
            )
        )
        try:
            container = await complete_or_undo(creation)  # docker completes a request even if its sender stops waiting
            await self._do(container.reload)
        except BaseException:
            await complete_or_undo(self.stop(f"{self.owner.id}-{name}"))
            raise
        ports = {
            int(port.partition("/")[0]): int(bindings[0]["HostPort"])
            for port, bindings in container.ports.items()
            if bindings
        }
        if AGENT_PORT not in ports:
            await self.stop(container.name)
            raise MachineFailed(f"container {container.name} ended at once, or does not publish port {AGENT_PORT}")
        agent_port = ports.pop(AGENT_PORT)
        return Machine(container.name, settings.host, agent_port, ports=ports, details={"container": container.id})

    async def reset(self, machine: Machine) -> Machine:
        await self.stop(machine.id)
        return await self.create(machine.id.removeprefix(f"{self.owner.id}-").partition("-")[0])

    async def alive(self, machine: Machine) -> bool:
        client = await self._docker()
        running = await self._do(lambda: client.containers.list(filters={"name": machine.id, "status": "running"}))
        return bool(running)

    def has_log(self, machine: Machine) -> bool:  # noqa: ARG002 - docker keeps the output of every container
        return True

    async def read_log(self, machine: Machine) -> str:
        client = await self._docker()
        output = await self._do(lambda: client.containers.get(machine.id).logs(tail=_LOG_LINES))
        return bytes(output)[-LOG_BYTES:].decode(errors="replace")

    async def stop(self, machine_id: str) -> None:
        client = await self._docker()

        def remove() -> None:
            try:
                client.containers.get(machine_id).remove(force=True, v=True)
            except docker.errors.NotFound:
                return

        await self._do(remove)

    async def list_owned(self, owners: Collection[str]) -> list[str]:
        client = await self._docker()
        found = await self._do(lambda: client.containers.list(all=True, filters={"label": _LABEL}))
        return sorted(container.name for container in found if container.labels.get(_LABEL) in owners)

    async def close(self) -> None:
        if self._client is not None:
            await self._do(self._client.close)
