"""Secrets of requests: an endpoint that repeats them does not get them into errors and replies."""

from __future__ import annotations

import asyncio
import base64
import json
import time
import traceback
from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paragent._internal.redaction import Redactor
from paragent._internal.tracebacks import described
from paragent.errors import ParagentError
from paragent.models import ModelSettings, open_model
from tests.models.hostile_endpoints import ANSWERS, KEY, repeating_endpoint

REQUEST = {"messages": [{"role": "user", "content": "?"}], "input": "?", "max_tokens": 1}
APIS = ("chat", "responses", "anthropic")


def settings_for(url: str, api: str, **settings: Any) -> ModelSettings:
    base = url if api == "anthropic" else f"{url}/v1"
    given_settings: dict[str, Any] = {"name": "m", "base_url": base, "api_key": KEY, "max_retries": 0, "api": api}
    return ModelSettings(**given_settings | settings)


async def everything_of(settings: ModelSettings) -> str:
    """Return all text that a request leaves: of its error, with causes and traceback, or of its reply."""
    model = open_model(settings)
    try:
        completion = await model.forward(REQUEST)
    except ParagentError as error:
        return "\n".join([described(error), *traceback.format_exception(error)])
    finally:
        await model.close()
    return repr(completion)


def leaks(text: str, key: str = KEY) -> list[str]:
    """Return parts of a key, in any plausible encoding, that a text has."""
    forms = [key, json.dumps(key)[1:-1], quote(key, safe=""), base64.b64encode(key.encode()).decode().rstrip("=")]
    parts = {form[start : start + 12] for form in forms for start in range(len(form) - 11)}
    return sorted(part for part in parts if part in text)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", APIS)
def test_errors_do_not_repeat_the_key(api: str, stream: bool) -> None:
    for name, answer in ANSWERS.items():
        with repeating_endpoint(answer) as url:
            text = asyncio.run(everything_of(settings_for(url, api, stream=stream)))
        assert not leaks(text), f"{name}: {text}"


REPLIES = {
    "chat": {"choices": [{"message": {"content": KEY}}], "id": KEY, "debug": {KEY: [f"Bearer {KEY}"]}},
    "responses": {"id": KEY, "output": [{"type": "message", "content": [{"type": "output_text", "text": KEY}]}]},
    "anthropic": {"id": KEY, "content": [{"type": "text", "text": KEY}], "stop_reason": KEY},
}


@pytest.mark.parametrize("api", APIS)
def test_replies_do_not_repeat_the_key(api: str) -> None:
    answer = (200, "application/json", json.dumps(REPLIES[api]))
    with repeating_endpoint(lambda _: answer) as url:
        text = asyncio.run(everything_of(settings_for(url, api)))
    assert text.startswith("Completion(")
    assert not leaks(text), text


def test_a_key_in_pieces_of_a_stream_does_not_get_through() -> None:
    chunks = [{"choices": [{"delta": {"content": piece}}]} for piece in (KEY[:10], KEY[10:], "!")]
    events = [*chunks, {"choices": [{"delta": {}, "finish_reason": "stop"}]}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    with repeating_endpoint(lambda _: (200, "text/event-stream", body)) as url:
        text = asyncio.run(everything_of(settings_for(url, "chat", stream=True)))
    assert "'content': '…!'" in text
    assert not leaks(text)


@pytest.mark.parametrize("api", ["chat", "anthropic"])
def test_custom_headers_and_addresses_have_secrets_too(api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    vendor = "ANTHROPIC" if api == "anthropic" else "OPENAI"
    secrets = {name: f"{name}-secret-0123456789" for name in ("header", "team", "password", "query", "proxy")}
    headers = f"X-Gateway-Token: {secrets['header']}\nX-Team: {secrets['team']}"
    monkeypatch.setenv(f"{vendor}_CUSTOM_HEADERS", headers)
    monkeypatch.setenv("ALL_PROXY", f"http://me:{secrets['proxy']}@127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    message = json.dumps({"error": {"message": " and ".join(secrets.values())}})
    with repeating_endpoint(lambda _: (500, "application/json", message)) as url:
        address = url.replace("//", f"//user:{secrets['password']}@") + f"/v1?key={secrets['query']}"
        settings = replace(settings_for(url, api), base_url=address)
        text = asyncio.run(everything_of(settings))
    found = [name for name, secret in secrets.items() if leaks(text, secret)]
    assert not found, text


def test_the_address_in_errors_of_the_connection_has_no_password() -> None:
    settings = replace(settings_for("", "chat"), base_url="http://user:password-0123456789@127.0.0.1:9/v1")
    text = asyncio.run(everything_of(settings))
    assert "password-0" not in text
    assert "http://127.0.0.1:9/v1/ failed" in text


@pytest.mark.parametrize("key", ["x", "EMPTY", "none", "not-needed"])
def test_placeholders_change_no_reply(key: str) -> None:
    content = f"x EMPTY none not-needed {key}"
    answer = (200, "application/json", json.dumps({"choices": [{"message": {"content": content}}]}))
    with repeating_endpoint(lambda _: answer) as url:
        text = asyncio.run(everything_of(settings_for(url, "chat", api_key=key)))
    assert repr(content) in text


def test_the_useful_part_of_a_message_stays() -> None:
    with repeating_endpoint(ANSWERS["401"]) as url:
        text = asyncio.run(everything_of(settings_for(url, "chat")))
    assert (
        "does not accept the API key (HTTP 401): Incorrect API key provided: …. You can find yours at https://x" in text
    )


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("Authorization: Bearer abcdef123456, wrong", "Authorization: Bearer …, wrong"),
        ("use Bearer authentication", "use Bearer authentication"),
        ("https://host/v1?key=AIzaSy12345678&alt=json", "https://host/v1?key=…&alt=json"),
        ("upstream sk-proj-0123456789abcdefgh failed", "upstream sk-… failed"),
    ],
)
def test_secrets_of_others_are_recognised(text: str, cleaned: str) -> None:
    assert Redactor([]).text(text) == cleaned


@given(st.text(max_size=40), st.text(max_size=40), st.text(min_size=12, max_size=60))
def test_any_secret_is_removed(before: str, after: str, secret: str) -> None:
    redactor = Redactor([secret])
    for form in (secret, quote(secret, safe=""), json.dumps(secret)[1:-1]):
        assert form not in redactor.text(f"{before}{form}{after}") or "…" in form


@given(st.text(max_size=200))
def test_other_text_stays(text: str) -> None:
    assert Redactor(["zzzz-secret-zzzz-secret"]).text(text) == text or any(
        mark in text for mark in ("zzz", " ", "=", "sk-")
    )


@pytest.mark.parametrize("text", ["bearer " * 50_000, "sk-" * 100_000, "?key=" * 50_000, "a" * 1_000_000])
def test_hostile_text_takes_no_time(text: str) -> None:
    began = time.process_time()
    error = ValueError(text)
    Redactor([KEY]).error(error)
    assert time.process_time() - began < 1
    assert len(str(error)) <= 1 << 16
