"""`docker`: OSWorld's container, which runs a machine by QEMU inside, through the docker SDK.

`path_to_vm` is the disk, mounted read-only at `/System.qcow2`. A reset removes the container and starts another one, which
boots: there is no quicker way into that image. Containers bear the label `paragent.run`; docker itself chooses the ports.
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
from paragent.machines.providers.base import GUEST_PORT, Instance, MachineSettings, Provider, uncancelled

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from paragent.machines.cleanup import Run

__all__ = ["DockerProvider"]

IMAGE = "happysixd/osworld-docker"
LABEL = "paragent.run"
_DISPLAY, _DEVTOOLS, _VLC = 8006, 9222, 8080
_SECONDS = 120.0
"""For one request; starting a container takes seconds where the image is there."""


class DockerProvider(Provider):
    """Machines in containers of this host's docker.

    Options: `image` (default: OSWorld's), `disk_size` (default `32G`), `environment` (more variables of the container).
    """

    health_seconds: ClassVar[float] = 5.0
    """Each look is a request."""

    def __init__(self, settings: MachineSettings, run: Run) -> None:
        super().__init__(settings, run)
        settings.only("docker", "image", "disk_size", "environment")
        self._image = str(settings.options.get("image", IMAGE))
        self._client: Any = None

    async def _do(self, work: Callable[[], Any]) -> Any:
        """Do something with docker, off the loop. Each of its requests has a time limit, which ends the thread."""
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
                    f"docker does not answer: {error}. Is its service running, and may you use it?"
                ) from error
        return self._client

    async def prepare(self) -> None:
        client = await self._docker()
        if self.settings.path_to_vm and not Path(self.settings.path_to_vm).is_file():
            raise UsageError(f"path_to_vm={self.settings.path_to_vm!r} is no file")
        try:
            await self._do(lambda: client.images.get(self._image))
        except MachineFailed as error:
            raise UsageError(f"docker has no image {self._image}: docker pull {self._image} ({error})") from error

    async def create(self, machine_id: str) -> Instance:
        client, name, settings = await self._docker(), new_id(machine_id), self.settings
        environment = {
            "DISK_SIZE": str(settings.options.get("disk_size", "32G")),
            "RAM_SIZE": f"{settings.memory_mib or 4096}M",
            "CPU_CORES": str(settings.cores or 4),
        } | dict(settings.options.get("environment", {}))
        guest_ports = dict.fromkeys((GUEST_PORT, _DISPLAY, _DEVTOOLS, _VLC, *settings.forwards))
        volumes = {}
        if settings.path_to_vm:
            volumes[str(Path(settings.path_to_vm).resolve())] = {"bind": "/System.qcow2", "mode": "ro"}
        making = self._do(
            lambda: client.containers.run(
                self._image,
                name=f"{self.run.id}-{name}",
                labels={LABEL: self.run.id},
                environment=environment,
                cap_add=["NET_ADMIN"],
                devices=["/dev/kvm"] if Path("/dev/kvm").exists() else [],
                volumes=volumes,
                ports={f"{port}/tcp": (settings.host, None) for port in guest_ports},
                detach=True,
            )
        )
        try:
            container = await uncancelled(making)  # docker goes on with a request that nobody waits for any more
            await self._do(container.reload)
        except BaseException:
            await uncancelled(self.stop(f"{self.run.id}-{name}"))
            raise
        ports = {
            int(port.partition("/")[0]): int(bindings[0]["HostPort"])
            for port, bindings in container.ports.items()
            if bindings
        }
        if GUEST_PORT not in ports:
            await self.stop(container.name)
            raise MachineFailed(f"container {container.name} ended at once, or publishes no port {GUEST_PORT}")
        return Instance(container.name, settings.host, ports.pop(GUEST_PORT), ports, {"container": container.id})

    async def reset(self, instance: Instance) -> Instance:
        await self.stop(instance.id)
        return await self.create(instance.id.removeprefix(f"{self.run.id}-").partition("-")[0])

    async def alive(self, instance: Instance) -> bool:
        client = await self._docker()
        running = await self._do(lambda: client.containers.list(filters={"name": instance.id, "status": "running"}))
        return bool(running)

    async def stop(self, instance_id: str) -> None:
        client = await self._docker()

        def remove() -> None:
            try:
                client.containers.get(instance_id).remove(force=True, v=True)
            except docker.errors.NotFound:
                return

        await self._do(remove)

    async def list_own(self, runs: Collection[str]) -> list[str]:
        client = await self._docker()
        found = await self._do(lambda: client.containers.list(all=True, filters={"label": LABEL}))
        return sorted(container.name for container in found if container.labels.get(LABEL) in runs)

    async def close(self) -> None:
        if self._client is not None:
            await self._do(self._client.close)
