"""Rows that share what they begin with learn what they would alone, in micro-batches of no more tokens than allowed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from marft.common.token_data import TokenSource
from marft.common.types import Choice, Option, Sample
from marft.config.interfaces.schedule import Progress
from marft.models import backbone as backbone_module
from marft.models.backbone import Backbone
from marft.models.log_probs import LogitTransform
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import BatchCounts, Packing, input_length
from marft.trainer.learner import Learner
from marft.trainer.scoring import score_actions, score_with_teammates, select_rows
from tests.episodes import make_action
from tests.helpers import lengths_read
from tests.learners import episodes, recipe
from tests.marft.trainer.test_segments import cut

POLICIES = ("one", "two")


class ExactRotations(torch.nn.Module):
    """Rotations in float64; transformers' are float32, and a position's depend on its place in the batch by a rounding."""

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        self.frequencies = frequencies.double()

    def forward(self, _: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.cat([positions[..., None] * self.frequencies] * 2, -1)
        return angles.cos(), angles.sin()


@pytest.fixture
def double(backbone: Backbone, monkeypatch: pytest.MonkeyPatch) -> Backbone:
    """A float64 base with a random adapter for each policy, on which sharing is worth it at once."""
    monkeypatch.setattr(backbone_module, "NODE_COST", 0.0)
    monkeypatch.setattr(backbone_module, "MIN_SAVED_SHARE", 0.0)
    torch.manual_seed(3)
    for policy in POLICIES:
        backbone.add_adapter(policy, 4, 8.0, ("q_proj", "k_proj", "v_proj", "up_proj"), seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.2)
    backbone.model.double()
    backbone.decoder.rotary_emb = ExactRotations(backbone.decoder.rotary_emb.inv_freq)
    return backbone


def packing(backbone: Backbone, tokens: int = 10**6, *, share: bool = False, teammate_text: bool = True) -> Packing:
    return Packing(
        dict.fromkeys(POLICIES, backbone), {name: name for name in POLICIES}, {"one": 1.0, "two": 0.7}, "action-mean",
        "token", tokens, constant_length=1, teammate_text=teammate_text, share=share,
    )  # fmt: skip


def team(seed: int) -> list[Sample]:
    """Attempts at two tasks: prompts alike in part, turns that go on from turns, teammates' text, segments, choices."""
    random = np.random.default_rng(seed)
    heads = [tuple(map(int, random.integers(3, 40, size))) for size in random.integers(1, 30, 2)]
    samples: list[Sample] = []
    for number in range(int(random.integers(2, 9))):
        policy = POLICIES[int(random.integers(2))]
        before = [sample.action for sample in samples if sample.action.policy == policy]
        head = heads[number % 2]
        if before and random.random() < 0.5:  # the next turn of an episode
            last = before[int(random.integers(len(before)))]
            head = (*last.prompt.tolist(), *last.tokens.tolist())
        prompt = (*head, *map(int, random.integers(3, 6, random.integers(0, 3))))
        tokens = tuple(map(int, random.integers(3, 6, random.integers(1, 6))))
        marks = [
            int(random.choice([TokenSource.SAMPLED, TokenSource.TEAMMATE, TokenSource.TOOL])) for _ in tokens[1:]
        ] + [int(TokenSource.SAMPLED)]
        marks = [int(TokenSource.SAMPLED)] * len(marks) if number % 3 == 2 else marks
        action = make_action(policy, sample=number, prompt=prompt, tokens=tokens, marks=tuple(marks))
        if number % 3 == 0:
            action = replace(
                action, teammate_log_probs=np.full(marks.count(int(TokenSource.TEAMMATE)), -0.7, np.float32)
            )
        elif number % 3 == 1:
            action = replace(cut(action, random), marks=np.full(len(tokens), TokenSource.SAMPLED, np.uint8))
            action = replace(action, log_probs=np.full(len(tokens), -1.0, np.float32))
        else:
            options = tuple(Option(np.array([*tokens[:n], 9], np.int32)) for n in range(3))
            choice = Choice(options, 1, np.log(np.full(3, 1 / 3, np.float32)))
            action = replace(action, choice=choice, tokens=options[1].tokens, log_probs=choice.log_probs[[1]])
            action = replace(action, marks=np.full(len(action.tokens), TokenSource.SAMPLED, np.uint8))
        samples.append(Sample(action, 1.0, random.normal(size=action.num_decisions)))
    return samples


def learned(backbone: Backbone, samples: Sequence[Sample], how: Packing) -> dict[str, Tensor]:
    """The gradient of a loss in which every log-prob and entropy has a weight of its own."""
    backbone.model.zero_grad()
    for batch in how.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False)):
        scores, theirs = score_with_teammates(batch, entropy_gradient=True)
        names = torch.tensor([hash(sample.action.key) % 997 for sample in batch.samples], dtype=torch.float64)
        weights = (
            names[batch.action_of] + torch.arange(len(batch.action_of)) - batch.first_tokens()[batch.action_of]
        ).sin()
        loss = (weights * scores.log_probs).sum() + (weights.cos() * scores.entropies).sum()
        loss = (
            loss
            if theirs is None or batch.teammate_text is None
            else loss + (theirs * batch.teammate_text.weights).sum()
        )
        loss.backward()
    return {n: p.grad.clone() for n, p in backbone.model.named_parameters() if p.grad is not None}


@pytest.mark.slow
@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 200))
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_are_those_of_rows_alone_however_they_are_cut(double: Backbone, seed: int, tokens: int) -> None:
    samples = team(seed)
    expected = learned(double, samples, packing(double))
    for how in (packing(double, share=True), packing(double, tokens, share=True), packing(double, tokens)):
        found = learned(double, samples, how)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-8, atol=1e-10)


@pytest.mark.slow
def test_activations_that_are_computed_again_give_the_same_gradients(double: Backbone) -> None:
    """Of rows that share and rows that do not; transformers' own norms are float32."""
    batches = [team(seed) for seed in range(5)]
    expected = [learned(double, samples, packing(double)) for samples in batches]
    double.checkpoint_activations()
    for samples, wanted in zip(batches, expected, strict=True):
        for share in (False, True):
            found = learned(double, samples, packing(double, share=share))
            assert found.keys() == wanted.keys()
            for name, gradient in wanted.items():
                torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 10**6), tokens=st.integers(1, 200), share=st.booleans())
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_micro_batch_has_no_more_tokens_than_allowed_but_for_one_sample_and_what_adds_little_to_it(
    double: Backbone, seed: int, tokens: int, share: bool
) -> None:
    samples = team(seed)
    counts = BatchCounts.from_samples(samples, pooled=False)
    batches = packing(double, tokens, share=share).micro_batches(samples, counts)
    for batch in batches:
        longest = max(map(input_length, batch.samples))
        assert len(batch.rows.ids) <= tokens or len(batch.samples) == 1 or (share and tokens < len(batch.rows.ids))
        assert len(batch.rows.ids) <= (int(1.25 * longest) if share and longest > tokens else max(tokens, longest))
    assert sorted(s.action.key for b in batches for s in b.samples) == sorted(s.action.key for s in samples)
    assert sum(len(batch.rows.ids) for batch in batches) <= sum(map(input_length, samples))


def test_a_sample_within_the_limit_takes_nothing_along_beyond_it(double: Backbone) -> None:
    attempts = [make_action("one", sample=n, prompt=tuple(range(3, 83)), tokens=(50 + n,) * 11) for n in range(6)]
    samples = [Sample(action, 1.0, np.ones(11)) for action in attempts]
    batches = packing(double, 100, share=True).micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))
    assert [len(batch.rows.ids) for batch in batches] == [100, 100, 100]


def test_the_gradient_of_a_row_that_is_picked_often_adds_up_in_one_order() -> None:
    """On however many threads: attempts begin with what the last token of their prompt predicts."""
    torch.manual_seed(0)
    hidden, weights = torch.randn(300, 64), torch.randn(2048, 64)
    index = torch.arange(2048) // 7  # which no shares of threads divide
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        found = set()
        for _ in range(20):
            rows = hidden.clone().requires_grad_()
            (select_rows(rows, index) * weights).sum().backward()
            assert rows.grad is not None
            found.add(rows.grad.numpy().tobytes())
    finally:
        torch.set_num_threads(threads)
    assert len(found) == 1


def test_what_teammates_wrote_is_scored_in_the_models_shape_too(double: Backbone) -> None:
    samples = team(0)
    found = []
    for scale in (1.0, 0.5):
        double.logit_transform = LogitTransform(scale)
        (batch,) = packing(double).micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))
        with torch.no_grad():
            found.append(score_with_teammates(batch)[1])
    assert found[0] is not None
    assert found[1] is not None
    assert (found[0] - found[1]).abs().max() > 0.01


def test_what_teammates_wrote_is_scored_at_the_agents_own_temperature(double: Backbone) -> None:
    double.logit_transform = LogitTransform(0.5, 4.0)
    scored = set()
    for seed in range(6):
        samples = team(seed)
        (batch,) = packing(double).micro_batches(samples, BatchCounts.from_samples(samples, pooled=False))
        if (text := batch.teammate_text) is None:
            continue
        with torch.no_grad():
            theirs = score_with_teammates(batch)[1]
            logits = double.logit_transform(double.hidden_states(batch.rows)[text.predict_from] @ double.head.weight.T)
        expected = (logits / text.temperatures[:, None]).log_softmax(-1).gather(1, text.targets[:, None])[:, 0]
        torch.testing.assert_close(theirs, expected, rtol=1e-6, atol=1e-6)
        scored |= {round(temperature, 3) for temperature in text.temperatures.tolist()}
    assert 0.7 in scored


def test_what_begins_alike_is_read_once(double: Backbone) -> None:
    """Four attempts at a task, and an episode of eight turns, each of which begins with all of those before it."""
    prompt, turns = tuple(range(3, 43)), list(np.random.default_rng(0).integers(3, 40, 324))
    attempts = [make_action("one", sample=n, prompt=prompt, tokens=(50 + n, 5, 6)) for n in range(4)]
    ends = [44, 84, 124, 164, 204, 244, 284, 324]
    steps = [
        make_action("two", sample=9, step=n, prompt=tuple(turns[: end - 10]), tokens=tuple(turns[end - 10 : end]))
        for n, end in enumerate(ends)
    ]
    samples = [Sample(action, 1.0, np.ones(action.num_decisions)) for action in (*attempts, *steps)]
    read = lengths_read(double)
    apart, shared = (score_actions(packing(double, share=share), samples) for share in (False, True))
    assert read == [4 * 42 + sum(ends) - 8, 40 + 4 * 2 + 323]
    for key, scores in apart.items():
        np.testing.assert_allclose(shared[key], scores, rtol=1e-9)


def test_rows_are_shared_where_that_is_faster(backbone: Backbone) -> None:
    """Not in a model as small as this one, nor where they have little in common."""
    alike = [
        Sample(make_action("one", sample=n, prompt=tuple(range(3, 43)), tokens=(n, n, n)), 1.0, np.ones(3))
        for n in range(9)
    ]
    backbone.add_adapter("one", 4, 8.0, ("q_proj",), seed=0)
    (batch,) = packing(backbone, share=True).micro_batches(alike, BatchCounts.from_samples(alike, pooled=False))
    assert batch.rows.tree is None
    backbone.__dict__["_layer_weights"] = 3.5e6  # a model of 135 million parameters
    (batch,) = packing(backbone, share=True).micro_batches(alike, BatchCounts.from_samples(alike, pooled=False))
    assert batch.rows.tree is not None
    other = [Sample(make_action("one", sample=n, prompt=(n, *range(3, 43))), 1.0, np.ones(2)) for n in range(9)]
    (batch,) = packing(backbone, share=True).micro_batches(other, BatchCounts.from_samples(other, pooled=False))
    assert batch.rows.tree is None
    backbone.native = True
    (batch,) = packing(backbone, share=True).micro_batches(alike, BatchCounts.from_samples(alike, pooled=False))
    assert batch.rows.tree is None


@pytest.mark.slow
def test_a_step_learns_the_same_with_and_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several minibatches: what is scored before they are stepped on is packed as they are, so their first ratio is 1."""
    monkeypatch.setattr(backbone_module, "NODE_COST", 0.0)
    monkeypatch.setattr(backbone_module, "MIN_SAVED_SHARE", 0.0)
    batch = episodes()
    head = batch[0].actions[0].prompt[:40]
    batch = [
        replace(one, actions=tuple(replace(a, prompt=np.concatenate([head, a.prompt])) for a in one.actions))
        for one in batch
    ]
    results = []
    for share in ("never", "always"):
        run = recipe(tmp_path, "grpo", "--training.share_prefixes", share, "--algorithm.minibatches", "2")
        torch.manual_seed(0)
        models = PolicyRegistry(run)
        learner = Learner(run, models)
        metrics = learner.learn(batch, Progress(0, 0))
        results.append((metrics, {n: p.detach().clone() for n, p in models.policies["actor"].parameters().items()}))
    (apart, one), (shared, other) = results
    assert shared["policy_loss"] == pytest.approx(apart["policy_loss"], abs=1e-6)
    assert shared["entropy"] == pytest.approx(apart["entropy"], rel=1e-5)
    for name, weights in one.items():
        torch.testing.assert_close(other[name], weights, rtol=1e-2, atol=1e-5)
