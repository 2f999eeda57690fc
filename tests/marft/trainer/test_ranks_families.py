"""Every family learns on two ranks what it learns on one: adapters, experts, all weights; whole and in parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from marft.common.errors import UserError
from marft.common.token_data import RoutedExperts
from marft.common.types import Action, Episode
from marft.config import RunSettings
from marft.models.policy_registry import PolicyRegistry
from tests.families import EXPERTS, FAMILY, OWN, PACKED, lora_layers, random_team_model
from tests.helpers import settings
from tests.learners import episodes
from tests.marft.trainer.test_ranks_real import SMOOTH, check_learned
from tests.nights import BY_NIGHT
from tests.ranked import together

FUSED_EXPERTS = ["experts.gate_up_proj", "experts.down_proj"]
REPRESENTATIVES = ("Qwen 3.5", "gpt-oss", "Gemma 4")  # recurrent layers, experts and sinks, layers of several kinds
FAMILIES = (*PACKED, "OLMo 3", "EXAONE 4", "Seed-OSS", "ERNIE 4.5", "StarCoder 2", *OWN)
ALONE = ("whole", "all weights")
PARTS = ("in parts", "all weights, in parts")
MIXED = ("experts", "experts, in parts", "replay", "replay, in parts")
PER_START = 7  # families that two ranks take in one start


def team(way: str, name: str, model: Path, output: Path) -> RunSettings:
    """A team of two policies on one base; of a family without linear layers all weights are trained."""
    base: dict[str, Any] = {"path": str(model), "router_replay": "replay" in way}
    base |= {"quantization": "nf4", "quantization_block_size": 32} if "nf4" in way else {}
    lora: dict[str, Any] = {"rank": 4, "target_modules": lora_layers(name, model)}
    lora |= {"target_parameters": FUSED_EXPERTS} if "experts" in way else {}
    adapter, full = {"model": "base", "lora": lora}, {"model": "base", "train": "full"}
    every = "all weights" in way or not lora["target_modules"]
    policies = {"reasoner": adapter if lora["target_modules"] else full, "actor": full if every else adapter}
    small = ("--training.tokens_per_micro_batch", "400", "--algorithm.optimizer.learning_rate", "1e-3")
    return settings(model, output, *SMOOTH, *small, models={"base": base}, policies=policies)


def routed(run: RunSettings, batch: Sequence[Episode]) -> list[Episode]:
    """Episodes whose tokens went to experts that no router selected."""
    replay = PolicyRegistry(run).policies["actor"].backbone.router_replay
    assert replay is not None
    layers, count, random = len(replay.num_experts), min(replay.num_experts), np.random.default_rng(0)

    def recorded(action: Action) -> Action:
        tokens = len(action.prompt) + len(action.tokens) - 1
        order = random.random((tokens, layers, count)).argsort(-1)[..., : replay.experts_per_token]
        return replace(action, experts=(RoutedExperts.from_table(order),))

    return [replace(episode, actions=tuple(map(recorded, episode.actions))) for episode in batch]


def check(way: str, names: Sequence[str], tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Two ranks have the gradients, decisions and weights of one."""
    cases = []
    for name in names:
        model = random_team_model(name, folder / name, tokenizer)
        run = team(way, name, model, folder)
        batch = episodes(3, noise=0.02)
        cases.append((run, "in parts" in way, routed(run, batch) if "replay" in way else batch))
    said = together(2, [("tests.marft.trainer.test_ranks_real:learned", case) for case in cases], folder)
    for (run, _, batch), of_ranks in zip(cases, said, strict=True):
        check_learned(run, batch, of_ranks, within=1e-4)


def starts(ways: Sequence[str], names: Sequence[str]) -> list[Any]:
    parts = [names[first : first + PER_START] for first in range(0, len(names), PER_START)]
    return [pytest.param(way, part, id=f"{way}: {', '.join(part)}") for way in ways for part in parts]


@pytest.mark.slow
def test_two_ranks_learn_what_one_learns(tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    check("in parts", REPRESENTATIVES, tiny_tokenizer, tmp_path)


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "names"),
    [
        *starts(ALONE, FAMILIES),
        *starts(("nf4",), [name for name in FAMILIES if name != "GPT-2"]),  # it has no linear layers
        *starts(PARTS, [name for name in FAMILIES if name not in OWN]),
        *starts(MIXED, EXPERTS),
    ],
)
def test_two_ranks_of_every_family_learn_what_one_learns(
    way: str, names: Sequence[str], tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    if "nf4" in way:
        pytest.importorskip("bitsandbytes")
    check(way, names, tiny_tokenizer, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_a_model_on_its_own_forward_is_refused_in_parts(
    name: str, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    run = team("whole", name, random_team_model(name, tmp_path / name, tiny_tokenizer), tmp_path)
    with pytest.raises(UserError, match=r"runs on transformers' own forward, .* set shard = false"):
        PolicyRegistry(run).shard(lambda _: None)


def test_every_family_of_the_table_is_asked() -> None:
    assert {*FAMILIES, "RWKV 4"} == {*FAMILY}
