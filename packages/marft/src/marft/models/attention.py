"""Attention over packed rows: every MARFT forward takes a single token row, ``[1, N]``, without padding.

Hugging Face models call :func:`attention_forward` through their attention interface. The attention plan, passed as a
keyword through the forward, selects the computation. With :class:`PackedPlan`, each row attends to itself causally
(training, scoring, prefill). With :class:`DecodePlan`, one new token per row attends to the row's keys and values in a
:class:`KVCache`. Linear layers therefore never process padding, and rows of all agents share them. An
:class:`AttentionSpec` holds a layer's settings. torch's own attention computes the standard settings, and
:func:`eager_attention` the others.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface, AutoModelForCausalLM, PreTrainedConfig

from marft.common.errors import UserError
from marft.models.devices import AutogradContext, is_on_cpu, send_together, to_device
from marft.models.recurrent_states import RecurrentStates

MAX_GROWTH = 1024  # maximum number of tokens added to the capacity at a time
MAX_SCORES = 2**24  # maximum number of scores held at once
IMPLEMENTATION = "marft"
MAX_MASK_LENGTH = 1024  # longest row, in tokens, with a single mask for all its queries
QUERY_BLOCK = 512  # queries per block for longer rows


class KVCache:
    """KV cache with one key tensor and one value tensor per layer, ``[slots, K, capacity, D]``.

    The number of slots grows by doubling. The capacity doubles too, but by at most ``MAX_GROWTH`` tokens at a time.
    Rows are left-aligned: token t of a row is in column t of its slot.
    """

    def __init__(self, layers: int) -> None:
        self.keys: list[Tensor | None] = [None] * layers
        self.values: list[Tensor | None] = [None] * layers
        self.slots = 0
        self.capacity = 0
        self.states = RecurrentStates()

    def reserve(self, slots: int, capacity: int) -> None:
        """Grow the cache to at least ``slots`` rows with ``capacity`` tokens; existing content is kept."""
        if slots <= self.slots and capacity <= self.capacity:
            return
        self.slots = max(slots, self.slots if slots <= self.slots else 2 * self.slots)
        self.states.reserve(self.slots)
        if capacity > self.capacity:
            self.capacity = max(capacity, self.capacity + min(self.capacity, MAX_GROWTH))
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                if old is not None:
                    tensors[layer] = self._allocate(old)

    def write_rows(self, layer: int, k_NKD: Tensor, v_NKD: Tensor, lengths: list[int], slots: list[list[int]]) -> None:
        """Store prefilled rows; row i goes to every slot in ``slots[i]`` (rows with a shared prompt)."""
        for tensors, packed in ((self.keys, k_NKD), (self.values, v_NKD)):
            store = tensors[layer]
            if store is None:
                shape = (0, packed.shape[1], 0, packed.shape[2])
                store = tensors[layer] = self._allocate(packed.new_empty(shape))
            start = 0
            for length, row_slots in zip(lengths, slots, strict=True):
                row_KTD = packed[start : start + length].transpose(0, 1)
                for slot in row_slots:
                    store[slot, :, :length] = row_KTD
                start += length

    def flat_positions(self, lengths: Tensor, key_heads: int) -> Tensor:
        """Return the flat index for the next token in slots 0..n-1, [n·K], in the ``[slots·K·capacity, D]`` store."""
        slots = torch.arange(len(lengths), device=lengths.device)
        heads = torch.arange(key_heads, device=lengths.device)
        return ((slots[:, None] * key_heads + heads) * self.capacity + lengths[:, None]).flatten()

    def append(self, layer: int, k: Tensor, v: Tensor, positions: Tensor, longest: int) -> tuple[Tensor, Tensor]:
        """Write one token per row; return the first ``longest`` columns in slots 0..n-1, [n, K, T, D]."""
        rows = len(k)
        keys, values = self.keys[layer], self.values[layer]
        assert keys is not None, "decoding before any prefill"
        assert values is not None
        keys.view(-1, k.shape[-1]).index_copy_(0, positions, k.reshape(-1, k.shape[-1]))
        values.view(-1, v.shape[-1]).index_copy_(0, positions, v.reshape(-1, v.shape[-1]))
        return keys[:rows, :, :longest], values[:rows, :, :longest]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens from slot ``source`` to slot ``target``, which a finished row has freed."""
        for tensor in (*self.keys, *self.values):
            if tensor is not None:
                tensor[target, :, :length] = tensor[source, :, :length]
        self.states.move(source, target)

    def read_slot(self, slot: int, start: int, stop: int) -> list[Tensor]:
        """Copy a token range from a slot: the keys [K, T, D] for each layer, then the values for each layer."""
        return [tensor[slot, :, start:stop].clone() for tensor in (*self.keys, *self.values) if tensor is not None]

    def _allocate(self, old: Tensor) -> Tensor:
        new = old.new_zeros((self.slots, old.shape[1], self.capacity, old.shape[3]))
        new[: old.shape[0], :, : old.shape[2]] = old
        return new


@dataclass(frozen=True, slots=True, eq=False)
class AttentionSpec:
    """Attention settings: scores ``scale · q kᵀ``, soft cap, mask, then softmax with an optional sink per head.

    Args:
        window: number of visible tokens, including the token itself; None for all.
        softcap: soft cap, ``softcap · tanh(score / softcap)`` (Gemma 2: Riviere et al. 2024).
        sinks: [H] additional score per head, with a softmax share that contributes no value (gpt-oss; Xiao et al.
            2023).
    """

    scale: float
    window: int | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def is_standard(self) -> bool:
        """True if torch's own attention supports the settings."""
        return self.softcap is None and self.sinks is None


def eager_attention(
    q_BHTD: Tensor, k_BKSD: Tensor, v_BKSD: Tensor, visible_BTS: Tensor, spec: AttentionSpec, recompute: bool = False
) -> Tensor:
    """Compute attention with explicit scores in float32, one block of queries at a time, [B, H, T, D].

    Args:
        visible_BTS: whether a query sees a key; B may be 1. Each query sees at least one key.
        recompute: recompute the scores for the gradient instead of saving them. Inputs with several blocks always do.
    """
    rows, heads, length, _ = q_BHTD.shape
    step = max(1, MAX_SCORES // (rows * heads * k_BKSD.shape[2]))
    parts = []
    for start in range(0, length, step):
        part = slice(start, start + step)
        inputs = q_BHTD[:, :, part], k_BKSD, v_BKSD, visible_BTS[:, part], spec
        recompute_part = torch.is_grad_enabled() and (recompute or length > step)
        parts.append(
            checkpoint(_attention_block, *inputs, use_reentrant=False) if recompute_part else _attention_block(*inputs)
        )
    return torch.cat(parts, 2) if len(parts) > 1 else parts[0]


def _attention_block(q: Tensor, k: Tensor, v: Tensor, visible: Tensor, spec: AttentionSpec) -> Tensor:
    rows, heads, length, width = q.shape
    exact = torch.promote_types(q.dtype, torch.float32)
    grouped = q.to(exact).view(rows, k.shape[1], -1, length, width)  # query heads of the same key head together
    scores = grouped @ k.to(exact).transpose(-1, -2)[:, :, None] * spec.scale  # [B, K, H/K, T, S]
    if spec.softcap is not None:
        scores = (scores / spec.softcap).tanh() * spec.softcap
    scores = scores.masked_fill(~visible[:, None, None], -torch.inf)
    if spec.sinks is not None:
        sinks = spec.sinks.to(exact).view(1, k.shape[1], -1, 1, 1).expand(rows, -1, -1, length, 1)
        scores = torch.cat([scores, sinks], -1)
    probabilities = scores.softmax(-1)[..., : k.shape[2]]
    return (probabilities @ v.to(exact)[:, :, None]).reshape(rows, heads, length, v.shape[-1]).to(q.dtype)


class AttentionPlan(Protocol):
    """Attention computation for one forward."""

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Return the attention output, [N, H, D]: N tokens, H query heads, K key heads.

        Args:
            layer: layer index.
            q: queries, [N, H, D].
            k: keys, [N, K, D].
            v: values, [N, K, D].
            spec: attention settings of the layer.
        """


_plan: ContextVar[AttentionPlan | None] = ContextVar("plan", default=None)


@contextmanager
def use_plan(plan: AttentionPlan | None) -> Iterator[None]:
    """Set the plan for layers that do not get it as a keyword."""
    token = _plan.set(plan)
    try:
        yield
    finally:
        _plan.reset(token)


def current_plan() -> AttentionPlan | None:
    """Return the plan of the current forward; None in a model's own forward."""
    return _plan.get()


class PackedPlan:
    """Causal attention inside each row of a packed batch; optionally writes keys and values to a cache.

    Rows of similar length are padded to a common length and attend together. Linear layers never process that padding.
    The padded length depends only on the row itself (:func:`padded_length`). Kernels sum in an order that depends on
    the length, and a row's result must not depend on the other rows.

    Args:
        lengths: tokens per row; rows are concatenated.
        tokens: total tokens of the batch, if larger than the sum of its rows. The output for the extra tokens is
            meaningless.
        cache: KV cache that a prefill writes to.
        slots: cache slots for each row; several slots if rows share a prompt.
    """

    def __init__(
        self,
        lengths: list[int],
        device: torch.device,
        cache: KVCache | None = None,
        slots: list[list[int]] | None = None,
        tokens: int = 0,
    ) -> None:
        self.lengths, self.cache, self.slots = lengths, cache, slots
        self.order = order = sorted(range(len(lengths)), key=lambda row: -lengths[row])  # rows as they are padded
        self.groups = list(Counter(padded_length(lengths[row]) for row in order).items())  # (padded length, rows)
        padding = max(0, tokens - sum(lengths))
        self.needs_no_padding = not padding and all(length == padded_length(max(lengths)) for length in lengths)
        if not self.needs_no_padding:
            sizes = np.array(lengths)[order]
            starts = (np.cumsum(lengths) - lengths)[order]
            widths = np.repeat(*np.array(self.groups).T)
            columns = _concat_ranges(widths)
            is_token = columns < np.repeat(sizes, widths)  # [padded]
            padded_from = np.where(is_token, np.repeat(starts, widths) + columns, 0)  # → packed
            packed_from = np.zeros(sum(lengths) + padding, np.int64)  # → padded
            positions = np.flatnonzero(is_token)
            packed_from[padded_from[positions]] = positions
            self.is_token, self.padded_from, self.packed_from = send_together(
                (is_token, padded_from, packed_from), device
            )
            self.in_rows = torch.arange(len(packed_from), device=device) < sum(lengths) if padding else None

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Attend within each row; see :class:`AttentionPlan`."""
        if self.cache is not None and self.slots is not None:
            self.cache.write_rows(layer, k, v, self.lengths, self.slots)
        return self.map_rows(partial(_causal_attention, spec=spec), q, k, v)

    def map_rows(self, function: Callable[..., Tensor], *packed: Tensor, masked: int = 0) -> Tensor:
        """Apply a function to padded rows, group by group: inputs and output are packed, [N, …].

        Args:
            function: function of padded rows, [rows, length, …] each, to an output of this form.
            packed: inputs of the function.
            masked: number of leading inputs that are 0 in padding; in other inputs, padding has any value.
        """
        padded = [self._pad(x) for x in packed]
        if not self.needs_no_padding:
            padded[:masked] = [x.masked_fill(~self.is_token.view(-1, *[1] * (x.dim() - 1)), 0) for x in padded[:masked]]
        parts, start = [], 0
        for length, rows in self.groups:
            stop = start + rows * length
            out = function(*(x[start:stop].unflatten(0, (rows, length)) for x in padded))
            parts.append(out.flatten(0, 1))
            start = stop
        return self._pack(torch.cat(parts) if len(parts) > 1 else parts[0])

    def _pad(self, x_NHD: Tensor) -> Tensor:
        """Convert packed rows to padded rows, group by group, [padded, H, D]."""
        if self.needs_no_padding:
            return x_NHD
        padded = gather_rows(x_NHD.flatten(1), self.padded_from, self.packed_from, self.in_rows)
        return padded.view(-1, *x_NHD.shape[1:])

    def _pack(self, x_PHD: Tensor) -> Tensor:
        """Convert padded rows back to packed rows."""
        if self.needs_no_padding:
            return x_PHD
        packed = gather_rows(x_PHD.flatten(1), self.packed_from, self.padded_from, self.is_token)
        return packed.view(-1, *x_PHD.shape[1:])


def padded_length(length: int) -> int:
    """Return the padded attention length of a row: at least 16, and at most a quarter above ``length``.

    >>> [padded_length(length) for length in (1, 16, 17, 64, 65, 100)]
    [16, 16, 20, 64, 80, 112]
    """
    step = 4 << max(0, (length - 1).bit_length() - 5)
    return max(16, -(-length // step) * step)


def _concat_ranges(widths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Concatenate ranges: ``[3, 2] → [0, 1, 2, 0, 1]``."""
    ends = widths.cumsum()
    return np.arange(ends[-1]) - np.repeat(ends - widths, widths)


def _causal_attention(q_BTHD: Tensor, k_BTKD: Tensor, v_BTKD: Tensor, spec: AttentionSpec) -> Tensor:
    q, k, v = (x.transpose(1, 2) for x in (q_BTHD, k_BTKD, v_BTKD))
    length, window = q.shape[2], spec.window
    if spec.is_standard and (window is None or window >= length):
        grouped = q.shape[1] != k.shape[1]
        out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=spec.scale, enable_gqa=grouped)
    else:
        step = length if length <= MAX_MASK_LENGTH else QUERY_BLOCK
        parts = [_masked_attention(q, k, v, spec, slice(start, start + step)) for start in range(0, length, step)]
        out = torch.cat(parts, 2) if len(parts) > 1 else parts[0]
    return out.transpose(1, 2)  # [B, T, H, D]


def _masked_attention(q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec, queries: slice) -> Tensor:
    """Attend for a block of queries and only their visible keys, to avoid a mask with quadratic size."""
    length = q.shape[2]
    stop = min(queries.stop, length)
    window = spec.window or length
    first = max(0, queries.start - window + 1)
    q, k, v = q[:, :, queries.start : stop], k[:, :, first:stop], v[:, :, first:stop]
    rows = torch.arange(queries.start, stop, device=q.device)
    offset = rows[:, None] - torch.arange(first, stop, device=q.device)
    visible = (offset >= 0) & (offset < window)
    if not spec.is_standard:
        return eager_attention(q, k, v, visible[None], spec, recompute=length > MAX_MASK_LENGTH)
    grouped = q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(q, k, v, attn_mask=visible, scale=spec.scale, enable_gqa=grouped)


class DecodePlan:
    """Attention for one new token per row over the row's cache slot; rows occupy slots 0..n-1."""

    def __init__(self, cache: KVCache, lengths: Sequence[int], device: torch.device) -> None:
        """Prepare the masks.

        Args:
            lengths: cached tokens in each slot before the new token, [n].
        """
        longest = max(lengths) + 1
        self._prepare(cache, to_device(np.array(lengths), device), longest, min(lengths) + 1 == longest)

    @classmethod
    def with_fixed_shapes(cls, cache: KVCache, lengths: Tensor, columns: int) -> DecodePlan:
        """Return a plan whose shapes do not depend on the lengths, so that its operations can be captured.

        Args:
            lengths: cached tokens in each slot before the new token, [n], on the device.
            columns: attended cache columns; more than every length.
        """
        plan = cls.__new__(cls)
        plan._prepare(cache, lengths, columns, equal_lengths=False)
        return plan

    def _prepare(self, cache: KVCache, lengths: Tensor, columns: int, equal_lengths: bool) -> None:
        self.cache, self.lengths, self.longest, self.equal_lengths = cache, lengths, columns, equal_lengths
        self.columns = torch.arange(columns, device=lengths.device)  # [T]
        self.visible = self.columns <= lengths[:, None]  # [n, T]
        self._positions: dict[int, Tensor] = {}  # by number of key heads, which may differ between layers
        self._masks: dict[tuple[int | None, torch.dtype], Tensor] = {}  # by window, which may differ between layers

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, spec: AttentionSpec) -> Tensor:
        """Attend to the cached keys and values; see :class:`AttentionPlan`."""
        rows, key_heads, width = k.shape
        if key_heads not in self._positions:
            self._positions[key_heads] = self.cache.flat_positions(self.lengths, key_heads)
        keys, values = self.cache.append(layer, k, v, self._positions[key_heads], self.longest)  # [n, K, T, D]
        if not spec.is_standard:
            visible = self._visible_keys(spec.window)[:, None]
            return eager_attention(q[:, :, None], keys, values, visible, spec)[:, :, 0]
        q_nKGD = q.view(rows, key_heads, -1, width)  # query heads of the same key head attend together
        mask = self._attention_mask(spec.window, q.dtype)
        return _decode_attention(q_nKGD, keys, values, mask, spec.scale).reshape(rows, -1, values.shape[-1])

    def _visible_keys(self, window: int | None) -> Tensor:
        """Return the visible cached tokens per row, [n, T]."""
        if window is None or window >= self.longest:
            return self.visible
        return self.visible & (self.columns > self.lengths[:, None] - window)

    def _attention_mask(self, window: int | None, dtype: torch.dtype) -> Tensor | None:
        """Return the additive mask, [n, 1, 1, T]; None if every row sees every column."""
        if window is not None and window >= self.longest:
            window = None
        if self.equal_lengths and window is None:
            return None
        if (window, dtype) not in self._masks:
            visible = self._visible_keys(window)
            mask = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
            self._masks[window, dtype] = mask.masked_fill_(~visible, float("-inf"))[:, None, None, :]
        return self._masks[window, dtype]


def _decode_attention(q_nKGD: Tensor, k_nKTD: Tensor, v_nKTD: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attend for one new token per row.

    On a CPU, plain matrix products are faster than kernels designed for many queries.
    """
    if not is_on_cpu(q_nKGD) or q_nKGD.dtype not in (torch.float32, torch.float64):
        return scaled_dot_product_attention(q_nKGD, k_nKTD, v_nKTD, attn_mask=mask, scale=scale)
    scores = (q_nKGD @ k_nKTD.transpose(-1, -2)).mul_(scale)
    return (scores if mask is None else scores.add_(mask)).softmax(-1) @ v_nKTD


class _GatherRows(torch.autograd.Function):
    """Row gather with a gather for its gradient: ``backward_index`` inverts ``index`` and replaces a scatter."""

    @staticmethod
    def forward(ctx: AutogradContext, x: Tensor, index: Tensor, backward_index: Tensor, keep: Tensor | None) -> Tensor:
        ctx.save_for_backward(backward_index, *(() if keep is None else (keep,)))
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: AutogradContext, grad: Tensor) -> tuple[Tensor, None, None, None]:
        backward_index, *keep = ctx.saved_tensors
        out = grad.index_select(0, backward_index)
        if keep:
            out = out.masked_fill_(~keep[0].view(-1, *([1] * (out.dim() - 1))), 0.0)
        return out, None, None, None


def gather_rows(x: Tensor, index: Tensor, backward_index: Tensor, keep: Tensor | None = None) -> Tensor:
    """Return ``x[index]``; its gradient is a gather with ``backward_index``, and 0 outside of ``keep``."""
    gathered: Tensor = _GatherRows.apply(x, index, backward_index, keep)  # type: ignore[no-untyped-call]
    return gathered


def attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    plan: AttentionPlan | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention function for Hugging Face's interface: ``query`` [1, H, N, D] → [1, N, H, D].

    Args:
        s_aux: attention sinks, [H].
        plan: attention plan of the forward; required.

    Raises:
        UserError: the layer has its own mask in addition to the standard masks from transformers.
    """
    plan = plan or current_plan()
    assert plan is not None, "a MARFT backbone is called through Backbone.hidden_states"
    if attention_mask is not None:
        raise UserError(f"{type(module).__name__} chooses itself what a token sees; its rows cannot be packed")
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))
    scale = scaling if scaling is not None else q.shape[-1] ** -0.5
    layer = module.layer_idx
    assert isinstance(layer, int)
    return plan.attend(layer, q, k, v, AttentionSpec(scale, sliding_window, softcap, s_aux))[None], None


def register_attention() -> None:
    """Register ``attn_implementation="marft"`` with transformers. The plan handles masks."""
    AttentionInterface.register(IMPLEMENTATION, attention_forward)
    AttentionMaskInterface.register(IMPLEMENTATION, lambda *_, **__: None)


def attention_implementation(config: PreTrainedConfig) -> str | None:
    """Return MARFT's attention name if the model uses the attention interface; None for the model's own attention."""
    kind = AutoModelForCausalLM._model_mapping.get(type(config), None)
    return IMPLEMENTATION if kind is not None and uses_attention_interface(kind) else None


def uses_attention_interface(kind: Any) -> bool:
    """Return whether a model class looks up its attention in transformers' interface, declared or not."""
    is_declared: bool = kind._supports_attention_backend
    return is_declared or hasattr(sys.modules[kind.__module__], "ALL_ATTENTION_FUNCTIONS")
