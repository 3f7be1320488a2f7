"""The contract of providers as a suite: subclass it in a test file, say which provider, and run pytest.

::

    class TestMine(ProviderContract):
        provider = "my_package:MyProvider"
        settings = MachineSettings(path_to_vm="...")
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, ClassVar

from paragent.errors import MachineFailed
from paragent.machines.cleanup import Run
from paragent.machines.guest_client import as_json, ask_async
from paragent.machines.machine import adopt, verify_clean
from paragent.machines.providers import MachineSettings, Provider, open_provider

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from paragent.machines.providers import Instance

__all__ = ["ProviderContract"]

_SECONDS = 100.0
"""For one test; a desktop under emulation boots within half of it."""


class ProviderContract:
    """What every provider promises. Guests must have our agent."""

    provider: ClassVar[str | type[Provider]]
    settings: ClassVar[MachineSettings] = MachineSettings()
    pool: ClassVar[str] = "contract"

    def drive(self, story: Callable[[Provider], Awaitable[None]]) -> None:
        """Run a story with a provider of its own; nothing of it may be left afterwards."""

        async def whole() -> None:
            run = Run(self.pool)
            try:
                provider = open_provider(self.provider, self.settings, run)
                try:
                    await provider.prepare()
                    await story(provider)
                    for left in await provider.list_own([run.id]):
                        await provider.stop(left)
                    assert await provider.list_own([run.id]) == []
                finally:
                    for left in await provider.list_own([run.id]):
                        await provider.stop(left)
                    await provider.close()
            finally:
                run.close()

        asyncio.run(asyncio.wait_for(whole(), _SECONDS))

    def test_a_machine_is_made_answers_and_ends(self) -> None:
        async def story(provider: Provider) -> None:
            instance = await _ready(provider)
            assert await provider.alive(instance)
            assert "hello" in (await _execute(instance, ["echo", "hello"]))["output"]
            assert await provider.list_own([provider.run.id]) == [instance.id]
            await provider.stop(instance.id)
            assert await provider.list_own([provider.run.id]) == []
            assert not await provider.alive(instance)

        self.drive(story)

    def test_ending_what_is_gone_is_no_error(self) -> None:
        async def story(provider: Provider) -> None:
            instance = await _ready(provider)
            await provider.stop(instance.id)
            await provider.stop(instance.id)

        self.drive(story)

    def test_a_reset_takes_everything_away(self) -> None:
        async def story(provider: Provider) -> None:
            instance = await _ready(provider)
            machine = await adopt("m0", instance)
            await asyncio.to_thread(machine.put_file, "left-behind", b"secret")
            try:
                await verify_clean(instance)
            except MachineFailed:
                pass
            else:
                raise AssertionError("a machine with a holder's marker counts as clean")
            fresh = await provider.reset(instance)
            await provider.wait_until_ready(fresh)
            await verify_clean(fresh)
            assert "left-behind" not in (await _execute(fresh, ["ls", "-a"]))["output"]
            assert len(await provider.list_own([provider.run.id])) == 1

        self.drive(story)

    def test_a_machine_that_rests_wakes_up(self) -> None:
        async def story(provider: Provider) -> None:
            instance = await _ready(provider)
            await provider.rest(instance)
            await provider.wake(instance)
            assert "awake" in (await _execute(instance, ["echo", "awake"]))["output"]

        self.drive(story)

    def test_a_former_holder_is_refused(self) -> None:
        async def story(provider: Provider) -> None:
            instance = await _ready(provider)
            first = await adopt("m0", instance)
            fresh = await provider.reset(instance)
            await provider.wait_until_ready(fresh)
            second = await adopt("m0", fresh)
            path, token = "/platform", first.token
            reply = await ask_async(fresh.host, fresh.port, "GET", path, token=token, timeout=30)
            assert reply.status == 409
            assert await asyncio.to_thread(second.platform)

        self.drive(story)

    def test_only_the_holder_is_served(self) -> None:
        async def story(provider: Provider) -> None:
            instance = await _ready(provider)
            machine = await adopt("m0", instance)
            command = as_json({"command": ["true"], "shell": False})
            taken = as_json({"token": "x" * 40, "time": None, "entropy": ""})
            guesses = (None, "", "0", "x" * 40, f"{machine.token}0", (machine.token or "")[:-1])
            for token in guesses:
                for path, body in (("/execute", command), ("/paragent/adopt", taken)):
                    reply = await ask_async(instance.host, instance.port, "POST", path, body, token=token, timeout=30)
                    assert reply.status in {401, 403, 409}, (path, token, reply)
            assert (await asyncio.to_thread(machine.request, "POST", "/paragent/adopt", taken)).status == 403
            assert (await asyncio.to_thread(machine.execute, ["true"])).ok

        self.drive(story)

    def test_machines_are_strangers_to_each_other(self) -> None:
        async def story(provider: Provider) -> None:
            first, second = await asyncio.gather(_ready(provider, "m0"), _ready(provider, "m1"))
            assert first.id != second.id
            assert (first.host, first.port) != (second.host, second.port)
            machine = await adopt("m0", first)
            await asyncio.to_thread(machine.put_file, "mine", b"x")
            assert "mine" not in (await _execute(second, ["ls"]))["output"]
            await provider.stop(first.id)
            assert "still" in (await _execute(second, ["echo", "still"]))["output"]

        self.drive(story)

    def test_what_belongs_to_others_is_not_listed(self) -> None:
        async def story(provider: Provider) -> None:
            await _ready(provider)
            assert await provider.list_own(["somebody-else"]) == []

        self.drive(story)


async def _ready(provider: Provider, machine_id: str = "m0") -> Instance:
    instance = await provider.create(machine_id)
    await provider.wait_until_ready(instance)
    return instance


async def _execute(instance: Instance, command: list[str]) -> dict[str, Any]:
    body = as_json({"command": command, "shell": False})
    token = instance.secret or None
    reply = await ask_async(instance.host, instance.port, "POST", "/execute", body, token=token, timeout=30)
    answer: dict[str, Any] = reply.json()
    return answer
