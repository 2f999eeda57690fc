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

from marft.common.types import TokenIds
from marft.models import attention
from marft.models.backbone import Backbone
from marft.models.packed_rows import PackedRows
from marft.models.running_rows import running_rows
from marft.models.small_copy import VOCABULARY, small_copy

SAME = 1e-3  # nats: what the order of sums may do in float32
ROUNDING = 0.02  # nats a token: what half precision always may, on average
NOISE = 4.0  # or this many times what the model differs from itself by
ANOTHER = "use a model of another architecture (docs/models.md lists them)"
CALLED_WRONGLY = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
LAYERS = {"full_attention", "sliding_attention"}  # kinds that can be packed
LIKELY = 8  # tokens compared at each position: nobody samples the others
COPIED, REAL = (5, 40, 17), (7, 36)  # lengths of rows


def settle_forward(backbone: Backbone, what: str) -> None:
    """Have a backbone use the fastest forward that computes what its model does.

    Args:
        what: the model's name in errors.

    Raises:
        ValueError: none does.
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
    """Whether a small copy of the model comes out of the backbone's forward as out of its own."""
    key = type(backbone.model), backbone.fused, backbone.plain, backbone.model.config.to_json_string()
    if key not in _seen:
        copy = small_copy(backbone.model, backbone.decoder)
        own = None if copy is None else _own_or_none(copy)
        alike = own is not None and copy is not None and _computes_alike(copy, own, backbone.fused, backbone.plain)
        _seen[key] = alike or (backbone.plain and own is None)
    return _seen[key]


_seen: dict[tuple[type, bool, bool, str], bool] = {}  # a run may load a model more than once


def _own_or_none(copy: PreTrainedModel) -> Tensor | None:
    """Logits of a small model's own forward; None where its configuration did not bear to be shrunk."""
    try:
        return _own_logits(copy, _rows(COPIED, VOCABULARY), "eager")
    except CALLED_WRONGLY:
        return None


def _computes_alike(copy: PreTrainedModel, own: Tensor, fused: bool, plain: bool) -> bool:
    """Whether a small model's rows come out of a forward, and their last tokens of decoding, as they should."""
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
    """Whether a model lets its attention be plugged, in layers of kinds that see all before them or a window."""
    kinds = getattr(model.config, "layer_types", None) or ()
    return bool(getattr(model, "_supports_attention_backend", False)) and set(kinds) <= LAYERS


def _same_results(backbone: Backbone, own: Tensor) -> bool:
    """Whether on the real weights log-probs of likely tokens are as near to the model's own as rounding lets them."""
    try:
        mine = _packed_logits(backbone, _real_rows(backbone))
    except CALLED_WRONGLY:
        return False
    difference = float(_differences(mine, own).mean())
    return difference < (ROUNDING if backbone.half else SAME) or difference < NOISE * _noise(backbone, own)


def _refuse_leaks(backbone: Backbone, what: str) -> None:
    """See that a model's own forward gives each row the same in a batch, and decoded, as alone.

    Raises:
        ValueError: it does not.
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
    """How far log-probs of a model's own forward are from themselves, when it is computed in another way."""
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
    """Texts of frequent tokens, which vocabularies that were learned from text begin with."""
    frequent = min(vocabulary, 2000)
    return [(np.arange(3, length + 3) ** 2 * 7919 % frequent).astype(np.int32) for length in lengths]


@torch.no_grad()
def _own_logits(model: PreTrainedModel, rows: Sequence[TokenIds], implementation: str | None) -> Tensor:
    """Of each row alone, as transformers computes them, with attention of a kind or as it is → [N, V]."""
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
    """After each row's last token, which comes once all others are cached → [B, V]."""
    running = running_rows(backbone)
    packed = PackedRows.of([row[:-1] for row in rows], [None] * len(rows), backbone.device)
    running.prefill(packed, [[slot] for slot in range(len(rows))])
    last = torch.tensor([int(row[-1]) for row in rows], device=backbone.device)
    return backbone.logits(running.step(last, packed.lengths, [None] * len(rows)), None)


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
