"""The first ratio is 1: what is compared with the policy is the policy itself, to the bit, whatever an engine rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marft.common.callbacks import Callback
from marft.common.types import ActionKey, Episode, Observation, Sample, Task, Transition
from marft.config.interfaces.credit import Floats
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.models.log_probs import TokenScores, score_tokens
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.async_rollout import sources
from marft.rollout.rollout_batch import RolloutBatch
from marft.runs.run_folder import RunFolder
from marft.trainer import learner as learner_module
from marft.trainer import scoring as scoring_module
from marft.trainer import update as update_module
from marft.trainer.batching import Packing
from marft.trainer.learner import Learner
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.ranks.interface import Ranks
from marft.trainer.scoring import score_actions
from marft.trainer.train import train
from marft.trainer.update import PACKING_CHECK_INTERVAL, PolicyUpdater
from marft.trainer.update_schedules import TeamRatios
from tests.episodes import make_action
from tests.learners import ROLES, STILL, begun, episodes, recipe, samples_of
from tests.marft.trainer.test_segments import cut
from tests.nights import BY_NIGHT, some

pytestmark = pytest.mark.usefixtures("multiplies_halves")
DTYPES = some(("bfloat16", "float32"))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("sized", "in_segments"), [(False, False), pytest.param(True, False, marks=BY_NIGHT), (True, True)]
)
def test_a_score_does_not_depend_on_what_it_is_packed_with(
    dtype: str, sized: bool, in_segments: bool, tmp_path: Path
) -> None:
    """Every action alone, all together, and in two shuffled halves: equal to the bit."""
    learner, samples = begun(recipe(tmp_path, "gspo", dtype=dtype)), samples_of(episodes())
    if in_segments:
        random = np.random.default_rng(2)
        samples = [replace(sample, action=cut(sample.action, random)) for sample in samples]
        assert max(len(sample.action.segments) for sample in samples) > 2
    packing = learner.packing.with_fixed_sizes([samples]) if sized else learner.packing
    assert bool(packing.sizes) == (sized and dtype == "bfloat16")
    whole = score_actions(packing, samples)
    mixed = [samples[i] for i in np.random.default_rng(1).permutation(len(samples))]
    for parts in ([[sample] for sample in samples], [mixed[:10], mixed[10:]]):
        scored: dict[int, Floats] = {}
        for part in parts:
            scored |= score_actions(packing, part)
        assert all(np.array_equal(scored[key], value) for key, value in whole.items())


def test_micro_batches_of_one_size_have_it(tmp_path: Path) -> None:
    learner, samples = begun(recipe(tmp_path, "gspo", dtype="bfloat16")), samples_of(episodes())
    packing = learner.packing.with_fixed_sizes([samples[:9], samples[9:]])
    forwarded: list[int] = []
    original = (backbone := learner.packing.backbones["actor"]).hidden_states

    def counted(rows: object) -> torch.Tensor:
        forwarded.append(len(rows.ids))  # type: ignore[attr-defined]
        return original(rows)  # type: ignore[arg-type]

    backbone.hidden_states = counted  # type: ignore[method-assign, assignment]
    for part in (samples[:9], samples[9:], samples, samples[:1]):
        score_actions(packing, part)
    assert len(set(forwarded)) == 1
    assert forwarded[0] <= 448  # what fits, rounded up


def test_where_batches_have_one_size_so_has_what_is_made_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, samples = begun(recipe(tmp_path, "gspo", dtype="bfloat16")), samples_of(episodes(2))
    filled: list[bool] = []

    def looked(*arguments: Any, **named: Any) -> TokenScores:
        filled.append(named.get("fixed_size", False))
        return score_tokens(*arguments, **named)

    monkeypatch.setattr(scoring_module, "score_tokens", looked)
    for packing, one_size in ((learner.packing, False), (learner.packing.with_fixed_sizes([samples]), True)):
        filled.clear()
        score_actions(packing, samples)
        assert set(filled) == {one_size}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "dtype", "train"),
    some([("gspo", "bfloat16", "lora"), ("gspo", "float32", "lora"), ("gspo", "bfloat16", "full"),
          ("happo", "bfloat16", "lora"), ("grpo", "bfloat16", "lora")], of=5),
)  # fmt: skip
def test_nothing_is_clipped_before_anything_is_learned(name: str, dtype: str, train: str, tmp_path: Path) -> None:
    """Steps of 1e-12 move nothing: in every epoch and minibatch all ratios are 1, and the KL is 0."""
    run = recipe(
        tmp_path, name, *STILL, "--algorithm.epochs", "2", "--algorithm.minibatches", "3",
        "--algorithm.kl.coefficient", "0", "--algorithm.kl_stop", "1e-12", "--policies.actor.train", train,
        dtype=dtype,
    )  # fmt: skip
    metrics = begun(run).learn(episodes(), Progress(0, 0))
    assert (metrics["clip_fraction"], metrics["kl"], metrics["kl_stops"]) == (0.0, 0.0, 0.0)
    assert metrics["packing_difference"] == 0.0
    assert metrics["log_prob_difference"] > 0.01  # the engine is wrong, and that shows where it should
    assert metrics["gradient_norm"] > 0.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_policy_that_has_not_moved_weighs_nothing_in_the_team_ratio(dtype: str, tmp_path: Path) -> None:
    run = recipe(tmp_path, "happo", *STILL, dtype=dtype)
    learner, samples = begun(run), samples_of(episodes())
    update = PolicyUpdater(learner.update_setup(), FixedLogProbs())
    update.run(UpdatePhase(("actor",)), samples, step=0)
    moved = [sample for sample in samples if sample.action.policy == "actor"]
    ratios = TeamRatios(2.0)
    ratios.add([sample.action for sample in moved], update.old, update.score_current(moved))
    assert {ratios.log_ratio(sample.action) for sample in samples} == {0.0}


@pytest.mark.parametrize(("epochs", "minibatches", "share"), [(1, 1, 0.0), (3, 1, 0.0), (1, 3, 2 / 3), (2, 2, 1 / 2)])
def test_the_old_policy_is_scored_once_and_only_where_it_will_have_moved(
    epochs: int, minibatches: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = recipe(
        tmp_path, "marft", "--algorithm.epochs", str(epochs), "--algorithm.minibatches", str(minibatches),
        "--algorithm.kl_stop", "0",
    )  # fmt: skip
    learner, samples = begun(run), samples_of(episodes())
    scored: list[int] = []

    def counted(packing: Packing, wanted: Sequence[Sample], *ranks: Ranks) -> dict[ActionKey, Floats]:
        scored.extend(sample.action.key for sample in wanted)
        return score_actions(packing, wanted)

    monkeypatch.setattr(update_module, "score_actions", counted)
    update = PolicyUpdater(learner.update_setup(), FixedLogProbs())
    update.run(UpdatePhase(ROLES), samples, step=1)
    assert len(scored) == len(set(scored)) == round(share * len(samples))
    assert update.old.keys() == {sample.action.key for sample in samples}


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_from_before_are_taken_over_only_where_packing_makes_no_difference(dtype: str, tmp_path: Path) -> None:
    """KL in the reward has scored everything, in batches of any size: in half precision those are not π_old's."""
    run = recipe(tmp_path, "marft", "--algorithm.epochs", "1", "--algorithm.minibatches", "3", dtype=dtype)
    learner, samples = begun(run), samples_of(episodes())
    fixed = {sample.action.key: np.full(sample.action.num_decisions, -7.0) for sample in samples}
    update = PolicyUpdater(learner.update_setup(), FixedLogProbs(fixed))
    filled = learner.packing.with_fixed_sizes([samples])
    right = score_actions(filled, samples)
    update._score_old(samples)
    assert all(np.array_equal(update.old[key], fixed[key]) for key in fixed)  # not yet in one size
    update.packing = filled
    update._score_old(samples)
    for key, row in right.items():
        assert np.array_equal(update.old[key], row if dtype == "bfloat16" else fixed[key])


def test_a_policy_that_steps_again_in_company_is_compared_with_where_the_step_began(tmp_path: Path) -> None:
    """One phase moves the actor; in the next both step, and the reasoner has not been scored by then."""
    once = ("--algorithm.kl_stop", "0", "--algorithm.epochs", "1", "--algorithm.minibatches", "1")
    learner = begun(recipe(tmp_path, "marft", *once, "--training.tokens_per_micro_batch", "9999"))
    samples = samples_of(episodes())
    before = score_actions(learner.packing, samples)
    update = PolicyUpdater(learner.update_setup(), FixedLogProbs())
    for phase in (UpdatePhase(("actor",)), UpdatePhase(ROLES)):
        update.run(phase, samples, step=0)
    assert all(np.array_equal(update.old[key], value) for key, value in before.items())
    means = update.accumulator.means()
    assert means["agents/reasoner/kl_before_step"] == 0.0 < means["agents/actor/kl_before_step"]


def test_ratios_are_taken_from_where_the_step_began_and_not_from_the_last_minibatch(tmp_path: Path) -> None:
    run = recipe(
        tmp_path, "marft", "--algorithm.epochs", "2", "--algorithm.minibatches", "2", "--algorithm.kl_stop", "0"
    )
    learner, samples = begun(run), samples_of(episodes())
    before = score_actions(learner.packing, samples)
    update = PolicyUpdater(learner.update_setup(), FixedLogProbs())
    update.run(UpdatePhase(ROLES), samples, step=0)
    after = score_actions(learner.packing, samples)
    assert all(np.array_equal(update.old[key], value) for key, value in before.items())
    assert any(np.abs(after[key] - value).max() > 1e-3 for key, value in before.items())  # it did move


class Listening(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


class TestScoresThatDependOnTheirCompany:
    @staticmethod
    def spoiled(monkeypatch: pytest.MonkeyPatch, which: Callable[[Sequence[Sample]], Sample]) -> None:
        """One of the actions is scored otherwise wherever only a few are scored together."""

        def off(packing: Packing, wanted: Sequence[Sample], *ranks: Ranks) -> dict[ActionKey, Floats]:
            scored = score_actions(packing, wanted)
            if 0 < len(wanted) <= 4:
                scored[which(wanted).action.key] += 0.25
            return scored

        monkeypatch.setattr(update_module, "score_actions", off)

    @pytest.mark.slow
    @pytest.mark.parametrize("which", some([max, min], of=2))
    @pytest.mark.parametrize(
        ("name", "epochs", "said"),
        some(
            [("marft", 2, True), ("happo", 1, True), ("a2po", 1, True), ("hatrpo", 1, True), ("marft", 1, False)], of=5
        ),
    )
    def test_are_looked_for_wherever_scores_are_compared_at_the_first_step_and_now_and_then(
        self, name: str, epochs: int, said: bool, which: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Whether it is the longest or the shortest action that suffers. Where nothing is compared, nothing is spent."""
        self.spoiled(
            monkeypatch, lambda wanted: which(wanted, key=lambda s: len(s.action.prompt) + len(s.action.tokens))
        )
        learner = begun(
            recipe(
                tmp_path,
                name,
                "--algorithm.epochs",
                str(epochs),
                "--algorithm.critic.warmup_steps",
                "3",
                "--training.steps",
                "30",
            )
        )
        measured = {
            step: learner.learn(episodes(), Progress(step, 0)).get("packing_difference")
            for step in (2, 3, 4, 2 + PACKING_CHECK_INTERVAL, 3 + PACKING_CHECK_INTERVAL)
        }
        checked = [step for step, off in measured.items() if off is not None]
        assert checked == ([3, 3 + PACKING_CHECK_INTERVAL] if said else [])  # policies first step after the warm-up
        assert all(measured[step] == pytest.approx(0.25) for step in checked)

    @BY_NIGHT
    @pytest.mark.slow
    def test_are_spoken_of_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.spoiled(monkeypatch, lambda wanted: wanted[0])
        monkeypatch.setattr(learner_module, "PACKING_CHECK_INTERVAL", 1)
        run = recipe(tmp_path, "happo", "--training.steps", "3", "--rollout.samples_per_task", "4")
        train(run, folder := RunFolder.create(run), callbacks=([observer := Listening()]))
        assert [row["packing_difference"] for row in folder.read_metrics()] == pytest.approx([0.25] * 3)
        (note,) = (note for note in observer.notes if "by up to 0.2 nats" in note)
        assert "set algorithm.epochs = 1 and algorithm.schedule" in note


class TestAnEngineThatSaysOtherwise:
    @staticmethod
    def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, off: float, *overrides: str) -> list[str]:
        """Of a run whose actor has been sampled by something else."""
        collect_rollouts = sources.collect_rollouts

        def drifted(*arguments: Any, **named: Any) -> RolloutBatch:
            collection = collect_rollouts(*arguments, **named)
            inputs = [
                replace(e, actions=tuple(
                    replace(a, log_probs=a.log_probs - np.float32(off)) if a.agent == "actor" else a for a in e.actions
                )) for e in collection.training_episodes
            ]  # fmt: skip
            return replace(collection, training_episodes=inputs)

        monkeypatch.setattr(sources, "collect_rollouts", drifted)
        run = recipe(tmp_path, "marft", "--training.steps", "3", *overrides)
        train(run, RunFolder.create(run), callbacks=([observer := Listening()]))
        return [note for note in observer.notes if not note.startswith("nothing was learned")]

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("level", "advice"), [("action", "geometric"), pytest.param("token", "token", marks=BY_NIGHT)]
    )
    def test_is_spoken_of_once_with_what_corrects_it(
        self, level: str, advice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (note,) = self.notes(tmp_path, monkeypatch, 0.06, "--algorithm.level", level)
        assert note.startswith("actor: engine and learner differ by 0.06 nats a token")
        assert f"algorithm.sampler_correction = {{ level = '{advice}' }}" in note

    @pytest.mark.slow
    def test_is_not_spoken_of_where_rounding_explains_it(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not self.notes(tmp_path, monkeypatch, 0.04)

    @pytest.mark.slow
    def test_is_not_spoken_of_where_it_is_corrected(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert not self.notes(tmp_path, monkeypatch, 0.5, "--algorithm.sampler_correction.level", "geometric")


class TestKLInTheReward:
    KL = ("--algorithm.kl", "{ coefficient = 0.5, apply_to = 'reward', estimator = 'k1' }")

    @pytest.mark.slow
    def test_is_measured_with_the_learners_numbers(self, tmp_path: Path) -> None:
        """An untuned policy is its base, and costs nothing, whatever the engine says of its tokens."""
        run = recipe(tmp_path, "marft", *self.KL)
        learner, batch = Learner(run, PolicyRegistry(run)), episodes()
        credited = learner.assign_credit(batch, learner.score_before_update(batch))
        assert [cost.tolist() for cost in credited.inputs.costs] == [[0.0]] * 24
        assert learner.learn(batch, Progress(0, 0))["kl_to_base"] == 0.0

    def test_counts_in_the_targets_of_a_critic_that_warms_up(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        targets: dict[str, list[float]] = {}
        for name, kl in (("with", self.KL), ("without", ())):
            run = recipe(tmp_path, "marft", *kl, "--algorithm.critic.warmup_steps", "1")
            learner = begun(run)
            assert learner.critic is not None

            def fitted(values: object, wanted: Sequence[Floats], step: int, name: str = name) -> dict[str, float]:
                targets[name] = [float(target[0]) for target in wanted]
                return {}

            monkeypatch.setattr(learner.critic, "update", fitted)
            learner.learn(batch := episodes(), Progress(0, 0))
            if kl:
                costs = [
                    float(cost[0])
                    for cost in learner.assign_credit(batch, learner.score_before_update(batch)).inputs.costs
                ]
        for first, second, *_ in zip(range(0, 24, 2), range(1, 24, 2), strict=True):
            paid = targets["without"][second] - costs[second]
            assert targets["with"][second] == pytest.approx(paid)
            assert targets["with"][first] == pytest.approx(targets["without"][first] - costs[first] - costs[second])
        assert max(map(abs, costs)) > 0.01


@BY_NIGHT
@pytest.mark.slow
def test_a_whole_policy_on_a_half_precision_base_begins_as_the_base(tmp_path: Path) -> None:
    run = recipe(tmp_path, "marft", "--policies.actor.train", "full", dtype="bfloat16")
    metrics = Learner(run, PolicyRegistry(run)).learn(episodes(), Progress(0, 0))
    assert metrics["agents/actor/kl_to_base"] == 0.0
    assert metrics["agents/reasoner/kl_to_base"] == 0.0


def test_going_back_to_the_base_is_exact_for_a_whole_policy(tmp_path: Path) -> None:
    run = recipe(tmp_path, "marft", "--policies.actor.train", "full", dtype="bfloat16")
    models = PolicyRegistry(run)
    parameters = models.policies["actor"].parameters()
    before = {name: parameter.detach().clone() for name, parameter in parameters.items()}
    models.reset_policy("actor")
    assert all(torch.equal(parameters[name], value) for name, value in before.items())


@BY_NIGHT
@pytest.mark.slow
def test_the_rates_warm_up_begins_with_the_policies_first_step(tmp_path: Path) -> None:
    """Steps that fit the critic alone take nothing off the rate's warm-up, nor off its schedule."""
    run = recipe(
        tmp_path, "marft", "--algorithm.critic.warmup_steps", "2", "--training.steps", "8", "--algorithm.optimizer",
        "{ learning_rate = 1e-3, warmup_steps = 3, schedule = 'linear' }",
    )  # fmt: skip
    learner, batch = begun(run), episodes(4)
    rates = [
        learner.learn(batch, Progress(step, 0)).get("policies/actor/learning_rate", float("nan")) for step in range(8)
    ]
    expected = [float("nan"), float("nan"), 1 / 3, 2 / 3, 1.0, 1.0, 2 / 3, 1 / 3]
    assert rates == pytest.approx([1e-3 * rate for rate in expected], nan_ok=True)


class TestAFrozenTeammatesLength:
    FROZEN = ("--policies.reasoner.train", "frozen", "--agents.reasoner.sampling.max_new_tokens", "64")

    def test_is_no_measure_of_what_is_trained(self, tmp_path: Path) -> None:
        learner = Learner(run := recipe(tmp_path, "dr-grpo", *self.FROZEN), PolicyRegistry(run))
        assert learner.packing.constant_length == 8

    def test_has_no_price(self, tmp_path: Path) -> None:
        run = recipe(tmp_path, "grpo", *self.FROZEN, "--algorithm.reward.overlong_buffer", "4")
        learner = Learner(run, PolicyRegistry(run))
        tokens = tuple(range(10, 74))
        actions = (make_action("reasoner", tokens=tokens), make_action("actor", index=1, tokens=tokens[:6]))
        earned = (Transition(Observation("o"), 1.0),)
        batch = [Episode(Task("t", "o"), "train/0", n, actions, "terminated", earned) for n in range(2)]
        priced = learner.assign_credit(batch, FixedLogProbs()).inputs.episodes
        assert [dict(e.transitions[0].agent_rewards) for e in priced] == [{"actor": -0.5}] * 2
