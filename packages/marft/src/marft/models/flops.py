"""Operations of a token, forward and backward.

With N the weights of the layers and V·D those of the head (Kaplan et al. 2020; attention as in Narayanan et al. 2021,
half of it for causality): 2·N forward; backward 2·N more through a frozen base, 4·N where weights are trained; 2·N
again with gradient checkpointing. Attention of a row of T tokens takes 2·T·Q a layer and token forward, and two and a
half times as much backward.
"""

from __future__ import annotations

from marft.models.shapes import Shape

BACK = 2.5  # of attention's forward (Dao 2023, FlashAttention-2)


def forward_flops(shape: Shape, length: float, head_share: float = 0.0) -> float:
    """Return the operations of a token of a row of ``length``, forward.

    Args:
        head_share: share of the tokens whose logits are made.
    """
    attention = 2.0 * length * shape.queries * shape.layers
    return 2.0 * shape.matrix_parameters + attention + 2.0 * shape.head_parameters * head_share


def training_flops(
    shape: Shape, length: float, head_share: float, adapter: int, *, whole: bool, recomputes: bool = False,
    halves: bool = False,
) -> float:  # fmt: skip
    """Return the operations of a token of a row of ``length`` that is learned from, forward and backward.

    A frozen head's slope is taken in the forward pass: one product more, on a GPU in half precision two
    (:mod:`marft.models.log_probs`). A trained head is gone through four times.

    Args:
        head_share: share of the tokens whose logits are made.
        adapter: parameters of the adapter that is trained; 0 without one.
        whole: the model's own weights are trained.
        recomputes: activations are computed again (gradient checkpointing).
        halves: a frozen head's slope is taken in two halves.
    """
    attention = 2.0 * length * shape.queries * shape.layers
    layers = 2.0 * shape.matrix_parameters * ((3 if whole else 2) + recomputes)
    products = 4 if whole else 3 if halves else 2
    return (
        layers
        + 6.0 * adapter
        + attention * (1 + BACK + recomputes)
        + 2.0 * products * shape.head_parameters * head_share
    )
