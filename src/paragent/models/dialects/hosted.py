"""What a request of an agent lets the provider do besides generating text: hosted tools, downloads, storage, more replies.

A program in the sandbox reaches the model and nothing else, but a provider that searches the web for it, runs its code or calls
an MCP server does reach the Internet in its place. So such requests are refused unless the user allows them. Tools whose calls
the agent executes itself pass. A tool of an unknown type is refused: providers add hosted tools more often than others.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from paragent.errors import RequestRejected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["refuse_hosted"]

_LOCAL_TOOLS: Mapping[str, re.Pattern[str]] = {
    "chat": re.compile(r"function|custom"),
    "responses": re.compile(r"function|custom|local_shell|apply_patch|computer|computer_use|computer_use_preview"),
    # The tool search of Anthropic looks through the tools of the request only.
    "anthropic": re.compile(r"custom|(bash|text_editor|computer|memory|tool_search_tool_(regex|bm25))_\d{8}"),
}
"""The types of tools whose calls the agent executes, by dialect. All others are hosted by the provider."""


def _is_set(value: Any) -> bool:
    return bool(value)


def _is_several(value: Any) -> bool:
    return value is not None and value != 1


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    "store": _is_set,  # keeps the conversation at the provider
    "background": _is_set,  # continues after the rollout
    "previous_response_id": _is_set,  # continues a stored conversation, as do the next two
    "conversation": _is_set,
    "prompt": _is_set,
    "container": _is_set,  # a machine of the provider
    "mcp_servers": _is_set,
    "plugins": _is_set,  # OpenRouter: web search and others
    "models": _is_set,  # OpenRouter: other models than the one of the run
    "fallbacks": _is_set,  # LiteLLM: the same
    "web_search_options": lambda value: value is not None,  # OpenAI; `{}` searches too
    "search_parameters": _is_set,  # xAI
    "enable_search": _is_set,  # Qwen
    "n": _is_several,  # more replies than `--max-reply-tokens` allows, as does the next one
    "best_of": _is_several,
}
"""Fields of a request in any dialect, and which of their values let the provider do more than generate one reply."""
_ADDRESSES = ("image_url", "video_url", "audio_url", "file_url")
"""Fields of a part of a message with an address. The provider fetches it unless the data are in the address itself."""


def refuse_hosted(dialect: str, request: Mapping[str, Any]) -> None:
    """Check that a request of an agent lets the provider do nothing but generate one reply.

    Args:
        dialect: the protocol of the request.
        request: the body.

    Raises:
        RequestRejected: it asks for more; the message names what, and the setting that allows it.
    """
    found = next((name for name, asks in _FIELDS.items() if asks(request.get(name))), None)
    found = f"`{found}`" if found else _hosted_tool(dialect, request.get("tools")) or _fetched(request)
    if found:
        raise RequestRejected(
            f"the request has {found}, with which the provider would act for the agent, outside of its sandbox: remove it, or "
            "allow it with --agent-hosted-tools"
        )


def _hosted_tool(dialect: str, tools: Any) -> str:
    """Return a description of the first tool that the provider would execute; empty if there is none."""
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if kind is None:  # the default is a function, or in Anthropic's protocol a custom tool
            continue
        if kind == "namespace":  # a group of tools
            if inside := _hosted_tool(dialect, tool.get("tools")):
                return inside
        elif kind == "shell":
            place = tool.get("environment")
            if isinstance(place, dict) and place.get("type") != "local":
                return "a tool of the type 'shell' in a container of the provider"
        elif kind == "tool_search":
            if tool.get("execution") != "client":
                return "a tool of the type 'tool_search' that the provider executes"
        elif not _LOCAL_TOOLS[dialect].fullmatch(str(kind)):
            return f"a tool of the type {str(kind)[:60]!r}"
    return ""


def _fetched(request: Mapping[str, Any]) -> str:
    """Return a description of the first address or stored file that the provider would read; empty if there is none."""
    waiting: list[Any] = [request.get("messages"), request.get("input"), request.get("system")]
    while waiting:
        node = waiting.pop()
        if isinstance(node, list):
            waiting += node
        elif isinstance(node, dict):
            if found := _fetched_by(node):
                return found
            waiting += [node.get("content"), node.get("output"), node.get("source")]
    return ""


def _fetched_by(part: Mapping[str, Any]) -> str:
    """Return a description of what the provider would read because of one part of a message; empty if it is nothing."""
    for name in _ADDRESSES:
        given = part.get(name)
        address = given.get("url") if isinstance(given, dict) else given
        if isinstance(address, str) and address and not address.startswith("data:"):
            return f"the address of a file, `{name}`, instead of its data"
    if part.get("type") == "url" and part.get("url"):  # the source of an image or a document in Anthropic's protocol
        return "the address of a file, `url`, instead of its data"
    file = part.get("file")
    if part.get("file_id") or (isinstance(file, dict) and file.get("file_id")):
        return "a file that is stored at the provider, `file_id`"
    return ""
