"""Bin packing: samples into micro-batches with a token limit, never splitting a sample."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from marft.common.types import Sample, TokenIds
from marft.models.backbone import Backbone
from marft.models.batches import split_batches
from marft.models.prefix_tree import PrefixTree, common_prefix_length
from marft.trainer.choice_scoring import count_input_tokens, scored_tokens

MAX_SIZE_RATIO = 1.25  # maximum size relative to the first sample, if that sample alone exceeds the limit


class Bin(NamedTuple):
    """Micro-batch samples, and an upper bound on their tokens."""

    samples: list[Sample]
    tokens: int
    shared: bool = False  # True if common prefixes are stored once


def input_length(sample: Sample) -> int:
    """Return the number of input tokens for scoring a sample."""
    return count_input_tokens(sample.action)


def pack_by_tokens(samples: Sequence[Sample], limit: int) -> list[Bin]:
    """Split samples into runs of at most ``limit`` tokens; a longer sample forms its own run."""
    return [Bin(group, sum(map(input_length, group))) for group in split_batches(samples, input_length, limit)]


def pack_evenly(samples: Sequence[Sample], limit: int) -> list[Bin]:
    """Split samples into runs with similar size, at most ``limit`` tokens each."""
    total = sum(input_length(sample) for sample in samples)
    even_limit = math.ceil(total / math.ceil(total / limit)) + max(map(input_length, samples)) // 2
    return pack_by_tokens(samples, min(limit, even_limit))


def pack_shared_prefixes(
    backbone: Backbone, samples: Sequence[Sample], adapters: Mapping[str, str | None], limit: int
) -> list[Bin]:
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
    prefix_tree = PrefixTree.from_rows(
        [row for sample_rows in rows for row in sample_rows],
        [owner for owner, sample_rows in zip(owners, rows, strict=True) for _ in sample_rows],
    )
    if not backbone.benefits_from_tree(prefix_tree, sum(map(input_length, samples))):
        return []
    order = sorted(range(len(samples)), key=lambda number: (owners[number] or "", rows[number][0].tobytes()))
    bins: list[Bin] = []
    before, max_tokens = -1, limit
    for number in order:
        is_same_owner = before >= 0 and owners[before] == owners[number]
        added = _count_added_tokens(rows[number], rows[before] if is_same_owner else [])
        if bins and bins[-1].tokens + added <= max_tokens:
            bins[-1] = Bin([*bins[-1].samples, samples[number]], bins[-1].tokens + added, shared=True)
        else:
            bins.append(Bin([samples[number]], _count_added_tokens(rows[number], []), shared=True))
            max_tokens = limit if bins[-1].tokens <= limit else int(MAX_SIZE_RATIO * bins[-1].tokens)
        before = number
    return bins


def _rows(sample: Sample) -> list[TokenIds]:
    return [np.concatenate([segment.context, segment.tokens[:-1]]) for segment in scored_tokens(sample.action)]


def _count_added_tokens(rows: Sequence[TokenIds], previous_rows: Sequence[TokenIds]) -> int:
    """Return an upper bound on the tokens that ``rows`` add to ``previous_rows``."""
    return sum(
        len(row) - max((common_prefix_length(row, previous) for previous in (*previous_rows, *rows[:index])), default=0)
        for index, row in enumerate(rows)
    )
