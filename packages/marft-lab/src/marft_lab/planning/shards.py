"""What a rank holds of weights that lie in parts, while they are together for a moment (:mod:`marft.models.sharding`).

Counted on tensors of FSDP2 in torch 2.13 (``tests/test_plan_ranks.py``). A layer is gathered beside the buffer that it
came in; embeddings, last norm and head stay gathered for a whole pass, and their buffer until the first layer is there.
Where weights are trained, a layer's gradient and the buffer from which it is summed lie beside it, and the head's
gradient until a pass is over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marft.models.shapes import Shape


@dataclass(frozen=True, slots=True)
class Sharded:
    """Weights that lie in ``shares`` parts."""

    name: str
    shape: Shape
    element: float  # bytes of a number
    shares: int
    trained: bool = False

    @property
    def whole(self) -> float:
        return self.element * self.shape.parameters

    @property
    def root(self) -> float:
        """Bytes of what is gathered for a whole pass."""
        return self.element * root_parameters(self.shape)

    @property
    def layer(self) -> float:
        """Bytes of what is gathered for a layer."""
        return self.element * (self.shape.parameters - root_parameters(self.shape)) / self.shape.layers


def root_parameters(shape: Shape) -> int:
    """Of embeddings, the last norm, and a head of its own."""
    return shape.head_parameters * (1 if shape.tied else 2) + shape.hidden


def gathered(backbones: Sequence[Sharded]) -> float:
    """The most that is gathered at a time while ranks learn: what passes leave gathered of each, and of one in a pass
    what comes on top."""
    passing = (one.root + (3 if one.trained else 2) * one.layer for one in backbones)
    return sum(one.root for one in backbones) + max(passing, default=0.0)


def gathering(backbones: Sequence[Sharded]) -> float:
    """The most that the first rank has beside its parts between steps: everything, and the last layer's buffer."""
    return sum(one.whole for one in backbones) + max((one.layer for one in backbones), default=0.0)
