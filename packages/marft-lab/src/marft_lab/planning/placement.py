"""Placement of models on ranks (docs/scaling.md), and memory of sharded weights while they are gathered.

The counts are measured on tensors of FSDP2 in torch 2.13 (``tests/marft_lab/test_plan_ranks.py``). A gathered layer
coexists with its communication buffer. Embeddings, last norm and head stay gathered for a whole pass, and their buffer
stays until the first layer is gathered. For trained weights, a layer's gradient and its reduction buffer come on top,
and the head's gradient until the end of the pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from marft.config.run import RunSettings
from marft.models.model_sizes import ModelSizes


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """Ranks of a training run.

    Args:
        ranks: number of ranks.
        shard: True if trained weights are sharded over the ranks.
        offload: True if optimizer moments are in host memory.
        model_ranks: ranks of each model with a placement; other models use all ranks.
    """

    ranks: int = 1
    shard: bool = False
    offload: bool = False
    model_ranks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def from_run(run: RunSettings, ranks: int, shard: bool) -> RankPlacement:
        """Return a recipe's placement."""
        model_ranks = {name: tuple(sorted(model.ranks)) for name, model in run.models.items() if model.ranks}
        return RankPlacement(ranks, shard and ranks > 1, run.training.offload_optimizer, model_ranks)

    def ranks_of(self, model: str) -> tuple[int, ...]:
        """Return the ranks that train on a model."""
        return self.model_ranks.get(model) or tuple(range(self.ranks))

    def trains(self, rank: int, model: str) -> bool:
        """Return True if a rank trains on a model."""
        return rank in self.ranks_of(model)

    def holds(self, rank: int, model: str) -> bool:
        """Return True if a rank holds a model's weights; rank 0 holds all weights for sampling and checkpoints."""
        return rank == 0 or self.trains(rank, model)

    def shard_count(self, rank: int, model: str) -> int:
        """Return a model's number of shards on a rank; 1 for full weights."""
        return len(self.ranks_of(model)) if self.shard and self.trains(rank, model) else 1

    def equal_ranks(self) -> list[tuple[int, ...]]:
        """Return groups of ranks with equal content; rank 0 has its own group.

        >>> RankPlacement(ranks=4).equal_ranks()
        [(0,), (1, 2, 3)]
        >>> RankPlacement(ranks=4, model_ranks={"a": (0, 1), "b": (2, 3)}).equal_ranks()
        [(0,), (1,), (2, 3)]
        """
        groups: dict[tuple[str, ...], tuple[int, ...]] = {}
        for rank in range(1, self.ranks):
            key = tuple(name for name in self.model_ranks if self.trains(rank, name))
            groups[key] = (*groups.get(key, ()), rank)
        return [(0,), *groups.values()]


def rank_label(ranks: tuple[int, ...], of: int) -> str:
    """Return the label of a rank group in a plan.

    >>> rank_label((0,), 1), rank_label((0,), 4), rank_label((1, 2, 3), 4), rank_label((3,), 4), rank_label((1, 3), 4)
    ('the run', 'the run, rank 0 of 4', 'each of ranks 1 to 3', 'rank 3', 'each of ranks 1, 3')
    """
    if of == 1:
        return "the run"
    if ranks == (0,):
        return f"the run, rank 0 of {of}"
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if ranks[-1] - ranks[0] + 1 == len(ranks):
        return f"each of ranks {ranks[0]} to {ranks[-1]}"
    return f"each of ranks {', '.join(map(str, ranks))}"


@dataclass(frozen=True, slots=True)
class ShardedWeights:
    """Weights in ``shares`` shards."""

    name: str
    shape: ModelSizes
    element: float  # bytes per number
    shares: int
    trained: bool = False

    @property
    def full_bytes(self) -> float:
        """Bytes of the full weights."""
        return self.element * self.shape.parameters

    @property
    def root_bytes(self) -> float:
        """Bytes gathered for a whole pass."""
        return self.element * root_parameters(self.shape)

    @property
    def layer_bytes(self) -> float:
        """Bytes gathered for one layer."""
        return self.element * (self.shape.parameters - root_parameters(self.shape)) / self.shape.layers


def root_parameters(shape: ModelSizes) -> int:
    """Return the number of parameters in embeddings, last norm and untied head."""
    return shape.head_parameters * (1 if shape.tied_embeddings else 2) + shape.hidden_size


def peak_gathered_bytes(backbones: Sequence[ShardedWeights]) -> float:
    """Return the peak gathered bytes during training: every backbone's root weights, plus the active pass's layers."""
    pass_bytes = (weights.root_bytes + (3 if weights.trained else 2) * weights.layer_bytes for weights in backbones)
    return sum(weights.root_bytes for weights in backbones) + max(pass_bytes, default=0.0)


def full_gather_bytes(backbones: Sequence[ShardedWeights]) -> float:
    """Return the peak gathered bytes on rank 0 between steps: all full weights and the buffer of the last layer."""
    return sum(weights.full_bytes for weights in backbones) + max(
        (weights.layer_bytes for weights in backbones), default=0.0
    )
