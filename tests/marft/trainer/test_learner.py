"""The learner puts the parts of an algorithm together: what each is given, and what is asked of none."""

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
from pydantic import PrivateAttr

from marft.common.errors import RunError
from marft.common.types import Episode, Sample
from marft.config import RunSettings
from marft.config.interfaces.credit import CreditInputs, CreditOutput, Floats, Values
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.models.policy_registry import PolicyRegistry
from marft.trainer import learner as learner_module
from marft.trainer.batching import Packing
from marft.trainer.learner import Learner
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.optimizers import PolicyOptimizer
from marft.trainer.ranks.interface import SingleRank
from marft.trainer.scoring import score_actions
from marft.trainer.update import PolicyUpdater
from marft.trainer.update_schedules import Simultaneous
from tests.episodes import make_action
from tests.learners import STILL, begun, episodes, samples_of
from tests.learners import recipe as of
from tests.nights import BY_NIGHT

FROZEN = ("--policies.reasoner.train", "frozen")
START = Progress(0, 0)
ONCE = ("--algorithm.epochs", "1", "--algorithm.minibatches", "1")


class OneByOne(Simultaneous):
    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        return [UpdatePhase((name,)) for name in policies]


class ActorAlone(Simultaneous):
    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        return [UpdatePhase(("actor",))]


class NewEachTime(Simultaneous):
    def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
        return [UpdatePhase((name,), new_episodes=True) for name in policies]


def learner_of(run: RunSettings) -> Learner:
    return Learner(run, PolicyRegistry(run))


class TestTheParts:
    def test_a_recipe_that_trains_nothing_has_no_learner(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="nothing to train"):
            learner_of(of(tmp_path, "grpo", *FROZEN, "--policies.actor.train", "frozen"))

    def test_what_is_carried_from_step_to_step_is_the_learners_own(self, tmp_path: Path) -> None:
        """The recipe's credit and schedule stay as they were read: a second learner of it begins from nothing."""

        class Counting(Simultaneous):
            _seen: list[int] = PrivateAttr(default_factory=list)

            def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
                self._seen.append(progress.step)
                return super().plan_phases(progress, policies, seed)

        run = of(tmp_path, "rae")
        run = run.model_copy(update={"algorithm": run.algorithm.model_copy(update={"schedule": Counting()})})
        first = learner_of(run)
        first.learn(episodes(4), START)
        assert first.state_dict().keys() == {"credit/reasoner", "credit/actor"}
        assert first.schedule._seen == [0]  # type: ignore[attr-defined]
        second = learner_of(run)
        assert second.state_dict() == {}
        assert second.schedule._seen == []  # type: ignore[attr-defined]

    @pytest.mark.parametrize(
        ("name", "warmup", "steps", "learning"),
        [("marft", 2, 8, 6), ("marft", 0, 8, 8), ("marft", 7, 8, 1), ("grpo", 3, 8, 8)],
    )  # fmt: skip
    def test_policies_learn_in_the_steps_after_the_critics_warm_up(
        self, name: str, warmup: int, steps: int, learning: int, tmp_path: Path
    ) -> None:
        """Where there is no critic nothing warms up, whatever it says."""
        made = of(tmp_path, name, "--algorithm.critic.warmup_steps", str(warmup), "--training.steps", str(steps))
        mine = learner_of(made)
        assert mine.warmup == (warmup if name == "marft" else 0)
        assert [optimizer.steps for optimizer in mine.optimizers.values()] == [learning, learning]

    def test_a_constant_length_is_the_recipes_or_the_longest_that_is_trained(self, tmp_path: Path) -> None:
        longer = ("--agents.reasoner.sampling.max_new_tokens", "64")
        assert learner_of(of(tmp_path, "dr-grpo", *longer)).packing.constant_length == 64
        assert learner_of(of(tmp_path, "dr-grpo", *longer, *FROZEN)).packing.constant_length == 8
        given = of(tmp_path, "dr-grpo", *longer, "--algorithm.constant_length", "5")
        assert learner_of(given).packing.constant_length == 5

    def test_samples_are_divided_by_their_base_and_share_prefixes_where_the_recipe_says(self, tmp_path: Path) -> None:
        mine = learner_of(of(tmp_path, "grpo", "--training.share_prefixes", "always"))
        assert mine.packing.bases == {"reasoner": "base", "actor": "base"}
        assert mine.packing.share

    def test_policies_whose_weights_other_ranks_hold_have_no_optimizer_here(self, tmp_path: Path) -> None:
        models = PolicyRegistry(run := of(tmp_path, "grpo"))
        models.policies["actor"].backbone.has_weights = False
        assert Learner(run, models).optimizers == {}

    def test_all_its_parts_share_the_work_with_the_same_ranks(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class One(SingleRank):
            """A process that is not the default one."""

        ranks, told = One(), []
        mine = Learner(run := of(tmp_path, "marft"), PolicyRegistry(run), ranks)
        monkeypatch.setattr(PolicyUpdater, "run", lambda self, *_: told.append(self.ranks))
        mine.learn(episodes(1), START)
        assert mine.critic is not None
        assert (mine.critic.ranks, told) == (ranks, [ranks])

    @pytest.mark.parametrize("name", ["marft", "grpo"])
    def test_all_its_parts_are_given_new_ranks(self, name: str, tmp_path: Path) -> None:
        mine, ranks = learner_of(of(tmp_path, name)), SingleRank()
        mine.set_ranks(ranks)
        assert mine.ranks is mine.diagnostics.ranks is ranks
        assert (mine.critic is None) == (name == "grpo")
        assert mine.critic is None or mine.critic.ranks is ranks

    @pytest.mark.parametrize("coefficient", [0.0, 0.5])
    def test_text_of_teammates_is_scored_where_it_is_trained_and_never_under_the_base(
        self, coefficient: float, tmp_path: Path
    ) -> None:
        mine = learner_of(of(tmp_path, "grpo", "--algorithm.teammate_text.coefficient", str(coefficient)))
        assert mine.packing.teammate_text == (coefficient > 0)
        assert not mine.base_packing.teammate_text
        assert not mine.diagnostics._packing.teammate_text
        assert mine.packing.tokens_per_batch == mine.base_packing.tokens_per_batch == 400


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        (("--algorithm.epochs", "1"), True),
        (("--algorithm.epochs", "2"), False),
        (("--algorithm.epochs", "2", "--training.share_prefixes", "always"), True),
        (("--algorithm.epochs", "1", "--training.share_prefixes", "never"), False),
        (("--algorithm.epochs", "1", "--algorithm.schedule", "{ name = 'sequential' }"), False),
        (("--algorithm.epochs", "1", "--models.base.dtype", "bfloat16"), False),
    ],
)
@pytest.mark.usefixtures("multiplies_halves")
def test_by_itself_a_learner_shares_where_no_score_is_compared_with_one_of_another_packing(
    options: tuple[str, ...], shares: bool, tmp_path: Path
) -> None:
    assert learner_of(of(tmp_path, "grpo", *options)).packing.share == shares


@pytest.mark.parametrize(("inexact", "shares"), [("", True), ("a", False), ("ab", False)])
def test_no_model_shares_if_one_of_them_has_products_that_depend_on_the_batch(
    inexact: str, shares: bool, tmp_path: Path
) -> None:
    policies = {name: SimpleNamespace(backbone=SimpleNamespace(needs_fixed_size=name in inexact)) for name in "ab"}
    models = cast(PolicyRegistry, SimpleNamespace(policies=policies))
    run = of(tmp_path, "grpo", "--algorithm.epochs", "1")
    assert learner_module._may_share_prefixes(run, Simultaneous(), models) == shares


class TestWhatIsCarriedOn:
    def test_goes_to_the_part_it_is_of_and_one_that_nothing_is_said_of_begins_again(self, tmp_path: Path) -> None:
        """A baseline that had seen nothing says nothing; it once kept what a step that was lost had told it."""
        mine = learner_of(of(tmp_path, "rae", "--algorithm.schedule", "{ name = 'agent-by-agent', interval = 9 }"))
        both = {"credit/actor": 0.5, "schedule/turn": 3, "schedule/since": 70}
        mine.load_state_dict(both)
        assert mine.state_dict() == both
        mine.load_state_dict({"credit/actor": 0.25})
        assert mine.state_dict() == {"credit/actor": 0.25, "schedule/turn": 0, "schedule/since": 0}
        mine.load_state_dict({})
        assert mine.state_dict() == {"schedule/turn": 0, "schedule/since": 0}

    def test_is_nothing_where_no_part_carries_anything(self, tmp_path: Path) -> None:
        assert learner_of(of(tmp_path, "grpo")).state_dict() == {}


class TestScoresBeforeTheStep:
    """Only what the algorithm asks for is scored, and only of what is trained."""

    @staticmethod
    def scored(tmp_path: Path, place: str, coefficient: float, for_credit_alone: bool, *more: str) -> Any:
        kl = f"{{ coefficient = {coefficient}, apply_to = '{place}', estimator = '{'k1' if place == 'reward' else 'k3'}' }}"
        mine, batch = begun(of(tmp_path, "marft", "--algorithm.kl", kl, *more)), episodes(2)
        asked = {"for_credit_alone": True} if for_credit_alone else {}  # all that an update reads, unless it is said
        return mine, batch, mine.score_before_update(batch, **asked)

    @pytest.mark.parametrize(
        ("place", "coefficient", "for_credit_alone"),
        [("loss", 0.0, False), ("reward", 0.0, False), ("reward", 0.0, True), ("loss", 0.5, True)],
    )
    def test_nothing_is_where_nothing_reads_it(
        self, place: str, coefficient: float, for_credit_alone: bool, tmp_path: Path
    ) -> None:
        _, _, fixed = self.scored(tmp_path, place, coefficient, for_credit_alone)
        assert (fixed.old, fixed.base) == ({}, {})

    @pytest.mark.parametrize(("place", "for_credit_alone"), [("loss", False), ("reward", False), ("reward", True)])
    def test_the_base_is_and_the_policy_itself_for_the_reward(
        self, place: str, for_credit_alone: bool, tmp_path: Path
    ) -> None:
        mine, batch, fixed = self.scored(tmp_path, place, 0.5, for_credit_alone)
        samples = samples_of(batch)
        right = {"base": score_actions(mine.base_packing, samples), "old": score_actions(mine.packing, samples)}
        assert fixed.old.keys() == (right["old"].keys() if place == "reward" else set())
        assert fixed.base.keys() == right["base"].keys()
        assert all(np.array_equal(row, right["base"][key]) for key, row in fixed.base.items())
        assert all(np.array_equal(row, right["old"][key]) for key, row in fixed.old.items())
        assert any(np.abs(right["old"][key] - row).max() > 1e-3 for key, row in fixed.base.items())

    @pytest.mark.parametrize("exact", [False, True])
    def test_are_good_for_other_packings_only_where_they_are_exact(
        self, exact: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Packing, "is_exact", lambda *_: exact)
        _, _, fixed = self.scored(tmp_path, "reward", 0.5, False)
        assert fixed.exact is exact

    def test_a_frozen_policys_actions_are_not(self, tmp_path: Path) -> None:
        _, batch, fixed = self.scored(tmp_path, "reward", 0.5, False, *FROZEN)
        actors = {action.key for episode in batch for action in episode.actions if action.agent == "actor"}
        assert fixed.old.keys() == fixed.base.keys() == actors

    def test_steps_of_the_critic_alone_ask_for_none(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        kl = ("--algorithm.kl", "{ coefficient = 0.5 }", "--algorithm.critic.warmup_steps", "1")
        mine = learner_of(of(tmp_path, "marft", *kl))
        monkeypatch.setattr(learner_module, "score_actions", None)
        metrics = mine.learn(episodes(2), START)
        assert not {"kl_stops", "policy_loss", "kl_to_base"} & metrics.keys()
        assert math.isfinite(metrics["critic/loss"])


class TestKLAsACost:
    @staticmethod
    def costs(tmp_path: Path, level: str, place: str = "reward", *, known: bool = True) -> list[Floats]:
        """Of an action that the learner has scored, 30 nats above and 30 below the base and 0.5 above, and of one that it
        has not."""
        kl = f"{{ coefficient = 0.25, apply_to = '{place}', estimator = '{'k1' if place == 'reward' else 'k3'}' }}"
        mine = learner_of(of(tmp_path, "marft", "--algorithm.level", level, "--algorithm.kl", kl))
        (batch,) = episodes(1)
        one, other = make_action("actor", tokens=(5, 6, 7)), make_action("reasoner", index=1, tokens=(8, 9))
        old, base = np.array([-1.0, -31.0, -2.0]), np.array([-31.0, -1.0, -2.5])
        scored = FixedLogProbs({one.key: old}, {one.key: base}) if known else FixedLogProbs()
        return mine._compute_costs([replace(batch, actions=(one, other))], scored)

    def test_is_cut_at_20_nats_a_token_and_summed_over_an_action(self, tmp_path: Path) -> None:
        assert [row.tolist() for row in self.costs(tmp_path, "token")] == [[5.0, -5.0, 0.125], [0.0, 0.0]]
        assert [row.tolist() for row in self.costs(tmp_path, "action")] == [[0.125], [0.0]]

    def test_there_is_none_outside_of_the_reward_or_before_anything_is_scored(self, tmp_path: Path) -> None:
        assert self.costs(tmp_path, "action", "loss") == []
        assert self.costs(tmp_path, "action", known=False) == []


class TestALearningStep:
    def test_rates_and_checks_are_counted_from_the_end_of_the_critics_warm_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And the schedule is told how large each policy's advantages are."""
        warm = ("--algorithm.critic.warmup_steps", "2", "--training.steps", "12")
        mine, batch = learner_of(of(tmp_path, "marft", *warm)), episodes(2)
        begun_at: list[int] = []
        checked: list[bool] = []
        told: list[Progress] = []

        class Told(Simultaneous):
            def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
                told.append(progress)
                return super().plan_phases(progress, policies, seed)

        mine.schedule = Told()
        monkeypatch.setattr(learner_module, "PACKING_CHECK_INTERVAL", 3)
        monkeypatch.setattr(PolicyOptimizer, "begin_step", lambda self, step: begun_at.append(step) or 0.5)
        monkeypatch.setattr(PolicyUpdater, "run", lambda self, *_: checked.append(self.check_packing))
        for step in range(2, 9):
            metrics = mine.learn(batch, Progress(step, 0))
            assert [metrics[f"policies/{name}/learning_rate"] for name in ("reasoner", "actor")] == [0.5, 0.5]
            assert {"agents/reasoner/gradient_share", "agents/actor/gradient_share"} <= metrics.keys()
        assert begun_at == [n for n in range(7) for _ in mine.optimizers]
        assert checked == [n % 3 == 0 for n in range(7)]
        assert all(progress.advantages.keys() == {"reasoner", "actor"} for progress in told)

    def test_without_anything_to_train_fits_the_critic_all_the_same(self, tmp_path: Path) -> None:
        mine = learner_of(of(tmp_path, "marft", *FROZEN))
        batch = [replace(e, actions=tuple(a for a in e.actions if a.agent == "reasoner")) for e in episodes(4)]
        metrics = mine.learn(batch, START)
        assert not {"kl_stops", "policy_loss", "policies/actor/learning_rate"} & metrics.keys()
        assert metrics["critic/loss"] > 0

    def test_critics_are_fitted_to_monte_carlo_returns_while_they_warm_up_and_to_the_credits_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Both:
            def assign(self, inputs: CreditInputs) -> CreditOutput:
                rows = [np.zeros(size) for size in inputs.sizes()]
                return CreditOutput(rows, returns=[row + 1 for row in rows], monte_carlo=[row + 2 for row in rows])

        mine = learner_of(of(tmp_path, "marft", "--algorithm.critic.warmup_steps", "1"))
        mine.credit = Both()  # type: ignore[assignment]
        targets: list[float] = []

        def update(values: Values, rows: Sequence[Floats], step: int) -> dict[str, float]:
            targets.append(float(rows[0][0]))
            return {}

        monkeypatch.setattr(PolicyUpdater, "run", lambda *_: None)
        monkeypatch.setattr(mine.critic, "update", update)
        for step in range(3):
            mine.learn(episodes(1), Progress(step, 0))
        assert targets == [2.0, 1.0, 1.0]

    def test_tasks_that_a_credit_writes_to_are_copies(self, tmp_path: Path) -> None:
        class Writing:
            def assign(self, inputs: CreditInputs) -> CreditOutput:
                for one in inputs.episodes:
                    one.task.data["seen"] = True  # type: ignore[index]
                return CreditOutput([np.zeros(size) for size in inputs.sizes()])

        mine, batch = learner_of(of(tmp_path, "grpo")), episodes(1)
        mine.credit = Writing()  # type: ignore[assignment]
        credited = mine.assign_credit(batch, FixedLogProbs())
        assert all("seen" not in one.task.data for one in (*batch, *credited.episodes, *credited.inputs.episodes))

    def test_a_credit_that_is_not_finite_in_one_decision_is_named(self, tmp_path: Path) -> None:
        mine, batch = learner_of(of(tmp_path, "grpo")), episodes(1)

        class Wrong:
            def assign(self, inputs: CreditInputs) -> CreditOutput:
                return CreditOutput([np.zeros(1), np.array([0.0, np.inf])])

        mine.credit = Wrong()  # type: ignore[assignment]
        wrong = batch[0].actions[1]
        with pytest.raises(Exception, match=f"credit 'grpo' gave {wrong.id} of 't' an advantage of .*inf"):
            mine.assign_credit(batch, FixedLogProbs())

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("schedule", "told"), [("simultaneous", []), ("sequential", ["first"]), ("a2po", ["first"])]
    )
    def test_what_a_phase_has_moved_is_scored_only_for_a_phase_that_is_told_of_it(
        self, schedule: str, told: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        name = "a2po" if schedule == "a2po" else "happo"
        mine = learner_of(of(tmp_path, name, "--algorithm.schedule", f"{{ name = '{schedule}' }}"))
        order: list[tuple[str, ...]] = []
        scored: list[set[str]] = []
        run, score_now = PolicyUpdater.run, PolicyUpdater.score_current

        def running(
            self: PolicyUpdater, phase: UpdatePhase, samples: Sequence[Sample], step: int, budget: float
        ) -> None:
            order.append(phase.policies)
            run(self, phase, samples, step, budget)

        def scoring(self: PolicyUpdater, samples: Sequence[Sample]) -> dict[int, Floats]:
            if len(samples) > 4:  # not those that are only checked
                scored.append({sample.action.policy for sample in samples})
            return score_now(self, samples)

        monkeypatch.setattr(PolicyUpdater, "run", running)
        monkeypatch.setattr(PolicyUpdater, "score_current", scoring)
        mine.learn(episodes(), START)
        assert scored == [set(order[0]) for _ in told]

    def test_two_phases_without_a_correction_are_told_of_nothing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mine = learner_of(of(tmp_path, "marft", "--algorithm.epochs", "1"))
        mine.schedule = OneByOne()
        monkeypatch.setattr(PolicyUpdater, "score_current", None)
        assert mine.learn(episodes(), START)["kl_stops"] == 0.0

    @pytest.mark.parametrize(("name", "learns"), [("marft", False), ("marft-paper-table4", True)])
    def test_where_every_episode_earned_the_same_what_the_critic_misses_moves_no_policy(
        self, name: str, learns: bool, tmp_path: Path
    ) -> None:
        """In ``marft``; scaled to unit deviation it would be steps of full size. The critic learns all the same."""
        mine = begun(of(tmp_path, name, "--algorithm.critic.learning_rate", "0.01"))
        mine.learn(episodes(6), START)  # a critic that says something
        alike = [
            replace(e, transitions=tuple(replace(t, reward=1.0) for t in e.transitions)) for e in episodes(6, seed=1)
        ]
        credited = mine.assign_credit(alike, FixedLogProbs())
        advantages = np.concatenate([sample.advantages for sample in credited.samples])
        assert advantages.any() == learns
        assert not learns or np.abs(advantages).max() > 1
        assert np.concatenate(credited.credit.returns).all()
        metrics = mine.learn(alike, Progress(1, 0))
        assert metrics["zero_advantage_fraction"] == (0.0 if learns else 1.0)
        assert metrics["critic/loss"] > 0

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("name", "changes"),
        [
            ("marft", ONCE), ("marft", ("--algorithm.minibatches", "3")),
            pytest.param("marft-paper-table3", (), marks=BY_NIGHT), pytest.param("grpo", ONCE, marks=BY_NIGHT),
            pytest.param("happo", ONCE, marks=BY_NIGHT), ("hatrpo", ()), ("a2po", ()), ("dpo", ONCE),
            pytest.param("marft", (*ONCE, "--algorithm.schedule", "{ name = 'agent-by-agent' }"), marks=BY_NIGHT),
        ],
    )  # fmt: skip
    def test_its_kl_is_how_far_the_whole_update_has_moved_each_agent(
        self, name: str, changes: tuple[str, ...], tmp_path: Path
    ) -> None:
        rate = ("--algorithm.optimizer.learning_rate", "1e-3", "--algorithm.optimizer.warmup_steps", "0")
        mine, batch = begun(of(tmp_path, name, *rate, *changes)), episodes()
        # of attempts that are compared, those of the pairs
        learned = mine.assign_credit(batch, FixedLogProbs()).samples
        old = score_actions(mine.packing, learned)
        metrics = mine.learn(batch, START)
        new = score_actions(mine.packing, learned)
        moved = {key: new[key] - row for key, row in old.items() if f"agents/{key.agent}/kl" in metrics}
        terms = {key: np.exp(row) - 1 - row for key, row in moved.items()}
        for agent in {key.agent for key in terms}:
            right = np.concatenate([row for key, row in terms.items() if key.agent == agent]).mean()
            assert metrics[f"agents/{agent}/kl"] == pytest.approx(right, rel=1e-3)
        assert metrics["kl"] == pytest.approx(np.concatenate(list(terms.values())).mean(), rel=1e-3)
        assert metrics["kl"] > 1e-9
        assert (metrics["kl_before_step"] == 0.0) == (mine.settings.epochs * mine.settings.minibatches == 1)

    def test_its_kl_is_measured_on_what_is_drawn_for_the_step_of_the_policies_that_it_updates(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Not on those that are scored for another reason."""
        kl = "{ coefficient = 0.5, apply_to = 'reward', estimator = 'k1' }"
        mine = begun(of(tmp_path, "marft", "--algorithm.kl", kl, "--seed", "5"))
        mine.schedule = ActorAlone()
        told: list[tuple[int, int, int]] = []

        def drawn(samples: Sequence[Sample], count: int, seed: int, step: int) -> Sequence[Sample]:
            told.append((count, seed, step))
            return samples[:2]

        monkeypatch.setattr(learner_module, "sample_per_agent", drawn)
        metrics = mine.learn(episodes(3), Progress(2, 0))
        assert told == [(4, 5, 2)]
        assert [name for name in metrics if name.endswith("/kl")] == ["agents/actor/kl"]

    def test_measuring_its_kl_changes_nothing_that_is_learned(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        measured, free = (begun(of(tmp_path, "marft")) for _ in range(2))
        before = torch.get_rng_state()
        measured.learn(episodes(4), START)
        assert torch.equal(torch.get_rng_state(), before)
        monkeypatch.setattr(Learner, "_score_after", lambda *_: {})
        free.learn(episodes(4), START)
        for name, optimizer in measured.optimizers.items():
            others = free.optimizers[name].parameters
            assert all(torch.equal(tensor, others[key]) for key, tensor in optimizer.parameters.items())

    @pytest.mark.slow
    def test_kl_to_the_base_is_that_from_before_the_step(self, tmp_path: Path) -> None:
        """Of four actions of each agent, or of all where they have been scored; also of policies that stood still."""
        for kl, share in (("0", 4), ("0.5", 12)):
            mine, batch = begun(of(tmp_path, "marft", "--algorithm.kl.coefficient", kl)), episodes()
            mine.schedule = ActorAlone()
            expected: dict[str, list[float]] = {"reasoner": [], "actor": []}
            chosen = samples_of(batch[:share])
            old, base = score_actions(mine.packing, chosen), score_actions(mine.base_packing, chosen)
            for sample in chosen:
                rows = base[sample.action.key] - old[sample.action.key]
                expected[sample.action.agent] += [math.exp(d) - 1 - d for d in rows.tolist()]
            metrics = mine.learn(batch, START)
            for agent, rows in expected.items():
                assert metrics[f"agents/{agent}/kl_to_base"] == pytest.approx(sum(rows) / len(rows), rel=1e-4)


def test_kl_to_the_base_of_a_whole_policy_is_that_to_the_weights_it_began_with(tmp_path: Path) -> None:
    mine = learner_of(of(tmp_path, "marft", "--policies.actor.train", "full", *STILL))
    with torch.no_grad():
        for parameter in mine.optimizers["actor"].parameters.values():
            parameter.mul_(1.1)
    metrics = mine.learn(episodes(2), START)
    assert metrics["agents/actor/kl_to_base"] > 1e-4
    assert metrics["agents/reasoner/kl_to_base"] == 0.0


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.usefixtures("multiplies_halves")
def test_the_packing_of_a_run_is_untouched_by_its_updates(tmp_path: Path) -> None:
    mine = begun(of(tmp_path, "marft", dtype="bfloat16"))
    before: Packing = mine.packing
    mine.learn(episodes(), START)
    assert mine.packing is before
    assert not before.sizes
    assert torch.is_grad_enabled()


class TestNewEpisodes:
    class Again(Simultaneous):
        def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
            return [UpdatePhase(("reasoner",), new_episodes=True), UpdatePhase(("actor",), new_episodes=True)]

    class ReasonerAlone(Simultaneous):
        def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
            return [UpdatePhase(("reasoner",))]

    @staticmethod
    def weights(learner: Learner) -> dict[str, torch.Tensor]:
        parts = {name: optimizer.parameters for name, optimizer in learner.optimizers.items()}
        assert learner.critic
        parts["critic"] = learner.critic.parameters()
        return {f"{part}/{name}": tensor for part, tensors in parts.items() for name, tensor in tensors.items()}

    def test_are_learned_from_as_in_a_step_of_their_own(self, tmp_path: Path) -> None:
        mine, right = begun(of(tmp_path, "marft")), begun(of(tmp_path, "marft"))
        asked, records = list[int](), list[int]()

        def play_again() -> list[Episode]:
            asked.append(1)
            return episodes(4, seed=7)

        mine.schedule = self.Again()
        metrics = mine.learn(episodes(3), START, lambda credits: records.append(len(credits)), play_again)
        right.schedule = self.ReasonerAlone()
        first = right.learn(episodes(3), START)
        right.schedule = ActorAlone()
        second = right.learn(episodes(4, seed=7), START)
        assert asked == [1], "the first phase has episodes that are new"
        assert records == [sum(len(e.actions) for e in episodes(n, seed=s)) for n, s in ((3, 0), (4, 7))]
        expected = self.weights(right)
        for name, tensor in self.weights(mine).items():
            assert torch.equal(tensor, expected[name]), name
        assert metrics["agents/reasoner/kl"] == first["agents/reasoner/kl"]
        assert metrics["agents/actor/kl"] == second["agents/actor/kl"]
        assert metrics["critic/loss"] == second["critic/loss"]

    def test_without_an_action_to_train_are_no_update(self, tmp_path: Path) -> None:
        class ActorTwice(Simultaneous):
            def plan_phases(self, progress: Progress, policies: Sequence[str], seed: int) -> list[UpdatePhase]:
                return [UpdatePhase(("actor",)), UpdatePhase(("actor",), new_episodes=True)]

        mine = begun(of(tmp_path, "marft", *FROZEN))
        mine.schedule = ActorTwice()
        of_the_frozen = [replace(e, actions=e.actions[:1]) for e in episodes(2, seed=7)]
        records = list[int]()
        metrics = mine.learn(episodes(3), START, lambda credits: records.append(len(credits)), lambda: of_the_frozen)
        assert records == [6, 2]
        assert metrics["idle_phase_fraction"] == 0.0

    def test_are_refused_where_nobody_plays(self, tmp_path: Path) -> None:
        mine = begun(of(tmp_path, "marft"))
        mine.schedule = self.Again()
        with pytest.raises(RunError, match="asks for new episodes"):
            mine.learn(episodes(2), START)
