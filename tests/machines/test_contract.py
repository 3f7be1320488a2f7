"""The provider contract on the providers that really run here."""

from __future__ import annotations

from typing import ClassVar

from paragent.machines.providers import MachineSettings
from paragent.testing.provider_contract import ProviderContract


class TestProcess(ProviderContract):
    provider = "process"


class TestProcessDesktop(ProviderContract):
    provider = "process"
    settings: ClassVar[MachineSettings] = MachineSettings(
        options={"desktop": True, "applications": ""}, screen=(640, 480)
    )


class TestQemu(ProviderContract):
    provider = "qemu"
    settings: ClassVar[MachineSettings] = MachineSettings()


class TestQemuWithInternet(ProviderContract):
    provider = "qemu"
    settings: ClassVar[MachineSettings] = MachineSettings(internet=True)
