"""MCP servers of a run: the file of `--mcp-config`, in the form that Claude Code and other MCP clients use."""

from __future__ import annotations

import itertools
import json
import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paragent._internal.file_errors import unreadable
from paragent._internal.redaction import Redactor, secrets_in_headers, secrets_in_url
from paragent._internal.validation import reject_unknown
from paragent.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["McpServer", "McpSettings", "read_mcp_config"]

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(:-(?P<default>[^}]*))?\}")
_TRANSPORTS = {"stdio": "stdio", "http": "http", "streamable-http": "http", "streamable_http": "http", "sse": "sse"}
"""The transport by the names that are used for it."""
_KEYS = {
    "stdio": ("type", "transport", "command", "args", "env", "cwd"),
    "http": ("type", "transport", "url", "headers"),
    "sse": ("type", "transport", "url", "headers"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class McpServer:
    """How to open a session with one MCP server. Variables are expanded, so that the values may be secrets."""

    name: str
    transport: str
    """`stdio`: a program that is started for each session; `http` (streamable HTTP) or `sse`: a running server."""
    command: tuple[str, ...] = field(default=(), repr=False)
    env: dict[str, str] = field(default_factory=dict, repr=False)
    """Variables of the program besides PATH, HOME and similar ones. Others are not inherited: they may be secrets."""
    cwd: str = ""
    url: str = field(default="", repr=False)
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def redactor(self) -> Redactor:
        """Return what removes the secrets of these settings from what the server sends and prints."""
        secret, other = secrets_in_headers(self.headers)
        pairs = [word.partition("=")[::2] for word in self.command if "=" in word]  # `--token=VALUE`
        pairs += [pair for pair in itertools.pairwise(self.command) if pair[0].startswith("-")]  # `--token VALUE`
        named, _ = secrets_in_headers(dict(pairs) | self.env)
        return Redactor([*secret, *named, *secrets_in_url(self.url)], other)


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """The MCP servers of a run."""

    servers: tuple[McpServer, ...]
    call_limit: float
    """Seconds for one tool call."""
    document: str = field(repr=False)
    """The file as JSON without expanded variables; part of the identity of a run."""


def read_mcp_config(path: Path, call_limit: float) -> McpSettings:
    """Read a file `{"mcpServers": {NAME: {...}}}`; `${VARIABLE}` and `${VARIABLE:-default}` are replaced in all texts.

    Raises:
        ConfigError: the file cannot be read, has another form, or a variable is not set.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"--mcp-config: {unreadable(path, error)}") from error
    servers = document.get("mcpServers") if isinstance(document, dict) else None
    if not isinstance(servers, dict) or not servers:
        raise ConfigError(f'--mcp-config: {path} must have the form {{"mcpServers": {{NAME: {{...}}}}}} with a server')
    folder = str(path.resolve().parent)
    read = tuple(_read_server(f"--mcp-config: {path}: the server {name!r}", name, servers[name]) for name in servers)
    placed = tuple(_in_folder(server, folder) for server in read)
    return McpSettings(servers=placed, call_limit=call_limit, document=json.dumps(servers, sort_keys=True))


def _in_folder(server: McpServer, folder: str) -> McpServer:
    from dataclasses import replace

    return replace(server, cwd=os.path.join(folder, server.cwd)) if server.transport == "stdio" else server  # noqa: PTH118


def _read_server(where: str, name: str, given: Any) -> McpServer:
    if not isinstance(given, dict):
        raise ConfigError(f"{where} must be an object with `command` or `url`")
    named = given.get("type") or given.get("transport") or ("stdio" if "command" in given else "http")
    if named not in _TRANSPORTS:
        raise ConfigError(f"{where}: the type must be stdio, http or sse, not {named!r}")
    transport = _TRANSPORTS[named]
    reject_unknown(where, "key", given, _KEYS[transport])
    needed = "command" if transport == "stdio" else "url"
    if not isinstance(given.get(needed), str) or not given[needed]:
        raise ConfigError(f"{where} needs {needed!r}, a text")
    texts = _texts(where, given)
    if transport == "stdio":
        command = (texts["command"], *texts.get("args", ()))
        return McpServer(
            name=name, transport=transport, command=command, env=texts.get("env", {}), cwd=texts.get("cwd", "")
        )
    if not texts["url"].startswith(("http://", "https://")):
        raise ConfigError(f"{where}: the url must begin with http:// or https://")
    return McpServer(name=name, transport=transport, url=texts["url"], headers=texts.get("headers", {}))


def _texts(where: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a server with expanded variables, after checking their types."""
    kinds = {"args": list, "env": dict, "headers": dict}
    expanded: dict[str, Any] = {}
    for key, value in given.items():
        kind: type = kinds.get(key, str)
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
        if not isinstance(value, kind) or not all(isinstance(part, str) for part in parts):
            form = {"list": "a list of texts", "dict": "an object with texts", "str": "a text"}[kind.__name__]
            raise ConfigError(f"{where}: {key!r} must be {form}")
        expanded[key] = _expand(f"{where}: {key!r}", value)
    return expanded


def _expand(where: str, value: Any) -> Any:
    if isinstance(value, list):
        return [_expand(where, one) for one in value]
    if isinstance(value, dict):
        return {name: _expand(where, one) for name, one in value.items()}

    def replacement(match: re.Match[str]) -> str:
        found = os.environ.get(match["name"]) or match["default"]
        if found is None:
            raise ConfigError(f"{where} uses the variable {match['name']}, which is not set in the environment")
        return found

    return _VARIABLE.sub(replacement, value)
