"""Runs TRL's `AsyncGRPOTrainer` for some steps on a CPU, with rollouts of the service, and prints what happened as JSON.

Two functions of TRL that only work on a GPU are replaced: the attention kernel, by the same computation with torch, and the
lookup of the GPU's speed. The weights are not sent anywhere: the endpoint of the test serves another policy.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from connect import QUESTIONS, connect
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer, async_grpo_trainer, packing

from paragent.training.adapters.trl import TrlRolloutWorker, TrlWeightTransfer

STEPS = 4


def attention(query: Any, key: Any, value: Any, queries: Any, keys: Any, *_: Any, softmax_scale: Any, **__: Any) -> Any:
    """Compute causal attention of packed sequences."""
    repeat = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeat, 1), value.repeat_interleave(repeat, 1)
    parts = []
    for begin, end, first, last in zip(queries[:-1], queries[1:], keys[:-1], keys[1:], strict=True):
        one = (part.transpose(0, 1) for part in (query[begin:end], key[first:last], value[first:last]))
        mask = torch.ones(int(end - begin), int(last - first), dtype=torch.bool).tril(int(last - first - end + begin))
        result = torch.nn.functional.scaled_dot_product_attention(*one, attn_mask=mask, scale=softmax_scale)
        parts.append(result.transpose(0, 1))
    return torch.cat(parts)


def save_model(folder: Path) -> None:
    """Save a model with random weights and a tokenizer; the scripted endpoint has fewer than 512 tokens."""
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({str(number): number for number in range(512)}, unk_token="0"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="5", pad_token="0").save_pretrained(folder)


def main() -> None:
    vars(packing)["_flash_attn"] = lambda: SimpleNamespace(flash_attn_varlen_func=attention)
    async_grpo_trainer.get_peak_flops_per_device = lambda *_: None
    service = connect()
    with service, tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        save_model(folder)
        service.add(
            {"id": f"{step}/{question}", "question": question, "answer": answer}
            for step in range(10)
            for question, answer in QUESTIONS
        )
        worker = TrlRolloutWorker(service)
        trainer = AsyncGRPOTrainer(
            str(folder),
            args=AsyncGRPOConfig(
                str(folder / "out"),
                max_steps=STEPS,
                per_device_train_batch_size=8,
                gradient_accumulation_steps=1,
                weight_sync_steps=1,
                token_budget=0,
                num_generations=4,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                bf16=False,
                gradient_checkpointing=False,
                max_staleness=4,
            ),
            train_dataset=Dataset.from_dict({"prompt": ["not used"]}),
            rollout_worker=worker,
            weight_transfer=TrlWeightTransfer(service),
        )
        before = {name: weights.detach().clone() for name, weights in trainer.model.named_parameters()}
        trainer.train()
        changed = [name for name, weights in trainer.model.named_parameters() if not torch.equal(before[name], weights)]
        status = service.status()
        report = {
            "steps": [entry for entry in trainer.state.log_history if "loss" in entry],
            "changed": len(changed),
            "version": status.version,
            "accepted": status.accepted,
        }
    print(json.dumps(report), file=sys.__stdout__)


if __name__ == "__main__":
    main()
