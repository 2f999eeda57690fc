"""Log-probabilities for recorded actions under the current weights."""

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
    """Return Schulman's k3 estimate of KL(p ‖ q) at samples from p, in nats.

    Args:
        log_ratio: ``log q − log p``; clamped to ±20 nats.
    """
    d = log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return d.expm1() - d


def score(batch: MicroBatch) -> TokenScores:
    """Return a micro-batch's log-probabilities and entropies per decision, shape [T].

    One forward pass covers all agents on the backbone.
    """
    return score_all(batch)[0]


def score_all(batch: MicroBatch, entropy_gradient: bool = False) -> tuple[TokenScores, Tensor | None]:
    """Return the scores from :func:`score`, plus log-probabilities for trained teammate text.

    Both come from the same forward pass. The second is None without trained teammate text.

    Args:
        batch: micro-batch to score.
        entropy_gradient: True to compute entropies with gradient.
    """
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
    """Select rows from a tensor [N, D]; indices may repeat, because rows with a common prefix share positions.

    The gradient is summed in a fixed order, independent of threads. On a CPU the gradient of ``x[index]`` is not.
    """
    return hidden_ND.index_select(0, index_T) if on_host(hidden_ND) else hidden_ND[index_T]


def _note(scored: dict[ActionKey, Floats], batch: MicroBatch, flat: Floats) -> None:
    scored.update(batch.by_action(flat))


@torch.no_grad()
def score_actions(packing: Packing, samples: Sequence[Sample], ranks: Ranks = ALONE) -> dict[ActionKey, Floats]:
    """Return log-probabilities of every decision under the current policies, by the action's key.

    Each rank scores its share.
    """
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
