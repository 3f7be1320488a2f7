"""Requests of agents that let the provider act for them: refused unless the settings allow them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from paragent.errors import RequestRejected
from paragent.models import ModelSettings, open_model
from paragent.models.dialects.hosted import refuse_hosted
from paragent.testing import OpenAIServer, Script

CONVERSATION: dict[str, Any] = {
    "chat": {"messages": [{"role": "user", "content": "?"}]},
    "responses": {"input": "?"},
    "anthropic": {"messages": [{"role": "user", "content": "?"}], "max_tokens": 5},
}


def part(api: str, content: Any) -> dict[str, Any]:
    return {"input" if api == "responses" else "messages": [{"role": "user", "content": [content]}]}


FAR = "https://attacker.example/?stolen=data"
HOSTED: list[tuple[str, dict[str, Any]]] = [
    *(
        ("responses", {"tools": [{"type": kind}]})
        for kind in (
            "web_search",
            "web_search_preview_2025_03_11",
            "file_search",
            "code_interpreter",
            "image_generation",
        )
    ),
    ("responses", {"tools": [{"type": "function", "name": "a"}, {"type": "mcp", "server_url": FAR}]}),
    ("responses", {"tools": [{"type": "shell", "environment": {"type": "container_auto"}}]}),
    ("responses", {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "web_search"}]}]}),
    ("responses", {"tools": [{"type": "tool_search"}]}),
    ("responses", {"tools": [{"type": "invented_tomorrow"}]}),
    ("responses", {"store": True}),
    ("responses", {"background": True}),
    ("responses", {"previous_response_id": "resp_1"}),
    ("responses", {"conversation": "conv_1"}),
    ("responses", {"prompt": {"id": "pmpt_1"}}),
    ("responses", part("responses", {"type": "input_image", "image_url": FAR})),
    ("responses", part("responses", {"type": "input_file", "file_url": FAR})),
    ("responses", part("responses", {"type": "input_file", "file_id": "file-1"})),
    ("responses", {"input": [{"type": "computer_call_output", "output": {"type": "x", "image_url": FAR}}]}),
    ("chat", {"tools": [{"type": "web_search"}]}),
    ("chat", {"tools": [{"type": "openrouter:web_search"}]}),
    ("chat", {"web_search_options": {}}),
    ("chat", {"plugins": [{"id": "web"}]}),
    ("chat", {"models": ["openai/gpt-dear"]}),
    ("chat", {"fallbacks": ["gpt-dear"]}),
    ("chat", {"n": 2}),
    ("chat", {"n": "2"}),
    ("chat", {"best_of": 4}),
    ("chat", {"store": True}),
    ("chat", part("chat", {"type": "image_url", "image_url": {"url": FAR}})),
    ("chat", part("chat", {"type": "image_url", "image_url": FAR})),
    ("chat", part("chat", {"type": "file", "file": {"file_id": "file-1"}})),
    *(
        ("anthropic", {"tools": [{"type": kind, "name": "a"}]})
        for kind in ("web_search_20250305", "web_fetch_20250910", "code_execution_20250825", "mcp_toolset", "new_2030")
    ),
    ("anthropic", {"mcp_servers": [{"type": "url", "url": FAR, "name": "a"}]}),
    ("anthropic", {"container": "container_1"}),
    ("anthropic", part("anthropic", {"type": "image", "source": {"type": "url", "url": FAR}})),
    ("anthropic", part("anthropic", {"type": "document", "source": {"type": "file", "file_id": "file_1"}})),
    (
        "anthropic",
        part(
            "anthropic",
            {"type": "tool_result", "content": [{"type": "document", "source": {"type": "url", "url": FAR}}]},
        ),
    ),
]
DATA = "data:image/png;base64,AAAA"
LOCAL: list[tuple[str, dict[str, Any]]] = [
    *(
        ("responses", {"tools": [{"type": kind, "name": "a"}]})
        for kind in ("function", "custom", "local_shell", "apply_patch", "computer_use_preview", "computer", "shell")
    ),
    ("responses", {"tools": [{"type": "shell", "environment": {"type": "local"}}]}),
    ("responses", {"tools": [{"type": "namespace", "name": "a", "tools": [{"type": "function", "name": "b"}]}]}),
    ("responses", {"store": False, "background": False, "previous_response_id": None, "tools": []}),
    ("responses", part("responses", {"type": "input_image", "image_url": DATA})),
    ("chat", {"tools": [{"type": "function", "function": {"name": "a"}}, {"type": "custom", "custom": {"name": "b"}}]}),
    ("chat", {"n": 1, "store": False, "plugins": [], "models": None, "logit_bias": {"1": 2}}),
    ("chat", part("chat", {"type": "image_url", "image_url": {"url": DATA}})),
    ("chat", {"messages": [{"role": "user", "content": f"look at {FAR}"}]}),
    *(
        ("anthropic", {"tools": [{"type": kind, "name": "a"}]})
        for kind in ("custom", "bash_20250124", "text_editor_20250728", "computer_20251124", "memory_20250818")
    ),
    ("anthropic", {"tools": [{"name": "a", "input_schema": {}}]}),
    ("anthropic", part("anthropic", {"type": "tool_use", "id": "1", "name": "open", "input": {"image_url": FAR}})),
]


def ids(cases: list[tuple[str, dict[str, Any]]]) -> list[str]:
    return [f"{api}: {json.dumps(fields)[:50]}" for api, fields in cases]


async def forward(url: str, api: str, fields: dict[str, Any], **settings: Any) -> None:
    base = url if api == "anthropic" else f"{url}/v1"
    model = open_model(ModelSettings(name="m", base_url=base, api_key="k", max_retries=0, api=api, **settings))
    try:
        await model.forward(CONVERSATION[api] | fields)
    finally:
        await model.close()


@pytest.mark.parametrize(("api", "fields"), HOSTED, ids=ids(HOSTED))
def test_what_the_provider_would_do_is_refused(api: str, fields: dict[str, Any]) -> None:
    with OpenAIServer(Script()) as server:
        with pytest.raises(RequestRejected, match="--agent-hosted-tools"):
            asyncio.run(forward(server.anthropic_url, api, fields))
        assert not server.seen.requests, "nothing was sent"


@pytest.mark.parametrize(("api", "fields"), LOCAL, ids=ids(LOCAL))
def test_what_the_agent_does_itself_passes(api: str, fields: dict[str, Any]) -> None:
    refuse_hosted(api, CONVERSATION[api] | fields)


@pytest.mark.parametrize(
    ("api", "fields"), [("chat", {"n": 2}), ("responses", {"store": True}), ("anthropic", {"container": "c"})]
)
def test_the_setting_allows_it(api: str, fields: dict[str, Any]) -> None:
    with OpenAIServer(Script(), keep_requests=True) as server:
        asyncio.run(forward(server.anthropic_url, api, fields, hosted_tools=True))
        [sent] = server.seen.bodies
    assert fields.items() <= sent.items()


@pytest.mark.parametrize("given", [{}, {"store": None}, {"store": False}])
def test_nothing_is_stored_where_the_agent_says_nothing(given: dict[str, Any]) -> None:
    with OpenAIServer(Script(), keep_requests=True) as server:
        asyncio.run(forward(server.anthropic_url, "responses", given))
        [sent] = server.seen.bodies
    assert sent["store"] is False
