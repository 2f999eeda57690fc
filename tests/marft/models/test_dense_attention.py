"""Attention in every layout (packed rows, trees, one new token a row) against scores written out whole, in float64."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from marft.models import attention, tree_attention
from marft.models import tree_attention as grouped_attention
from marft.models.attention import AttentionSpec, DecodePlan, KVCache, PackedPlan, padded_length
from marft.models.packed_rows import PrefixTree
from marft.models.tree_attention import CachedKeyValues, TreePlan

CPU = torch.device("cpu")
HEADS, KEY_HEADS, WIDTH, OF_VALUES = 6, 2, 4, 3
SINKS = torch.linspace(-1, 1, HEADS, dtype=torch.float64)
WEIGHINGS = st.builds(
    AttentionSpec,
    st.just(0.4),
    st.one_of(st.none(), st.integers(1, 40)),
    st.sampled_from([None, 1.5]),
    st.sampled_from([None, SINKS]),
)
PLAIN = st.builds(AttentionSpec, st.just(0.4), st.one_of(st.none(), st.integers(1, 40)))


def dense(q: Tensor, k: Tensor, v: Tensor, weighing: AttentionSpec) -> Tensor:
    """One row: ``q`` [T, H, D], ``k`` and ``v`` [S, K, D], of which the queries are the last → [T, H, D]."""
    keys, values = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))  # one a query head
    scores = weighing.scale * torch.einsum("thd,shd->hts", q, keys)
    if weighing.softcap is not None:
        scores = weighing.softcap * torch.tanh(scores / weighing.softcap)
    back = torch.arange(len(k) - len(q), len(k))[:, None] - torch.arange(len(k))
    scores = scores.masked_fill((back < 0) | (back >= (weighing.window or len(k))), -torch.inf)
    if weighing.sinks is not None:
        scores = torch.cat([scores, weighing.sinks[:, None, None].expand(-1, len(q), 1)], 2)
    return torch.einsum("hts,shd->thd", scores.softmax(-1)[..., : len(k)], values)


def random_tensors(tokens: int, seed: int = 0) -> list[Tensor]:
    """q, k and v of so many tokens."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((HEADS, WIDTH), (KEY_HEADS, WIDTH), (KEY_HEADS, OF_VALUES))
    return [torch.randn(tokens, *shape, dtype=torch.float64, generator=generator) for shape in shapes]


def compared(mine: Tensor, expected: Tensor, leaves: Sequence[Tensor]) -> None:
    """Values, and gradients in which every number has a weight of its own."""
    torch.testing.assert_close(mine, expected, rtol=1e-9, atol=1e-9)
    weights = torch.arange(mine.numel(), dtype=torch.float64).view(mine.shape).sin()
    found, wanted = (torch.autograd.grad((out * weights).sum(), leaves) for out in (mine, expected))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(st.integers(1, 23), min_size=1, max_size=4), WEIGHINGS, st.integers(0, 5))
def test_packed_rows(lengths: list[int], weighing: AttentionSpec, spare: int) -> None:
    size = sum(lengths)
    leaves = [x.requires_grad_() for x in random_tensors(size + spare)]
    mine = PackedPlan(lengths, CPU, tokens=size + spare).attend(0, *leaves, weighing)
    rows = zip(*(x[:size].split(lengths) for x in leaves), strict=True)
    compared(mine[:size], torch.cat([dense(*row, weighing) for row in rows]), leaves)


@pytest.mark.parametrize("length", [5, 16, 19])
def test_windows_of_every_length_around_that_of_a_row_and_of_its_padding(length: int) -> None:
    leaves = random_tensors(length)
    for window in (length - 1, length, length + 1, padded_length(length) - 1, padded_length(length)):
        weighing = AttentionSpec(0.4, window)
        mine = PackedPlan([length], CPU).attend(0, *leaves, weighing)
        torch.testing.assert_close(mine, dense(*leaves, weighing), rtol=1e-9, atol=1e-9)


def test_tokens_beside_the_rows_of_a_filled_batch_have_no_gradient() -> None:
    """Whatever is asked of them: nothing reads what they come out as."""
    leaves = [x.requires_grad_() for x in random_tensors(12)]
    PackedPlan([3, 5], CPU, tokens=12).attend(0, *leaves, AttentionSpec(0.4)).sum().backward()
    for leaf in leaves:
        assert leaf.grad is not None
        assert leaf.grad[:8].any()
        assert not leaf.grad[8:].any()


TREES = st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=14), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=40)
@example([[0] * 14, [0] * 9 + [1] * 5], 0, AttentionSpec(0.4), 4, 0)
@example([[0] * 14, [0] * 9 + [1] * 5], 5, AttentionSpec(0.4, 6), 3, 2)
@example([[0] * 14, [0] * 9 + [1] * 5, [0] * 9 + [1] * 3], 5, AttentionSpec(0.4, 6), 0, 2)
@given(TREES, st.integers(0, 12), st.one_of(PLAIN, WEIGHINGS), st.integers(0, 4), st.integers(0, 3))
def test_trees(rows: list[list[int]], known: int, weighing: AttentionSpec, block: int, spare: int) -> None:
    """Rows that share what they begin with, some of it computed before; with blocks of a few queries, or in groups."""
    texts = [np.array(ids, np.int32) for ids in rows]
    shared = min(known, len(texts[0]) - 1)
    begins = [len(ids) > shared and ids[:shared].tolist() == texts[0][:shared].tolist() for ids in texts]
    spans = [(0, shared) if shared and begin else (0, 0) for begin in begins]
    forest = PrefixTree.from_rows(texts, [None] * len(texts), spans, shared)
    leaves = [x.requires_grad_() for x in random_tensors(shared + len(forest.ids) + spare)]
    given_before = CachedKeyValues(*([x[:shared]] for x in leaves[1:])) if shared else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tree_attention, "MAX_BLOCK_QUERIES", block)
        patch.setattr(tree_attention, "MIN_BLOCK_QUERIES", block)
        patch.setattr(tree_attention, "MAX_GROUPED_SCORES", 0 if block else 2**23)
        patch.setattr(tree_attention, "MAX_KEY_COPIES", 2**10)
        patch.setattr(grouped_attention, "MAX_GROUP_SCORES", 2 * 16**2)  # two runs of a few tokens
        plan = TreePlan(forest, CPU, given_before)
        mine = plan.attend(0, *(x[shared:] for x in leaves), weighing)
        own = [torch.from_numpy(places[places >= shared]) - shared for places in forest.token_indices]
        expected = []
        for places, queries in zip(forest.token_indices, own, strict=True):
            keys = torch.from_numpy(places)
            expected.append(dense(leaves[0][queries + shared], leaves[1][keys], leaves[2][keys], weighing))
        compared(torch.cat([mine[queries] for queries in own]), torch.cat(expected), leaves)


@settings(max_examples=30)
@example([6, 6], True, AttentionSpec(0.4, 3), 2)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.booleans(), WEIGHINGS, st.integers(1, 3))
def test_new_tokens(lengths: list[int], equal: bool, weighing: AttentionSpec, steps: int) -> None:
    """Tokens one at a time after rows that have been read."""
    lengths = [lengths[0]] * len(lengths) if equal else lengths
    whole = [random_tensors(length + steps, seed) for seed, length in enumerate(lengths)]
    cache = KVCache(1)
    cache.reserve(len(lengths), max(lengths) + steps)
    packed = [torch.cat([row[number][:n] for row, n in zip(whole, lengths, strict=True)]) for number in range(3)]
    slots = [[slot] for slot in range(len(lengths))]
    PackedPlan(lengths, CPU, cache, slots).attend(0, *packed, weighing)
    for step in range(steps):
        at = [length + step for length in lengths]
        q, k, v = (torch.stack([row[number][n] for row, n in zip(whole, at, strict=True)]) for number in range(3))
        mine = DecodePlan(cache, at, CPU).attend(0, q, k, v, weighing)
        for out, row, n in zip(mine, whole, at, strict=True):
            expected = dense(row[0][n : n + 1], row[1][: n + 1], row[2][: n + 1], weighing)[0]
            torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("window", [1, 3, 4, 5, 30])
def test_long_packed_rows_some_queries_at_a_time(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "MAX_MASK_LENGTH", 8)
    monkeypatch.setattr(attention, "QUERY_BLOCK", 4)
    for cap in (None, 1.5):
        leaves = [x.requires_grad_() for x in random_tensors(19)]
        weighing = AttentionSpec(0.4, window, cap)
        compared(PackedPlan([19], CPU).attend(0, *leaves, weighing), dense(*leaves, weighing), leaves)
