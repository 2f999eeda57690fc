"""Floating-point operations per token, forward and backward.

N is the number of layer weights, V·D the number of head weights (Kaplan et al. 2020; attention as in Narayanan et al.
2021, halved for causality). The forward takes 2·N. The backward takes 2·N more through a frozen base, or 4·N for
trained weights. Gradient checkpointing adds another 2·N. Attention over a row of T tokens takes 2·T·Q per layer and
token in the forward, and 2.5 times as much in the backward.
"""

from __future__ import annotations

from marft.models.model_sizes import ModelSizes

BACKWARD_FACTOR = 2.5  # multiple of the attention forward (Dao 2023, FlashAttention-2)


def forward_flops(shape: ModelSizes, length: float, head_share: float = 0.0) -> float:
    """Return the forward operations per token for a row with ``length`` tokens.

    Args:
        head_share: share of the tokens with computed logits.
    """
    attention = 2.0 * length * shape.query_dim * shape.layers
    return 2.0 * shape.matrix_parameters + attention + 2.0 * shape.head_parameters * head_share


def training_flops(
    shape: ModelSizes,
    length: float,
    head_share: float,
    adapter: int,
    *,
    full_training: bool,
    checkpointing: bool = False,
    half_products: bool = False,
) -> float:
    """Return the operations per trained token, forward and backward, for a row with ``length`` tokens.

    The gradient through a frozen head is computed in the forward: one more product, or two on a GPU in half precision
    (:mod:`marft.models.log_probs`). A trained head takes four products.

    Args:
        head_share: share of the tokens with computed logits.
        adapter: number of trained adapter parameters; 0 without an adapter.
        full_training: whether the model's own weights are trained.
        checkpointing: whether activations are recomputed (gradient checkpointing).
        half_products: whether the gradient through a frozen head takes two half-precision products.
    """
    attention = 2.0 * length * shape.query_dim * shape.layers
    layers = 2.0 * shape.matrix_parameters * ((3 if full_training else 2) + checkpointing)
    head_factor = 4 if full_training else 3 if half_products else 2
    return (
        layers
        + 6.0 * adapter
        + attention * (1 + BACKWARD_FACTOR + checkpointing)
        + 2.0 * head_factor * shape.head_parameters * head_share
    )
