"""Redirects of endpoints: no client follows one, so that prompts, keys and custom headers go to no other host."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from paragent.envs.rag.embedding import Embedder
from paragent.errors import EndpointRefused, EnvironmentFailed
from paragent.models import ModelSettings, open_model
from tests.models.hostile_endpoints import redirecting

REQUEST = {"messages": [{"role": "user", "content": "?"}], "input": "?", "max_tokens": 1}


async def ask(settings: ModelSettings) -> None:
    model = open_model(settings)
    try:
        await model.forward(REQUEST)
    finally:
        await model.close()


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "by proxy"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", ["chat", "responses", "anthropic"])
def test_the_model_client_follows_no_redirect(
    api: str, stream: bool, proxied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status in (301, 302, 307, 308):
        with redirecting() as (other, got), redirecting(status, other) as (url, asked):
            host = url
            if proxied:  # the redirecting server is the proxy
                host = "http://endpoint.invalid"
                monkeypatch.setenv("http_proxy", url)
                monkeypatch.setenv("no_proxy", "")
            base = host if api == "anthropic" else f"{host}/v1"
            settings = ModelSettings(name="m", base_url=base, api_key="k" * 20, max_retries=0, api=api, stream=stream)
            with pytest.raises(EndpointRefused) as raised:
                asyncio.run(ask(settings))
            assert len(asked) == 1
            assert not got, "the other server gets nothing"
        message = str(raised.value)
        assert f"(HTTP {status}): it redirects to {other}" in message
        assert "redirects are not followed" in message
        assert "BASE_URL" in message


def test_a_redirect_to_an_address_with_a_key_shows_none() -> None:
    target = "http://me:secret-of-the-proxy@127.0.0.1:9/?key=a-secret-key#"
    with redirecting(307, target) as (url, _):
        settings = ModelSettings(name="m", base_url=f"{url}/v1", api_key="k" * 20, max_retries=0)
        with pytest.raises(EndpointRefused, match=r"redirects to http://127\.0\.0\.1:9, and") as raised:
            asyncio.run(ask(settings))
    assert "secret" not in str(raised.value)


def test_embeddings_follow_no_redirect(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    with redirecting() as (other, got), redirecting(307, other) as (url, _):
        monkeypatch.setenv("OPENAI_API_KEY", "k" * 20)
        monkeypatch.setenv("OPENAI_BASE_URL", f"{url}/v1")
        embedder = Embedder("m")
        with contextlib.closing(embedder), pytest.raises(EnvironmentFailed, match="307"):
            embedder.embed(["a text"])
    assert not got
