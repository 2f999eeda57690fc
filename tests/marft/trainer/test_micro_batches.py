"""A micro-batch holds, decision by decision, what its samples say: every number where plain loops put it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from marft.common.token_data import TokenSource
from marft.common.types import Choice, Option, Sample
from marft.models.backbone import Backbone
from marft.models.log_probs import TokenScores
from marft.trainer.batching import BatchCounts, Packing
from marft.trainer.micro_batch import FixedLogProbs, MicroBatch, scored_tokens
from tests.episodes import make_action

CPU = torch.device("cpu")
BACKBONE = cast(Backbone, SimpleNamespace(device=CPU, needs_fixed_size=False, router_replay=None))
OTHER = cast(Backbone, SimpleNamespace(device=CPU, needs_fixed_size=False, router_replay=None))
T, M, S = TokenSource.TOOL, TokenSource.TEAMMATE, TokenSource.SAMPLED
OPTIONS = (
    Option(np.array([7, 8], np.int32), 2.0),
    Option(np.array([9], np.int32)),
    Option(np.array([4, 3, 2], np.int32)),
)


def written(
    number: int, agent: str, policy: str, tokens: Sequence[int], marks: Sequence[TokenSource], size: int
) -> Sample:
    random = np.random.default_rng(number)
    action = make_action(
        agent, sample=number, policy=policy, prompt=tuple(range(20, 22 + number)), tokens=tuple(tokens),
        marks=tuple(map(int, marks)), log_probs=tuple(-random.random(sum(mark == S for mark in marks))),
    )  # fmt: skip
    if M in marks:
        action = replace(action, teammate_log_probs=np.array([-0.7] * list(marks).count(M), np.float32))
    return Sample(action, 1.0 + number, random.normal(size=size), number % 2 == 0, 0.1 * number)


def chosen(number: int, size: int) -> Sample:
    choice = Choice(OPTIONS, 2, np.log(np.array([0.2, 0.3, 0.5], np.float32)))
    made = written(number, "chooser", "p", (4, 3, 2), (S, S, S), size)
    action = replace(made.action, choice=choice, log_probs=choice.log_probs[[2]])
    return replace(made, action=action, advantages=made.advantages[:1])


def samples_of(level: str) -> list[Sample]:
    token = level == "token"
    return [
        written(0, "writer", "q", (1, 2, 3), (S, S, S), 3 if token else 1),
        chosen(1, 1),
        written(2, "writer", "p", range(40, 50), (M, M, S, T, S, T, T, T, T, T), 2 if token else 1),
        written(3, "reader", "q", (9,), (S,), 1),
        written(4, "reader", "p", (6,), (S,), 1),
    ]


def packing(level: str, **changes: Any) -> Packing:
    temperatures = {"writer": 1.0, "reader": 0.5, "chooser": 2.0}
    made = Packing(
        {"p": BACKBONE, "q": BACKBONE}, {"p": "adapter", "q": None}, temperatures, "action-mean", level, 10_000,  # type: ignore[arg-type]
        constant_length=1, teammate_text=True,
    )  # fmt: skip
    return replace(made, **changes)


def micro_batch(level: str, fixed: FixedLogProbs | None = None, **changes: Any) -> tuple[MicroBatch, BatchCounts]:
    counts = BatchCounts.from_samples(samples := samples_of(level), pooled=False)
    (batch,) = packing(level, **changes).micro_batches(samples, counts, fixed)
    return batch, counts


@pytest.mark.parametrize("level", ["action", "token"])
def test_every_number_is_where_plain_loops_put_it(level: str) -> None:
    batch, counts = micro_batch(level)
    ids: list[int] = []
    expected: dict[str, list[float]] = {name: [] for name in (
        "predict_from", "targets", "temperatures", "engine_log_probs", "action_of", "advantages", "unit_weights",
        "log_factors", "token_weights", "nll_weights"
    )}  # fmt: skip
    theirs: dict[str, list[float]] = {name: [] for name in ("predict_from", "targets", "temperatures", "weights")}
    agents: list[str] = []
    for number, sample in enumerate(batch.samples):
        action = sample.action
        temperature = {"writer": 1.0, "reader": 0.5, "chooser": 2.0}[action.agent]
        options = [option.tokens.tolist() for option in action.choice.options] if action.choice else []
        for tokens in options or [action.tokens.tolist()]:
            for place, token in enumerate(tokens):
                at = len(ids) + len(action.prompt) - 1 + place
                if options or action.marks[place] == S:
                    expected["predict_from"].append(at)
                    expected["targets"].append(token)
                    expected["temperatures"].append(temperature)
                elif action.marks[place] == M:
                    theirs["predict_from"].append(at)
                    theirs["targets"].append(token)
                    theirs["temperatures"].append(temperature)
                    theirs["weights"].append(1 / 2)
            ids += [*action.prompt.tolist(), *tokens[:-1]]
        decisions = 1 if options else sum(mark == S for mark in action.marks)
        actions = {"p": 3, "q": 2}[action.policy]
        weight = 1 / (actions * decisions)
        expected["engine_log_probs"] += action.log_probs.tolist()
        expected["action_of"] += [number] * decisions
        expected["advantages"] += sample.advantages.tolist()
        expected["token_weights"] += [weight] * decisions
        tokens_of_successes = {"p": 3, "q": 3}[action.policy]
        expected["nll_weights"] += [1 / tokens_of_successes if sample.solved else 0.0] * decisions
        units = 1 if level == "action" else decisions
        expected["unit_weights"] += [1 / actions if level == "action" else weight] * units
        expected["log_factors"] += [sample.log_factor] * units
        agents += [action.agent] * decisions
    assert batch.rows.ids.tolist() == ids
    assert not batch.rows.fixed_size
    for name, numbers in expected.items():
        np.testing.assert_allclose(getattr(batch, name).tolist(), numbers, rtol=1e-6, err_msg=name)
    assert batch.teammate_text is not None
    for name, numbers in theirs.items():
        np.testing.assert_allclose(getattr(batch.teammate_text, name).tolist(), numbers, rtol=1e-6, err_msg=name)
    assert batch.normalizers.tolist() == [sample.normalizer for sample in batch.samples]
    assert [batch.agent_names[agent] for agent in batch.agents] == agents
    units_by = agents if level == "token" else [sample.action.agent for sample in batch.samples]
    assert [batch.agent_names[agent] for agent in batch.unit_agents()] == units_by
    assert (batch.level, batch.backbone, batch.base_log_probs) == (level, BACKBONE, None)
    assert counts.actions == {"p": 3, "q": 2}


def test_units_are_sums_over_z_at_action_level_and_tokens_else() -> None:
    by_action, _ = micro_batch("action")
    scores = torch.arange(1.0, len(by_action.action_of) + 1, dtype=torch.float64)
    slow = [0.0] * 5
    for number, score in zip(by_action.action_of.tolist(), scores.tolist(), strict=True):
        slow[number] += score / by_action.samples[number].normalizer
    np.testing.assert_allclose(by_action.unit_log_probs(scores).tolist(), slow, rtol=1e-12)
    assert micro_batch("token")[0].unit_log_probs(scores) is scores


def test_a_token_without_a_grammar_has_no_mask() -> None:
    """Neither a written one nor one of an option."""
    for sample in samples_of("token"):
        for segment in scored_tokens(sample.action):
            assert segment.masks.tolist() == [-1] * len(segment.tokens)


def test_numbers_by_action_come_back_as_they_went_in() -> None:
    batch, _ = micro_batch("token")
    random = np.random.default_rng(0)
    given = {sample.action.key: random.normal(size=sample.action.num_decisions) for sample in batch.samples}
    flat = batch.collect_tokens(given)
    assert flat.dtype == torch.float64
    back = batch.split_by_action(flat.numpy())
    assert given.keys() == back.keys()
    assert all(np.array_equal(given[key], back[key]) for key in given)
    firsts = [batch.action_of.tolist().index(number) for number in range(5)]
    assert batch.first_tokens().tolist() == firsts


def test_what_the_untuned_base_says_goes_along_where_it_is_known() -> None:
    samples = samples_of("token")
    base = {s.action.key: np.arange(s.action.num_decisions) + 10.0 * n for n, s in enumerate(samples)}
    (batch,) = packing("token").micro_batches(
        samples, BatchCounts.from_samples(samples, False), FixedLogProbs(base=base)
    )
    assert batch.base_log_probs is not None
    assert batch.base_log_probs.tolist() == [x for s in batch.samples for x in base[s.action.key]]


def test_where_every_temperature_is_1_there_are_none_and_no_teammate_text_where_it_is_not_trained() -> None:
    ones, _ = micro_batch("token", temperatures=dict.fromkeys(("writer", "reader", "chooser"), 1.0))
    assert ones.temperatures is None
    for same in (0.5, 2.0):
        others, _ = micro_batch("token", temperatures=dict.fromkeys(("writer", "reader", "chooser"), same))
        assert others.temperatures is not None
        assert set(others.temperatures.tolist()) == {same}
    assert micro_batch("token", teammate_text=False)[0].teammate_text is None


def test_policies_on_other_weights_are_packed_apart_in_the_size_of_their_own() -> None:
    samples = samples_of("action")
    made = packing("action", backbones={"p": BACKBONE, "q": OTHER}, sizes={id(OTHER): 64})
    batches = {id(b.backbone): b for b in made.micro_batches(samples, BatchCounts.from_samples(samples, False))}
    assert {s.action.policy for s in batches[id(BACKBONE)].samples} == {"p"}
    assert {s.action.policy for s in batches[id(OTHER)].samples} == {"q"}
    assert len(batches[id(OTHER)].rows.ids) == 64
    assert not batches[id(BACKBONE)].rows.fixed_size
    assert [stretch[0] for stretch in batches[id(BACKBONE)].rows.spans] == ["adapter"]


def test_decisions_are_read_off_scores_where_actions_were_chosen() -> None:
    """A written token is its own decision; a choice is the log-softmax of its options' sums over Z."""
    batch, _ = micro_batch("token")
    assert batch.chosen is not None
    random = torch.Generator().manual_seed(0)
    logs = -torch.rand(len(batch.targets), generator=random)
    spread = torch.rand(len(batch.targets), generator=random)
    found = batch.chosen.to_decisions(TokenScores(logs, spread))
    expected, entropies, at = [], [], 0
    for sample in batch.samples:
        if sample.action.choice is None:
            size = sample.action.num_decisions
            expected += logs[at : at + size].tolist()
            entropies += spread[at : at + size].tolist()
            at += size
            continue
        sums = []
        for option in sample.action.choice.options:
            sums.append(float(logs[at : at + len(option.tokens)].sum()) / option.normaliser)
            at += len(option.tokens)
        table = torch.tensor(sums, dtype=torch.float64).log_softmax(0)
        expected.append(float(table[2]))
        entropies.append(float(-(table.exp() * table).sum()))
    np.testing.assert_allclose(found.log_probs.tolist(), expected, rtol=1e-5)
    np.testing.assert_allclose(found.entropies.tolist(), entropies, rtol=1e-5)


def test_where_nothing_was_chosen_scores_are_decisions() -> None:
    samples = samples_of("token")[3:4]
    (batch,) = packing("token").micro_batches(samples, BatchCounts.from_samples(samples, False))
    assert batch.chosen is None


def test_where_everything_was_chosen_so_are_all_decisions() -> None:
    samples = [chosen(1, 1), chosen(2, 1)]
    (batch,) = packing("token").micro_batches(samples, BatchCounts.from_samples(samples, False))
    assert batch.chosen is not None
    even = batch.chosen.to_decisions(TokenScores(torch.full((12,), -1.0), torch.zeros(12)))
    sums = torch.tensor([-1.0, -1.0, -3.0]).log_softmax(0)
    np.testing.assert_allclose(even.log_probs.tolist(), [float(sums[2])] * 2, rtol=1e-6)
