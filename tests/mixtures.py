"""Small random mixtures of experts with the tiny model's tokenizer, and rows sampled from them with records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from marft.agents.streaming import Detokenizer
from marft.common.types import SamplingParams
from marft.config.models import ModelSettings
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from tests.families import FAMILY, random_model

CPU = torch.device("cpu")


def mixture(family: str, folder: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """Save a random model of a family that the tiny model's tokenizer fits, with eight experts."""
    config = FAMILY[family].small_config()
    config.vocab_size, config.max_position_embeddings = len(tokenizer), 512
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if hasattr(config, name):
            setattr(config, name, 8)
    config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    config.bos_token_id = None
    random_model(config, folder)
    tokenizer.save_pretrained(folder)
    return folder


def loaded(folder: Path, dtype: torch.dtype = torch.float32, **settings: Any) -> Backbone:
    """A model whose routers are recorded and replayed, unless ``settings`` say otherwise."""
    return load_backbone(ModelSettings(path=str(folder), **{"router_replay": True, **settings}), CPU, dtype)


def sampled(
    backbone: Backbone,
    prompts: Sequence[np.ndarray],
    policies: Sequence[str | None],
    tokens: int = 6,
    batch: RunningBatch | None = None,
    task_pass: str = "",
) -> list[RowResult]:
    """Rows of different lengths, of which the last half joins late; in the order of the prompts."""
    if batch is None:
        batch = RunningBatch(backbone, [], lambda: Detokenizer(str))
    uniforms = [np.random.default_rng(n).random(tokens + n, np.float32) for n in range(len(prompts))]
    requests = [
        DecodeRequest(policy, prompt, SamplingParams(max_new_tokens=len(own)), own, task_pass)
        for prompt, policy, own in zip(prompts, policies, uniforms, strict=True)
    ]
    half = len(requests) // 2
    finished = batch.admit(requests[: len(requests) - half])
    finished += batch.step()
    finished += batch.admit(requests[len(requests) - half :]) if half else []
    while len(batch):
        finished += batch.step()
    order = {id(request): n for n, request in enumerate(requests)}
    assert not any(result.error for result in finished)
    return sorted(finished, key=lambda result: order[id(result.row)])
