"""vLLM samples from families of models with the log-probs that the learner gives: ``make test-vllm``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from marft.common.types import ActionKey, Prompt, SamplingParams
from marft.models.log_probs import score_tokens
from marft.models.packed_rows import PackedRows
from marft.rollout.local_runner import LocalRolloutRunner
from tests.families import lora_layers, random_team_model
from tests.helpers import settings
from tests.marft_serve import test_vllm
from tests.marft_serve.test_vllm import CLOSE, VLLM

pytestmark = test_vllm.pytestmark
SIZES = {"hidden_size": 128, "head_dim": 32, "intermediate_size": 96, "mamba_d_head": 64, "query_pre_attn_scalar": 32}
PROMPT = np.arange(5, 45, dtype=np.int32)


def scored(rollouts: LocalRolloutRunner, policy: str, tokens: np.ndarray) -> np.ndarray:
    """Log-probs of tokens after the prompt, by the learner's forward, [T]."""
    backbone = rollouts.models.policies["actor"].backbone
    rows = PackedRows.from_rows([np.concatenate([PROMPT, tokens])], [policy], torch.device("cpu"))
    with torch.inference_mode():
        hidden = backbone.hidden_states(rows)[len(PROMPT) - 1 : -1]
        return score_tokens(hidden, backbone.output_head, torch.from_numpy(tokens).long(), None).log_probs.numpy()


@pytest.mark.parametrize("name", ["Qwen 3", "Llama", "Granite 4 hybrid"])
def test_sampled_tokens_have_the_learners_log_probs(
    name: str, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Adapters on all linear layers; one of them is as it began, and an adapter's answers are drawn after another's."""
    model = random_team_model(name, tmp_path / "model", tiny_tokenizer, SIZES)
    policy = {"model": "base", "lora": {"rank": 4, "target_modules": lora_layers(name, model)}}
    run = settings(model, tmp_path, *VLLM, policies={"reasoner": policy, "actor": policy})
    with LocalRolloutRunner(run) as rollouts:
        for adapter in rollouts.models.policies["actor"].backbone.adapters("actor").values():
            torch.nn.init.normal_(adapter.b, std=0.1)
        rollouts.publish(3)
        for call, role in enumerate(("actor", "reasoner", "actor")):
            key = ActionKey("train/0", "t", 0, 0, role, call)
            sampling = rollouts.engine.sample(role, Prompt(PROMPT), SamplingParams(max_new_tokens=24), key)
            answer = rollouts.wait_for(sampling)
            assert np.abs(scored(rollouts, role, answer.tokens) - answer.log_probs).max() < CLOSE
