"""Bin packing: samples into micro-batches with a token limit, never splitting a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from marft.common.types import Sample, TokenIds
from marft.models.backbone import Backbone
from marft.models.batches import in_batches
from marft.models.forest import Forest, common
from marft.trainer.choice_scoring import scored_tokens, tokens_read

LONGER = 1.25  # maximum size relative to the first sample, if that sample alone exceeds the limit


class Cut(NamedTuple):
    """Micro-batch samples, and an upper bound on their tokens."""

    samples: list[Sample]
    tokens: int
    shared: bool = False  # True if common prefixes are stored once


def length(sample: Sample) -> int:
    """Return the number of input tokens for scoring a sample."""
    return tokens_read(sample.action)


def cut_by_tokens(samples: Sequence[Sample], limit: int) -> list[Cut]:
    """Split samples into runs of at most ``limit`` tokens; a longer sample forms its own run."""
    return [Cut(some, sum(map(length, some))) for some in in_batches(samples, length, limit)]


def cut_evenly(samples: Sequence[Sample], limit: int) -> list[Cut]:
    """Split samples into runs with similar size, at most ``limit`` tokens each."""
    total = sum(length(sample) for sample in samples)
    even = math.ceil(total / math.ceil(total / limit)) + max(map(length, samples)) // 2
    return cut_by_tokens(samples, min(limit, even))


def cut_sharing(
    backbone: Backbone, samples: Sequence[Sample], adapters: Mapping[str, str | None], limit: int
) -> list[Cut]:
    """Split samples into runs with common prefixes, counted once, at most ``limit`` tokens each.

    A sample above the limit also takes samples that add at most a quarter of its tokens. The result is empty if prefix
    sharing has no benefit.

    Args:
        backbone: backbone of the samples.
        samples: samples to split.
        adapters: adapter of each policy; rows of different adapters share no prefix.
        limit: maximum tokens of a run.
    """
    rows = [_rows(sample) for sample in samples]
    owners = [adapters[sample.action.policy] for sample in samples]
    whole = Forest.of(
        [row for of_sample in rows for row in of_sample],
        [owner for owner, of_sample in zip(owners, rows, strict=True) for _ in of_sample],
    )
    if not backbone.gains(whole, sum(map(length, samples))):
        return []
    order = sorted(range(len(samples)), key=lambda number: (owners[number] or "", rows[number][0].tobytes()))
    cuts: list[Cut] = []
    before, most = -1, limit
    for number in order:
        alike = before >= 0 and owners[before] == owners[number]
        added = _added(rows[number], rows[before] if alike else [])
        if cuts and cuts[-1].tokens + added <= most:
            cuts[-1] = Cut([*cuts[-1].samples, samples[number]], cuts[-1].tokens + added, shared=True)
        else:
            cuts.append(Cut([samples[number]], _added(rows[number], []), shared=True))
            most = limit if cuts[-1].tokens <= limit else int(LONGER * cuts[-1].tokens)
        before = number
    return cuts


def _rows(sample: Sample) -> list[TokenIds]:
    return [np.concatenate([said.context, said.tokens[:-1]]) for said in scored_tokens(sample.action)]


def _added(rows: Sequence[TokenIds], others: Sequence[TokenIds]) -> int:
    """Return an upper bound on the tokens that ``rows`` add to ``others``."""
    return sum(
        len(row) - max((common(row, other) for other in (*others, *rows[:place])), default=0)
        for place, row in enumerate(rows)
    )
