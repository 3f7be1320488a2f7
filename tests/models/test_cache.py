"""The cache of replies: which requests it answers, what it stores, and what happens when its file is damaged."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from paragent.errors import ConfigError, EndpointDown
from paragent.models import Completion, ModelSettings, Sampling, open_model
from paragent.models.base import RateLimitAddress
from paragent.models.cache import ReplyCache, RequestScope, request_scope
from paragent.models.rate_limit_server import RateLimitServer
from paragent.testing import Fault, OpenAIServer, Script

ASK = [{"role": "user", "content": "what is it?"}]
SECRET = "a-very-secret-key"


def ask(
    server: OpenAIServer, folder: Path, attempt: int | None = 1, times: int = 1, **settings: Any
) -> list[Completion]:
    """Ask the same question several times in one execution of a rollout."""

    async def run() -> list[Completion]:
        chosen: dict[str, Any] = {
            "name": "m",
            "base_url": server.url,
            "api_key": SECRET,
            "max_retries": 0,
            "cache": str(folder),
        }
        model = open_model(ModelSettings(**chosen | settings))
        request_scope.set(None if attempt is None else RequestScope(attempt))
        try:
            return [await model.complete(settings.get("messages", ASK), []) for _ in range(times)]
        finally:
            await model.close()

    return asyncio.run(run())


def ids(completions: list[Completion]) -> list[str]:
    return [completion.response["id"] for completion in completions]


@pytest.mark.parametrize("stream", [False, True])
def test_a_second_execution_gets_the_same_replies(tmp_path: Path, stream: bool) -> None:
    said = {"role": "assistant", "content": "42", "reasoning": "so"}
    with OpenAIServer(Script(default={"message": said}, request_ids=True)) as server:
        first = ask(server, tmp_path, times=3, stream=stream)
        again = ask(server, tmp_path, times=3)
        assert server.seen.requests == 3
    assert len(set(ids(first))) == 3, "a repeated request is a new sample"
    assert ids(again) == ids(first)
    assert [one.cached for one in first + again] == [False] * 3 + [True] * 3
    for old, new in zip(first, again, strict=True):
        assert (new.message, new.usage, new.request_id) == (old.message, old.usage, old.request_id)
        assert (new.model, new.finish_reason, new.waited, new.retries) == (old.model, old.finish_reason, 0.0, 0)


@pytest.mark.parametrize(
    "other",
    [
        {"attempt": 2},
        {"name": "n"},
        {"sampling": Sampling(temperature=0.5)},
        {"sampling": Sampling(extra_body={"top_k": 1})},
    ],
)
def test_other_requests_are_not_answered_from_the_cache(tmp_path: Path, other: dict[str, Any]) -> None:
    with OpenAIServer(Script()) as server:
        ask(server, tmp_path)
        [completion] = ask(server, tmp_path, **other)
        assert not completion.cached
        with OpenAIServer(Script()) as elsewhere:
            assert not ask(elsewhere, tmp_path)[0].cached, "another endpoint"
        assert not ask(server, tmp_path, attempt=None)[0].cached, "outside of a rollout"
        assert ask(server, tmp_path)[0].cached


def test_the_cache_is_never_used_in_training(tmp_path: Path) -> None:
    with OpenAIServer(Script()) as server, RateLimitServer(4, controlled=True) as rate_limit:
        for _ in range(2):
            [completion] = ask(server, tmp_path, rate_limit=rate_limit.address)
            assert not completion.cached
    assert not list(tmp_path.iterdir())
    assert isinstance(rate_limit.address, RateLimitAddress)


def test_failures_are_not_stored_and_do_not_count(tmp_path: Path) -> None:
    async def run(url: str) -> Completion:
        model = open_model(ModelSettings(name="m", base_url=url, api_key="k", max_retries=0, cache=str(tmp_path)))
        request_scope.set(RequestScope(1))
        try:
            with pytest.raises(EndpointDown):
                await model.complete(ASK, [])
            return await model.complete(ASK, [])
        finally:
            await model.close()

    with OpenAIServer(Script(faults=[Fault(500, last=1)])) as server:
        later = asyncio.run(run(server.url))
        [first] = ask(server, tmp_path)
        assert (first.cached, ids([first])) == (True, ids([later]))


def test_forwarded_requests_are_cached_whatever_the_agent_says_about_streaming(tmp_path: Path) -> None:
    async def run(url: str, **fields: Any) -> Completion:
        model = open_model(ModelSettings(name="m", base_url=url, api_key="k", cache=str(tmp_path)))
        request_scope.set(RequestScope(1))
        try:
            return await model.forward({"messages": ASK, **fields})
        finally:
            await model.close()

    with OpenAIServer(Script()) as server:
        plain = asyncio.run(run(server.url, model="theirs"))
        streamed = asyncio.run(run(server.url, stream=True, stream_options={"include_usage": True}))
        assert (plain.cached, streamed.cached, streamed.response) == (False, True, plain.response)
        assert not asyncio.run(run(server.url, temperature=0.1)).cached


def test_the_file_is_private_and_has_no_secrets_or_requests(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "cache"
    with OpenAIServer(Script(default="the reply")) as server:
        ask(server, folder)
        address = f"127.0.0.1:{server.port}"
    files = list(folder.iterdir())
    assert files
    content = b"".join(path.read_bytes() for path in files)
    assert b"the reply" in content
    for secret in (SECRET, "what is it?", address):
        assert secret.encode() not in content
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_an_open_file_becomes_private_and_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "replies.sqlite").touch(0o666)
    (tmp_path / "replies.sqlite").chmod(0o666)
    ReplyCache(tmp_path).close()
    assert (tmp_path / "replies.sqlite").stat().st_mode & 0o777 == 0o600
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "replies.sqlite").symlink_to(tmp_path / "replies.sqlite")
    with pytest.raises(ConfigError, match="--cache-dir"):
        ReplyCache(linked)


@pytest.mark.parametrize("content", [b"not a database, but a text that is long enough" * 100, None])
def test_a_damaged_file_is_reported(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "replies.sqlite"
    if content is None:
        with sqlite3.connect(path) as db:
            db.execute("PRAGMA user_version = 99")
        db.close()
    else:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="Delete the file, or use another --cache-dir"):
        ReplyCache(tmp_path)


def test_a_file_that_breaks_during_a_run_does_not_fail_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cache = ReplyCache(tmp_path)
    cache.put(b"k", {"a": 1}, "id")
    assert cache.get(b"k") == ({"a": 1}, "id")
    with sqlite3.connect(tmp_path / "replies.sqlite") as db:
        db.execute("DROP TABLE replies")
    db.close()
    assert cache.get(b"k") is None
    cache.put(b"k", {}, "")
    cache.close()
    cache.close()
    assert [record.message for record in caplog.records if "not used any more" in record.message]


def test_many_writers_share_one_file(tmp_path: Path) -> None:
    def write(writer: int) -> None:
        cache = ReplyCache(tmp_path)
        for number in range(40):
            cache.put(f"{number}".encode(), {"writer": writer, "number": number}, "")
        cache.close()

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    cache = ReplyCache(tmp_path)
    found = [cache.get(f"{number}".encode()) for number in range(40)]
    cache.close()
    assert [reply["number"] for reply, _ in filter(None, found)] == list(range(40))


def test_keys_depend_on_content_only() -> None:
    def key(request: Any, attempt: int = 1) -> bytes:
        with RequestScope(attempt).numbered(request) as found:
            return found

    assert key({"a": 1, "b": 2}) == key({"b": 2, "a": 1})
    assert len({key({"a": 1}), key({"a": "1"}), key({"a": 1}, 2), key([{"a": 1}]), key({"a": json.dumps(1)})}) == 4
