"""Agents on different base models, with different tokenizers, templates and contexts, trained in one team."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from marft.config import parse_recipe
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.helpers import recipe

TEMPLATE = (
    "{% for message in messages %}[{{ message['role'] }}] {{ message['content'] }} / {% endfor %}"
    "{% if add_generation_prompt %}[assistant] {% endif %}"
)


@pytest.fixture(scope="module")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama whose tokens are bytes, with a chat template of its own and a short context."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate([*alphabet, "<end>"])}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", pad_token="<end>")
    fast.chat_template = TEMPLATE
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(fast), hidden_size=48, intermediate_size=64, num_hidden_layers=1, num_attention_heads=3,
        num_key_value_heads=3, max_position_embeddings=400, eos_token_id=fast.eos_token_id, bos_token_id=None,
        pad_token_id=fast.pad_token_id,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("bytes")
    LlamaForCausalLM(config).save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("level", ["action", "token"])
def test_two_bases_train_in_one_team(other_model: Path, level: str, tmp_path: Path) -> None:
    table = recipe("tiny", tmp_path, environment={"name": "tests.plugins:Flaky", "alternates": True})
    table["models"]["other"] = {"path": str(other_model)}
    table["policies"]["actor"] = {"model": "other", "lora": {"rank": 4, "target_modules": ["q_proj", "v_proj"]}}
    run = parse_recipe(table, ["--algorithm.level", level])
    folder = RunFolder.create(run)
    assert train(run, folder).step == 2
    reasoner, actor = read_episodes(folder.episodes / "step_000001.parquet")[0].actions
    assert len(actor.prompt) > 2 * len(reasoner.prompt)  # each reads its own tokens: here one a byte
    assert actor.tokens.max() < 257
    for policy in ("reasoner", "actor"):
        file = folder.checkpoints / "step_000002" / "policies" / policy / "adapter_model.safetensors"
        assert any(t.abs().max() > 0 for key, t in load_file(file).items() if "lora_B" in key), policy
    metrics = folder.read_metrics()
    assert all(row["log_prob_difference_max"] < 1e-4 and row["skipped_updates"] == 0 for row in metrics)


def test_a_frozen_teammate_may_run_on_another_base(other_model: Path, tmp_path: Path) -> None:
    table = recipe("tiny", tmp_path)
    table["models"]["other"] = {"path": str(other_model)}
    table["policies"]["actor"] = {"model": "other", "train": "frozen"}
    folder = RunFolder.create(run := parse_recipe(table))
    assert train(run, folder).step == 2
    assert not (folder.checkpoints / "step_000002" / "policies" / "actor").exists()
