"""Ranks that are processes: gradients, decisions and weights are those of one, whole or in parts, and checkpoints fit any
number of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM

from marft.common.types import Episode
from marft.config import RunSettings
from marft.config.interfaces.schedule import Progress
from marft.models.dtensors import full_tensor, local_shard
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.learner import Learner
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.ranks.group import RankGroup
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks
from marft.trainer.ranks.rank_worker import shard_models
from tests.draws import DrawnFrom
from tests.learners import ROLES, episodes, recipe
from tests.nights import BY_NIGHT, NIGHT
from tests.ranked import together

SMOOTH = ("--algorithm.critic.epsilon", "1e-4", "--algorithm.optimizer.epsilon", "1e-4")
FULL = ("--policies.actor.train", "full")
CHECKPOINTED = ("--models.base.gradient_checkpointing", "true")
STOPS = ("--algorithm.epochs", "3", "--algorithm.kl_stop", "1e-6")
CASES: Mapping[str, tuple[bool, str, tuple[str, ...]]] = {  # whether in parts, the preset, overrides
    "LoRA on a base in parts": (True, "marft", SMOOTH),
    "a whole model in parts": (True, "marft", (*SMOOTH, *FULL)),
    "LoRA": (False, "marft", SMOOTH),
    "LoRA on a half-precision base in parts": (True, "marft", (*SMOOTH, "--models.base.dtype", "bfloat16")),
    "a whole model": (False, "marft", (*SMOOTH, *FULL)),
    "LoRA in parts, activations recomputed": (True, "marft", (*SMOOTH, *CHECKPOINTED)),
    "a whole model in parts, activations recomputed": (True, "marft", (*SMOOTH, *FULL, *CHECKPOINTED)),
    "a critic with a body of its own, in parts": (True, "mappo", (*SMOOTH, "--algorithm.critic.body", "lora")),
    "the KL stop, in parts": (True, "ppo", (*SMOOTH, *FULL, *STOPS)),
}
FEW = ("LoRA on a half-precision base in parts", "a whole model in parts", "the KL stop, in parts")


def begun(run: RunSettings, ranks: Ranks, parts: bool) -> Learner:
    """A learner whose adapters say something of their own."""
    torch.manual_seed(0)
    models = PolicyRegistry(run, keep_on_cpu=parts and ranks.rank > 0)
    for role in ROLES:
        for adapter in models.base_models["base"].adapters(role).values():
            torch.nn.init.normal_(adapter.b, std=0.05)
    if parts:
        assert isinstance(ranks, RankGroup)
        shard_models(models, ranks)
    return Learner(run, models, ranks)


def learned(ranks: Ranks, run: RunSettings, parts: bool, batch: list[Episode]) -> Any:
    """The gradients of every step of every policy, metrics, and the weights after it."""
    learner = begun(run, ranks, parts)
    gradients: list[dict[str, Tensor]] = []

    def noting(clip: Callable[[], Tensor], parameters: Mapping[str, torch.nn.Parameter]) -> Callable[[], Tensor]:
        def noted() -> Tensor:
            found = {name: full_tensor(p.grad).clone() for name, p in parameters.items() if p.grad is not None}
            gradients.append({name: g for name, g in found.items() if g.any()})
            return clip()

        return noted

    for optimizer in learner.optimizers.values():
        assert isinstance(optimizer, PolicyOptimizer)
        optimizer.clip_gradient = noting(optimizer.clip_gradient, optimizer.parameters)  # type: ignore[method-assign]
    metrics = learner.learn(batch, Progress(0, 0))
    weights = {
        f"{name}/{key}": full_tensor(parameter.detach()).clone()
        for name, optimizer in learner.optimizers.items()
        for key, parameter in optimizer.parameters.items()
    }
    return gradients, metrics, weights


def held(ranks: Ranks, run: RunSettings) -> tuple[int, int, int]:
    """How many numbers a rank holds of all weights in parts, how many it holds gathered, and how many there are."""
    assert isinstance(ranks, RankGroup)
    models = PolicyRegistry(run, keep_on_cpu=ranks.rank > 0)
    there_are = sum(p.numel() for p in models.policies["actor"].parameters().values())
    shard_models(models, ranks)
    parts = models.policies["actor"].parameters().values()
    in_parts = sum(local_shard(part).numel() for part in parts)
    models.gather_weights(keep=ranks.rank == 0)
    gathered = dict(models.policies["actor"].backbone.model.named_parameters())
    return in_parts, sum(local_shard(tensor).numel() for tensor in gathered.values()), there_are


def copied(ranks: Ranks, run: RunSettings) -> tuple[bool, bool]:
    """Whether weights in the host's memory are those that a rank would gather, after they have moved, too; and whether
    it holds its part alone meanwhile."""
    assert isinstance(ranks, RankGroup)
    models = PolicyRegistry(run, keep_on_cpu=True, skip_forward_check=ranks.rank > 0)
    shard_models(models, ranks)
    policy, first, same = models.policies["actor"], ranks.rank == 0, True
    for _ in range(2):
        models.gather_weights(keep=first)
        right = {name: tensor.clone() for name, tensor in policy.backbone.weights().items()} if first else {}
        models.gather_weights(keep=first, to_cpu=True)
        found = policy.backbone.weights() if first else {}
        same &= found.keys() == right.keys() and all(torch.equal(found[name], right[name]) for name in right)
        with torch.no_grad():
            for parameter in policy.parameters().values():
                local_shard(parameter).add_(1.0)
    held = sum(local_shard(tensor).numel() for tensor in policy.backbone.model.parameters())
    return same, held == sum(local_shard(part).numel() for part in policy.parameters().values())


def batches() -> list[list[Episode]]:
    """Ragged ones, one in which the second agent acts once, so that not every rank has a row of it, and none of it."""
    ragged = episodes(7, noise=0.02)
    return [ragged, [ragged[0], *(replace(episode, actions=episode.actions[:1]) for episode in ragged[1:])]]


def apart(found: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> float:
    """How far gradients are from each other, relative to their length."""
    assert found.keys() == right.keys()
    if not right:  # nobody earned more than others
        return 0.0
    off = torch.cat([(found[name].double() - right[name].double()).reshape(-1) for name in right]).norm()
    return float(off / torch.cat([tensor.double().reshape(-1) for tensor in right.values()]).norm())


def check(count: int, names: tuple[str, ...], folder: Path) -> None:
    """Each case on a ragged batch, the first two also on one in which an agent has no rows on some ranks."""
    ragged, rare = batches()
    asked = [
        (recipe(folder, CASES[name][1], *CASES[name][2]), CASES[name][0], batch)
        for number, name in enumerate(names)
        for batch in ([ragged, rare] if number < 2 else [ragged])
    ]
    works = [("tests.marft.trainer.test_ranks_real:held", (recipe(folder, "marft", *FULL),))]
    works += [("tests.marft.trainer.test_ranks_real:copied", (recipe(folder, "marft", *FULL),))]
    works += [("tests.marft.trainer.test_ranks_real:learned", arguments) for arguments in asked]
    of_held, of_copied, *said = together(count, works, folder)
    check_held(of_held)
    assert of_copied == [(True, True)] * count
    for (run, _, batch), of_ranks in zip(asked, said, strict=True):
        check_learned(run, batch, of_ranks)


def check_learned(run: RunSettings, batch: list[Episode], of_ranks: list[Any], within: float = 1e-6) -> None:
    gradients, metrics, weights = learned(SINGLE_RANK, run, False, batch)
    first = len(run.trained_policies)  # steps on weights that are the same to the bit
    for mine, told, after in of_ranks:
        assert len(mine) == len(gradients)
        assert max(apart(*pair) for pair in zip(mine[:first], gradients[:first], strict=True)) < within
        assert max(apart(*pair) for pair in zip(mine, gradients, strict=True)) < 1e-4
        assert told["kl_stops"] == metrics["kl_stops"]
        assert all(torch.equal(after[name], of_ranks[0][2][name]) for name in after), "ranks drift apart"
        assert all(torch.allclose(after[name], weights[name], rtol=1e-4, atol=2e-6) for name in weights)


def check_held(found: list[tuple[int, int, int]]) -> None:
    """In parts each rank holds an equal part; then the first all of it, and the others nothing more."""
    for rank, (parts, gathered, there_are) in enumerate(found):
        assert parts < 1.02 * there_are / len(found)
        assert gathered == (parts if rank else there_are)


@BY_NIGHT
@pytest.mark.slow
def test_two_ranks_have_the_gradients_of_one_process(tmp_path: Path) -> None:
    check(2, tuple(CASES) if NIGHT else FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="half a minute: make nightly")
def test_four_ranks_have_the_gradients_of_one_process(tmp_path: Path) -> None:
    check(4, tuple(CASES), tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a sixth of a minute: make nightly")
def test_a_head_that_is_no_embedding_gets_its_gradient_though_a_rank_has_no_rows(
    tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase
) -> None:
    """One row for each model: the rank that has none of it passes through all but its head."""
    config = Qwen2Config(
        vocab_size=len(tiny_tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=False,
        eos_token_id=tiny_tokenizer.eos_token_id, pad_token_id=tiny_tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    with DrawnFrom(7):
        Qwen2ForCausalLM(config).save_pretrained(tmp_path / "model")
    tiny_tokenizer.save_pretrained(tmp_path / "model")
    run = recipe(tmp_path, "marft", *SMOOTH, *FULL, "--models.base.path", str(tmp_path / "model"))
    batch = episodes(2, noise=0.02)[1:]
    (said,) = together(2, [("tests.marft.trainer.test_ranks_real:learned", (run, True, batch))], tmp_path)
    check_learned(run, batch, said)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a sixth of a minute: make nightly")
def test_a_critic_of_its_own_body_in_parts_is_fitted_though_a_rank_reads_nothing(tmp_path: Path) -> None:
    """It gathers layers for the other's backward pass, too."""
    run = recipe(tmp_path, "mappo", *SMOOTH, "--algorithm.critic.body", "lora")
    batch = [replace(episode, actions=episode.actions[:1]) for episode in episodes(2, noise=0.02)[1:]]
    (said,) = together(2, [("tests.marft.trainer.test_ranks_real:learned", (run, True, batch))], tmp_path)
    check_learned(run, batch, said)


def test_what_is_to_lie_in_parts_is_loaded_into_the_hosts_memory_and_no_further(tmp_path: Path) -> None:
    """A device that holds no numbers would have none to take parts of."""
    run = recipe(tmp_path, "marft", *FULL).model_copy(update={"device": "meta"})
    models = PolicyRegistry(run, keep_on_cpu=True)
    assert models.device.type == "meta"
    weights = [tensor for _, backbone in models.list_backbones() for tensor in backbone.model.state_dict().values()]
    assert {tensor.device.type for tensor in weights} == {"cpu"}
