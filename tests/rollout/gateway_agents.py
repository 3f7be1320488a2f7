"""Agents for tests of the gateway: unchanged code that uses the SDKs of model providers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import anthropic
import openai

__all__: list[str] = []

TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}
wake, refused = threading.Event(), threading.Event()
_statuses: list[int] = []


def plain(task: dict[str, Any], base_url: str, api_key: str, model: str) -> str:
    """A loop with a tool, in a thread."""
    client = openai.OpenAI(base_url=base_url, api_key=api_key)
    messages: list[Any] = [{"role": "user", "content": task["question"]}]
    while True:
        reply = client.chat.completions.create(model=model, messages=messages, tools=[TOOL]).choices[0].message
        messages.append(reply.model_dump(exclude_none=True))
        if not reply.tool_calls:
            return reply.content or ""
        for call in reply.tool_calls:
            given = json.loads(call.function.arguments)  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": str(given["a"] + given["b"])})


def expects_json(question: str) -> str:
    """Fails inside of a library, without calling the model."""
    return str(json.JSONDecoder().decode(question))


async def streamed(question: str, base_url: str, api_key: str) -> str:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        stream = await client.chat.completions.create(
            model="any", messages=[{"role": "user", "content": question}], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def claude(task: dict[str, Any], anthropic_base_url: str, api_key: str) -> str:
    async with anthropic.AsyncAnthropic(base_url=anthropic_base_url, api_key=api_key) as client:
        messages: list[Any] = [{"role": "user", "content": task["question"]}]
        tools: list[Any] = [{"name": "add", "input_schema": {"type": "object", "properties": {}}}]
        while True:
            reply = await client.messages.create(
                model="any", max_tokens=100, messages=messages, tools=tools, system="Use tools."
            )
            messages.append({"role": "assistant", "content": reply.content})
            calls = [block for block in reply.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in reply.content if block.type == "text")
            inputs: list[Any] = [one.input for one in calls]
            sums = [str(given["a"] + given["b"]) for given in inputs]
            results = [
                {"type": "tool_result", "tool_use_id": one.id, "content": text}
                for one, text in zip(calls, sums, strict=True)
            ]
            messages.append({"role": "user", "content": results})


async def responses(task: dict[str, Any], base_url: str, api_key: str) -> str:
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        return (await client.responses.create(model="any", input=task["question"])).output_text


async def rewriting(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """Summarises its history after the first turn, and asks a second model."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:

        async def ask(*messages: Any) -> str:
            reply = await client.chat.completions.create(model="any", messages=messages)
            return reply.choices[0].message.content or ""

        system, question = {"role": "system", "content": "Be short."}, {"role": "user", "content": task["question"]}
        said = await ask(system, question)
        again = {"role": "user", "content": "Are you sure?"}
        said = await ask(system, question, {"role": "assistant", "content": said}, again)
        said = await ask(system, {"role": "user", "content": f"Earlier you said {said}."})
        await asyncio.gather(*(ask({"role": "user", "content": f"{name}: check {said}"}) for name in ("one", "two")))
        return said


async def failing(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """Fails if its call fails."""
    return await streamed(task["question"], base_url, api_key)


async def recovering(task: dict[str, Any], base_url: str, api_key: str) -> str:
    try:
        return await streamed(task["question"], base_url, api_key)
    except openai.APIError:
        return "the model did not answer"


async def failing_by_itself(task: dict[str, Any], base_url: str, api_key: str) -> str:
    await streamed(task["question"], base_url, api_key)
    raise LookupError("my own mistake")


async def endless(task: dict[str, Any], base_url: str, api_key: str) -> str:
    while True:
        await streamed(task["question"], base_url, api_key)


async def leaving(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """Leaves a call behind that it does not wait for."""
    call = asyncio.create_task(streamed(task["question"], base_url, api_key))
    await asyncio.sleep(0)
    del call
    return "42"


def sleeping(task: dict[str, Any], base_url: str, api_key: str) -> str:
    """The first thread sleeps and then calls the model; the second one returns the status that the first one got."""
    if wake.is_set():
        refused.wait(60)
        return str(_statuses.pop())
    wake.wait(60)
    try:
        asyncio.run(streamed(task["question"], base_url, api_key))
    except openai.APIStatusError as error:
        _statuses.append(error.status_code)
    refused.set()
    return ""


async def killing(question: str, base_url: str, api_key: str) -> str:
    """The first agent kills its worker while the gateway waits for the endpoint."""
    once, statistics = Path(os.environ["KILL_ONCE"]), os.environ["OPENAI_BASE_URL"].removesuffix("/v1") + "/statistics"

    def requests() -> int:
        with urllib.request.urlopen(statistics) as response:
            return int(json.load(response)["requests"])

    call = asyncio.create_task(streamed(question, base_url, api_key))
    if not once.exists():
        while not await asyncio.to_thread(requests):
            await asyncio.sleep(0.01)
        once.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return await call


async def pictures(task: dict[str, Any], base_url: str, api_key: str) -> str:
    png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    content = [
        {"type": "text", "text": task["question"]},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png}"}},
    ]
    messages: list[Any] = [{"role": "user", "content": content}]
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        reply = await client.chat.completions.create(model="any", messages=messages)
        messages += [reply.choices[0].message, {"role": "user", "content": "Look again."}]
        reply = await client.chat.completions.create(model="any", messages=messages)
    return reply.choices[0].message.content or ""


def from_environment(question: str) -> str:
    """Knows nothing of paragent: the SDK reads its settings from the environment."""
    reply = openai.OpenAI().chat.completions.create(
        model=os.environ["PARAGENT_MODEL"], messages=[{"role": "user", "content": question}]
    )
    return reply.choices[0].message.content or ""


def without_model(question: str) -> str:
    return question.upper()


def needs_more(task: dict[str, Any], verbose: bool, colour: str) -> str:
    return f"{task}{verbose}{colour}"


def keyword_question(*, question: str, base_url: str) -> str:
    return question + base_url


def asking_for_more(question: str, base_url: str, api_key: str) -> str:
    """Ask for tools of the provider, directly and hidden in a tool of another protocol; return the answers."""
    hidden = {"type": "responses", "responses": {"type": "web_search"}}
    asked = [
        ("chat/completions", {"messages": [{"role": "user", "content": question}], "tools": [{"type": "web_search"}]}),
        ("chat/completions", {"messages": [{"role": "user", "content": question}], "tools": [hidden]}),
        ("chat/completions", {"messages": [{"role": "user", "content": question}], "n": 5}),
        ("responses", {"input": question, "tools": [{"type": "code_interpreter"}]}),
        ("responses", {"input": question}),
    ]
    answers = []
    for path, body in asked:
        headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{base_url}/{path}", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request) as response:
                answers.append([response.status, ""])
        except urllib.error.HTTPError as error:
            answers.append([error.code, json.load(error)["error"]["message"]])
    return json.dumps(answers)
