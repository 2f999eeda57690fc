"""Comparisons: which attempts make pairs, what a pair's loss is, and what it makes of each action."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.common.errors import UserError
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Episode, Observation, Sample, Task, Transition
from marft.config.algorithm import AlgorithmSettings
from marft.config.interfaces.credit import Comparison, CreditInputs
from marft.config.interfaces.objective import PairInputs
from marft.config.interfaces.schedule import Progress
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import Packing
from marft.trainer.credit.preference import Preference
from marft.trainer.credit.sides import PairSide, build_pairs
from marft.trainer.learner_metrics import MetricAccumulator
from marft.trainer.objectives.dpo import DPO
from marft.trainer.objectives.ppo import PPO
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.preferences import PreferenceBatch, ReferencePolicy
from tests import references_preferences as slow
from tests.episodes import make_action
from tests.learners import begun, episodes, recipe

START = Progress(0, 0)
NATS = st.floats(-30, 30)


def attempt(sample: int, reward: float, *, own: dict[str, float] | None = None, **of_actions: Any) -> Episode:
    """Two agents' attempt, whose texts are its own."""
    actions = tuple(
        make_action(role, index=index, sample=sample, tokens=(8 + sample, 9), **of_actions)
        for index, role in enumerate("ab")
    )
    pay = (Transition(Observation("o"), reward, own or {}),)
    return Episode(Task("t", "o"), "train/0", sample, actions, "terminated", pay, success=reward > 0)


REWARDS = st.sampled_from([0.0, 0.5, 1.0])
ATTEMPT = st.tuples(
    st.sampled_from("tu"),
    REWARDS,
    st.dictionaries(st.sampled_from("ab"), REWARDS),
    st.sampled_from(["a", "b", "ab", ""]),
)


def batch_of(drawn: list[Any]) -> list[Episode]:
    """Attempts at one or two tasks, in which not everybody acts; rewards that are often equal."""
    batch = []
    for number, (task, reward, own, acted) in enumerate(drawn):
        made = attempt(number, reward, own=own)
        actions = tuple(replace(a, key=a.key._replace(task=task)) for a in made.actions if a.agent in acted)
        batch.append(replace(made, task=Task(task, "o"), actions=actions))
    return batch


BATCHES = st.lists(ATTEMPT, min_size=1, max_size=6).map(batch_of)


def as_pairs(batch: list[Episode], found: list[Comparison]) -> set[slow.Pair]:
    owner = {a.key: n for n, e in enumerate(batch) for a in e.actions}
    return {(owner[pair.better[0]], owner[pair.worse[0]], pair.agent) for pair in found if pair.better and pair.worse}


class TestPairs:
    @given(
        batch=BATCHES, which=st.sampled_from(["extremes", "ranked", "all"]), sides=st.sampled_from(["team", "agent"]),
        judged_by=st.sampled_from(["team", "own"]),
    )  # fmt: skip
    @settings(max_examples=60)
    def test_are_those_of_the_slow_reference(
        self, batch: list[Episode], which: Any, sides: Any, judged_by: Any
    ) -> None:
        credits = Preference(pairs=which, sides=sides, judged_by=judged_by).assign(CreditInputs(batch, "action"))
        wanted, equal = slow.pairs(batch, which, sides, judged_by)
        both = {(b, w, agent) for b, w, agent in wanted if batch[b].actions and batch[w].actions}
        assert as_pairs(batch, list(credits.comparisons)) == both
        assert credits.metrics["preference/pairs"] == len(wanted)
        assert credits.metrics["preference/equal_pairs"] == equal

    @given(batch=BATCHES, gap=st.booleans())
    @settings(max_examples=30)
    def test_weigh_1_on_average_and_what_is_in_none_is_not_trained(self, batch: list[Episode], gap: bool) -> None:
        credits = Preference(pairs="all", weights="gap" if gap else "equal").assign(CreditInputs(batch, "action"))
        weights = [pair.weight for pair in credits.comparisons]
        assert not weights or np.mean(weights) == pytest.approx(1.0)
        held = {key for pair in credits.comparisons for key in (*pair.better, *pair.worse)}
        actions = [action for episode in batch for action in episode.actions]
        assert [action.key in held for action in actions] == list(credits.trained)

    @pytest.mark.parametrize("costs", [(0.0, 5.0, 0.0), (2.0, 0.0, 0.0)])
    def test_costs_order_what_earned_the_same_and_nothing_else(self, costs: tuple[float, ...]) -> None:
        """What its KL takes off makes no attempt worse than one that earned less."""
        keys = [(make_action("a", sample=n).key,) for n in range(3)]
        sides = [PairSide("t", "", *of, key) for *of, key in zip((1.0, 1.0, 0.0), costs, keys, strict=True)]  # type: ignore[misc, arg-type]
        found, metrics = build_pairs(sides, "extremes", "gap")
        cheaper = min((0, 1), key=lambda n: costs[n])
        assert [(pair.better, pair.worse) for pair in found] == [(keys[cheaper], keys[2])]
        assert metrics["preference/equal_pairs"] == 0

    def test_weigh_by_how_far_apart_what_is_left_of_their_rewards_is(self) -> None:
        """Without what was taken off for KL, which is of the pair too."""
        keys = [(ActionKey("s", "t", n, 0, "a", 0),) for n in range(4)]
        sides = [PairSide("tu"[n // 2], "", *of, keys[n]) for n, of in enumerate([(3, 1), (0, 0), (2, 0), (0, 1)])]
        found, _ = build_pairs(sides, "extremes", "gap")
        assert [pair.weight for pair in found] == pytest.approx([2 / 2.5, 3 / 2.5])

    def test_that_earned_the_same_are_dropped_and_counted(self) -> None:
        credits = Preference().assign(CreditInputs([attempt(0, 1.0), attempt(1, 1.0)], "action"))
        assert credits.comparisons == []
        assert credits.metrics["preference/equal_pairs"] == 1.0
        assert credits.metrics["zero_variance_groups"] == 1.0
        assert not any(credits.trained)

    def test_frozen_teammates_are_in_none(self) -> None:
        inputs = CreditInputs([attempt(0, 1.0), attempt(1, 0.0)], "action", trained={"a"})
        (pair,) = Preference().assign(inputs).comparisons
        assert [key.agent for key in (*pair.better, *pair.worse)] == ["a", "a"]

    def test_of_agents_by_their_own_rewards_may_go_opposite_ways(self) -> None:
        batch = [attempt(0, 0.0, own={"a": 1.0}), attempt(1, 0.0, own={"b": 1.0})]
        credits = Preference(sides="agent", judged_by="own").assign(CreditInputs(batch, "action"))
        assert {pair.agent: pair.better[0].sample for pair in credits.comparisons} == {"a": 0, "b": 1}
        assert Preference().assign(CreditInputs(batch, "action")).comparisons == []

    def test_a_truncated_attempt_is_compared_by_what_it_earned(self) -> None:
        cut = replace(attempt(0, 1.0), status="truncated")
        (pair,) = Preference().assign(CreditInputs([cut, attempt(1, 0.0)], "action")).comparisons
        assert pair.better[0].sample == 0


class TestLoss:
    @given(
        better=NATS, worse=NATS, mean=st.floats(-5, 0), lengths=st.tuples(st.integers(1, 9), st.integers(1, 9)),
        beta=st.floats(0.01, 2), smoothing=st.floats(0, 0.4), margin=st.floats(0, 2), price=st.floats(0, 1),
        imitation=st.floats(0, 2), ipo=st.booleans(),
    )  # fmt: skip
    @settings(max_examples=100)
    def test_is_the_slow_references(
        self, better: float, worse: float, mean: float, lengths: tuple[int, int], beta: float, smoothing: float,
        margin: float, price: float, imitation: float, ipo: bool,
    ) -> None:  # fmt: skip
        keys: dict[str, Any] = {"beta": beta, "nll_coefficient": imitation}
        if not ipo:
            keys |= {"label_smoothing": smoothing, "margin": margin, "length_penalty": price}
        one = [torch.tensor([float(x)], dtype=torch.float64) for x in (better, worse, mean, *lengths)]
        mine = DPO(loss="ipo" if ipo else "sigmoid", **keys).pair_losses(PairInputs(*one))
        wanted = slow.loss(better, worse, mean, lengths, kind="ipo" if ipo else "sigmoid", **keys)
        assert mine.item() == pytest.approx(wanted, rel=1e-9, abs=1e-9)

    def test_at_the_reference_is_log_2_and_pulls_with_half_of_beta(self) -> None:
        ratios = [torch.zeros(1, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        rest = [torch.zeros(1, dtype=torch.float64) for _ in range(3)]
        loss = DPO(beta=0.3).pair_losses(PairInputs(*ratios, *rest))
        loss.sum().backward()
        assert loss.item() == pytest.approx(math.log(2))
        assert [float(ratio.grad) for ratio in ratios if ratio.grad is not None] == pytest.approx([-0.15, 0.15])

    def test_of_sides_that_are_far_apart_stays_finite(self) -> None:
        far = [torch.tensor([x], dtype=torch.float64) for x in (-1e6, 1e6, 0.0, 1.0, 1.0)]
        assert DPO(beta=1.0).pair_losses(PairInputs(*far)).item() == pytest.approx(2e6)

    @pytest.mark.parametrize(
        ("keys", "told"),
        [
            ({"loss": "ipo", "margin": 0.1}, "loss = 'ipo' has no margin"),
            ({"reference": "none", "refresh": 3}, "refresh does nothing with reference = 'none'"),
            ({"reference": "base", "refresh": 3}, "refresh does nothing with reference = 'base'"),
        ],
    )
    def test_refuses_what_would_do_nothing(self, keys: dict[str, Any], told: str) -> None:
        with pytest.raises(ValidationError, match=told):
            DPO(**keys)


@st.composite
def compared(draw: st.DrawFn) -> tuple[PreferenceBatch, dict[Any, np.ndarray], dict[Any, np.ndarray]]:
    """Comparisons that may share attempts, of actions of several policies; log-probs now, and under a reference."""
    samples: dict[Any, Sample] = {}
    sides = []
    for number in range(draw(st.integers(2, 4))):
        acted = draw(st.lists(st.sampled_from("abc"), min_size=1, max_size=4))
        side = []
        for call, agent in enumerate(acted):
            tokens = tuple(range(draw(st.integers(1, 4))))
            policy = draw(st.sampled_from(["p", "q"])) if agent == "c" else "p" if agent == "a" else "q"
            action = make_action(agent, call=call, index=call, sample=number, tokens=tokens, policy=policy)
            samples[action.key] = Sample(action, float(draw(st.integers(1, 3))), np.ones(1))
            side.append(action.key)
        sides.append(tuple(side))
    pairs = [(i, j) for i in range(len(sides)) for j in range(i + 1, len(sides))]
    chosen = draw(st.lists(st.sampled_from(pairs), min_size=1, unique=True))
    found = tuple(Comparison(sides[i], sides[j], weight=draw(st.floats(0.1, 2))) for i, j in chosen)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    now, then = ({key: random.normal(-1, 1, s.action.num_decisions) for key, s in samples.items()} for _ in range(2))
    return PreferenceBatch.from_samples(found, list(samples.values())), now, then


class TestCoefficients:
    @given(drawn=compared(), pooled=st.booleans())
    @settings(max_examples=30)
    def test_a_phase_of_one_policy_is_weighed_by_its_own_samples(self, drawn: Any, pooled: bool) -> None:
        found, now, then = drawn
        both = {
            s.action.key: s
            for s in found.compute_coefficients(DPO(), now, then, {"p", "q"}, pooled, MetricAccumulator())
        }
        for policy in "pq":
            mine = found.compute_coefficients(DPO(), now, then, {policy}, pooled, MetricAccumulator())
            share = len(mine) / len(both) if pooled else 1.0
            for s in mine:
                assert s.advantages[0] == pytest.approx(both[s.action.key].advantages[0] * share)

    @given(drawn=compared(), beta=st.floats(0.05, 2), pooled=st.booleans(), imitation=st.sampled_from([0.0, 0.5]))
    @settings(max_examples=60)
    def test_are_the_gradient_of_the_mean_loss_of_each_policys_comparisons(
        self, drawn: Any, beta: float, pooled: bool, imitation: float
    ) -> None:
        """By finite differences of the slow loss, an action's log-prob at a time."""
        found, now, then = drawn
        objective, meter = DPO(beta=beta, nll_coefficient=imitation), MetricAccumulator()
        mine = found.compute_coefficients(objective, now, then, {"p", "q"}, pooled, meter)
        counted = {p: sum(pooled or s.action.policy == p for s in found.flatten()) for p in "pq"}

        def mean_loss(policy: str, of: dict[Any, float]) -> float:
            losses = []
            for pair in found.comparisons:
                if not pooled and all(found.samples[k].action.policy != policy for k in (*pair.better, *pair.worse)):
                    continue
                ratios = [sum((of[k] - then[k].sum()) / found.samples[k].normalizer for k in side)
                          for side in (pair.better, pair.worse)]  # fmt: skip
                length = sum(found.samples[k].action.num_decisions for k in pair.better)
                mean = sum(of[k] for k in pair.better) / length
                losses.append(pair.weight * slow.loss(*ratios, mean, (0, 0), beta=beta, nll_coefficient=imitation))  # type: ignore[misc]
            return sum(losses) / len(losses)

        sums = {key: float(row.sum()) for key, row in now.items()}
        for sample in mine:
            key, policy, h = sample.action.key, sample.action.policy, 1e-5
            up, down = (mean_loss(policy, {**sums, key: sums[key] + d}) for d in (h, -h))
            applied = -sample.advantages[0] / sample.normalizer / counted[policy]  # as the learner weighs an action
            assert applied == pytest.approx((up - down) / (2 * h), rel=1e-4, abs=1e-7)

    @given(drawn=compared())
    @settings(max_examples=20)
    def test_at_the_reference_every_loss_is_log_2_and_ties_count_half(self, drawn: Any) -> None:
        found, now, _ = drawn
        meter = MetricAccumulator()
        found.compute_coefficients(DPO(), now, now, {"p", "q"}, False, meter)
        weights = [pair.weight for pair in found.comparisons]
        assert meter.means()["preference/loss"] == pytest.approx(math.log(2) * np.mean(weights))
        assert meter.means()["preference/accuracy"] == 0.5
        assert meter.means()["preference/margin"] == 0.0

    @given(drawn=compared(), count=st.integers(1, 3), epoch=st.integers(0, 2))
    @settings(max_examples=30)
    def test_no_minibatch_cuts_a_comparison_and_none_is_lost(self, drawn: Any, count: int, epoch: int) -> None:
        found, *_ = drawn
        parts = found.split(count, 0, 0, epoch)
        assert sorted(id(pair) for part in parts for pair in part.comparisons) == sorted(map(id, found.comparisons))
        for part in parts:
            assert part.samples.keys() == {key for pair in part.comparisons for key in (*pair.better, *pair.worse)}


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x))


class TestOneSidedComparisons:
    """One side was sampled by a frozen policy, so only the other has samples."""

    ACTION, FROZEN = make_action("a", tokens=(1, 2)), make_action("b", sample=1)
    NOW, THEN = {ACTION.key: np.array([-0.3, -1.4])}, {ACTION.key: np.array([-0.1, -0.7])}

    @pytest.mark.parametrize("is_better", [False, True])
    def test_are_learned_from_the_side_that_has_samples(self, is_better: bool) -> None:
        """The coefficient is exact to float64: −β σ(−z), times a weight that float32 would round."""
        sides = ((self.ACTION.key,), (self.FROZEN.key,)) if is_better else ((self.FROZEN.key,), (self.ACTION.key,))
        batch = PreferenceBatch.from_samples(
            [Comparison(*sides, weight=0.1)], [Sample(self.ACTION, 2.0, np.ones(1))]
        )  # fmt: skip
        meter = MetricAccumulator()
        (sample,) = batch.compute_coefficients(DPO(beta=0.7), self.NOW, self.THEN, {"a"}, False, meter)
        h = (1 if is_better else -1) * (-1.7 + 0.8) / 2
        expected = (1 if is_better else -1) * 0.1 * 0.7 * logistic(-0.7 * h)
        assert sample.advantages.tolist() == pytest.approx([expected], rel=1e-12)
        assert meter.means()["preference/margin"] == pytest.approx(h, rel=1e-12)
        assert meter.means()["agents/a/preference/margin"] == pytest.approx(h, rel=1e-12)

    def test_without_a_better_side_add_no_likelihood_to_the_loss(self) -> None:
        batch = PreferenceBatch.from_samples(
            [Comparison((self.FROZEN.key,), (self.ACTION.key,))], [Sample(self.ACTION, 2.0, np.ones(1))]
        )
        losses = []
        for coefficient in (0.0, 0.5):
            meter = MetricAccumulator()
            objective = DPO(nll_coefficient=coefficient)
            batch.compute_coefficients(objective, self.NOW, self.THEN, {"a"}, False, meter)
            losses.append(meter.means()["preference/loss"])
        assert losses[0] == losses[1] > 0


def test_a_comparison_between_actions_without_samples_is_dropped() -> None:
    keys = [make_action("a", sample=n).key for n in range(4)]
    pairs = [Comparison((keys[0],), (keys[1],)), Comparison((keys[2],), (keys[3],))]
    mine = Sample(make_action("a", sample=1), 1.0, np.ones(1))
    assert PreferenceBatch.from_samples(pairs, [mine]).comparisons == (pairs[0],)


class TestMargins:
    """Each agent's part of the margin; agents sum to the team."""

    @staticmethod
    def margins(agents: str, log_ratios: Sequence[Sequence[float]]) -> dict[str, float]:
        """Of comparisons in which all agents act once on each side; log-ratios by attempt, the better one first."""
        samples = [
            Sample(make_action(agent, sample=n, policy="p"), 1.0, np.ones(1))
            for n in range(len(log_ratios))
            for agent in agents
        ]
        keys = [tuple(s.action.key for s in samples if s.action.key.sample == n) for n in range(len(log_ratios))]
        pairs = [Comparison(keys[n], keys[n + 1]) for n in range(0, len(keys), 2)]
        now = {s.action.key: np.array([log_ratios[s.action.key.sample][agents.index(s.action.agent)]]) for s in samples}
        then, meter = {key: np.zeros(1) for key in now}, MetricAccumulator()
        PreferenceBatch.from_samples(pairs, samples).compute_coefficients(DPO(), now, then, {"p"}, False, meter)
        return {name: value for name, value in meter.means().items() if name.endswith("preference/margin")}

    def test_are_means_over_comparisons_by_agent(self) -> None:
        found = self.margins("ab", [(1.0, 2.0), (0.5, -1.0), (0.25, 0.0), (1.0, 4.0)])
        assert found == pytest.approx({
            "preference/margin": (3.5 - 4.75) / 2, "agents/a/preference/margin": (0.5 - 0.75) / 2,
            "agents/b/preference/margin": (3.0 - 4.0) / 2,
        })  # fmt: skip

    def test_come_in_the_order_of_the_agents_names(self) -> None:
        _, *names = self.margins("hgfedcba", [(1.0,) * 8, (0.0,) * 8])
        assert names == [f"agents/{agent}/preference/margin" for agent in "abcdefgh"]


class TestReference:
    """Of policies of one parameter, which is 1 at the start, and 5 in a checkpoint."""

    @staticmethod
    def policies(names: str, sharded: str = "") -> tuple[dict[str, PolicyOptimizer], PolicyRegistry]:
        optimizers = {
            name: PolicyOptimizer(
                {"x": torch.nn.Parameter(torch.ones(1))}, AlgorithmSettings().optimizer, 1.0, 1
            )
            for name in names
        }  # fmt: skip
        models = SimpleNamespace(
            policies={n: SimpleNamespace(backbone=SimpleNamespace(shards=n if n in sharded else None)) for n in names},
            load_policy=lambda name, _: optimizers[name].load_parameters({"x": torch.full((1,), 5.0)}),
        )
        return optimizers, cast(PolicyRegistry, models)

    def reference(self, names: str = "a", sharded: str = "", **objective: Any) -> ReferencePolicy:
        return ReferencePolicy(DPO(**objective), *self.policies(names, sharded), cast(Packing, None))

    @staticmethod
    def checkpoint(tmp_path: Path, names: str) -> str:
        for name in names:
            (tmp_path / "policies" / name).mkdir(parents=True)
        return str(tmp_path)

    @pytest.mark.parametrize("reference", ["base", "none"])
    def test_no_copy_is_kept_of_the_base_or_of_none(self, reference: str) -> None:
        mine = self.reference(reference=reference)
        mine.begin_step(0)
        assert mine.state() == {}

    def test_from_a_checkpoint_is_refreshed_in_later_steps_only(self, tmp_path: Path) -> None:
        mine = self.reference(reference=self.checkpoint(tmp_path, "a"), refresh=2)
        assert mine.optimizers["a"].parameters["x"].item() == 1.0
        found = []
        for step in range(3):
            mine.begin_step(step)
            found.append(mine.state()["a/x"].item())
        assert found == [5.0, 5.0, 1.0]

    def test_that_is_loaded_is_a_copy_of_what_was_saved(self) -> None:
        mine, saved = self.reference(), torch.full((1,), 7.0)
        mine.load_state({"a/x": saved})
        saved.zero_()
        assert mine.state()["a/x"].item() == 7.0
        assert mine.optimizers["a"].parameters["x"].item() == 1.0

    def test_lacking_a_policy_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="holds no policy 'b'"):
            self.reference("ab", reference=self.checkpoint(tmp_path, "a"))

    @pytest.mark.parametrize("sharded", ["b", "ab"])
    def test_from_a_checkpoint_is_refused_where_any_policy_is_sharded(self, sharded: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"policies that lie in parts \(training.shard\)"):
            self.reference("ab", sharded, reference=self.checkpoint(tmp_path, "ab"))

    def test_of_an_objective_without_a_loss_of_pairs_is_refused(self) -> None:
        with pytest.raises(UserError, match="PPO says that it reads pairs, and has no pair_losses"):
            ReferencePolicy(PPO(), *self.policies("a"), cast(Packing, None))


def dpo(tmp_path: Path, *overrides: str) -> Any:
    return recipe(tmp_path, "dpo", "--algorithm.optimizer.warmup_steps", "0", *overrides)


def with_tool_text(batch: list[Episode], tokens: tuple[int, ...]) -> list[Episode]:
    """What tools answered inside of the last action of each attempt."""

    def grown(action: Action) -> Action:
        told = np.array(tokens, np.int32)
        marks = np.full(len(tokens), TokenSource.TOOL, np.uint8)
        return replace(
            action, tokens=np.concatenate([action.tokens, told]), marks=np.concatenate([action.marks, marks])
        )  # fmt: skip

    return [replace(e, actions=(*e.actions[:-1], grown(e.actions[-1]))) for e in batch]


class TestSteps:
    def test_the_first_minibatch_is_at_the_reference(self, tmp_path: Path) -> None:
        metrics = begun(dpo(tmp_path, "--algorithm.minibatches", "1")).learn(episodes(), START)
        assert metrics["preference/loss"] == pytest.approx(math.log(2), abs=1e-6)
        assert metrics["preference/pairs"] == 1.0
        assert metrics["preference/margin"] == pytest.approx(0.0, abs=1e-4)

    def test_a_step_prefers_what_was_better_and_the_reference_stays(self, tmp_path: Path) -> None:
        learner = begun(dpo(tmp_path, "--algorithm.optimizer.learning_rate", "1e-3"))
        rows = [learner.learn(episodes(), Progress(step, 0)) for step in range(3)]
        margins = [row["preference/margin"] for row in rows]
        assert margins == sorted(margins)
        assert rows[-1]["preference/loss"] < math.log(2)
        assert rows[-1]["preference/accuracy"] == 1.0
        parts = sum(rows[-1][f"agents/{role}/preference/margin"] for role in ("reasoner", "actor"))
        assert parts == pytest.approx(margins[-1])

    def test_a_reference_that_is_refreshed_every_step_is_where_the_step_begins(self, tmp_path: Path) -> None:
        keys = ("--algorithm.objective.refresh", "1", "--algorithm.minibatches", "1")
        learner = begun(dpo(tmp_path, "--algorithm.optimizer.learning_rate", "1e-3", *keys))
        for step in range(2):
            row = learner.learn(episodes(), Progress(step, 0))
            assert row["preference/loss"] == pytest.approx(math.log(2), abs=1e-6)

    def test_what_is_loaded_goes_on_as_what_was_saved(self, tmp_path: Path) -> None:
        run = dpo(tmp_path, "--algorithm.optimizer.learning_rate", "1e-3")
        first, second = begun(run), begun(run)
        first.learn(episodes(), START)
        second.load_optimizer_state({name: tensor.clone() for name, tensor in first.optimizer_state().items()})
        for name, optimizer in second.optimizers.items():
            for mine, theirs in zip(
                optimizer.parameters.values(), first.optimizers[name].parameters.values(), strict=True
            ):
                mine.data.copy_(theirs.data)
        rows = [learner.learn(episodes(), Progress(1, 0)) for learner in (first, second)]
        assert rows[0] == rows[1]
        assert rows[0]["preference/margin"] > 0

    def test_scoring_the_reference_leaves_the_policies_as_they_were(self, tmp_path: Path) -> None:
        learner = begun(dpo(tmp_path, "--algorithm.optimizer.learning_rate", "1e-12"))
        before = {n: p.detach().clone() for o in learner.optimizers.values() for n, p in o.parameters.items()}
        learner.learn(episodes(), START)
        after = {n: p for o in learner.optimizers.values() for n, p in o.parameters.items()}
        assert all(torch.allclose(before[name], after[name], rtol=0, atol=2e-12) for name in before)

    def test_what_tools_say_at_the_end_of_an_action_is_never_counted(self, tmp_path: Path) -> None:
        plain = begun(dpo(tmp_path)).learn(episodes(), START)
        told = begun(dpo(tmp_path)).learn(with_tool_text(episodes(), (11, 12, 13)), START)
        assert told["preference/chosen_log_ratio"] == pytest.approx(plain["preference/chosen_log_ratio"], abs=1e-4)
        assert told["gradient_norm"] == pytest.approx(plain["gradient_norm"], rel=1e-3)

    def test_a_step_without_a_pair_moves_nothing(self, tmp_path: Path) -> None:
        alike = [replace(e, transitions=(Transition(Observation("o"), 1.0),)) for e in episodes()]
        row = begun(dpo(tmp_path)).learn(alike, START)
        assert row["preference/pairs"] == 0.0
        assert "gradient_norm" not in row

    def test_a_checkpoint_is_the_reference_where_one_is_named(self, tmp_path: Path) -> None:
        first = begun(dpo(tmp_path))
        folder = tmp_path / "step_000003"
        models = PolicyRegistry(dpo(tmp_path))
        for name in first.optimizers:
            models.save_policy(name, folder / "policies" / name)
        row = begun(dpo(tmp_path, "--algorithm.objective.reference", str(folder))).learn(episodes(), START)
        assert abs(row["preference/chosen_log_ratio"]) > 1e-2

    def test_a_folder_without_policies_is_refused_in_words(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"algorithm\.objective\.reference: .* holds no policy"):
            begun(dpo(tmp_path, "--algorithm.objective.reference", str(tmp_path / "nowhere")))


class TestRecipes:
    @pytest.mark.parametrize(
        ("table", "told"),
        [
            ({"name": "dpo", "objective": {"name": "ppo"}}, "makes comparisons, which objective 'ppo' does not read"),
            ({"name": "dpo", "teammate_text": {"coefficient": 1.0}}, "set teammate_text.coefficient = 0"),
            ({"name": "comam", "reward": {"overlong_buffer": 8}}, "would take the price of length for one"),
            ({"name": "grpo", "objective": {"name": "dpo"}}, "which credit 'grpo' does not make"),
            ({"name": "dpo", "level": "token"}, "compares whole actions; use level = 'action'"),
            ({"name": "dpo", "schedule": {"name": "sequential"}}, "use schedule 'simultaneous' or 'agent-by-agent'"),
            ({"name": "dpo", "sampler_correction": {"level": "action"}}, "compares attempts whoever sampled them"),
            ({"name": "dpo", "normalize_advantages": True}, "set normalize_advantages = false"),
            ({"name": "rft", "normalize_advantages": True}, "set normalize_advantages = false"),
        ],
    )
    def test_what_does_not_go_together_is_refused_with_a_remedy(self, table: dict[str, Any], told: str) -> None:
        with pytest.raises(ValidationError, match=told):
            AlgorithmSettings.model_validate(table)
