"""The provider contract with the providers that run on this host."""

from __future__ import annotations

from typing import ClassVar

import pytest

from paragent.machines.providers import MachineSettings
from paragent.testing.provider_contract import ProviderContract


class TestProcess(ProviderContract):
    provider = "process"


@pytest.mark.slow
class TestProcessDesktop(ProviderContract):
    provider = "process"
    settings: ClassVar[MachineSettings] = MachineSettings(
        options={"desktop": True, "applications": ""}, screen=(640, 480)
    )


@pytest.mark.qemu
class TestQemu(ProviderContract):
    provider = "qemu"
    settings: ClassVar[MachineSettings] = MachineSettings()


@pytest.mark.qemu
class TestQemuWithInternet(ProviderContract):
    provider = "qemu"
    settings: ClassVar[MachineSettings] = MachineSettings(internet=True)
