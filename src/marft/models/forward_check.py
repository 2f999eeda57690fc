"""Which of MARFT's forwards computes what a model computes: seen when it is loaded, not believed of its name.

Rounding is told from another architecture in two steps. A small float32 copy of the model, whose windows, caps and
sinks bite, must come out as its own plain forward does: there only a different computation could show. Then, on the
real weights, the forward may differ from the model's own by little more than that differs from itself, with attention
computed another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft.models import attention
from marft.models.backbone import Backbone, PackedRows
from marft.models.cache import KVCache
from marft.models.small_copy import small_copy
from marft.types import TokenIds

SAME = 1e-3  # nats: what the order of sums may do in float32
ROUNDING = 0.02  # nats a token: what half precision always may, on average
NOISE = 4.0  # or this many times what the model differs from itself by
LIKELY = 8  # tokens compared at each position: nobody samples the others
COPIED, REAL = (5, 40, 17), (9, 48)  # lengths of rows


def settle_forward(backbone: Backbone) -> None:
    """Have a backbone use the fastest forward that computes what its model does."""
    own = None
    while not backbone.plain:
        if _same_architecture(backbone):
            own = _own_logits(backbone.model, _real_rows(backbone), "eager") if own is None else own
            if _same_results(backbone, own):
                return
        backbone.take_slower_forward()


def _same_architecture(backbone: Backbone) -> bool:
    """Whether a small copy of the model comes out of the backbone's forward as out of its own."""
    key = type(backbone.model), backbone.fused, backbone.model.config.to_json_string()
    if key not in _seen:
        copy = small_copy(backbone.model, backbone.decoder)
        _seen[key] = copy is not None and _computes_alike(copy, backbone.fused)
    return _seen[key]


_seen: dict[tuple[type, bool, str], bool] = {}  # a run may load a model more than once


def _computes_alike(copy: PreTrainedModel, fused: bool) -> bool:
    """Whether a small model's rows come out of a packed forward, and their last tokens of decoding, as they should."""
    if not getattr(copy, "_supports_attention_backend", False):
        return False
    rows = _rows(COPIED, copy.get_input_embeddings().num_embeddings)
    try:
        own = _own_logits(copy, rows, "eager")
        mine = Backbone(copy, max(COPIED))
        mine.fused = fused
        copy.set_attn_implementation(attention.IMPLEMENTATION)
        packed, decoded = _packed_logits(mine, rows), _decoded_logits(mine, rows)
    except (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False  # it wants to be called otherwise
    last = own[torch.tensor(COPIED).cumsum(0) - 1]
    return bool(_differences(packed, own).max() < SAME and _differences(decoded, last).max() < SAME)


def _same_results(backbone: Backbone, own: Tensor) -> bool:
    """Whether on the real weights log-probs of likely tokens are as near to the model's own as rounding lets them."""
    difference = float(_differences(_packed_logits(backbone, _real_rows(backbone)), own).mean())
    exact = backbone.head.weight.dtype in (torch.float32, torch.float64)
    return difference < (SAME if exact else ROUNDING) or difference < NOISE * _noise(backbone, own)


def _noise(backbone: Backbone, own: Tensor) -> float:
    """How far log-probs of a model's own forward are from themselves, when it is computed in another way."""
    model, rows = backbone.model, _real_rows(backbone)
    if getattr(model, "_supports_sdpa", False):
        other = _own_logits(model, rows, "sdpa")
    else:
        with _rounded_once_more(model.get_input_embeddings()):
            other = _own_logits(model, rows, "eager")
    return float(_differences(other, own).mean())


def _real_rows(backbone: Backbone) -> list[TokenIds]:
    return _rows(REAL, backbone.head.weight.shape[0])


def _rows(lengths: Sequence[int], vocabulary: int) -> list[TokenIds]:
    """Texts of frequent tokens, which vocabularies that were learned from text begin with."""
    frequent = min(vocabulary, 2000)
    return [(np.arange(3, length + 3) ** 2 * 7919 % frequent).astype(np.int32) for length in lengths]


@torch.no_grad()
def _own_logits(model: PreTrainedModel, rows: Sequence[TokenIds], implementation: str) -> Tensor:
    """Of each row alone, as transformers computes them → [N, V]."""
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation)
    try:
        ids = [torch.from_numpy(row).long()[None].to(model.device) for row in rows]
        return torch.cat([model(input_ids=row, use_cache=False).logits[0] for row in ids])
    finally:
        model.set_attn_implementation(before)


@torch.no_grad()
def _packed_logits(backbone: Backbone, rows: Sequence[TokenIds]) -> Tensor:
    packed = PackedRows.of(rows, [None] * len(rows), backbone.device)
    return backbone.logits(backbone.hidden_states(packed), None)


@torch.no_grad()
def _decoded_logits(backbone: Backbone, rows: Sequence[TokenIds]) -> Tensor:
    """After each row's last token, which comes once all others are cached → [B, V]."""
    cache = KVCache(backbone.depth)
    cache.reserve(len(rows), max(map(len, rows)))
    packed = PackedRows.of([row[:-1] for row in rows], [None] * len(rows), backbone.device)
    slots = [[slot] for slot in range(len(rows))]
    backbone.hidden_states(packed, attention.PackedPlan(packed.lengths, backbone.device, cache, slots))
    lengths = torch.tensor(packed.lengths, device=backbone.device)
    last = torch.tensor([int(row[-1]) for row in rows], device=backbone.device)
    plan = attention.DecodePlan(cache, lengths)
    return backbone.logits(backbone.next_hidden_states(last, lengths, [None] * len(rows), plan), None)


def _differences(logits: Tensor, own: Tensor) -> Tensor:
    """Of the log-probs of the tokens that are likely by ``own``, [N, likely]."""
    theirs, tokens = own.float().log_softmax(-1).topk(min(LIKELY, own.shape[-1]))
    return (logits.float().log_softmax(-1).gather(1, tokens) - theirs).abs()


@contextmanager
def _rounded_once_more(embeddings: nn.Module) -> Iterator[None]:
    """Embeddings change by as much as rounding them might have."""

    def nudged(_: nn.Module, __: object, x: Tensor) -> Tensor:
        signs = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        signs[::2] = -1
        return x * (1 + signs * torch.finfo(x.dtype).eps / 2)

    handle = embeddings.register_forward_hook(nudged)
    try:
        yield
    finally:
        handle.remove()
