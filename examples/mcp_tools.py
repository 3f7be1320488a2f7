"""Tools of an MCP server in a rollout: a knowledge base is served by `paragent env serve`, and an agent asks it.

Needs the extras `mcp`, `rag` and `rollout`. The agent here is scripted; with `--model` the default agent would choose the calls.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from paragent import Environment, RolloutConfig, RolloutWorker
from paragent.tasks import BenchmarkTask


class Office(Environment):
    """An environment without tools of its own."""

    name = "office"
    metric = "contains"


class Librarian:
    """Searches for the question and answers with what it finds."""

    async def run_episode(self, episode: Any) -> str:
        print("tools:", ", ".join(tool["function"]["name"] for tool in episode.tools))
        call = {
            "id": "1",
            "function": {"name": "library__search", "arguments": json.dumps({"query": episode.question})},
        }
        await episode.answer_calls([call])
        return str(episode.messages[-1]["content"])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        documents = Path(folder, "documents")
        documents.mkdir()
        (documents / "ferry.md").write_text("# Ferry\nThe last ferry from North Island leaves at 21:40.\n")
        server = {
            "command": sys.executable,
            "args": ["-m", "paragent", "env", "serve", "--mode", "rag", "--kb", str(documents)],
        }
        servers = Path(folder, "mcp.json")
        servers.write_text(json.dumps({"mcpServers": {"library": server}}))
        config = RolloutConfig(env="mcp_tools:Office", agent="mcp_tools:Librarian", model="demo", mcp_config=servers)
        result = RolloutWorker(config).run(BenchmarkTask("1", "When does the last ferry leave?", "21:40"))
    print(f"{result.status}, score {result.score}: {result.answer}")


if __name__ == "__main__":
    main()
