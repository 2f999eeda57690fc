"""Placement of models on ranks: trained models and held weights of each rank (docs/scaling.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marft.config.run import RunSettings


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
