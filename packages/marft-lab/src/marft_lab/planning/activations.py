"""What a forward pass keeps for its backward pass, tensor by tensor, and what the two need beside it.

The counts are those of :mod:`marft.models`: which tensors each part saves, in which precision. With D the model's
width, I the feed-forward's, Q and K the numbers of a token's queries and keys, H the heads, e the bytes of a number:

- a frozen base on a CPU keeps of each layer and token its two residual streams and what their norms made of them, 4·D,
  queries, keys, values and what attention gave, 2·Q + 2·K + H, and the feed-forward's two products, 2·I; all float32;
- a frozen base on a GPU keeps the two streams in float32, attention's as above in e, three products of the
  feed-forward in e, and for each adapter a float32 copy of what it reads;
- trained weights keep what each layer reads, 2·D, 3·Q + 2·K, 4·I, in e, and in float32 what norms were made of, 4·D,
  and H.
"""

from __future__ import annotations

from dataclasses import dataclass

from marft.models.cards import Precision
from marft.models.shapes import Shape
from marft_lab.planning.work import PolicyWork

PADDING = 1.09  # what attention pads rows to, on average over lengths (models/attention.py, padded_length)
BLOCK = 1536  # rows whose feed-forward is computed together on a CPU (models/adapted.py)
CHUNK = 2**22, 256, 2**24  # logits held at a time, least rows, most logits for those (models/log_probs.py)
PREFILL = 8192  # tokens read in one forward (engines/decoding.py)
FLOAT = 4


@dataclass(frozen=True, slots=True)
class Pass:
    """A forward pass that is learned from.

    ``owners`` are the policies whose rows are in it: on a GPU each one's adapters read the whole batch.
    """

    shape: Shape
    precision: Precision
    tokens: float
    scored: float  # tokens whose log-probs are taken
    policies: tuple[PolicyWork, ...]
    recomputes: bool = False  # gradient checkpointing

    @property
    def trained_whole(self) -> bool:
        return any(policy.train == "full" for policy in self.policies)

    @property
    def element(self) -> int:
        return self.precision.element

    @property
    def fused(self) -> bool:
        """Whether layers that read the same rows are computed together: a frozen base on a CPU."""
        return self.precision.on_cpu and not self.trained_whole and not self.recomputes


def kept_of_layer(one: Pass) -> float:
    """Bytes that a layer keeps of one token until its backward pass."""
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
        copies /= len(one.policies)  # each adapter reads its own rows alone
    return FLOAT * 2 * wide + attention + norms + 3 * e * inner + copies


def kept(one: Pass) -> float:
    """Bytes kept until the backward pass begins; with gradient checkpointing the stream between layers alone."""
    if one.recomputes:
        return one.tokens * (one.shape.layers + 1) * FLOAT * one.shape.hidden
    last_norm = 2 * FLOAT * one.shape.hidden * one.trained_whole
    return one.tokens * (one.shape.layers * kept_of_layer(one) + last_norm)


def beside(one: Pass) -> float:
    """The most that is held beside what is kept: the head's chunk of logits, or the first layer gone back through."""
    return max(head(one), back(one))


def head(one: Pass) -> float:
    """Log-probs in chunks (:mod:`marft.models.log_probs`): logits and their exponentials in float32, beside those of
    the chunk before or, on a GPU, a sum of halves for the slope's product; and the slopes of all tokens twice."""
    if one.trained_whole:  # logits, their softmax and their gradients; the head's own gradient of a chunk
        return 6 * FLOAT * chunk_rows(one) * one.shape.vocabulary + FLOAT * one.shape.head_parameters
    return 4 * FLOAT * chunk_rows(one) * one.shape.vocabulary + 2 * FLOAT * one.scored * one.shape.hidden


def back(one: Pass) -> float:
    """Gradients of one layer's feed-forward, and of the stream."""
    slopes = FLOAT * one.scored * one.shape.hidden
    stream = 4 * FLOAT * one.tokens * one.shape.hidden
    if one.recomputes:  # one layer is there again
        stream += one.tokens * kept_of_layer(one)
    if one.fused:
        matrices = 3 * FLOAT * one.shape.hidden * one.shape.intermediate * one.precision.half
        return slopes + stream + 5 * FLOAT * min(one.tokens, BLOCK) * one.shape.intermediate + matrices
    return slopes + stream + 4 * one.element * one.tokens * one.shape.intermediate


def chunk_rows(one: Pass) -> float:
    elements, least, large = CHUNK
    vocabulary = one.shape.vocabulary
    return min(max(1, elements // vocabulary, min(least, large // vocabulary)), max(16.0, one.scored))


def read(shape: Shape, precision: Precision, tokens: float) -> float:
    """Bytes of a forward pass that nothing is learned from: one layer of it at a time."""
    held = min(tokens, BLOCK) if precision.on_cpu else tokens
    of_layer = 2 * FLOAT * tokens * shape.hidden + precision.element * tokens * (2 * shape.queries + 4 * shape.keys)
    return of_layer + 3 * precision.element * held * shape.intermediate
