"""Imagined episodes beside real ones: how many, from what, when they stop, and that they count for nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from marft.agents.game import Attempt
from marft.common.seeds import derive_seed
from marft.common.types import Episode, Observation, Status, StepInfo, Task, Transition
from marft.config import RunSettings, parse_recipe
from marft.config.interfaces.environment import Environment
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import RolloutBatch
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.train import train
from marft_lab.world_models.counts import CountModel
from marft_lab.world_models.environment import TRUNCATED, UNCERTAINTY
from marft_lab.world_models.experience_buffer import ExperienceBuffer
from marft_lab.world_models.interface import FittableModel, History, ObservedTransition, Outcome, Prediction, WorldModel
from marft_lab.world_models.rollout_source import ImaginedRolloutSource, _start_histories
from marft_lab.world_models.settings import DynaSettings
from tests.episodes import make_action
from tests.fakes import FakeEngine, Script, game, goes_on
from tests.helpers import recipe, settings
from tests.marft_lab.test_world_models import line, played

DYNA = {"share": 0.75, "warmup_steps": 2}


def dyna_of(*overrides: str, **changes: Any) -> RunSettings:
    return settings("tiny", "runs", *overrides, dyna={**DYNA, **changes}, algorithm={"name": "grpo"})


def real(step: int, sample: int, length: int = 6) -> Episode:
    """An episode on the line, lived by somebody who mostly goes right."""
    stream, at, transitions, actions = np.random.default_rng((step, sample)), 0, list[Transition](), []
    while at != length - 1:
        act = "right" if stream.random() < 0.8 else "left"
        to = max(0, at + (1 if act == "right" else -1))
        actions.append(make_action("a", step=len(transitions), text=act))
        transitions.append(Transition(Observation(f"at {at}"), float(to == length - 1)))
        at = to
    return Episode(
        Task(f"t{sample % 2}", "o"), f"train/{step}", sample, tuple(actions), "terminated", tuple(transitions), True
    )


class Gathered:
    """Gathers what is real."""

    def collect(self, state: State, on_done: Any) -> RolloutBatch:
        episodes = [real(state.step, sample) for sample in range(8)]
        for episode in episodes:
            on_done(episode)
        return RolloutBatch(episodes, list(episodes), list(episodes), 2, {"theirs": 1.0})

    def save(self, folder: Path) -> None:
        (folder / "theirs").write_text("")


class Rollouts:
    """Plays in imagined environments: always right."""

    def __init__(self, run: RunSettings) -> None:
        self.run, self.worlds, self.most, self.attempts = run, list[Any](), 0, list[Attempt]()

    def play_in(self, environment: Environment, attempts: Sequence[Attempt], most_steps: int) -> list[Episode]:
        self.worlds.append(environment)
        self.most = most_steps
        self.attempts += attempts
        return [
            replace(played(environment, ["right"] * most_steps, attempt.sample, attempt.task.id), sample=attempt.sample)  # type: ignore[arg-type]
            for attempt in attempts
        ]


def imagining(run: RunSettings, folder: Path | None = None) -> tuple[ImaginedRolloutSource, Rollouts]:
    rollouts = Rollouts(run)
    return ImaginedRolloutSource(Gathered(), rollouts, folder), rollouts  # type: ignore[arg-type]


def steps_of(gathering: ImaginedRolloutSource, first: int, count: int) -> list[RolloutBatch]:
    told: list[Episode] = []
    found = [gathering.collect(State(step=step), told.append) for step in range(first, first + count)]
    assert not any(episode.imagined for episode in told)
    return found


class Turned(FittableModel):
    """Counts, of which something is corrupted once it has lived so many steps."""

    after: int = 100
    what: str = "rewards"

    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> WorldModel:
        model = CountModel().fit(transitions, seed)
        return Wrong(model, self.what) if len(transitions) >= self.after else model


class Nothing(FittableModel):
    """Knows nothing, whatever it has lived."""

    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> WorldModel:
        return CountModel().fit([], seed)


class Seeded(Nothing):
    """Notes the seeds that it is fitted with."""

    seeds: ClassVar[list[int]] = []

    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> WorldModel:
        self.seeds.append(seed)
        return super().fit(transitions, seed)


class Wrong:
    def __init__(self, model: WorldModel, what: str) -> None:
        self.model, self.what = model, what

    def predict(self, history: History, action: str) -> Prediction:
        said = self.model.predict(history, action)
        return replace(said, outcomes=tuple(map(self.turned, said.outcomes)))

    def turned(self, outcome: Outcome) -> Outcome:
        if self.what == "rewards":
            return replace(outcome, reward=1.0 - outcome.reward)
        return replace(outcome, next_observation="at 0" if outcome.next_observation != "at 0" else "at 3")


@pytest.mark.parametrize("begins", ["first", "anywhere"])
def test_attempts_that_begin_alike_are_one_group(begins: str) -> None:
    run = dyna_of("--rollout.samples_per_task", "3", warmup_steps=0, start_from=begins)
    gathering, rollouts = imagining(run)
    steps_of(gathering, 0, 4)
    for world in rollouts.worlds:
        assert len(set(world._start_histories.values())) == len(world._start_histories)
        assert len(world._start_histories) == 1 or begins == "anywhere"
    named = {(one.task.id, one.stream, one.sample) for one in rollouts.attempts}
    assert (
        len(named)
        == len(rollouts.attempts)
        == 4 * 3 * DynaSettings.from_run(run).extra_tasks(0, run.rollout.tasks_per_step)
    )


def test_imagined_episodes_stand_beside_real_ones_and_are_marked() -> None:
    gathering, rollouts = imagining(dyna_of())
    warming, second = steps_of(gathering, 0, 2)
    assert not warming.imagined
    assert not second.imagined
    assert not rollouts.worlds
    (third,) = steps_of(gathering, 2, 1)
    assert len(third.episodes) == len(third.recorded) == 8
    assert not any(episode.imagined for episode in (*third.episodes, *third.recorded))
    assert all(episode.imagined for episode in third.imagined)
    assert len(third.imagined) == 2 * 3 * 2  # three imagined tasks for each real one, of two attempts
    kept = [episode for episode in third.training_episodes if episode.imagined]
    assert len(third.training_episodes) == 8 + len(kept)
    assert kept
    assert third.metrics["imagined/share"] == len(kept) / (8 + len(kept))
    assert third.metrics["theirs"] == 1.0
    assert not {episode.task.id for episode in kept} & {episode.task.id for episode in third.episodes}
    assert rollouts.most == 32


def test_what_is_cut_off_is_not_learned_from() -> None:
    run = dyna_of(warmup_steps=0)
    object.__setattr__(run.section(DynaSettings), "model", Nothing())
    gathering, _ = imagining(run)
    first = steps_of(gathering, 0, 1)[0]
    cut = first.metrics["imagined/rejected"]
    assert cut == len(first.imagined) > 0
    assert len(first.training_episodes) == 8
    assert not {"imagined/reward", "imagined/uncertainty"} & set(first.metrics)


def test_where_tasks_are_to_tell_attempts_apart_imagined_ones_are_too() -> None:
    gathering, _ = imagining(dyna_of("--algorithm.dynamic_sampling", "1"))
    third = steps_of(gathering, 0, 3)[-1]
    assert {episode.total_reward for episode in third.imagined} == {1.0}
    assert len(third.training_episodes) == 8
    assert third.metrics["imagined/share"] == 0.0


@pytest.mark.parametrize(("horizon", "steps"), [(32, 5), (4, 4)])
def test_imagined_episodes_are_no_longer_than_real_ones(horizon: int, steps: int) -> None:
    gathering, rollouts = imagining(dyna_of("--rollout.max_steps", "5", warmup_steps=0, horizon=horizon))
    steps_of(gathering, 0, 1)
    assert rollouts.most == steps


@pytest.mark.parametrize(("algorithm", "reads"), [("marft", True), ("grpo", False)])
def test_a_critic_reads_imagined_episodes_where_there_is_one(algorithm: str, reads: bool) -> None:
    run = settings("tiny", "runs", dyna={**DYNA, "warmup_steps": 0}, algorithm={"name": algorithm})
    gathering, rollouts = imagining(run)
    steps_of(gathering, 0, 1)
    assert {attempt.record_critic_states for attempt in rollouts.attempts} == {reads}


def test_every_step_fits_the_model_with_a_seed_of_its_own_and_the_same_one_again() -> None:
    for _ in range(2):
        run = dyna_of()
        object.__setattr__(run.section(DynaSettings), "model", Seeded())
        steps_of(imagining(run)[0], 0, 3)
    first, again = Seeded.seeds[:4], Seeded.seeds[4:]
    assert first == again
    assert first == [derive_seed(dyna_of().seed, "world model", fitted) for fitted in range(4)]


def test_what_was_observed_often_is_begun_with_once_where_anything_is() -> None:
    lived = line(steps=100)
    experience = ExperienceBuffer().add_transitions(lived, 100)
    assert sorted(one.observations for one in _start_histories(experience, True)) == [(f"at {n}",) for n in range(5)]
    assert len(_start_histories(experience, False)) == sum(one.is_first for one in lived) > 1


def test_what_an_imagined_world_pays_stands_without_the_recipes_terms() -> None:
    async def composed(episode: Episode) -> Episode:
        raise AssertionError("the recipe's terms are of real episodes")

    real: Any = SimpleNamespace(game=game(Script([])), compose=composed, wait_for=asyncio.run, engine=FakeEngine())
    real._gate, real._play_game = asyncio.Semaphore(4), partial(LocalRolloutRunner._play_game, real)
    world = Script([goes_on(0.25), goes_on(0.5), goes_on(1.0)])
    (episode,) = LocalRolloutRunner.play_in(real, world, [Attempt(Task("t0", "begin"), "imagined/0")], 2)
    assert (episode.status, episode.total_reward) == ("truncated", 0.75)


def test_imagined_episodes_begin_where_real_ones_do_or_anywhere() -> None:
    for begins, expected in (("first", {"at 0"}), ("anywhere", {f"at {n}" for n in range(5)})):
        gathering, rollouts = imagining(dyna_of(start_from=begins, share=0.95, warmup_steps=0))
        steps_of(gathering, 0, 2)
        found = {begin.observations[-1] for world in rollouts.worlds for begin in world._start_histories.values()}
        assert found == expected


@pytest.mark.parametrize("what", ["rewards", "transitions"])
def test_a_corrupted_model_is_switched_off_within_two_steps(what: str, caplog: pytest.LogCaptureFixture) -> None:
    run = dyna_of()
    object.__setattr__(run.section(DynaSettings), "model", Turned(what=what))
    gathering, _ = imagining(run)
    found = steps_of(gathering, 0, 12)
    on = [step.metrics["imagined/enabled"] for step in found]
    turned = next(number for number, step in enumerate(found) if step.metrics["imagined/fit_steps"] >= 100)
    off = on.index(0.0)
    assert turned < off <= turned + (2 if what == "transitions" else 4)
    assert not found[off].imagined
    assert caplog.messages[0].startswith(f"step {off + 1}: the world model is wrong of real episodes")


def test_a_right_model_stays_on() -> None:
    gathering, _ = imagining(dyna_of())
    assert {step.metrics["imagined/enabled"] for step in steps_of(gathering, 0, 12)} == {1.0}


def test_one_that_is_right_again_comes_back_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    gathering, _ = imagining(dyna_of())
    steps_of(gathering, 0, 3)
    gathering.model = Wrong(gathering.model, "transitions")  # until it is fitted again
    (off,) = steps_of(gathering, 3, 1)
    assert off.metrics["imagined/enabled"] == 0.0
    assert off.metrics["imagined/fit_steps"] < 100  # it has forgotten what it was fitted to before
    later = steps_of(gathering, 4, 12)
    again = [step.metrics["imagined/enabled"] for step in later].index(1.0)
    assert any(text.startswith(f"step {again + 5}: ") and "switched on" in text for text in caplog.messages)
    assert later[again].imagined


def test_unwatched_it_stays_on() -> None:
    gathering, _ = imagining(dyna_of(auto_disable=False))
    steps_of(gathering, 0, 2)
    gathering.model = Wrong(gathering.model, "transitions")
    assert steps_of(gathering, 2, 1)[0].metrics["imagined/enabled"] == 1.0


def names_and_returns(found: Sequence[RolloutBatch]) -> list[Any]:
    return [
        [(e.name, e.total_reward, e.status, [t.observation.text for t in e.transitions]) for e in step.imagined]
        for step in found
    ]


def test_a_run_that_goes_on_imagines_the_same(tmp_path: Path) -> None:
    whole, _ = imagining(dyna_of())
    expected = steps_of(whole, 0, 6)
    stopped, _ = imagining(dyna_of())
    steps_of(stopped, 0, 3)
    stopped.save(tmp_path)
    assert (tmp_path / "theirs").is_file()
    again, _ = imagining(dyna_of(), tmp_path)
    found = steps_of(again, 3, 3)
    assert names_and_returns(found) == names_and_returns(expected[3:])
    assert [step.metrics for step in found] == [step.metrics for step in expected[3:]]
    assert again.model_state == whole.model_state
    assert again.model_state.fit_step == 6


class Fixed(FittableModel):
    """Whatever it has lived: after "x" comes "y" with probability 3/4, else the end, which pays 1; no more is known."""

    def fit(self, transitions: Sequence[ObservedTransition], seed: int) -> WorldModel:
        return self

    def predict(self, history: History, action: str) -> Prediction:
        known = Prediction((Outcome("y", 0.0), Outcome("", 1.0)), np.array([0.75, 0.25]), 0.0)
        return known if history.observations[-1] == "x" else Prediction()


class Given(Gathered):
    """Gathers the same in every step."""

    def __init__(self, *episodes: Episode) -> None:
        self.episodes = episodes

    def collect(self, state: State, on_done: Any) -> RolloutBatch:
        learned = [episode for episode in self.episodes if episode.is_scored]
        return RolloutBatch(list(self.episodes), learned, list(self.episodes), 2, {})


def episode_of(texts: str, *rewards: float, status: Status = "terminated", sample: int = 0) -> Episode:
    steps = tuple(Transition(Observation(text), reward) for text, reward in zip(texts, rewards, strict=True))
    actions = tuple(make_action("a", step=step, text="on") for step in range(len(steps)))
    return Episode(Task("t", "o"), "train/0", sample, actions, status, steps)


ENDS = [episode_of("x", 1.0, sample=sample) for sample in range(8)]  # which the fixed model expects one time in four


def fixed(*episodes: Episode, samples: int = 2, **changes: Any) -> tuple[ImaginedRolloutSource, Rollouts]:
    """Two imagined tasks a step beside what was lived."""
    run = dyna_of("--rollout.samples_per_task", str(samples), **{"share": 0.5, "warmup_steps": 0, **changes})
    object.__setattr__(run.section(DynaSettings), "model", Fixed())
    rollouts = Rollouts(run)
    return ImaginedRolloutSource(Given(*episodes), rollouts), rollouts  # type: ignore[arg-type]


def test_what_the_model_says_of_real_episodes_is_a_mean_over_those_of_which_it_knows_something() -> None:
    """Episodes that were cut off in their first step, or failed, say nothing of it."""
    gathering, _ = fixed(
        episode_of("xy", 0.5, 1.0), episode_of("x", 1.0), episode_of("y", 0.0), episode_of("x", 0.0, status="truncated"),
        episode_of("xy", 9.0, 0.0, status="failed"),
    )  # fmt: skip
    (found,) = steps_of(gathering, 0, 1)
    assert found.metrics["imagined/certain_fraction"] == pytest.approx((1 / 2 + 1 + 0) / 3)
    assert found.metrics["imagined/prediction_error"] == pytest.approx((1 / 4 + 3 / 4) / 2)
    assert found.metrics["imagined/reward_error"] == pytest.approx((0.25 + 0.75) / 2)
    assert found.metrics["imagined/fit_steps"] == 2 + 1 + 1
    assert gathering.model_state.buffer.returns == {"": (0.0, 1.5)}


def test_of_what_is_imagined_the_metrics_are_means_over_what_is_learned_from(monkeypatch: pytest.MonkeyPatch) -> None:
    gathering, rollouts = fixed(*ENDS)

    def ended(attempt: Attempt, uncertain: Sequence[float], reward: float, status: Status, cut: bool) -> Episode:
        measures = [{UNCERTAINTY: one} | ({TRUNCATED: 1.0} if cut else {}) for one in uncertain]
        steps = tuple(Transition(Observation("x"), reward, declared=StepInfo(measures=one)) for one in measures)
        return Episode(attempt.task, attempt.stream, attempt.sample, (), status, steps)

    how: list[tuple[Sequence[float], float, Status, bool]] = [
        ((0.1, 0.2), 0.5, "terminated", False), ((0.3,), 0.0, "truncated", False), ((0.9,), 0.0, "truncated", True),
        ((0.0,), 0.0, "failed", False),
    ]  # fmt: skip
    monkeypatch.setattr(
        rollouts, "play_in", lambda _, attempts, __: [ended(one, *of) for one, of in zip(attempts, how, strict=True)]
    )
    (found,) = steps_of(gathering, 0, 1)
    assert [episode.sample for episode in found.training_episodes[8:]] == [
        episode.sample for episode in found.imagined[:2]
    ]
    assert {name: value for name, value in found.metrics.items() if name.startswith("imagined/")} == pytest.approx({
        "imagined/enabled": 1.0, "imagined/fit_steps": 8.0, "imagined/certain_fraction": 1.0, "imagined/prediction_error": 0.75,
        "imagined/reward_error": 0.75, "imagined/episodes": 4.0, "imagined/share": 2 / 10, "imagined/rejected": 1.0,
        "imagined/failed": 1.0, "imagined/reward": (1.0 + 0.0) / 2, "imagined/uncertainty": (0.1 + 0.2 + 0.3) / 3,
    })  # fmt: skip


def test_where_tasks_are_to_tell_attempts_apart_the_order_stays_that_of_playing() -> None:
    run = dyna_of("--algorithm.dynamic_sampling", "1", share=0.5, warmup_steps=0, start_from="anywhere")
    object.__setattr__(run.section(DynaSettings), "model", Fixed())

    class Interleaved(Rollouts):
        def play_in(self, environment: Environment, attempts: Sequence[Attempt], most_steps: int) -> list[Episode]:
            paid = (Transition(Observation("x"), 0.0, declared=StepInfo(measures={UNCERTAINTY: 0.0})),)
            return [
                Episode(one.task, one.stream, one.sample, (), "terminated", (replace(paid[0], reward=one.sample),))
                for one in sorted(attempts, key=lambda attempt: attempt.sample)
            ]

    gathering = ImaginedRolloutSource(Given(episode_of("xy", 0.0, 1.0)), Interleaved(run))  # type: ignore[arg-type]
    found = next(step for step in steps_of(gathering, 0, 9) if len({one.task.id for one in step.imagined}) == 2)
    assert [episode.name for episode in found.training_episodes[1:]] == [episode.name for episode in found.imagined]


def test_where_a_model_is_switched_off_the_note_has_means_and_it_learns_anew(caplog: pytest.LogCaptureFixture) -> None:
    gathering, _ = fixed(*ENDS, error_tolerance=0.0, false_alarm_rate=0.5)
    first, second, third = steps_of(gathering, 0, 3)
    note = caplog.messages[0]
    assert note.startswith("step 1: the world model is wrong of real episodes before")
    assert "(it missed 75% of what came next, and rewards by 0.75)" in note
    assert [step.metrics["imagined/enabled"] for step in (first, second, third)] == [0.0] * 3
    assert [step.metrics["imagined/fit_steps"] for step in (first, second, third)] == [8.0, 16.0, 24.0]


def test_what_is_begun_with_is_drawn_anew_in_every_step() -> None:
    gathering, rollouts = fixed(episode_of("xy", 0.0, 1.0), start_from="anywhere")
    steps_of(gathering, 0, 9)
    assert len({tuple(world._start_histories.values()) for world in rollouts.worlds}) > 1


def test_where_nothing_was_lived_nothing_is_imagined() -> None:
    gathering, rollouts = fixed(episode_of("x", 1.0, status="truncated"))
    (found,) = steps_of(gathering, 0, 1)
    assert (list(found.imagined), rollouts.worlds) == ([], [])
    assert "imagined/certain_fraction" not in found.metrics


def test_a_step_that_has_nothing_to_learn_from_is_passed_on_as_it_is() -> None:
    gathering, _ = fixed(episode_of("xy", 0.0, 1.0, status="failed"))
    (found,) = steps_of(gathering, 0, 1)
    assert (found.training_episodes, found.metrics, len(found.episodes)) == ([], {}, 1)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (("--rollout.workers", "2"), "set rollout.workers = 0"),
        (("--rollout.max_policy_lag", "1", "--engine.kind", "process"), "set rollout.max_policy_lag = 0"),
        (("--dyna.input_roles", "['acter']"), "did you mean 'actor'?"),
        (("--agents.actor.tools", "['environment']"), "a world model has no tools"),
        (("--dyna.model.name", "'count'"), "did you mean 'counts'?"),
        (
            ("--agents.actor.memory", "own", "--dyna.start_from", "anywhere"),
            "actor has a memory, .* set start_from = 'first'",
        ),
        (("--team", "{ organization = 'program', call = 'marft.examples.orders:multiply' }"), "a program of yours"),
        (("--algorithm.name", "'grpo'", "--algorithm.credit.name", "'rae'"), "would take imagined ones for real"),
        (("--algorithm", "{ name = 'magrpo', credit = { name = 'magrpo', joint_mode = 'cross' } }"), "'aligned'"),
    ],
)
def test_what_does_not_go_with_it_is_refused_with_a_remedy(overrides: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("?", r"\?")):
        parse_recipe(recipe(dyna=DYNA), list(overrides))


class TestRuns:
    """Whole runs on the tiny model."""

    def ran(self, output: Path, name: str, *overrides: str, steps: int = 3, resume: bool = False) -> RunFolder:
        run = settings(
            "tiny", output, "--name", name, "--training.steps", str(steps), *overrides,
            dyna={"share": 0.5, "warmup_steps": 1, "max_uncertainty": 1.0},
            algorithm={"name": "grpo"}, environment={"name": "tests.playing_imagined:Coins"},
            team={"organization": "turns"}, policies={"actor": {"model": "base"}},
            agents=[{"role": "actor", "policy": "actor", "sampling": {"max_new_tokens": 8}}],
        )  # fmt: skip
        folder = RunFolder.open(output / name) if resume else RunFolder.create(run)
        train(run, folder, resume=resume)
        return folder

    @pytest.mark.slow
    def test_nothing_imagined_is_counted_and_a_resumed_run_is_the_same(self, tmp_path: Path) -> None:
        folder = self.ran(tmp_path, "whole")
        stopped = self.ran(tmp_path, "stopped", steps=2)
        assert stopped.saved_steps()
        self.ran(tmp_path, "stopped", steps=3, resume=True)
        rows, again = list(folder.read_metrics()), list(stopped.read_metrics())
        took = ("seconds", "_per_second", "utilization", "memory")
        for row, other in zip(rows, again, strict=True):
            assert {k: v for k, v in row.items() if not any(t in k for t in took)} == pytest.approx(
                {k: v for k, v in other.items() if not any(t in k for t in took)}, nan_ok=True, rel=0, abs=0
            )
        assert rows[0]["imagined/episodes"] == 0
        assert rows[-1]["imagined/episodes"] == 4
        assert rows[-1]["imagined/share"] > 0
        for row, path in zip(rows, sorted(folder.episodes.glob("*.parquet")), strict=True):
            lived = read_episodes(path)
            assert row["episodes"] == len(lived) == 4
            assert row["environment_steps"] == sum(len(episode.transitions) for episode in lived)
            assert not any(episode.imagined for episode in lived)
            of_step = f"train/{int(row['step']) - 1}"  # and "/1" behind it where its tasks come a second time
            assert {"/".join(episode.stream.split("/")[:2]) for episode in lived} == {of_step}
        (*_, last) = sorted(folder.imagined.glob("*.parquet"))
        assert all(episode.imagined for episode in read_episodes(last))
        assert len(read_episodes(last)) == 4
