"""Memory of sharded weights while they are gathered (:mod:`marft.models.sharding`).

The counts are measured on tensors of FSDP2 in torch 2.13 (``tests/marft_lab/test_plan_ranks.py``). A gathered layer
coexists with its communication buffer. Embeddings, last norm and head stay gathered for a whole pass, and their buffer
stays until the first layer is gathered. For trained weights, a layer's gradient and its reduction buffer come on top,
and the head's gradient until the end of the pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from marft.models.model_sizes import ModelSizes


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
