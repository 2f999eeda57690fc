"""Decoding steps with fixed shapes, captured as CUDA graphs: one launch per token instead of hundreds.

A captured step contains everything from the new token ids to the next ones: forward, head, grammar masks, top-k and
top-p, sampling. It reads its inputs from buffers on the device: ids, lengths, adapter masks, uniform numbers,
temperatures. Rows are padded to a power of two, and attended columns to a multiple of :data:`COLUMN_STEP`. Each pair of
both has its own graph. A padding row has length 0 and writes to the first column of a free cache slot. Per step, the
host sends the uniform numbers (and grammar masks), replays the graph, and reads tokens with log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft.common.log import get_logger
from marft.common.texts import format_error, single_line
from marft.common.types import SamplingParams
from marft.inference.sampling import keep_likeliest, sample_tokens, top_k_top_p
from marft.models.adapter_stacks import AdapterMasks, AdapterStacks
from marft.models.attention import DecodePlan, KVCache
from marft.models.backbone import Backbone
from marft.models.cuda_graphs import Graphs, Work
from marft.models.log_probs import mask_logits

logger = get_logger(__name__)
MAX_GRAPHS = 128  # graphs at a time; they share a memory pool, but each has nodes of its own
COLUMN_STEP = 256  # attended cache columns are a multiple of this number


class _Variant(NamedTuple):
    """Shapes and operations of a graph."""

    rows: int
    columns: int
    greedy: bool  # whether a row takes the likeliest token
    restricted: bool  # whether a row has top-k or top-p
    masked: bool  # whether a row has a grammar


@dataclass(frozen=True, slots=True, eq=False)
class _Buffers:
    """Inputs and outputs of the graphs with ``R`` rows; padding rows are not live."""

    ids: Tensor  # [R] last token
    lengths: Tensor  # [R] cached tokens
    live: Tensor  # [R] 1 for live rows, else 0
    temperatures: Tensor  # [R] 1 for greedy rows
    greedy: Tensor  # [R]
    top_k: Tensor  # [R]
    top_p: Tensor  # [R]
    uniforms: Tensor  # [R]
    allowed: Tensor  # [R, bytes] packed grammar masks
    sampled: Tensor  # [2, R] float64: tokens and their log-probabilities
    adapters: AdapterMasks

    @staticmethod
    def allocate(rows: int, vocabulary: int, stacks: AdapterStacks, device: torch.device) -> _Buffers:
        """Allocate buffers without live rows."""
        whole = [torch.zeros(rows, dtype=torch.long, device=device) for _ in range(4)]
        ids, lengths, live, top_k = whole
        temperatures, top_p, uniforms = (torch.ones(rows, device=device) for _ in range(3))
        greedy = torch.zeros(rows, dtype=torch.bool, device=device)
        allowed = torch.full((rows, -(-vocabulary // 8)), 255, dtype=torch.uint8, device=device)
        sampled = torch.zeros(2, rows, dtype=torch.float64, device=device)
        masks = stacks.new_masks(rows, device)
        return _Buffers(ids, lengths, live, temperatures, greedy, top_k, top_p, uniforms, allowed, sampled, masks)

    def set_rows(self, options: Sequence[SamplingParams], policies: Sequence[str | None], vocabulary: int) -> None:
        """Set the live rows' sampling parameters and policies."""
        rows = len(options)
        temperatures = np.array([option.temperature for option in options], np.float32)
        top_k, top_p = top_k_top_p(options, vocabulary)
        _send(self.temperatures, np.where(temperatures == 0, np.float32(1), temperatures))
        _send(self.greedy, temperatures == 0)
        _send(self.top_k, top_k)
        _send(self.top_p, top_p)
        self.live.zero_()
        self.live[:rows].fill_(1)
        self.adapters.set_rows(policies)


def can_capture(backbone: Backbone) -> bool:
    """Return whether a decoding step of the backbone contains operations of the device alone."""
    return backbone.fused and not backbone.native and not backbone.recurrent and backbone.shards is None


class CapturedDecoder:
    """Decoder with captured steps for the rows in slots 0..n-1 of a KV cache.

    A graph is captured when a step first needs its shapes. When the KV cache, the set of adapters or the weights get
    other tensors, all graphs are deleted. After an error, :attr:`failed` is True, and no step may follow.
    """

    def __init__(self, backbone: Backbone, graphs: Graphs) -> None:
        assert can_capture(backbone)
        self.backbone, self.graphs = backbone, graphs
        self.failed = False
        self.captures = 0  # number of captures so far
        self._vocabulary = len(backbone.head.weight)
        self._stacks: AdapterStacks | None = None
        self._buffers: dict[int, _Buffers] = {}  # by number of rows
        self._replays: dict[_Variant, Work] = {}
        self._keys: Tensor | None = None  # keys of the first layer in the cache that the graphs contain
        self._weights: list[Tensor] = []  # that the graphs contain
        self._addresses: list[int] = []  # of these weights
        self._options: Sequence[SamplingParams] = ()
        self._current: _Buffers | None = None

    @property
    def ids(self) -> Tensor:
        """Last token of each live row, [n]."""
        assert self._current is not None, "after set_rows"
        return self._current.ids[: len(self._options)]

    @torch.inference_mode()
    def set_rows(
        self,
        options: Sequence[SamplingParams],
        policies: Sequence[str | None],
        lengths: Sequence[int],
        last_tokens: Tensor,
    ) -> None:
        """Set the live rows: sampling parameters, adapters, numbers of cached tokens, and last tokens [n]."""
        if self._stacks is None or not self._stacks.is_current(self.backbone):
            self._drop_graphs()
            self._buffers, self._stacks = {}, AdapterStacks(self.backbone)
        self._stacks.refresh(changed_only=True)
        self._check_addresses(self._weights)
        rows = 1 << (len(options) - 1).bit_length()
        if rows not in self._buffers:
            self._buffers[rows] = _Buffers.allocate(rows, self._vocabulary, self._stacks, self.backbone.device)
        self._options, self._current = options, self._buffers[rows]
        self._current.set_rows(options, policies, self._vocabulary)
        self._current.lengths.zero_()
        _send(self._current.lengths, np.array(lengths, np.int64))
        self._current.ids[: len(options)].copy_(last_tokens)

    @torch.inference_mode()
    def step(
        self, cache: KVCache, longest: int, uniforms: npt.NDArray[np.float32], allowed: npt.NDArray[np.uint8] | None
    ) -> tuple[list[int], list[float]]:
        """Sample a token for each live row; return the tokens and their log-probabilities.

        Args:
            longest: cached tokens of the longest row.
            uniforms: uniform number of each row, [n].
            allowed: packed grammar mask of each row, [n, bytes]; None without grammars.
        """
        buffers, count = self._current, len(self._options)
        assert buffers is not None, "after set_rows"
        columns = (longest // COLUMN_STEP + 1) * COLUMN_STEP
        cache.reserve(len(buffers.ids), columns)
        _send(buffers.uniforms, uniforms)
        if allowed is not None:
            _send(buffers.allowed, allowed)
        variant = _Variant(
            len(buffers.ids),
            columns,
            any(option.temperature == 0 for option in self._options),
            any(option.top_k or option.top_p < 1 for option in self._options),
            allowed is not None,
        )
        self._find_replay(cache, buffers, variant)()
        tokens, log_probs = buffers.sampled.cpu()[:, :count].tolist()  # the only device synchronization
        return [int(token) for token in tokens], log_probs

    def release(self) -> None:
        """Free the memory of graphs and buffers."""
        self._drop_graphs()
        self._buffers, self._current, self._stacks = {}, None, None

    def fail(self, error: Exception) -> None:
        """Stop capturing after an error."""
        logger.warning(
            "decoding steps cannot be captured as CUDA graphs, and run operation by operation: %s",
            single_line(format_error(error)),
            exc_info=error,
        )
        self.failed = True
        self.release()

    def _find_replay(self, cache: KVCache, buffers: _Buffers, variant: _Variant) -> Work:
        """Return the graph of a variant, captured now if necessary. The capture changes no row."""
        is_full = variant not in self._replays and len(self._replays) >= MAX_GRAPHS
        if is_full or self._keys is not cache.keys[0]:  # all tensors of a cache are allocated together
            self._drop_graphs()
            self._keys, self._weights = cache.keys[0], [*self.backbone.model.parameters()]
            self._addresses = [weight.data_ptr() for weight in self._weights]
        if variant not in self._replays:
            ids, lengths = buffers.ids.clone(), buffers.lengths.clone()
            try:
                self._replays[variant] = self.graphs.capture(lambda: self._run(cache, buffers, variant))
            finally:
                buffers.ids.copy_(ids)
                buffers.lengths.copy_(lengths)
            self.captures += 1
        return self._replays[variant]

    def _run(self, cache: KVCache, buffers: _Buffers, variant: _Variant) -> None:
        """Run a decoding step from the buffers to the buffers, with operations of the device alone."""
        plan = DecodePlan.with_fixed_shapes(cache, buffers.lengths, variant.columns)
        hidden = self.backbone.next_hidden_states(buffers.ids, plan.lengths, buffers.adapters.rows, plan)
        logits = self.backbone.compute_logits(hidden, buffers.temperatures)
        if variant.masked:
            logits = mask_logits(logits, buffers.allowed)
        kept = keep_likeliest(logits, buffers.top_k, buffers.top_p) if variant.restricted else None
        greedy = buffers.greedy if variant.greedy else None
        ids, log_probs = sample_tokens(logits, buffers.uniforms, greedy, kept)
        buffers.sampled[0].copy_(ids)
        buffers.sampled[1].copy_(log_probs)
        buffers.ids.copy_(ids)
        buffers.lengths.add_(buffers.live)

    def _check_addresses(self, weights: Sequence[Tensor]) -> None:
        """Delete the graphs if they contain other weights than these, or their former memory."""
        if self._replays and [weight.data_ptr() for weight in weights] != self._addresses:
            self._drop_graphs()

    def _drop_graphs(self) -> None:
        if self._replays:
            self._replays.clear()
            self.graphs.reset()
        self._keys = None


def _send(buffer: Tensor, values: npt.NDArray[np.generic]) -> None:
    """Copy values to the first rows of a buffer, without waiting for the device."""
    buffer[: len(values)].copy_(torch.from_numpy(values), non_blocking=True)
