"""Generates a batch with the adapter for verl, computes advantages with verl's own function, and prints them as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np
import torch
from connect import connect, rows
from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

from paragent.training.adapters.verl import VerlAgentLoopManager, agent_loop_output
from paragent.training.client import Sample, Turn


class Manager(VerlAgentLoopManager):
    def open_service(self):  # type: ignore[no-untyped-def]
        return connect()


def main() -> None:
    config = OmegaConf.create({"actor_rollout_ref": {"rollout": {"prompt_length": 512, "response_length": 512}}})
    repeated = [row for row in rows(3) for _ in range(4)]

    def column(name: str) -> np.ndarray:
        values = np.empty(len(repeated), dtype=object)
        values[:] = [row[name] for row in repeated]
        return values

    batch = DataProto.from_dict(
        tensors={"dummy": torch.zeros(len(repeated), 1)},
        non_tensors={"raw_prompt": column("prompt"), "reward_model": column("reward"), "uid": column("uid")},
        meta_info={"global_steps": 7},
    )
    manager = Manager.create(config, llm_client=None)
    output = manager.generate_sequences(batch)
    tensors = output.batch
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=tensors["rm_scores"],
        response_mask=tensors["response_mask"],
        index=output.non_tensor_batch["uid"],
    )
    sample = Sample(
        "t",
        1,
        0,
        [1, 2, 3, 4],
        [0, 1, 0, 1],
        [0.0, -1.0, 0.0, -2.0],
        1.0,
        "completed",
        [Turn(0, 1, 2, 3), Turn(2, 3, 4, 5)],
    )
    report = {
        "shapes": {name: list(tensor.shape) for name, tensor in tensors.items()},
        "seen as sampled": int((tensors["response_mask"] * (1 - tensors["attention_mask"][:, 512:])).sum()),
        "logprobs": tensors["rollout_log_probs"].tolist(),
        "masks": tensors["response_mask"].tolist(),
        "rewards": tensors["rm_scores"].sum(dim=1).tolist(),
        "advantages": advantages.tolist(),
        "turns": output.non_tensor_batch["__num_turns__"].tolist(),
        "output": AgentLoopOutput.model_validate(agent_loop_output(sample)).as_dict()["rollout_log_probs"].tolist(),
        "version": connect().status().version,
    }
    print(json.dumps(report), file=sys.__stdout__)


if __name__ == "__main__":
    main()
