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

from marft.models.device_specs import Precision
from marft.models.model_sizes import ModelSizes
from marft_lab.planning.workload import PolicyWorkload

PADDING_FACTOR = 1.09  # mean padding factor of attention rows over lengths (models/attention.py, padded_length)
BLOCK_ROWS = 1536  # rows per feed-forward block on a CPU (models/linear_layers.py)
# logits per chunk, minimum rows, and maximum logits for the minimum rows (models/log_probs.py)
LOGIT_CHUNK = 2**22, 256, 2**24
PREFILL_TOKENS = 8192  # tokens per prefill forward pass (inference/decoding.py)
FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """Forward pass of a training update.

    Args:
        shape: sizes of the model.
        precision: precision of the model.
        tokens: tokens of the micro-batch.
        scored: tokens with log-probabilities.
        policies: policies with rows in the micro-batch; on a GPU each policy's adapter reads the whole batch.
        gradient_checkpointing: True for gradient checkpointing.
    """

    shape: ModelSizes
    precision: Precision
    tokens: float
    scored: float  # tokens with log-probabilities
    policies: tuple[PolicyWorkload, ...]
    gradient_checkpointing: bool = False  # gradient checkpointing

    @property
    def fully_trained(self) -> bool:
        """True if any policy trains all its weights."""
        return any(policy.train == "full" for policy in self.policies)

    @property
    def element_bytes(self) -> int:
        """Bytes per number."""
        return self.precision.bytes_per_element

    @property
    def is_fused(self) -> bool:
        """True if layers with the same input are computed together: a frozen base on a CPU."""
        return self.precision.on_cpu and not self.fully_trained and not self.gradient_checkpointing


def saved_layer_bytes_per_token(forward_pass: ForwardPass) -> float:
    """Return the bytes that a layer saves per token until its backward pass."""
    shape = forward_pass.shape
    wide, inner, e = shape.hidden_size, shape.intermediate_size, forward_pass.element_bytes
    queries, keys = shape.query_dim, shape.key_dim
    attention = PADDING_FACTOR * (e * (2 * queries + 2 * keys) + FLOAT_BYTES * shape.heads)
    norms = FLOAT_BYTES * (queries + keys) * shape.head_norms
    if forward_pass.is_fused:
        low = sum(policy.rank * len(policy.targets) for policy in forward_pass.policies) / len(forward_pass.policies)
        return FLOAT_BYTES * (4 * wide + queries + 2 * inner + low) + attention + norms
    if forward_pass.fully_trained:
        return FLOAT_BYTES * 4 * wide + e * (2 * wide + queries + 4 * inner) + attention + 2 * norms
    copies: float = sum(
        FLOAT_BYTES * (shape.linear_layers()[target.rpartition(".")[2]][0] + policy.rank)
        for policy in forward_pass.policies
        for target in policy.targets
    )
    if forward_pass.precision.on_cpu:
        copies /= len(forward_pass.policies)  # on a CPU, each adapter only reads its own rows
    return FLOAT_BYTES * 2 * wide + attention + norms + 3 * e * inner + copies


def planned_bytes(forward_pass: ForwardPass) -> float:
    """Return the bytes saved until the backward pass begins.

    With gradient checkpointing, only the residual stream between layers is saved.
    """
    shape = forward_pass.shape
    if forward_pass.gradient_checkpointing:
        return forward_pass.tokens * (shape.layers + 1) * FLOAT_BYTES * shape.hidden_size
    last_norm = 2 * FLOAT_BYTES * shape.hidden_size * forward_pass.fully_trained
    return forward_pass.tokens * (shape.layers * saved_layer_bytes_per_token(forward_pass) + last_norm)


def peak_extra_bytes(forward_pass: ForwardPass) -> float:
    """Return the peak extra bytes besides the saved tensors: a chunk of logits, or the backward pass of a layer."""
    return max(head_peak_bytes(forward_pass), layer_gradient_bytes(forward_pass))


def head_peak_bytes(forward_pass: ForwardPass) -> float:
    """Return the output head's peak bytes; log-probabilities are computed in chunks.

    The chunks follow :mod:`marft.models.log_probs`. A chunk holds logits and their exponentials in float32. The
    previous chunk or, on a GPU, a half-precision sum for the gradient product comes on top, and twice the gradients of
    all tokens.
    """
    shape, rows = forward_pass.shape, chunk_rows(forward_pass)
    if forward_pass.fully_trained:  # logits, their softmax and gradients, and the head's gradient of a chunk
        return 6 * FLOAT_BYTES * rows * shape.vocab_size + FLOAT_BYTES * shape.head_parameters
    return 4 * FLOAT_BYTES * rows * shape.vocab_size + 2 * FLOAT_BYTES * forward_pass.scored * shape.hidden_size


def layer_gradient_bytes(forward_pass: ForwardPass) -> float:
    """Return the gradients' bytes for a layer's feed-forward and for the residual stream."""
    tokens, wide, inner = forward_pass.tokens, forward_pass.shape.hidden_size, forward_pass.shape.intermediate_size
    gradients = FLOAT_BYTES * forward_pass.scored * wide
    stream = 4 * FLOAT_BYTES * tokens * wide
    if forward_pass.gradient_checkpointing:  # the saved tensors of one recomputed layer
        stream += tokens * saved_layer_bytes_per_token(forward_pass)
    if forward_pass.is_fused:
        matrices = 3 * FLOAT_BYTES * wide * inner * forward_pass.precision.is_half
        return gradients + stream + 5 * FLOAT_BYTES * min(tokens, BLOCK_ROWS) * inner + matrices
    return gradients + stream + 4 * forward_pass.element_bytes * tokens * inner


def chunk_rows(forward_pass: ForwardPass) -> float:
    """Return the number of rows per chunk of logits."""
    elements, least, large = LOGIT_CHUNK
    vocabulary = forward_pass.shape.vocab_size
    return min(max(1, elements // vocabulary, min(least, large // vocabulary)), max(16.0, forward_pass.scored))


def inference_bytes(shape: ModelSizes, precision: Precision, tokens: float) -> float:
    """Return the peak bytes of a forward pass without gradient, which holds a single layer at a time."""
    block_rows = min(tokens, BLOCK_ROWS) if precision.on_cpu else tokens
    of_layer = 2 * FLOAT_BYTES * tokens * shape.hidden_size + precision.bytes_per_element * tokens * (
        2 * shape.query_dim + 4 * shape.key_dim
    )
    return of_layer + 3 * precision.bytes_per_element * block_rows * shape.intermediate_size
