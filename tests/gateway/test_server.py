"""The gateway as SDKs see it: protocols, streams, errors, and the end of a rollout."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import aiohttp
import anthropic
import openai
import pytest

from paragent.errors import ContextFull, EndpointDown, EndpointRefused, RequestRejected, TurnsUsedUp
from paragent.gateway import Gateway, GatewayAddress
from paragent.gateway.socket_folder import SocketFolder
from tests.children import BoundedPopen
from tests.gateway.scripted_handler import ScriptedHandler
from tests.waiting import wait_until_async

QUESTION: list[Any] = [{"role": "user", "content": "6 * 7?"}]


def on_event_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an async test with an open gateway as its first argument."""

    @functools.wraps(test)
    def run(**arguments: Any) -> None:
        async def main() -> None:
            async with Gateway() as gateway:
                await test(gateway, **arguments)

        asyncio.run(main())

    parameters = list(inspect.signature(test).parameters.values())
    run.__signature__ = inspect.Signature(parameters[1:])  # type: ignore[attr-defined]
    return run


def openai_client(address: GatewayAddress) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=address.openai_url, api_key=address.key, timeout=20)


def anthropic_client(address: GatewayAddress) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=address.anthropic_url, api_key=address.key, timeout=20)


async def ask(address: GatewayAddress) -> str:
    async with openai_client(address) as client:
        reply = await client.chat.completions.create(model="any", messages=QUESTION)
    return str(reply.choices[0].message.content)


@on_event_loop
async def test_chat_completions(gateway: Gateway) -> None:
    handler = ScriptedHandler()
    address = gateway.register(handler)
    async with openai_client(address) as client:
        reply = await client.chat.completions.create(model="any", messages=QUESTION, temperature=0.5)
        assert reply.choices[0].message.content == "42"
        stream = await client.chat.completions.create(
            model="any", messages=QUESTION, stream=True, stream_options={"include_usage": True}
        )
        chunks = [chunk async for chunk in stream]
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "42"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == 3
    assert handler.bodies[0] == {"model": "any", "messages": QUESTION, "temperature": 0.5}


@on_event_loop
async def test_responses(gateway: Gateway) -> None:
    address = gateway.register(ScriptedHandler())
    async with openai_client(address) as client:
        reply = await client.responses.create(model="any", input="6 * 7?")
        assert reply.output_text == "42"
        async with client.responses.stream(model="any", input="6 * 7?") as stream:
            final = await stream.get_final_response()
    assert final.output_text == "42"


@on_event_loop
async def test_anthropic_messages(gateway: Gateway) -> None:
    address = gateway.register(ScriptedHandler())
    async with anthropic_client(address) as client:
        reply = await client.messages.create(model="any", max_tokens=9, messages=QUESTION)
        assert reply.content[0].text == "42"  # type: ignore[union-attr]
        async with client.messages.stream(model="any", max_tokens=9, messages=QUESTION) as stream:
            assert await stream.get_final_text() == "42"


@on_event_loop
async def test_the_list_of_models_has_the_model_of_the_run(gateway: Gateway) -> None:
    address = gateway.register(ScriptedHandler())
    async with openai_client(address) as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("scripted")).id == "scripted"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("another")


ERRORS = [
    (TurnsUsedUp("all used"), 403, "turns_used_up"),
    (ContextFull("too long"), 400, "context_length_exceeded"),
    (RequestRejected("no such option"), 400, "request_rejected"),
    (EndpointDown("no answer"), 502, "endpoint_failed"),
    (EndpointRefused("wrong key"), 502, "endpoint_failed"),
    (ZeroDivisionError("a bug"), 502, "endpoint_failed"),
]


@pytest.mark.parametrize(("error", "status", "code"), ERRORS)
@pytest.mark.parametrize("streamed", [False, True])
@on_event_loop
async def test_sdks_raise_errors_of_the_gateway_and_do_not_retry(
    gateway: Gateway, error: Exception, status: int, code: str, streamed: bool
) -> None:
    async def fail(_: dict[str, Any]) -> str:
        raise error

    handler = ScriptedHandler(fail)
    address = gateway.register(handler)
    async with openai_client(address) as client:
        with pytest.raises(openai.APIStatusError) as raised:
            await client.chat.completions.create(model="any", messages=QUESTION, stream=streamed)
    assert (raised.value.status_code, raised.value.code) == (status, code)
    assert str(error) in raised.value.message
    async with anthropic_client(address) as other:
        with pytest.raises(anthropic.APIStatusError, match=code) as refused:
            await other.messages.create(model="any", max_tokens=9, messages=QUESTION, stream=streamed)
    assert refused.value.status_code == status
    assert len(handler.bodies) == 2


async def _streamed_chat(address: GatewayAddress) -> str:
    async with openai_client(address) as client:
        stream = await client.chat.completions.create(model="any", messages=QUESTION, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def _streamed_responses(address: GatewayAddress) -> str:
    async with openai_client(address) as client, client.responses.stream(model="any", input="6 * 7?") as stream:
        return (await stream.get_final_response()).output_text


async def _streamed_messages(address: GatewayAddress) -> str:
    async with (
        anthropic_client(address) as client,
        client.messages.stream(model="any", max_tokens=9, messages=QUESTION) as stream,
    ):
        return await stream.get_final_text()


STREAMED = [_streamed_chat, _streamed_responses, _streamed_messages]


@pytest.mark.parametrize("streamed", STREAMED)
@pytest.mark.parametrize("fails", [False, True])
@on_event_loop
async def test_comments_keep_a_stream_open_until_the_reply_is_there(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, streamed: Callable[[Any], Coroutine[Any, Any, str]], fails: bool
) -> None:
    """Without them the client, which waits 1 s for each piece, would give up."""
    monkeypatch.setattr("paragent.gateway.calls.SILENCE", 0.02)
    monkeypatch.setattr("paragent.gateway.calls.COMMENT_INTERVAL", 0.02)
    begun = asyncio.Event()

    async def late(_: dict[str, Any]) -> str:
        await begun.wait()
        if fails:
            raise EndpointDown("no answer")
        return "42"

    handler = ScriptedHandler(late)
    address = gateway.register(handler)
    answering = asyncio.create_task(streamed(address))
    await handler.called.wait()
    await asyncio.sleep(0.1)  # some comments are sent
    begun.set()
    if fails:
        with pytest.raises((openai.APIError, anthropic.APIError), match="no answer"):
            await answering
    else:
        assert await answering == "42"
    assert len(handler.bodies) == 1


@on_event_loop
async def test_calls_of_many_rollouts_at_once_do_not_mix(gateway: Gateway) -> None:
    names = [f"rollout {number}" for number in range(20)]
    addresses = [gateway.register(ScriptedHandler(name)) for name in names]
    assert len({address.key for address in addresses} | {address.url for address in addresses}) == 40
    answers = await asyncio.gather(*(ask(address) for address in addresses for _ in range(3)))
    assert list(answers) == [name for name in names for _ in range(3)]


@on_event_loop
async def test_a_call_runs_in_the_context_of_its_rollout(gateway: Gateway) -> None:
    name: ContextVar[str] = ContextVar("name", default="none")

    async def answer(_: dict[str, Any]) -> str:
        seen = name.get()
        name.set("changed by a call")
        return seen

    async def rollout(number: int) -> list[str]:
        name.set(str(number))
        address = gateway.register(ScriptedHandler(answer))
        return [await ask(address), await ask(address)]

    assert await asyncio.gather(*map(rollout, range(3))) == [["0", "0"], ["1", "1"], ["2", "2"]]


@on_event_loop
async def test_the_end_of_a_rollout_cancels_its_calls_and_refuses_later_ones(gateway: Gateway) -> None:
    async def never(_: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    handler, other = ScriptedHandler(never), ScriptedHandler()
    address, other_address = gateway.register(handler), gateway.register(other)
    calls = [asyncio.create_task(ask(address)) for _ in range(3)]
    await wait_until_async(lambda: len(handler.bodies) == 3, what="the arrival of all calls")
    async with asyncio.timeout(5):  # clients give up after 20 s, which would cancel the calls too
        await gateway.end(address)
    assert handler.cancelled == 3
    for call in calls:
        with pytest.raises(openai.APIStatusError) as raised:
            await call
        assert raised.value.status_code == 410
    with pytest.raises(openai.APIStatusError) as late:
        await ask(address)
    assert (late.value.status_code, late.value.code) == (410, "rollout_ended")
    await gateway.end(address)
    assert await ask(other_address) == "42"


@pytest.mark.parametrize("streamed", [False, True])
@on_event_loop
async def test_a_client_that_disconnects_cancels_its_call(gateway: Gateway, streamed: bool) -> None:
    async def never(_: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    handler = ScriptedHandler(never)
    address = gateway.register(handler)
    async with openai_client(address) as client:
        asking = client.chat.completions.create(model="any", messages=QUESTION, stream=streamed)
        call = asyncio.ensure_future(asking)
        await handler.called.wait()
        call.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await call
    await wait_until_async(lambda: handler.cancelled == 1, what="the cancellation")


@on_event_loop
async def test_the_unix_socket_has_the_same_server_and_belongs_to_the_user(gateway: Gateway) -> None:
    address = gateway.register(ScriptedHandler())
    path = Path(gateway.unix_path(address))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    body = {"model": "any", "messages": QUESTION}
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        for key, status in ((address.key, 200), ("wrong", 401)):
            headers = {"Authorization": f"Bearer {key}"}
            async with session.post(f"{address.openai_url}/chat/completions", json=body, headers=headers) as response:
                assert response.status == status


@pytest.mark.parametrize("length", [60, 68, 69, 80, 120])
def test_the_path_of_the_unix_socket_is_short_enough(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with Gateway() as gateway:
            assert Path(gateway.unix_path(gateway.register(ScriptedHandler()))).is_socket()

    with tempfile.TemporaryDirectory(dir="/tmp") as base:
        folder = Path(base) / ("x" * (length - len(base) - 1))
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        asyncio.run(main())


def test_closing_the_gateway_cancels_calls_and_removes_the_socket() -> None:
    async def never(_: dict[str, Any]) -> str:
        await asyncio.Event().wait()
        return ""

    async def main() -> tuple[Path, ScriptedHandler]:
        handler = ScriptedHandler(never)
        async with Gateway() as gateway:
            address = gateway.register(handler)
            call = asyncio.create_task(ask(address))
            await handler.called.wait()
            path = Path(gateway.unix_path(address))
        with pytest.raises(openai.APIError):
            await call
        with pytest.raises(openai.APIConnectionError):
            await openai_client(address).with_options(max_retries=0).models.list()
        await gateway.close()
        return path, handler

    path, handler = asyncio.run(main())
    assert handler.cancelled == 1
    assert not path.parent.exists()


def test_the_folder_of_a_killed_gateway_is_removed_by_the_next_one() -> None:
    program = (
        "from paragent.gateway.socket_folder import SocketFolder\n"
        "folder = SocketFolder()\nprint(folder.open(), flush=True)\ninput()"
    )
    alive, following = SocketFolder(), SocketFolder()
    folder = Path(alive.open()).parent
    with BoundedPopen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        killed = Path(process.stdout.readline().strip()).parent
        assert killed.exists()
        process.kill()
    following.open()
    assert folder.exists()
    assert not killed.exists()
    alive.remove()
    following.remove()


@on_event_loop
async def test_the_key_is_not_in_the_text_of_an_address(gateway: Gateway) -> None:
    address = gateway.register(ScriptedHandler())
    assert address.key not in repr(address)
