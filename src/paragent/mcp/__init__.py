"""MCP (Model Context Protocol): tools of MCP servers for agents, and environments as MCP servers."""

from paragent.mcp.config import McpServer, McpSettings, read_mcp_config
from paragent.mcp.tools import McpTools, check_servers

__all__ = ["McpServer", "McpSettings", "McpTools", "check_servers", "read_mcp_config"]
