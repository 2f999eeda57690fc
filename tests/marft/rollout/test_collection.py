"""What a training step learns from: which tasks are drawn, what is kept of what was played, and what is counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest

from marft.agents.game import Attempt
from marft.common.errors import RunError
from marft.common.types import Episode, Fork, Observation, Task, Transition
from marft.config import RunSettings
from marft.config.interfaces.credit import CreditInputs
from marft.rewards.shaping import length_limits, rewards_for_credit
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import RolloutBatch, collect_rollouts, rewards_vary, sample_attempts
from marft.runs.state import State
from tests.episodes import make_action
from tests.helpers import settings

TASKS = [Task(f"t{n}", "o") for n in range(7)]
SMALL = {"rollout": {"tasks_per_step": 2, "samples_per_task": 2}}
Pay = Callable[[Attempt], Transition | None]


def paid(reward: float, **own: float) -> Transition:
    return Transition(Observation("o"), reward, own)


@dataclass
class Rollouts:
    """Plays every attempt as one action of each role, which earn what ``pay`` says; None is a failure."""

    run: RunSettings
    pay: Pay
    roles: tuple[str, ...] = ("actor",)
    asked: list[list[str]] = field(default_factory=list)  # tasks of each round
    excluded_tasks: dict[str, str] = field(default_factory=dict)
    tasks: Sequence[Task] = ()  # all of them, where there are none
    length: Callable[[Attempt], int] = lambda _: 2  # of an action, in tokens

    def play(self, attempts: Sequence[Attempt], on_done: Callable[[Episode], None] | None = None) -> list[Episode]:
        self.asked.append([attempt.task.id for attempt in attempts])
        played = [self._episode(attempt) for attempt in attempts]
        for episode in played:
            if on_done:
                on_done(episode)
        return played

    def _episode(self, attempt: Attempt) -> Episode:
        actions = tuple(
            make_action(
                role, index=k, task=attempt.task.id, sample=attempt.sample, tokens=tuple(range(self.length(attempt)))
            )
            for k, role in enumerate(self.roles)
        )
        earned = self.pay(attempt)
        return Episode(
            attempt.task, attempt.stream, attempt.sample, actions, "terminated" if earned else "failed",
            (earned,) if earned else (), fork=Fork("root", actions[0].id) if attempt.replay else None,
        )  # fmt: skip

    def collect(self, drawn: int = 0, on_done: Callable[[Episode], None] = lambda _: None) -> RolloutBatch:
        return collect_rollouts(cast(LocalRolloutRunner, self), self.tasks or TASKS, State(tasks_drawn=drawn), on_done)


def of(preset: str, *overrides: str, team: Any = None, **algorithm: Any) -> RunSettings:
    changes = {**SMALL, "algorithm": {"name": preset, **algorithm}, **({"team": team} if team else {})}
    return settings("tiny", "runs", *overrides, **changes)


def order(run: RunSettings) -> list[str]:
    """Tasks in the order in which the first pass over them comes by."""
    return [attempt.task.id for attempt in sample_attempts(run, TASKS, 0, 0, 7) if attempt.sample == 0]


def telling(*tasks: str) -> Pay:
    return lambda attempt: paid(float(attempt.task.id in tasks and attempt.sample == 0))


def tasks_of(episodes: Sequence[Episode]) -> list[str]:
    return list(dict.fromkeys(episode.task.id for episode in episodes))


class TestDynamicSampling:
    def test_only_as_many_tasks_are_drawn_again_as_told_nobody_apart(self) -> None:
        run = of("dapo", dynamic_sampling=3)
        line = order(run)
        rollouts = Rollouts(run, telling(line[1], line[3]))
        done: list[Episode] = []
        found = rollouts.collect(on_done=done.append)
        assert [list(dict.fromkeys(names)) for names in rollouts.asked] == [line[:2], line[2:3], line[3:4]]
        assert tasks_of(found.training_episodes) == [line[1], line[3]]
        assert len(found.training_episodes) == 4
        assert tasks_of(found.episodes) == tasks_of(found.recorded) == line[:4]
        assert done == found.episodes
        assert found.tasks_drawn == 4
        assert found.metrics == {"groups_discarded": 2.0}

    def test_drawing_ends_after_the_rounds_that_the_recipe_allows(self) -> None:
        run = of("dapo", dynamic_sampling=1)
        rollouts = Rollouts(run, telling())
        found = rollouts.collect()
        assert len(rollouts.asked) == 2
        assert found.tasks_drawn == 4
        assert found.metrics == {"groups_discarded": 4.0}

    def test_where_nothing_tells_apart_the_last_attempts_that_were_scored_are_counted(self) -> None:
        run = of("dapo", dynamic_sampling=2)
        line = order(run)
        pay: Pay = lambda attempt: paid(1.0) if attempt.task.id in line[2:4] else None  # noqa: E731
        found = Rollouts(run, pay).collect()
        assert tasks_of(found.training_episodes) == line[2:4]
        assert tasks_of(found.recorded) == line[:6]

    def test_an_agents_own_reward_that_is_named_in_some_attempts_alone_is_0_in_the_others(self) -> None:
        """All earn the team 1 and nobody anything of its own, whether it says so or not."""
        run = of("dapo", dynamic_sampling=1)
        found = Rollouts(run, lambda a: paid(1.0, **({"actor": 0.0} if a.sample else {}))).collect()
        assert found.metrics == {"groups_discarded": 4.0}

    def test_own_rewards_that_cancel_tell_attempts_apart(self) -> None:
        run = of("dapo", dynamic_sampling=1)
        pay: Pay = lambda a: paid(0.0, actor=2.0 * a.sample - 1.0, reasoner=1.0 - 2.0 * a.sample)  # noqa: E731
        found = Rollouts(run, pay).collect()
        assert found.metrics == {"groups_discarded": 0.0}
        assert len(found.training_episodes) == 4

    @pytest.mark.parametrize("few", [1, 2, 3])
    def test_of_a_set_smaller_than_a_step_as_many_groups_are_learned_from_as_are_asked_for(self, few: int) -> None:
        """Each draw of a task is a group of its own, and no round follows one that told enough apart."""
        run = of("dapo", "--rollout.tasks_per_step", "5", dynamic_sampling=3)
        rollouts = Rollouts(run, lambda attempt: paid(float(attempt.sample)), tasks=TASKS[:few])
        found = rollouts.collect()
        assert len(rollouts.asked) == 1
        assert found.tasks_drawn == 5
        assert len(found.training_episodes) == len({e.name for e in found.training_episodes}) == 10
        times = Counter(episode.task.id for episode in found.training_episodes)
        assert max(times.values()) - min(times.values()) <= 2

    def test_a_task_that_is_drawn_twice_is_kept_as_often_as_it_told_apart(self) -> None:
        run = of("dapo", dynamic_sampling=2)
        rollouts = Rollouts(
            run, lambda attempt: paid(float(attempt.sample and attempt.stream != "train/0/1")), tasks=TASKS[:1]
        )
        found = rollouts.collect()
        assert [len(asked) // 2 for asked in rollouts.asked] == [2, 1]
        assert {episode.stream for episode in found.training_episodes} == {"train/0", "train/0/2"}
        assert found.metrics == {"groups_discarded": 1.0}

    def test_a_tree_is_of_the_draw_that_it_grew_from(self) -> None:
        run = of("at-grpo", "--rollout.samples_per_task", "2", dynamic_sampling=1)
        found = Rollouts(run, lambda attempt: paid(float(attempt.stream[-1]))).collect()
        assert found.metrics["groups_discarded"] == 0.0
        assert found.tasks_drawn == 2

    @pytest.mark.parametrize(
        ("terms", "given", "kept"),
        [
            (["outcome", "format"], {"outcome": 0.0}, False),
            (["outcome", "step_cost"], {"outcome": 0.0}, False),
            (["outcome", "format"], {"outcome": 1.0}, True),
            (["format"], {}, True),
        ],
    )
    def test_terms_that_shape_tell_nothing_apart_where_others_grade(
        self, terms: list[str], given: dict[str, float], kept: bool
    ) -> None:
        """The second attempt of each group is as right as ``given`` says, and better shaped."""
        tables = [{"name": name, **({"pattern": "x"} if name == "format" else {})} for name in terms]
        run = settings("tiny", "runs", **SMALL, algorithm={"name": "dapo", "dynamic_sampling": 1}, rewards=tables)

        def pay(attempt: Attempt) -> Transition:
            parts = {"outcome": 0.0} | ({**given, f"{terms[-1]}/actor": 0.7, terms[-1]: 0.2} if attempt.sample else {})
            own = {"actor": parts.get(f"{terms[-1]}/actor", 0.0)}
            team = sum(value for name, value in parts.items() if "/" not in name)
            return replace(paid(team, **own), terms=parts)

        found = Rollouts(run, pay).collect()
        assert found.metrics == {"groups_discarded": 0.0 if kept else 4.0}

    @pytest.mark.parametrize("grader", ["format", "format_2"])
    def test_of_two_terms_of_one_kind_the_one_that_grades_tells_apart(self, grader: str) -> None:
        tables = [
            {"name": "format", "pattern": "x", "shaping_only": True}, {"name": "format", "pattern": "y", "shaping_only": False},
        ]  # fmt: skip
        run = settings("tiny", "runs", **SMALL, algorithm={"name": "dapo", "dynamic_sampling": 1}, rewards=tables)

        def pay(attempt: Attempt) -> Transition:
            parts = {"format": 0.0, "format_2": 0.0} | {grader: float(attempt.sample)}
            return replace(paid(sum(parts.values())), terms=parts)

        found = Rollouts(run, pay).collect()
        assert found.metrics == {"groups_discarded": 0.0 if grader == "format_2" else 4.0}

    @pytest.mark.parametrize("reward", [{"overlong_buffer": 6}, {"shaping": "quality"}, {"own_weight": 0.0}])
    def test_what_the_algorithm_makes_of_rewards_tells_nothing_apart(self, reward: dict[str, Any]) -> None:
        """All are wrong. They differ in length, and with ``own_weight = 0`` in what is not learned from."""
        run = of("dapo", dynamic_sampling=1, reward=reward)
        own = {"actor": 1.0} if "own_weight" in reward else {}
        found = Rollouts(
            run, lambda a: paid(0.0, **(own if a.sample else {})), length=lambda a: 1 + 7 * a.sample
        ).collect()
        assert found.metrics == {"groups_discarded": 4.0}

    @pytest.mark.parametrize("tasks", [TASKS, TASKS[:1]])
    def test_a_step_whose_attempts_differ_in_prices_alone_moves_nobody(self, tasks: list[Task]) -> None:
        """All are wrong in every group, and no draw is left."""
        run = of("dapo", dynamic_sampling=1, reward={"overlong_buffer": 6})
        found = Rollouts(run, lambda _: paid(0.0), length=lambda a: 1 + 7 * a.sample, tasks=tasks).collect()
        episodes = rewards_for_credit(found.training_episodes, run.algorithm.reward, length_limits(run))
        assert episodes
        credits = cast(Any, run.algorithm.credit).assign(CreditInputs(tuple(episodes), level="action"))
        assert not any(row.any() for row in credits.advantages)

    @pytest.mark.parametrize("better", [False, True])
    def test_candidates_of_a_tree_are_told_apart_at_one_state(self, better: bool) -> None:
        """Both steps pay 1, whoever acts; one candidate may earn more in the second."""
        run = of("at-grpo", dynamic_sampling=1)
        first, second = make_action("actor", step=0), make_action("actor", step=1)
        branches = [(first, 1.0, 1), (first, 1.0, 1), (second, 1.0, 2), (second, 1.0 + better, 2)]
        group = [
            Episode(TASKS[0], "s", 0, (first, second)[:steps], "paused", (paid(1.0), paid(pay))[-steps:] if steps == 2
                    else (paid(pay),), fork=Fork("root", action.id))
            for action, pay, steps in branches
        ]  # fmt: skip
        assert rewards_vary(group, run) is better


@pytest.mark.parametrize("frozen", [False, True])
def test_a_candidate_is_carried_on_by_the_price_that_it_learns_by(
    frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An actor that runs into its limit pays for that, if it learns."""
    run = of("at-grpo", *(["--policies.actor.train", "frozen"] if frozen else []), reward={"overlong_buffer": 8})
    limit = next(agent.sampling.max_new_tokens for agent in run.agents if agent.role == "actor")
    rollouts, scores = Rollouts(run, lambda _: paid(1.0), length=lambda _: limit), list[float]()

    def tree(play: Any, attempts: Any, candidates: int, carry: str, score: Any) -> Any:
        del play, candidates, carry
        played = rollouts.play(attempts)
        scores.extend(score(replace(episode, fork=Fork("root", episode.actions[0].id))) for episode in played)
        return played, played

    monkeypatch.setattr("marft.rollout.fork_plans.grow_tree", tree)
    found = rollouts.collect()
    learned = rewards_for_credit(found.training_episodes, run.algorithm.reward, length_limits(run))
    assert scores == [e.transitions[0].reward + e.transitions[0].agent_rewards.get("actor", 0.0) for e in learned]
    assert set(scores) == {1.0 if frozen else 0.0}


def test_without_dynamic_sampling_one_round_is_played_and_all_that_was_scored_is_learned_from() -> None:
    run = of("grpo")
    line = order(run)
    rollouts = Rollouts(run, lambda a: None if (a.task.id, a.sample) == (line[0], 1) else paid(1.0))
    found = rollouts.collect()
    assert len(rollouts.asked) == 1
    assert [(e.task.id, e.sample) for e in found.training_episodes] == [(line[0], 0), (line[1], 0), (line[1], 1)]
    assert len(found.recorded) == 4
    assert found.metrics == {}


class TestAttempts:
    def test_a_task_that_is_set_aside_is_passed_over_wherever_the_pass_comes_by_it(self) -> None:
        run = of("grpo")
        line = [a.task.id for a in sample_attempts(run, TASKS, 0, 0, 14) if a.sample == 0]
        rollouts = Rollouts(run, telling(), excluded_tasks={line[1]: "it ended a worker"})
        found = rollouts.collect()
        assert tasks_of(found.episodes) == [line[0], line[2]]
        assert found.tasks_drawn == 3
        drawn = [a.task.id for a in sample_attempts(run, TASKS, 0, 0, 12, rollouts.excluded_tasks) if a.sample == 0]
        assert drawn == [task for task in line if task != line[1]]

    def test_a_run_whose_tasks_are_all_set_aside_says_so(self) -> None:
        rollouts = Rollouts(of("grpo"), telling(), excluded_tasks={task.id: "it ended a worker" for task in TASKS})
        with pytest.raises(RunError, match="all 7 training tasks are set aside: it ended a worker"):
            rollouts.collect()

    def test_a_step_goes_on_where_the_last_one_ended_and_every_pass_has_an_order_of_its_own(self) -> None:
        run = of("grpo")
        passes = [a.task.id for a in sample_attempts(run, TASKS, 0, 0, 21) if a.sample == 0]
        assert all(sorted(passes[k : k + 7]) == [task.id for task in TASKS] for k in (0, 7, 14))
        assert passes[:7] != passes[7:14] != passes[14:]
        later = sample_attempts(run, TASKS, 4, 6, 2)
        assert [(a.task.id, a.stream, a.sample) for a in later] == [
            (passes[6], "train/4", 0), (passes[6], "train/4", 1), (passes[7], "train/4/1", 0), (passes[7], "train/4/1", 1)
        ]  # fmt: skip

    def test_the_order_of_tasks_is_the_same_in_every_version(self) -> None:
        """A run that goes on under a newer version has to come by the tasks that are left."""
        assert order(of("grpo")) == ["t4", "t1", "t0", "t5", "t2", "t6", "t3"]

    @pytest.mark.parametrize(("preset", "kept"), [("marft", True), ("grpo", False)])
    def test_what_a_critic_reads_is_kept_where_there_is_one(self, preset: str, kept: bool) -> None:
        assert {attempt.record_critic_states for attempt in sample_attempts(of(preset), TASKS, 0, 0, 2)} == {kept}


class TestForks:
    def test_forks_are_recorded_beside_the_attempts_and_counted_with_those_that_failed(self) -> None:
        """Every action of each of four attempts is sampled twice more; one time of each task's first fails."""
        run = of("coma")
        rollouts = Rollouts(run, lambda a: None if a.replay and a.stream.endswith("1") and not a.sample else paid(1.0))
        done: list[Episode] = []
        found = rollouts.collect(on_done=done.append)
        assert done == found.episodes
        assert len(found.episodes) == 4
        assert found.recorded[:4] == found.episodes
        assert found.metrics == {"forks": 8.0, "forks_failed": 2.0}
        assert len(found.training_episodes) == 10

    def test_crossed_samples_are_played_beside_those_that_were_made_together(self) -> None:
        run = of("magrpo", "--algorithm.credit.joint_mode", "cross", team={"organization": "tests.plugins:Apart"})
        found = Rollouts(run, lambda _: paid(1.0), ("reasoner", "actor")).collect()
        assert len(found.episodes) == 4
        assert found.metrics == {"forks": 4.0, "forks_failed": 0.0}  # of two samples of two agents, at two tasks

    def test_candidates_are_judged_by_what_the_algorithm_makes_of_rewards(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = of("at-grpo", reward={"team_weight": 0.5, "own_weight": 2.0})
        scores: list[float] = []
        come_to: list[Episode] = []

        def tree(play: Any, attempts: Any, candidates: int, carry: str, score: Any) -> Any:
            assert (candidates, carry) == (4, "best")
            episode = Rollouts(run, lambda _: paid(4.0, actor=1.0)).play(attempts)[0]
            candidate = replace(episode, fork=Fork("root", episode.actions[0].id))
            scores.extend([score(candidate), score(replace(candidate, fork=Fork("root", "9/actor/0")))])
            come_to.append(replace(candidate, fork=Fork("root", "9/actor/0")))
            return come_to, [candidate, come_to[0]] if as_played else come_to

        monkeypatch.setattr("marft.rollout.fork_plans.grow_tree", tree)
        for as_played in (True, False):
            come_to.clear()
            scores.clear()
            done: list[Episode] = []
            found = Rollouts(run, lambda _: paid(0.0)).collect(on_done=done.append)
            assert scores == [0.5 * 4.0 + 2.0 * 1.0, 0.0]  # the second one failed before its candidate was made
            assert found.episodes == done == ([found.recorded[0]] if as_played else come_to)
