"""The agent: asks the model, calls the tools that it requests, and insists on an answer."""

from paragent import AgentBase, AgentResult, Episode


class Clerk(AgentBase):
    """Remind the model once if it ends without an answer."""

    async def run_episode(self, episode: Episode) -> AgentResult:
        """Run one rollout. All messages are recorded; `--max-turns` limits the number of turns."""
        episode.messages.append({"role": "system", "content": episode.instructions})
        episode.messages.append({"role": "user", "content": episode.question})
        reminded = False
        while True:
            message = (await episode.complete()).message
            text = message.get("content") or ""
            if calls := message.get("tool_calls"):
                await episode.answer_calls(calls)
            elif "Answer:" in text or reminded:
                return AgentResult(text)
            else:
                episode.messages.append({"role": "user", "content": "End with a line `Answer: AMOUNT`."})
                reminded = True
