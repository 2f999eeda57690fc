"""Log-probabilities for recorded actions under the current weights."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from marft.common.types import ActionKey, Sample
from marft.config.interfaces.credit import Floats
from marft.models.devices import DeferredReads, is_on_cpu
from marft.models.log_probs import TokenScores, score_tokens
from marft.trainer.batching import BatchCounts, IdleBatch, Packing
from marft.trainer.micro_batch import MicroBatch
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks, merge_over_ranks


def score_batch(batch: MicroBatch) -> TokenScores:
    """Return a micro-batch's log-probabilities and entropies per decision, shape [T].

    One forward pass covers all agents on the backbone.
    """
    return score_with_teammates(batch)[0]


def score_with_teammates(batch: MicroBatch, entropy_gradient: bool = False) -> tuple[TokenScores, Tensor | None]:
    """Return the scores from :func:`score_batch`, plus log-probabilities for trained teammate text.

    Both come from the same forward pass. The second is None without trained teammate text.

    Args:
        batch: micro-batch to score.
        entropy_gradient: True to compute entropies with gradient.
    """
    hidden, head = batch.backbone.hidden_states(batch.rows), batch.backbone.output_head
    own_scores = score_tokens(
        select_rows(hidden, batch.predict_from),
        head,
        batch.targets,
        batch.temperatures,
        entropy_gradient,
        fixed_size=batch.rows.fixed_size,
        masks=batch.masks,
    )
    if batch.chosen is not None:
        own_scores = batch.chosen.to_decisions(own_scores)
    text = batch.teammate_text
    if text is None:
        return own_scores, None
    teammate_hidden = select_rows(hidden, text.predict_from)
    teammate_scores = score_tokens(teammate_hidden, head, text.targets, text.temperatures)
    return own_scores, teammate_scores.log_probs


def select_rows(hidden_ND: Tensor, index_T: Tensor) -> Tensor:
    """Select rows from a tensor [N, D]; indices may repeat, because rows with a common prefix share positions.

    The gradient is summed in a fixed order, independent of threads. On a CPU the gradient of ``x[index]`` is not.
    """
    return hidden_ND.index_select(0, index_T) if is_on_cpu(hidden_ND) else hidden_ND[index_T]


def _add_scores(scored: dict[ActionKey, Floats], batch: MicroBatch, flat: Floats) -> None:
    scored.update(batch.split_by_action(flat))


@torch.no_grad()
def score_actions(packing: Packing, samples: Sequence[Sample], ranks: Ranks = SINGLE_RANK) -> dict[ActionKey, Floats]:
    """Return log-probabilities of every decision under the current policies, by the action's key.

    Each rank scores its share.
    """
    if not samples:
        return {}
    policies = sorted({sample.action.policy for sample in samples})
    own_samples = packing.share_of(samples, ranks)
    batches = packing.micro_batches(own_samples, BatchCounts.from_samples(samples, pooled=False)) if own_samples else []
    scored: dict[ActionKey, Floats] = {}
    deferred = DeferredReads()
    for batch in packing.pad_to_ranks(batches, policies, ranks):
        if isinstance(batch, IdleBatch):
            batch.forward()
        else:
            deferred.add(score_batch(batch).log_probs, partial(_add_scores, scored, batch))
    deferred.read_pending()
    return merge_over_ranks(ranks, scored)
