"""Cutting a minibatch into micro-batches of at most so many tokens; what a sample adds is never cut."""

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

LONGER = 1.25  # what a micro-batch may have of its first sample's tokens, where those alone are more than allowed


class Cut(NamedTuple):
    """The samples of a micro-batch, and how many tokens it has at most."""

    samples: list[Sample]
    tokens: int
    shared: bool = False  # whether what they begin with alike is there once


def length(sample: Sample) -> int:
    """Tokens that are read to score a sample."""
    return tokens_read(sample.action)


def cut_by_tokens(samples: Sequence[Sample], limit: int) -> list[Cut]:
    """Runs of at most ``limit`` tokens; a sample that is longer goes alone."""
    return [Cut(some, sum(map(length, some))) for some in in_batches(samples, length, limit)]


def cut_evenly(samples: Sequence[Sample], limit: int) -> list[Cut]:
    """Runs of at most ``limit`` tokens, about equally large."""
    total = sum(length(sample) for sample in samples)
    even = math.ceil(total / math.ceil(total / limit)) + max(map(length, samples)) // 2
    return cut_by_tokens(samples, min(limit, even))


def cut_sharing(
    backbone: Backbone, samples: Sequence[Sample], adapters: Mapping[str, str | None], limit: int
) -> list[Cut]:
    """Runs of samples that begin alike, each of at most ``limit`` tokens of which none is there twice. A sample that is
    longer takes along those that add no more than a quarter to it. Empty where sharing gains nothing.

    Args:
        adapters: of each policy. Rows of different ones share nothing.
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
    """How many tokens rows add at most where others are already."""
    return sum(
        len(row) - max((common(row, other) for other in (*others, *rows[:place])), default=0)
        for place, row in enumerate(rows)
    )
