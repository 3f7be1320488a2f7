"""MCP servers for the tests, written with the official package. Each one that starts notes its process id in a file.

Run as a program: `python servers.py FILE [stdio|http|sse] [--stubborn]`; with http and sse it prints its address.
"""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context, Image
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import SamplingMessage, TextContent

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
server = MCPServer("tests", log_level="WARNING")
calls: list[float] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def count() -> str:
    """Return how often this tool was called in this process."""
    calls.append(time.time())
    return f"call {len(calls)}"


@server.tool(structured_output=False)
def draw() -> list[Any]:
    """Return a text and an image."""
    return ["a dot", Image(data=PNG, format="png")]


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("the disk is full")


@server.tool()
async def hang() -> str:
    """Never return."""
    with Path(f"{sys.argv[1]}.hanging").open("a") as file:
        file.write("x")
    await anyio.sleep(1000)
    return ""


@server.tool()
def die() -> str:
    """End the server's process."""
    print("out of cheese", file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


@server.tool()
async def ask(context: Context[Any, Any]) -> str:
    """Ask the client to sample from its model."""
    message = SamplingMessage(role="user", content=TextContent(type="text", text="hello"))
    reply = await context.session.create_message(messages=[message], max_tokens=10)
    return f"the client answered {reply}"


@server.tool(structured_output=False)
def large(characters: int, images: int = 0) -> list[Any]:
    """Return a long text and large images."""
    return ["x" * characters, *(Image(data=PNG + b"x" * (1 << 20), format="png") for _ in range(images))]


@server.tool()
def large_structure(characters: int) -> dict[str, str]:
    """Return a structure with a long text."""
    return {"text": "x" * characters}


@server.tool()
def fail_with(variable: str) -> str:
    """Fail with a message that has the value of a variable, and print it."""
    print(os.environ[variable], file=sys.stderr, flush=True)
    raise ToolError(f"denied: {os.environ[variable]}")


@server.tool()
def secret() -> str:
    """Return the variables of this process."""
    return " ".join(f"{name}={value}" for name, value in sorted(os.environ.items()))


def main() -> None:
    noted = Path(sys.argv[1])
    transport = sys.argv[2] if len(sys.argv) > 2 else "stdio"
    with noted.open("a") as file:
        file.write(f"{os.getpid()}\n")
    if "--stubborn" in sys.argv:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        with noted.open("a") as file:
            file.write(f"{child.pid}\n")
    if transport == "stdio":
        server.run("stdio")
    else:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        print(f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}", flush=True)
        if transport == "sse":
            server.run("sse", port=port)
        else:
            server.run("streamable-http", port=port)
    if "--stubborn" in sys.argv:
        time.sleep(1000)


if __name__ == "__main__":
    main()
