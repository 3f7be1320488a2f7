"""Adapter for SkyRL: a generator for its trainers (`skyrl.train.generators.base.GeneratorInterface`)."""

from __future__ import annotations

import statistics
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paragent.errors import UsageError
from paragent.training.adapters.group_requests import GroupRequests, attempt_samples, question_of, split

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paragent.training.client import RemoteRolloutService, Sample
    from paragent.training.service import RolloutService

__all__ = ["SkyRlGenerator"]


class SkyRlGenerator:
    """Executes the prompts of a SkyRL trainer as rollouts. Return it from `BasePPOExp.get_generator`.

    A prompt is a task: its question is the last user message, its answer is `reward_spec["ground_truth"]` of the dataset (or
    `answer`), its metadata are the other columns. The global step of SkyRL is the version of the policy. SkyRL's own
    environments and sampling settings are not used. SkyRL computes the advantages.

    Args:
        service: the service, which is open; `Groups(n=...)` must be SkyRL's `n_samples_per_prompt`. For evaluations with
            another number, use another service.
        evaluation: the service for evaluations; None: the same.
    """

    def __init__(
        self,
        service: RolloutService | RemoteRolloutService,
        evaluation: RolloutService | RemoteRolloutService | None = None,
    ) -> None:
        import_module("skyrl.train.generators.base").GeneratorInterface.register(type(self))
        self._training = GroupRequests(service)
        self._evaluation = self._training if evaluation is None else GroupRequests(evaluation)

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return the trajectories of a batch, in its order: see SkyRL's `GeneratorOutput`.

        Raises:
            UsageError: the batch has no trajectory ids, or an attempt does not fit SkyRL's format.
        """
        ids, metadata = input_batch.get("trajectory_ids"), input_batch.get("batch_metadata")
        if not ids:
            raise UsageError("the batch has no trajectory_ids, which say which prompts belong to a group")
        requests = self._training
        if metadata is not None and metadata.training_phase == "eval":
            requests = self._evaluation
        elif metadata is not None:
            requests.publish(metadata.global_step)
        rows: dict[str, list[int]] = {}
        for row, one in enumerate(ids):
            rows.setdefault(one.instance_id, []).append(row)
        extras = input_batch.get("env_extras") or [{}] * len(ids)
        tasks = [_task(input_batch["prompts"][members[0]], extras[members[0]]) for members in rows.values()]
        samples: dict[int, Sample] = {}
        for members, group in zip(rows.values(), await requests.run(tasks), strict=True):
            samples |= zip(members, attempt_samples(group, len(members)), strict=True)
        return _output([samples[row] for row in range(len(ids))], ids)


def _task(prompt: Any, extras: Mapping[str, Any] | None) -> dict[str, Any]:
    extras = extras or {}
    spec = extras.get("reward_spec") or extras.get("reward_model") or {}
    answer = spec.get("ground_truth", extras.get("answer"))
    return {"question": question_of(prompt), "answer": answer, "metadata": dict(extras)}


def _output(samples: list[Sample], ids: list[Any]) -> dict[str, Any]:
    parts = [split(sample) for sample in samples]
    prompts, responses, masks, logprobs = (list(column) for column in zip(*parts, strict=True))
    return {
        "prompt_token_ids": prompts,
        "response_ids": responses,
        "rewards": [sample.reward for sample in samples],
        "loss_masks": masks,
        "stop_reasons": [sample.status for sample in samples],
        "rollout_metrics": {"paragent/turns": statistics.fmean(len(sample.turns) for sample in samples)},
        "rollout_logprobs": None if None in logprobs else logprobs,
        "trajectory_ids": ids,
        "trajectory_generation_times": None,
        "rollout_expert_indices": None,
        "is_last_step": None,
        "env_metrics": None,
        "pixel_values": None,
        "image_grid_thw": None,
    }
