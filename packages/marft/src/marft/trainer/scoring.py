"""Log-probs of recorded actions under the weights as they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from marft.common.types import ActionKey, Sample
from marft.models.devices import Awaited, on_host
from marft.models.log_probs import TokenScores, token_scores
from marft.trainer.batching import Denominators, Idle, MicroBatch, Packing
from marft.trainer.interfaces import LOG_RATIO_LIMIT, Floats
from marft.trainer.rank_group import ALONE, Ranks, merged


def k3(log_ratio: Tensor) -> Tensor:
    """Schulman's k3 estimate of KL(p ‖ q) at samples of p, from ``log q − log p`` (clamped to ±20 nats)."""
    d = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return d.expm1() - d


def score(batch: MicroBatch) -> TokenScores:
    """Log-probs and entropies of a micro-batch's sampled tokens: one forward for all agents on its backbone."""
    return score_all(batch)[0]


def score_all(batch: MicroBatch, entropy_gradient: bool = False) -> tuple[TokenScores, Tensor | None]:
    """As :func:`score`, and from the same forward the log-probs of what teammates wrote, where that is trained."""
    hidden, head, shape = batch.backbone.hidden_states(batch.rows), batch.backbone.head, batch.backbone.logit_shape
    own = token_scores(
        picked(hidden, batch.predict_from), head.weight, head.bias, batch.targets, batch.temperatures, entropy_gradient,
        filled=batch.rows.filled, shape=shape, masks=batch.masks,
    )  # fmt: skip
    if batch.chosen is not None:
        own = batch.chosen.decide(own)
    text = batch.teammate_text
    if text is None:
        return own, None
    theirs = token_scores(
        picked(hidden, text.predict_from), head.weight, head.bias, text.targets, text.temperatures, shape=shape
    )
    return own, theirs.log_probs


def picked(hidden_ND: Tensor, index_T: Tensor) -> Tensor:
    """Rows of a tensor [T, D], of which several may be the same one: rows that begin alike share their prompt's last.

    The gradient adds up in one order, whatever the threads do: on a CPU that of ``x[index]`` does not.
    """
    return hidden_ND.index_select(0, index_T) if on_host(hidden_ND) else hidden_ND[index_T]


def _note(scored: dict[ActionKey, Floats], batch: MicroBatch, flat: Floats) -> None:
    scored.update(batch.by_action(flat))


@torch.no_grad()
def score_actions(packing: Packing, samples: Sequence[Sample], ranks: Ranks = ALONE) -> dict[ActionKey, Floats]:
    """Log-probs of every sampled token under the policies as they are, by key of the action; each rank has a share."""
    if not samples:
        return {}
    policies = sorted({sample.action.policy for sample in samples})
    mine = packing.share_of(samples, ranks)
    batches = packing.micro_batches(mine, Denominators.of(samples, pooled=False)) if mine else []
    scored: dict[ActionKey, Floats] = {}
    awaited = Awaited()
    for batch in packing.in_step(batches, policies, ranks):
        if isinstance(batch, Idle):
            batch.forward()
        else:
            awaited.add(score(batch).log_probs, partial(_note, scored, batch))
    awaited.read()
    return merged(ranks, scored)
