"""The contract of providers as a test suite: subclass it in a test file, set the provider, and run pytest.

::

    class TestMine(ProviderContract):
        provider = "my_package:MyProvider"
        settings = MachineSettings(path_to_vm="...")
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from paragent.errors import MachineFailed
from paragent.machines.cleanup import Owner
from paragent.machines.guest_client import json_body
from paragent.machines.machine import assign_to_holder, verify_clean
from paragent.machines.providers import MachineSettings, Provider, open_provider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paragent.machines.machine import Machine

__all__ = ["ProviderContract"]

_SECONDS = 100.0
"""Seconds for one test; a desktop under emulation boots in half of that time."""


class ProviderContract:
    """What every provider guarantees. The machines must run paragent's guest agent."""

    provider: ClassVar[str | type[Provider]]
    """The provider to test: its class, or its name."""
    settings: ClassVar[MachineSettings] = MachineSettings()
    """Settings of its machines."""
    pool: ClassVar[str] = "contract"
    """The name of the pool."""

    def run_with_provider(self, test: Callable[[Provider], Awaitable[None]]) -> None:
        """Run a test with its own provider and check that no machine is left."""

        async def run() -> None:
            owner = Owner(self.pool)
            try:
                provider = open_provider(self.provider, self.settings, owner)
                try:
                    await provider.prepare()
                    await test(provider)
                    for left in await provider.list_owned([owner.id]):
                        await provider.stop(left)
                    assert await provider.list_owned([owner.id]) == []
                finally:
                    for left in await provider.list_owned([owner.id]):
                        await provider.stop(left)
                    await provider.close()
            finally:
                owner.close()

        asyncio.run(asyncio.wait_for(run(), _SECONDS))

    def test_a_machine_is_created_answers_and_is_stopped(self) -> None:
        async def test(provider: Provider) -> None:
            machine = await _create(provider)
            assert await provider.alive(machine)
            assert "hello" in await _output(machine, ["echo", "hello"])
            assert await provider.list_owned([provider.owner.id]) == [machine.id]
            await provider.stop(machine.id)
            assert await provider.list_owned([provider.owner.id]) == []
            assert not await provider.alive(machine)

        self.run_with_provider(test)

    def test_stopping_twice_is_not_an_error(self) -> None:
        async def test(provider: Provider) -> None:
            machine = await _create(provider)
            await provider.stop(machine.id)
            await provider.stop(machine.id)

        self.run_with_provider(test)

    def test_a_reset_removes_everything(self) -> None:
        async def test(provider: Provider) -> None:
            machine = await _create(provider)
            leased = await assign_to_holder(machine, "m0")
            await asyncio.to_thread(leased.put_file, "left-behind", b"secret")
            try:
                await verify_clean(machine)
            except MachineFailed:
                pass
            else:
                raise AssertionError("a machine with the marker of a holder counts as clean")
            fresh = await provider.reset(machine)
            await provider.wait_until_ready(fresh)
            await verify_clean(fresh)
            assert "left-behind" not in await _output(fresh, ["ls", "-a"])
            assert len(await provider.list_owned([provider.owner.id])) == 1

        self.run_with_provider(test)

    def test_a_paused_machine_can_be_resumed(self) -> None:
        async def test(provider: Provider) -> None:
            machine = await _create(provider)
            await provider.pause(machine)
            await provider.resume(machine)
            assert "awake" in await _output(machine, ["echo", "awake"])

        self.run_with_provider(test)

    def test_an_earlier_holder_is_rejected(self) -> None:
        async def test(provider: Provider) -> None:
            machine = await _create(provider)
            first = await assign_to_holder(machine, "m0")
            fresh = await provider.reset(machine)
            await provider.wait_until_ready(fresh)
            second = await assign_to_holder(fresh, "m0")
            stale = replace(fresh, token=first.token)
            assert (await asyncio.to_thread(stale.request, "GET", "/platform", timeout=30)).status == 409
            assert await asyncio.to_thread(second.platform)

        self.run_with_provider(test)

    def test_only_the_holder_is_served(self) -> None:
        async def test(provider: Provider) -> None:
            machine = await _create(provider)
            leased = await assign_to_holder(machine, "m0")
            command = json_body({"command": ["true"], "shell": False})
            takeover = json_body({"token": "x" * 40, "time": None, "entropy": ""})
            guesses = (None, "", "0", "x" * 40, f"{leased.token}0", (leased.token or "")[:-1])
            for token in guesses:
                other = replace(machine, token=token)
                for path, body in (("/execute", command), ("/paragent/adopt", takeover)):
                    reply = await asyncio.to_thread(other.request, "POST", path, body, timeout=30)
                    assert reply.status in {401, 403, 409}, (path, token, reply)
            assert (await asyncio.to_thread(leased.request, "POST", "/paragent/adopt", takeover)).status == 403
            assert (await asyncio.to_thread(leased.execute, ["true"])).ok

        self.run_with_provider(test)

    def test_machines_are_isolated_from_each_other(self) -> None:
        async def test(provider: Provider) -> None:
            first, second = await asyncio.gather(_create(provider, "m0"), _create(provider, "m1"))
            assert first.id != second.id
            assert (first.host, first.port) != (second.host, second.port)
            leased = await assign_to_holder(first, "m0")
            await asyncio.to_thread(leased.put_file, "mine", b"x")
            assert "mine" not in await _output(second, ["ls"])
            await provider.stop(first.id)
            assert "still" in await _output(second, ["echo", "still"])

        self.run_with_provider(test)

    def test_machines_of_other_owners_are_not_listed(self) -> None:
        async def test(provider: Provider) -> None:
            await _create(provider)
            assert await provider.list_owned(["another-owner"]) == []

        self.run_with_provider(test)


async def _create(provider: Provider, machine_id: str = "m0") -> Machine:
    machine = await provider.create(machine_id)
    await provider.wait_until_ready(machine)
    return machine


async def _output(machine: Machine, command: list[str]) -> str:
    """Return the output of a command that the pool, not a holder, runs."""
    return (await asyncio.to_thread(machine.execute, command, timeout=30)).output
