"""An action that fell into several segments is one action: how many they are changes no Z, credit, average or ratio."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from marft.common.token_data import PromptReset, TokenSource
from marft.common.types import Action, Episode, Sample, TokenIds
from marft.config.interfaces.credit import CreditInputs, CreditOutput, Level
from marft.models.backbone import Backbone
from marft.models.packed_rows import PackedRows
from marft.trainer.batching import BatchCounts, Packing, make_samples, normalizer, select_mixed_lengths
from marft.trainer.credit.gae import GAE
from marft.trainer.credit.grpo import GRPO
from marft.trainer.critic import critic_inputs
from marft.trainer.micro_batch import count_input_tokens
from marft.trainer.scoring import score_batch
from tests.episodes import episodes, make_action, values_for
from tests.marft.trainer.test_updates import (
    POLICIES,
    _double_backbone,
    assert_equal,
    gradients,
    packing,
    random_samples,
)
from tests.nights import by_day, some

TEMPERATURES = {"one": 1.0, "two": 0.7}
Metrics = Mapping[str, float]
SEEDS = st.integers(0, 10_000)


def restarts_at(places: Sequence[int], random: np.random.Generator) -> tuple[PromptReset, ...]:
    contexts = [random.integers(3, 100, random.integers(1, 9)).astype(np.int32) for _ in places]
    return tuple(
        PromptReset(int(at), context, turns, "it was rewritten")
        for turns, (at, context) in enumerate(zip(places, contexts, strict=True), 1)
    )


def cut(action: Action, random: np.random.Generator) -> Action:
    """The action in segments after random contexts; tools and a teammate wrote some of its tokens."""
    size = len(action.tokens)
    places = sorted(random.choice(np.arange(1, size), random.integers(0, size), replace=False)) if size > 1 else []
    return replace(action, restarts=restarts_at(places, random))


def segmented(level: str, seed: int) -> list[Sample]:
    """Samples of several segments, with tokens of tools in them."""
    random, samples = np.random.default_rng(seed), []
    for sample in random_samples(_double_backbone(), level, seed=seed % 7):
        size = len(sample.action.tokens)
        marks = random.choice([TokenSource.SAMPLED, TokenSource.SAMPLED, TokenSource.TOOL], size).astype(np.uint8)
        marks[[0, -1]] = TokenSource.SAMPLED
        own = marks == TokenSource.SAMPLED
        action = replace(cut(sample.action, random), marks=marks, log_probs=sample.action.log_probs[own])
        samples.append(
            replace(sample, action=action, advantages=sample.advantages[own] if level == "token" else sample.advantages)
        )
    return samples


def gradients_of(backbone: Backbone, samples: Sequence[Sample], pack: Packing) -> tuple[Mapping[str, Tensor], Metrics]:
    """As :func:`gradients`, and leaves none behind on the shared backbone."""
    found = gradients(backbone, samples, pack)
    for policy in POLICIES:
        for adapter in backbone.adapters(policy).values():
            adapter.a.grad = adapter.b.grad = None
    return found


def context_of(action: Action, place: int) -> tuple[TokenIds, int]:
    """What token ``place`` was sampled after: a context, and the first token that follows it."""
    context, first = action.prompt, 0
    for restart in action.restarts:
        if restart.at <= place:
            context, first = restart.context, restart.at
    return context, first


@torch.no_grad()
def slow_log_probs(backbone: Backbone, action: Action) -> list[float]:
    """Of each sampled token, by a forward of its own."""
    found = []
    for place in np.flatnonzero(action.sampled_mask):
        context, first = context_of(action, place)
        ids = np.concatenate([context, action.tokens[first:place]])
        rows = PackedRows.from_rows([ids], [action.policy], backbone.device)
        logits = backbone.head(backbone.hidden_states(rows)[-1]).double() / TEMPERATURES[action.policy]
        found.append(float(logits.log_softmax(0)[int(action.tokens[place])]))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("level", ["action", "token"])
@given(seed=SEEDS, tokens=st.sampled_from([1, 25, 10**6]))
@settings(max_examples=by_day(12, 25))
def test_every_sampled_token_is_scored_once_after_its_own_context(level: str, seed: int, tokens: int) -> None:
    backbone, samples = _double_backbone(), segmented(level, seed)
    batches = packing(backbone, level, tokens=tokens).micro_batches(
        samples, BatchCounts.from_samples(samples, pooled=False)
    )
    seen = []
    for batch in batches:
        with torch.no_grad():
            scores = score_batch(batch).log_probs
        units = iter(batch.unit_log_probs(scores).tolist())
        rows = batch.split_by_action(scores.double().numpy())
        targets = iter(batch.targets.tolist())
        assert len(set(batch.predict_from.tolist())) == len(batch.targets)
        for sample in batch.samples:
            action, slow = sample.action, slow_log_probs(backbone, sample.action)
            assert [next(targets) for _ in slow] == action.tokens[action.sampled_mask].tolist()
            np.testing.assert_allclose(rows[action.key], slow, rtol=1e-6, atol=1e-9)
            expected = [sum(slow) / sample.normalizer] if level == "action" else slow
            np.testing.assert_allclose([next(units) for _ in expected], expected, rtol=1e-6, atol=1e-9)
            seen.append(action.key)
    assert sorted(seen) == sorted(sample.action.key for sample in samples)


@pytest.mark.slow
@pytest.mark.parametrize(("level", "aggregation"), some([("token", "token-mean"), ("action", "action-mean")]))
@given(seed=SEEDS, tokens=st.sampled_from([1, 13, 25]), backwards=st.booleans())
@settings(max_examples=15)
def test_gradients_do_not_depend_on_how_segments_are_packed(
    level: str, aggregation: str, seed: int, tokens: int, backwards: bool
) -> None:
    backbone, samples = _double_backbone(), segmented(level, seed)
    whole, _ = gradients_of(backbone, samples, packing(backbone, level, aggregation))
    order = samples[::-1] if backwards else samples
    assert_equal(whole, gradients_of(backbone, order, packing(backbone, level, aggregation, tokens))[0])


@pytest.mark.parametrize(("level", "aggregation"), [("action", "action-mean"), ("token", "action-mean")])
@given(seed=SEEDS)
@settings(max_examples=15)
def test_where_nothing_was_rewritten_segments_train_as_the_whole_does(level: str, aggregation: str, seed: int) -> None:
    """Cut where the context is what came before anyhow, an action has the gradient of one that was not cut."""
    backbone, random = _double_backbone(), np.random.default_rng(seed)
    samples = random_samples(backbone, level, seed=seed % 7)

    def same_again(action: Action) -> Action:
        restarts = cut(action, random).restarts
        before = [np.concatenate([action.prompt, action.tokens[: restart.at]]) for restart in restarts]
        return replace(action, restarts=tuple(replace(r, context=ids) for r, ids in zip(restarts, before, strict=True)))

    pieces = [replace(sample, action=same_again(sample.action)) for sample in samples]
    whole, of_whole = gradients_of(backbone, samples, packing(backbone, level, aggregation))
    parts, of_parts = gradients_of(backbone, pieces, packing(backbone, level, aggregation))
    assert_equal(whole, parts)
    assert of_parts == pytest.approx(of_whole, rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["action", "token"])
@given(data=st.data(), seed=SEEDS)
@settings(max_examples=50)
def test_z_credit_and_denominators_do_not_know_of_segments(level: Level, data: st.DataObject, seed: int) -> None:
    random = np.random.default_rng(seed)
    whole = [replace(data.draw(episodes()), sample=n) for n in range(2)]
    parts = [replace(e, actions=tuple(cut(action, random) for action in e.actions)) for e in whole]
    values = data.draw(values_for(whole, level))

    def made(batch: Sequence[Episode]) -> tuple[list[CreditOutput], list[Sample], BatchCounts]:
        credits = [
            credit.assign(CreditInputs(batch, level, values if credit.needs_critic else None))
            for credit in (GAE(), GRPO())
        ]
        samples, _ = make_samples(batch, credits[0], ["a", "b", "c", "d"], "tokens", normalize_advantages=True)
        return credits, samples, BatchCounts.from_samples(samples, pooled=False)

    (credits, samples, counts), (credits_cut, samples_cut, counts_cut) = made(whole), made(parts)
    for one, other in zip(credits, credits_cut, strict=True):
        assert [a.tolist() for a in one.advantages] == [a.tolist() for a in other.advantages]
        assert [a.tolist() for a in one.returns] == [a.tolist() for a in other.returns]
    assert [s.advantages.tolist() for s in samples] == [s.advantages.tolist() for s in samples_cut]
    assert [s.normalizer for s in samples] == [s.normalizer for s in samples_cut]
    assert counts == counts_cut
    for kind in ("none", "tokens", "words"):
        for one, other in zip(samples, samples_cut, strict=True):
            assert normalizer(one.action, kind) == normalizer(other.action, kind)  # type: ignore[arg-type]


BEGUN = (
    TokenSource.TEAMMATE,
    TokenSource.TEAMMATE,
    TokenSource.SAMPLED,
    TokenSource.SAMPLED,
    TokenSource.TOOL,
    TokenSource.SAMPLED,
    TokenSource.SAMPLED,
)


def anew(marks: Sequence[TokenSource] = BEGUN, **changes: object) -> Action:
    """A teammate's two tokens and one of its own; after a chat rendered anew one, an answer, and two more."""
    action = make_action(prompt=(1, 2, 3), tokens=(4, 5, 6, 7, 8, 9, 10), marks=tuple(map(int, marks)), policy="one")
    restart = PromptReset(3, np.array([20, 21], np.int32), 1, "it was rewritten")
    return replace(
        action,
        restarts=(restart,),
        teammate_log_probs=np.array([-0.5, -0.7], np.float32),
        **changes,  # type: ignore[arg-type]
    )


def test_a_value_is_read_before_its_token_in_its_own_segment() -> None:
    first, second = critic_inputs(anew(), "token")
    assert (first.token_ids.tolist(), first.positions.tolist()) == ([1, 2, 3, 4, 5], [4])
    assert (second.token_ids.tolist(), second.positions.tolist()) == ([20, 21, 7, 8, 9], [1, 3, 4])
    (only,) = critic_inputs(anew(), "action")
    assert (only.token_ids.tolist(), only.positions.tolist()) == ([1, 2, 3, 4, 5], [4])


def test_a_state_that_says_more_stands_before_the_first_segment_alone() -> None:
    wider = anew(state=np.array([1, 2, 3, 90], np.int32))
    first, second = critic_inputs(wider, "token")
    assert first.token_ids.tolist() == [1, 2, 3, 90, 4, 5]
    assert second.token_ids.tolist() == [20, 21, 7, 8, 9]
    assert critic_inputs(wider, "token", "independent")[0].token_ids.tolist() == [1, 2, 3, 4, 5]


def test_a_teammates_text_is_scored_where_it_stands_in_the_first_segment() -> None:
    pack: Packing = replace(packing(_double_backbone(), "token"), temperatures={"a": 1.0}, teammate_text=True)
    samples = [Sample(anew(), 1.0, np.arange(4.0))]
    (batch,) = pack.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))
    assert batch.rows.ids.tolist() == [1, 2, 3, 4, 5, 20, 21, 7, 8, 9]
    assert batch.predict_from.tolist() == [4, 6, 8, 9]
    text = batch.teammate_text
    assert text is not None
    assert (text.predict_from.tolist(), text.targets.tolist()) == ([2, 3], [4, 5])


def test_a_teammates_text_is_scored_where_it_stands_in_a_later_segment() -> None:
    """A helper that is asked once a tool has answered."""
    pack: Packing = replace(packing(_double_backbone(), "token"), temperatures={"a": 1.0}, teammate_text=True)
    own, theirs = TokenSource.SAMPLED, TokenSource.TEAMMATE
    samples = [Sample(anew((own, theirs, own, TokenSource.TOOL, own, theirs, own)), 1.0, np.arange(4.0))]
    (batch,) = pack.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))
    assert batch.rows.ids.tolist() == [1, 2, 3, 4, 5, 20, 21, 7, 8, 9]
    text = batch.teammate_text
    assert text is not None
    assert (text.predict_from.tolist(), text.targets.tolist()) == ([3, 8], [5, 9])
    assert text.advantages.tolist() == [1.0, 3.0]


def test_the_length_of_an_action_is_all_that_is_read_for_it() -> None:
    assert count_input_tokens(anew()) == 5 + 5
    long, longer = Sample(make_action(tokens=tuple(range(9))), 1.0, np.zeros(1)), Sample(anew(), 1.0, np.zeros(1))
    short = [Sample(make_action(tokens=(1,), sample=n), 1.0, np.zeros(1)) for n in range(2)]
    assert select_mixed_lengths([long, longer, *short], 1) == [long]  # 11 tokens, and 10 in two rows
    wide = replace(longer.action.restarts[0], context=np.arange(5, dtype=np.int32))
    widest = replace(longer, action=replace(longer.action, restarts=(wide,)))
    assert select_mixed_lengths([long, widest, *short], 1) == [widest]


def test_the_samples_above_are_of_all_policies_and_of_several_segments() -> None:
    assert {sample.action.policy for sample in segmented("token", 3)} == set(POLICIES)
    assert max(len(sample.action.segments) for sample in segmented("token", 3)) > 2
