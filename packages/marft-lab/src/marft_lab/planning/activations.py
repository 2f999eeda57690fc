"""Activation memory: tensors saved by a forward pass for its backward pass, and peak extra memory of both passes.

The counts follow :mod:`marft.models`: the saved tensors of each part, and their precision. D is the model's width, and
I the width of the feed-forward. Q and K are the sizes of a token's queries and keys. H is the number of heads, and e
the bytes per number.

- A frozen base on a CPU saves three groups per layer and token, all in float32. They are the two residual streams and
  their norms, 4·D; queries, keys, values and the attention output, 2·Q + 2·K + H; the feed-forward's two products, 2·I.
- A frozen base on a GPU saves the two streams in float32. The attention tensors as above and three products of the
  feed-forward take e bytes per number. Each adapter adds a float32 copy of its input.
- Trained weights save the inputs of each layer, 2·D, 3·Q + 2·K, 4·I, in e bytes. In float32 they save the norms, 4·D,
  and H.
"""

from __future__ import annotations

from dataclasses import dataclass

from marft.models.cards import Precision
from marft.models.shapes import Shape
from marft_lab.planning.work import PolicyWork

PADDING = 1.09  # mean padding factor of attention rows over lengths (models/attention.py, padded_length)
BLOCK = 1536  # rows per feed-forward block on a CPU (models/adapted.py)
# logits per chunk, minimum rows, and maximum logits for the minimum rows (models/log_probs.py)
CHUNK = 2**22, 256, 2**24
PREFILL = 8192  # tokens per prefill forward pass (inference/decoding.py)
FLOAT = 4


@dataclass(frozen=True, slots=True)
class Pass:
    """Forward pass of a training update.

    Args:
        shape: sizes of the model.
        precision: precision of the model.
        tokens: tokens of the micro-batch.
        scored: tokens with log-probabilities.
        policies: policies with rows in the micro-batch; on a GPU each policy's adapter reads the whole batch.
        recomputes: True for gradient checkpointing.
    """

    shape: Shape
    precision: Precision
    tokens: float
    scored: float  # tokens with log-probabilities
    policies: tuple[PolicyWork, ...]
    recomputes: bool = False  # gradient checkpointing

    @property
    def trained_whole(self) -> bool:
        """True if any policy trains all its weights."""
        return any(policy.train == "full" for policy in self.policies)

    @property
    def element(self) -> int:
        """Bytes per number."""
        return self.precision.element

    @property
    def fused(self) -> bool:
        """True if layers with the same input are computed together: a frozen base on a CPU."""
        return self.precision.on_cpu and not self.trained_whole and not self.recomputes


def kept_of_layer(one: Pass) -> float:
    """Return the bytes that a layer saves per token until its backward pass."""
    shape = one.shape
    wide, inner, queries, keys, e = shape.hidden, shape.intermediate, shape.queries, shape.keys, one.element
    attention = PADDING * (e * (2 * queries + 2 * keys) + FLOAT * shape.heads)
    norms = FLOAT * (queries + keys) * shape.head_norms
    if one.fused:
        low = sum(policy.rank * len(policy.targets) for policy in one.policies) / len(one.policies)
        return FLOAT * (4 * wide + queries + 2 * inner + low) + attention + norms
    if one.trained_whole:
        return FLOAT * 4 * wide + e * (2 * wide + queries + 4 * inner) + attention + 2 * norms
    copies: float = sum(
        FLOAT * (shape.linear_layers()[target.rpartition(".")[2]][0] + policy.rank)
        for policy in one.policies
        for target in policy.targets
    )
    if one.precision.on_cpu:
        copies /= len(one.policies)  # on a CPU, each adapter only reads its own rows
    return FLOAT * 2 * wide + attention + norms + 3 * e * inner + copies


def kept(one: Pass) -> float:
    """Return the bytes saved until the backward pass begins.

    With gradient checkpointing, only the residual stream between layers is saved.
    """
    if one.recomputes:
        return one.tokens * (one.shape.layers + 1) * FLOAT * one.shape.hidden
    last_norm = 2 * FLOAT * one.shape.hidden * one.trained_whole
    return one.tokens * (one.shape.layers * kept_of_layer(one) + last_norm)


def beside(one: Pass) -> float:
    """Return the peak extra bytes besides the saved tensors: a chunk of logits, or the backward pass of a layer."""
    return max(head(one), back(one))


def head(one: Pass) -> float:
    """Return the output head's peak bytes; log-probabilities are computed in chunks.

    The chunks follow :mod:`marft.models.log_probs`. A chunk holds logits and their exponentials in float32. The
    previous chunk or, on a GPU, a half-precision sum for the gradient product comes on top, and twice the gradients of
    all tokens.
    """
    if one.trained_whole:  # logits, their softmax and gradients, and the head's gradient of a chunk
        return 6 * FLOAT * chunk_rows(one) * one.shape.vocabulary + FLOAT * one.shape.head_parameters
    return 4 * FLOAT * chunk_rows(one) * one.shape.vocabulary + 2 * FLOAT * one.scored * one.shape.hidden


def back(one: Pass) -> float:
    """Return the gradients' bytes for a layer's feed-forward and for the residual stream."""
    slopes = FLOAT * one.scored * one.shape.hidden
    stream = 4 * FLOAT * one.tokens * one.shape.hidden
    if one.recomputes:  # the saved tensors of one recomputed layer
        stream += one.tokens * kept_of_layer(one)
    if one.fused:
        matrices = 3 * FLOAT * one.shape.hidden * one.shape.intermediate * one.precision.half
        return slopes + stream + 5 * FLOAT * min(one.tokens, BLOCK) * one.shape.intermediate + matrices
    return slopes + stream + 4 * one.element * one.tokens * one.shape.intermediate


def chunk_rows(one: Pass) -> float:
    """Return the number of rows per chunk of logits."""
    elements, least, large = CHUNK
    vocabulary = one.shape.vocabulary
    return min(max(1, elements // vocabulary, min(least, large // vocabulary)), max(16.0, one.scored))


def read(shape: Shape, precision: Precision, tokens: float) -> float:
    """Return the peak bytes of a forward pass without gradient, which holds a single layer at a time."""
    held = min(tokens, BLOCK) if precision.on_cpu else tokens
    of_layer = 2 * FLOAT * tokens * shape.hidden + precision.element * tokens * (2 * shape.queries + 4 * shape.keys)
    return of_layer + 3 * precision.element * held * shape.intermediate
