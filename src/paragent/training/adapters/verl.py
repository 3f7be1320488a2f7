"""Adapter for verl: replaces its `AgentLoopManager` (`verl.experimental.agent_loop`)."""

from __future__ import annotations

import asyncio
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paragent.errors import ConfigError, UsageError
from paragent.training.adapters.group_requests import GroupRequests, attempt_samples, question_of, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.training.client import RemoteRolloutService, Sample
    from paragent.training.service import RolloutService

__all__ = ["VerlAgentLoopManager", "agent_loop_output"]


class VerlAgentLoopManager:
    """Executes the prompts of a verl trainer as rollouts.

    Make a subclass with the service and name it in `actor_rollout_ref.rollout.agent.agent_loop_manager_class`::

        class Manager(VerlAgentLoopManager):
            def open_service(self):
                return RemoteRolloutService(url, token)

    A prompt is a task: its question is the last user message of `raw_prompt`, its answer is `reward_model["ground_truth"]`,
    its metadata is `extra_info`. Prompts with the same `uid` are a group; their number must be that of `Groups(n=...)`. The
    global step of verl is the version of the policy. verl's agent loops, tools and reward functions are not used: the reward
    is in `rm_scores`. verl computes the advantages.
    """

    def __init__(self, config: Any, *_: Any, **__: Any) -> None:
        self.config = config
        self.rollout_config = config.actor_rollout_ref.rollout
        self._requests = GroupRequests(self.open_service())

    def open_service(self) -> RolloutService | RemoteRolloutService:
        """Return the service, which is open. Implement it in a subclass."""
        raise ConfigError("make a subclass of VerlAgentLoopManager with a method open_service()")

    @classmethod
    def create(cls, *args: Any, **kwargs: Any) -> Any:
        """Return a manager; awaitable inside of an event loop, as verl's own method."""
        manager = cls(*args, **kwargs)
        return _ready(manager) if _in_event_loop() else manager

    def generate_sequences(self, prompts: Any) -> Any:
        """Return the trajectories of a batch, in its order, as a `DataProto`; awaitable inside of an event loop.

        Raises:
            UsageError: an attempt does not fit verl's format.
        """
        work = self._generate(prompts)
        return work if _in_event_loop() else asyncio.run(work)

    async def _generate(self, prompts: Any) -> Any:
        step = prompts.meta_info.get("global_steps")
        if step is not None and not prompts.meta_info.get("validate", False):
            self._requests.publish(int(step))
        columns = prompts.non_tensor_batch
        names = columns["uid"].tolist() if "uid" in columns else list(range(len(prompts)))
        rows: dict[Any, list[int]] = {}
        for row, name in enumerate(names):
            rows.setdefault(name, []).append(row)
        tasks = [_task({name: column[members[0]] for name, column in columns.items()}) for members in rows.values()]
        samples: dict[int, Sample] = {}
        for members, group in zip(rows.values(), await self._requests.run(tasks), strict=True):
            samples |= zip(members, attempt_samples(group, len(members)), strict=True)
        return self._batch([samples[row] for row in range(len(names))], columns)

    def _batch(self, samples: list[Sample], columns: Mapping[str, Any]) -> Any:
        import numpy as np

        torch = import_module("torch")
        outputs = [agent_loop_output(sample) for sample in samples]
        before, after = int(self.rollout_config.prompt_length), int(self.rollout_config.response_length)
        for output in outputs:
            _check_length("prompt", len(output.prompt_ids), before)
            _check_length("response", len(output.response_ids), after)

        def padded(values: list[Any], kind: Any) -> Any:
            return torch.tensor([one + [0] * (after - len(one)) for one in values], dtype=kind)

        whole = torch.int64
        left = [[0] * (before - len(output.prompt_ids)) for output in outputs]
        prompts = torch.tensor([pad + one.prompt_ids for pad, one in zip(left, outputs, strict=True)], dtype=whole)
        seen = torch.tensor([pad + [1] * (before - len(pad)) for pad in left], dtype=whole)
        responses = padded([output.response_ids for output in outputs], whole)
        attention = torch.cat([seen, padded([[1] * len(output.response_ids) for output in outputs], whole)], dim=1)
        scores = [[0.0] * (len(one.response_ids) - 1) + [one.reward_score] for one in outputs]
        tensors = {
            "prompts": prompts,
            "responses": responses,
            "response_mask": padded([output.response_mask for output in outputs], whole),
            "input_ids": torch.cat([prompts, responses], dim=1),
            "attention_mask": attention,
            "position_ids": (attention.cumsum(dim=1) - 1).clamp(min=0) * attention,
            "rm_scores": padded(scores, torch.float32),
        }
        if all(output.response_logprobs is not None for output in outputs):
            tensors["rollout_log_probs"] = padded([output.response_logprobs for output in outputs], torch.float32)
        turns = np.array([output.num_turns for output in outputs], dtype=np.int32)
        return import_module("verl.protocol").DataProto.from_dict(
            tensors=tensors,
            non_tensors={**columns, "__num_turns__": turns},
            meta_info={"timing": {}, "reward_extra_keys": []},
        )


def agent_loop_output(sample: Sample) -> Any:
    """Return a sample as verl's `AgentLoopOutput`, for agent loops of your own."""
    module = import_module("verl.experimental.agent_loop.agent_loop")
    prompt, response, mask, logprobs = split(sample)
    versions = sample.versions
    steps = {"min_global_steps": versions[0], "max_global_steps": versions[-1]} if versions else {}
    return module.AgentLoopOutput(
        prompt_ids=prompt,
        response_ids=response,
        response_mask=mask,
        response_logprobs=logprobs,
        reward_score=sample.reward,
        num_turns=2 * len(sample.turns),
        metrics=module.AgentLoopMetrics(),
        extra_fields=steps,
    )


def _task(columns: Mapping[str, Any]) -> dict[str, Any]:
    answer = (columns.get("reward_model") or {}).get("ground_truth")
    metadata = columns.get("extra_info")
    return {
        "question": question_of(columns["raw_prompt"]),
        "answer": answer,
        "metadata": metadata if isinstance(metadata, dict) else {},
    }


def _check_length(what: str, length: int, most: int) -> None:
    if length > most:
        raise UsageError(
            f"a {what} has {length} tokens; raise actor_rollout_ref.rollout.{what}_length, which is {most}"
        )


def _in_event_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def _ready(manager: Any) -> Any:
    return manager
