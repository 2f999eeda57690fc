"""Placement of models on ranks: trained models and held weights of each rank (docs/scaling.md)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from marft.config.run import RunSettings


@dataclass(frozen=True, slots=True)
class Company:
    """Ranks of a training run.

    Args:
        ranks: number of ranks.
        shard: True if trained weights are sharded over the ranks.
        offload: True if optimizer moments are in host memory.
        placed: ranks of each model with a placement; other models use all ranks.
    """

    ranks: int = 1
    shard: bool = False
    offload: bool = False
    placed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @staticmethod
    def of(run: RunSettings, ranks: int, shard: bool) -> Company:
        """Return a recipe's placement."""
        placed = {name: tuple(sorted(model.ranks)) for name, model in run.models.items() if model.ranks}
        return Company(ranks, shard and ranks > 1, run.training.offload_optimizer, placed)

    def on(self, model: str) -> tuple[int, ...]:
        """Return the ranks that train on a model."""
        return self.placed.get(model) or tuple(range(self.ranks))

    def learns(self, rank: int, model: str) -> bool:
        """Return True if a rank trains on a model."""
        return rank in self.on(model)

    def holds(self, rank: int, model: str) -> bool:
        """Return True if a rank holds a model's weights; rank 0 holds all weights for sampling and checkpoints."""
        return rank == 0 or self.learns(rank, model)

    def shares(self, rank: int, model: str) -> int:
        """Return a model's number of shards on a rank; 1 for full weights."""
        return len(self.on(model)) if self.shard and self.learns(rank, model) else 1

    def alike(self) -> list[tuple[int, ...]]:
        """Return groups of ranks with equal content; rank 0 has its own group.

        >>> Company(ranks=4).alike()
        [(0,), (1, 2, 3)]
        >>> Company(ranks=4, placed={"a": (0, 1), "b": (2, 3)}).alike()
        [(0,), (1,), (2, 3)]
        """
        found: dict[tuple[str, ...], tuple[int, ...]] = {}
        for rank in range(1, self.ranks):
            key = tuple(name for name in self.placed if self.learns(rank, name))
            found[key] = (*found.get(key, ()), rank)
        return [(0,), *found.values()]


def named(ranks: tuple[int, ...], of: int) -> str:
    """Return the label of a rank group in a plan.

    >>> named((0,), 1), named((0,), 4), named((1, 2, 3), 4), named((3,), 4), named((1, 3), 4)
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
