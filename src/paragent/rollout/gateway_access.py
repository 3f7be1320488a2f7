"""The gateway for agents: an address for one rollout, and what an agent is told about its task and its model."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from paragent.mcp.protocol import ToolServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    from paragent.envs import Tool, ToolResult
    from paragent.gateway import GatewayAddress
    from paragent.rollout.episode import RolloutEpisode
    from paragent.rollout.resources import WorkerResources
    from paragent.tasks import BenchmarkTask

__all__ = ["described_task", "gateway_address", "gateway_variables"]


@contextlib.asynccontextmanager
async def gateway_address(resources: WorkerResources, episode: RolloutEpisode) -> AsyncIterator[GatewayAddress]:
    """Register a rollout with the gateway of its worker: its model, and its tools as an MCP server.

    At the end of the `with` block, calls in progress are cancelled.

    Raises:
        EnvironmentFailed: the gateway cannot be started.
    """
    from paragent.mcp.server import McpEndpoint  # aiohttp is an extra

    gateway = await resources.gateway()
    tools = McpEndpoint(ToolServer("paragent", _ServedTools(episode), episode.instructions))
    address = gateway.register(episode, tools.answer)
    try:
        yield address
    finally:
        await gateway.end(address)
        await tools.close()


class _ServedTools:
    """The tools of a rollout for its MCP server; a `ToolSource`."""

    def __init__(self, episode: RolloutEpisode) -> None:
        self._episode = episode

    def tools(self) -> Sequence[Tool]:
        return self._episode.served_tools()

    async def call(self, name: str, arguments: Mapping[str, Any] | str) -> ToolResult:
        return await self._episode.serve_call(name, arguments)


def gateway_variables(address: GatewayAddress, model: str) -> dict[str, str]:
    """Return the environment variables from which SDKs and programs read the address of the model."""
    return {
        "OPENAI_BASE_URL": address.openai_url,
        "OPENAI_API_KEY": address.key,
        "ANTHROPIC_BASE_URL": address.anthropic_url,
        "ANTHROPIC_API_KEY": address.key,
        "PARAGENT_MODEL": model,
        "PARAGENT_MCP_URL": address.mcp_url,
    }


def described_task(task: BenchmarkTask, episode: RolloutEpisode, fields: Sequence[str] = ()) -> dict[str, Any]:
    """Return a task as agents get it, without the expected answer.

    Args:
        task: the task.
        episode: the rollout.
        fields: names of the metadata that the agent may see. All others stay hidden: benchmarks have solutions and tests
            there.
    """
    return {
        "id": task.id,
        "question": episode.question,
        "instructions": episode.instructions,
        "metadata": {name: task.metadata[name] for name in fields if name in task.metadata},
    }
