"""What a rank holds of weights in parts, and that what it reads is what they are now. The rank is the only one here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from marft.config.algorithm import OptimizerSettings
from marft.models.backbone import Backbone
from marft.models.dtensors import full_tensor as gathered
from marft.models.dtensors import is_sharded, local_shard
from marft.models.packed_rows import PackedRows
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.optimizers import PolicyOptimizer, optimizer_tensors, restore_optimizer
from marft.trainer.ranks.group import RankGroup
from marft.trainer.ranks.rank_worker import shard_models
from tests.learners import recipe


@pytest.fixture
def models(tmp_path: Path) -> Iterator[PolicyRegistry]:
    group = RankGroup(str(tmp_path / "meeting"), 0, 1, torch.device("cpu"), 10.0)
    made = PolicyRegistry(recipe(tmp_path, "grpo", "--policies.actor.train", "full"))
    shard_models(made, group)
    yield made
    group.close()


def whole(backbone: Backbone) -> set[str]:
    """The names of weights that are held gathered: "layer" of any of a layer's, "other" of any other."""
    named = backbone.model.named_parameters()
    return {"layer" if ".layers." in name else "other" for name, tensor in named if not is_sharded(tensor)}


def read(backbone: Backbone) -> Tensor:
    rows = PackedRows.from_rows([np.array([5, 6, 7], np.int32)], [None], backbone.device)
    return backbone.hidden_states(rows).detach().clone()


def moved(backbone: Backbone) -> None:
    assert backbone.shards is not None
    with torch.no_grad():
        for parameter in backbone.shards.parameters.values():
            local_shard(parameter).mul_(1.5)


def test_layers_are_held_in_parts_but_for_the_rank_that_gathers_until_it_lets_go(models: PolicyRegistry) -> None:
    backbone = models.policies["actor"].backbone
    models.gather_weights(keep=False)
    assert whole(backbone) == set()
    models.gather_weights(keep=True)
    assert whole(backbone) == {"layer", "other"}
    gathered = read(backbone)
    models.release_weights()
    assert torch.equal(read(backbone), gathered)
    assert "layer" not in whole(backbone)


@pytest.mark.parametrize("gathers", [True, False])
def test_a_pass_reads_weights_as_they_are_now(gathers: bool, models: PolicyRegistry) -> None:
    """What a pass has gathered is kept after it, and is not moved by a step."""
    backbone = models.policies["actor"].backbone
    before = read(backbone)
    moved(backbone)
    if gathers:
        models.gather_weights(keep=True)
    assert not torch.equal(read(backbone), before)


def test_moments_of_a_checkpoint_are_read_whole_and_held_as_their_weights_are(models: PolicyRegistry) -> None:
    """It may be of another number of ranks."""
    named = models.policies["actor"].parameters()
    mine = PolicyOptimizer(named, OptimizerSettings(), 0.1, 10)
    tensors = {f"{name}.{key}": torch.ones(p.shape) for name, p in named.items() for key in ("exp_avg", "exp_avg_sq")}
    restore_optimizer(mine.optimizer, named, tensors | {f"{name}.step": torch.ones(()) for name in named})
    found = optimizer_tensors(mine.optimizer, named)
    assert found.keys() >= tensors.keys()
    assert all(is_sharded(found[name]) and torch.equal(gathered(found[name]), right) for name, right in tensors.items())
