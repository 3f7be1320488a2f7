"""Write rollouts as a log of inspect_ai, with its own library. Usage: viewer_inspect.py ROLLOUTS.jsonl LOG_FOLDER"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path

from inspect_ai.dataset import Sample
from inspect_ai.log import (
    EvalConfig,
    EvalDataset,
    EvalLog,
    EvalMetric,
    EvalPlan,
    EvalResults,
    EvalSample,
    EvalScore,
    EvalSpec,
    EvalStats,
    write_eval_log,
)
from inspect_ai.model import (
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageTool,
    ChatMessageUser,
    ContentReasoning,
    ContentText,
    ModelOutput,
    ModelUsage,
)
from inspect_ai.scorer import Score
from inspect_ai.tool import ToolCall


def message(given: dict) -> object:
    """Return a message in inspect's classes."""
    if given["role"] == "system":
        return ChatMessageSystem(content=given["content"])
    if given["role"] == "user":
        return ChatMessageUser(content=given["content"])
    if given["role"] == "tool":
        return ChatMessageTool(content=given["content"], tool_call_id=given["tool_call_id"], function="search")
    calls = [
        ToolCall(id=call["id"], function=call["function"]["name"], arguments=json.loads(call["function"]["arguments"]))
        for call in given.get("tool_calls", [])
    ]
    thought = given.get("reasoning_content")
    content = [ContentReasoning(reasoning=thought), ContentText(text=given["content"])] if thought else given["content"]
    return ChatMessageAssistant(content=content, tool_calls=calls or None)


def sample(rollout: dict) -> EvalSample:
    """Return a rollout as a sample."""
    prompt, completion = rollout["tokens"]
    usage = ModelUsage(input_tokens=prompt, output_tokens=completion, total_tokens=prompt + completion)
    given = Sample(input=rollout["question"], target=rollout["answer"], id=rollout["task"])
    return EvalSample(
        id=given.id,
        epoch=1,
        input=given.input,
        target=given.target,
        messages=[message(one) for one in rollout["messages"]],
        output=ModelOutput.from_content("sample", rollout["answer"]),
        scores={"exact": Score(value=rollout["score"] or 0.0, answer=rollout["answer"])},
        model_usage={"sample": usage},
        total_time=rollout["seconds"],
        working_time=rollout["seconds"],
    )


def main() -> None:
    """Write one log with all rollouts."""
    rollouts = [json.loads(line) for line in Path(sys.argv[1]).read_text().splitlines()]
    samples = [sample(one) for one in rollouts]
    now = datetime.now(UTC).isoformat()
    dataset = EvalDataset(name="sample", samples=len(samples), sample_ids=[one.id for one in samples])
    spec = EvalSpec(created=now, task="sample", dataset=dataset, model="sample", config=EvalConfig())
    mean = sum(one["score"] or 0.0 for one in rollouts) / len(rollouts)
    scores = [EvalScore(name="exact", scorer="exact", metrics={"mean": EvalMetric(name="mean", value=mean)})]
    results = EvalResults(total_samples=len(samples), completed_samples=len(samples), scores=scores)
    stats = EvalStats(started_at=now, completed_at=now)
    log = EvalLog(status="success", eval=spec, plan=EvalPlan(), results=results, stats=stats, samples=samples)
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    write_eval_log(log, f"{sys.argv[2]}/sample.eval")


if __name__ == "__main__":
    main()
