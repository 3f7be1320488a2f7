"""Generates a batch with SkyRL's own functions around the adapter, and prints what SkyRL makes of it as JSON.

Python 3.11 cannot import SkyRL 0.3.0: pydantic needs `TypedDict` of typing_extensions there. So it is replaced first.
"""

from __future__ import annotations

import asyncio
import json
import sys
import typing
from types import SimpleNamespace

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict

from connect import connect, rows  # noqa: E402
from skyrl.train.dataset.preprocess import convert_prompts_responses_to_batch_tensors  # noqa: E402
from skyrl.train.generators.base import GeneratorInterface  # noqa: E402
from skyrl.train.generators.utils import get_metrics_from_generator_output, prepare_generator_input  # noqa: E402
from skyrl.train.utils.trainer_utils import validate_generator_output  # noqa: E402

from paragent.training.adapters.skyrl import SkyRlGenerator  # noqa: E402


def main() -> None:
    prompts = [
        {"prompt": row["prompt"], "env_class": None, "env_extras": {"reward_spec": row["reward"]}, "uid": row["uid"]}
        for row in rows(3)
    ]
    batch, uids = prepare_generator_input(prompts, 4, {}, "none", "train", 7)
    with connect() as service:
        generator = SkyRlGenerator(service)
        output = asyncio.run(generator.generate(batch))
        status = service.status()
    validate_generator_output(len(batch["prompts"]), output)
    tensors = convert_prompts_responses_to_batch_tensors(
        SimpleNamespace(pad_token_id=0),
        output["prompt_token_ids"],
        output["response_ids"],
        [[reward] * len(ids) for reward, ids in zip(output["rewards"], output["response_ids"], strict=True)],
        output["loss_masks"],
        output["rollout_logprobs"],
    )
    report = {
        "is generator": isinstance(generator, GeneratorInterface),
        "metrics": get_metrics_from_generator_output(output, uids),
        "shapes": [list(tensor.shape) for tensor in tensors if tensor is not None],
        "prompts": [list(ids) for ids in output["prompt_token_ids"]],
        "logprobs": output["rollout_logprobs"],
        "masks": output["loss_masks"],
        "version": status.version,
        "accepted": status.accepted,
    }
    print(json.dumps(report), file=sys.__stdout__)


if __name__ == "__main__":
    main()
