"""Selection of a model's forward mode, verified numerically at load time.

Two checks tell rounding from a different architecture. The first uses a small float32 copy of the model with active
windows, caps and sinks. The mode's result must equal the copy's own forward, because only a different computation could
cause a difference. The second uses the real weights. The difference from the model's own forward may be only slightly
larger than the model's own noise, measured with another attention implementation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from marft.common.types import TokenIds
from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.packed_rows import PackedRows
from marft.models.running_rows import running_rows
from marft.models.small_copy import VOCABULARY, small_copy

SAME = 1e-3  # nats: tolerance for the order of sums in float32
ROUNDING = 0.02  # nats per token: tolerance for half precision, on average
NOISE = 4.0  # alternative tolerance, as a multiple of the model's own noise
ANOTHER = "use a model of another architecture (docs/models.md lists them)"
CALLED_WRONGLY = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
LAYERS = {"full_attention", "sliding_attention"}  # layer types that can be packed
LIKELY = 8  # tokens compared at each position; other tokens are practically never sampled
COPIED, REAL = (5, 40, 17), (7, 36)  # row lengths for the small copy and the real model


def settle_forward(backbone: Backbone, what: str) -> None:
    """Select the fastest forward mode with the same results as the model.

    Args:
        what: the model's name in errors.

    Raises:
        ValueError: no mode gives the same results.
    """
    own = None
    while not backbone.plain:
        if _same_architecture(backbone):
            own = _own_logits(backbone.model, _real_rows(backbone), "eager") if own is None else own
            for wide in (True, False) if backbone.half else (False,):
                backbone.wide = wide
                if _same_results(backbone, own):
                    return
        backbone.take_slower_forward()
    _refuse_leaks(backbone, what)


def _same_architecture(backbone: Backbone) -> bool:
    """Return whether the backbone's forward matches the model's own forward on a small copy."""
    key = type(backbone.model), backbone.fused, backbone.plain, backbone.model.config.to_json_string()
    if key not in _seen:
        copy = small_copy(backbone.model, backbone.decoder)
        own = None if copy is None else _own_or_none(copy)
        alike = own is not None and copy is not None and _computes_alike(copy, own, backbone.fused, backbone.plain)
        _seen[key] = alike or (backbone.plain and own is None)
    return _seen[key]


_seen: dict[tuple[type, bool, bool, str], bool] = {}  # a run may load a model several times


def _own_or_none(copy: PreTrainedModel) -> Tensor | None:
    """Return the logits from a small model's own forward; None if its configuration cannot be shrunk."""
    try:
        return _own_logits(copy, _rows(COPIED, VOCABULARY), "eager")
    except CALLED_WRONGLY:
        return None


def _computes_alike(copy: PreTrainedModel, own: Tensor, fused: bool, plain: bool) -> bool:
    """Return whether a small model's packed forward and decoding match its own logits."""
    if not plain and not _packs(copy):
        return False
    rows = _rows(COPIED, VOCABULARY)
    try:
        mine = Backbone(copy, max(COPIED))
        mine.fused, mine.plain = fused, plain
        if not plain:
            copy.set_attn_implementation(attention.IMPLEMENTATION)
        packed, decoded = _packed_logits(mine, rows), _decoded_logits(mine, rows)
    except CALLED_WRONGLY:
        return False
    last = own[torch.tensor(COPIED).cumsum(0) - 1]
    return bool(_differences(packed, own).max() < SAME and _differences(decoded, last).max() < SAME)


def _packs(model: PreTrainedModel) -> bool:
    """Return whether a model supports attention backends and has only full or sliding-window attention layers."""
    kinds = getattr(model.config, "layer_types", None) or ()
    return bool(getattr(model, "_supports_attention_backend", False)) and set(kinds) <= LAYERS


def _same_results(backbone: Backbone, own: Tensor) -> bool:
    """Return whether, on the real weights, log-probabilities match the model's own up to rounding."""
    try:
        mine = _packed_logits(backbone, _real_rows(backbone))
    except CALLED_WRONGLY:
        return False
    difference = float(_differences(mine, own).mean())
    return difference < (ROUNDING if backbone.half else SAME) or difference < NOISE * _noise(backbone, own)


def _refuse_leaks(backbone: Backbone, what: str) -> None:
    """Check a model's own forward for equal results in a batch, in decoding and with separate rows.

    Raises:
        ValueError: the results differ.
    """
    name = type(backbone.model).__name__
    if not _same_architecture(backbone):
        raise ValueError(f"{what}: the logits or states of {name} are made in a way that is not known here; {ANOTHER}")
    rows = _real_rows(backbone)
    own = _own_logits(backbone.model, rows, None)
    try:
        packed, decoded = _packed_logits(backbone, rows), _decoded_logits(backbone, rows)
    except CALLED_WRONGLY as error:
        raise ValueError(f"{what}: {name} cannot be run row by row with a cache ({error}); {ANOTHER}") from error
    last = torch.tensor(REAL).cumsum(0) - 1
    allowed = max(ROUNDING, NOISE * _noise(backbone, own)) if backbone.half else SAME
    for logits, wanted, where in ((packed, own, "in a batch"), (decoded, own[last], "decoded")):
        off = float(_differences(logits, wanted).mean())
        if not off < allowed:
            raise ValueError(
                f"{what}: log-probs of {name} are others {where} than transformers' own of a row alone, by {off:.2g} "
                f"nats a token; {ANOTHER}"
            )


def _noise(backbone: Backbone, own: Tensor) -> float:
    """Return the mean difference in log-probabilities between two computations with the model's own forward."""
    model, rows, wide = backbone.model, _real_rows(backbone), backbone.wide
    backbone.wide = False
    if getattr(model, "_supports_sdpa", False) and not backbone.plain:
        other = _own_logits(model, rows, "sdpa")
    else:
        with _rounded_once_more(model.get_input_embeddings()):
            other = _own_logits(model, rows, None if backbone.plain else "eager")
    backbone.wide = wide
    return float(_differences(other, own).mean())


def _real_rows(backbone: Backbone) -> list[TokenIds]:
    return _rows(REAL, backbone.head.weight.shape[0])


def _rows(lengths: Sequence[int], vocabulary: int) -> list[TokenIds]:
    """Return test rows with frequent tokens, found at the start of vocabularies learned from text."""
    frequent = min(vocabulary, 2000)
    return [(np.arange(3, length + 3) ** 2 * 7919 % frequent).astype(np.int32) for length in lengths]


@torch.no_grad()
def _own_logits(model: PreTrainedModel, rows: Sequence[TokenIds], implementation: str | None) -> Tensor:
    """Return the logits for each row separately from transformers, [N, V].

    Args:
        implementation: attention implementation; None keeps the model's.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation(implementation or before)
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
    """Return the logits after each row's last token, decoded with the other tokens cached, [B, V]."""
    running = running_rows(backbone)
    packed = PackedRows.of([row[:-1] for row in rows], [None] * len(rows), backbone.device)
    running.prefill(packed, [[slot] for slot in range(len(rows))])
    last = torch.tensor([int(row[-1]) for row in rows], device=backbone.device)
    return backbone.logits(running.step(last, packed.lengths, [None] * len(rows)), None)


def _differences(logits: Tensor, own: Tensor) -> Tensor:
    """Return the log-probability differences for tokens likely under ``own``, [N, likely]."""
    theirs, tokens = own.float().log_softmax(-1).topk(min(LIKELY, own.shape[-1]))
    return (logits.float().log_softmax(-1).gather(1, tokens) - theirs).abs()


@contextmanager
def _rounded_once_more(embeddings: nn.Module) -> Iterator[None]:
    """Perturb the embeddings by their rounding error within the context."""

    def nudged(_: nn.Module, __: object, x: Tensor) -> Tensor:
        signs = torch.ones(x.shape[-1], dtype=x.dtype, device=x.device)
        signs[::2] = -1
        return x * (1 + signs * torch.finfo(x.dtype).eps / 2)

    handle = embeddings.register_forward_hook(nudged)
    try:
        yield
    finally:
        handle.remove()
