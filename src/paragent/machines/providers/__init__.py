"""Providers create machines: one contract, one file or folder per implementation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paragent._internal.registry import Implementation, Registry, import_named
from paragent.errors import ConfigError
from paragent.machines.providers.base import MachineSettings, Provider, complete_or_undo

if TYPE_CHECKING:
    from paragent.machines.cleanup import Owner

__all__ = ["PROVIDERS", "MachineSettings", "Provider", "complete_or_undo", "open_provider", "provider_class"]

PROVIDERS = Registry(
    kind="provider",
    implementations={
        "aws": Implementation("paragent.machines.providers.aws:AwsProvider", extra="aws"),
        "docker": Implementation("paragent.machines.providers.docker:DockerProvider", extra="docker"),
        "process": Implementation("paragent.machines.providers.process:ProcessProvider"),
        "qemu": Implementation("paragent.machines.providers.qemu:QemuProvider", extra="qemu"),
        "virtualbox": Implementation("paragent.machines.providers.virtualbox:VirtualBoxProvider"),
        "vmware": Implementation("paragent.machines.providers.vmware:VmwareProvider"),
    },
    entry_points="paragent.providers",
)


def provider_class(provider: str | type[Provider]) -> type[Provider]:
    """Return the provider class with this name or path (`package.module:Class`).

    Raises:
        UnknownName: no provider has this name.
        MissingExtra: its optional packages are not installed.
        ConfigError: it cannot be imported, or is not a subclass of `Provider`.
    """
    chosen: Any = provider
    if isinstance(chosen, str):
        chosen = import_named(chosen) if ":" in chosen else PROVIDERS.load(chosen)
    if not (isinstance(chosen, type) and issubclass(chosen, Provider)):
        raise ConfigError(f"provider must be a name, a subclass of Provider or the path to one, not {provider!r}")
    return chosen


def open_provider(provider: str | type[Provider], settings: MachineSettings, owner: Owner) -> Provider:
    """Return a new provider, which the caller closes; raises the same errors as `provider_class`."""
    return provider_class(provider)(settings, owner)
