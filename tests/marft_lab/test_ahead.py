"""Groups ahead of the learner: in their order, none too old, none in vain, none twice."""

from __future__ import annotations

import random
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.errors import RunError
from marft.common.types import Episode, VersionRange
from marft.config import RunSettings
from marft.rollout.async_rollout.groups import Group, first_blocked_group, max_policy_lag, read_groups, write_groups
from marft.rollout.async_rollout.producer import IdleClock, Producer
from marft.rollout.async_rollout.sources import AsyncRolloutSource, ReplayBuffer, SyncRolloutSource, open_source
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import sample_attempts
from marft.rollout.runner import RolloutRunner
from marft.runs.changes import find_changes
from marft.runs.state import State
from marft_lab.league.rollout_source import OpponentPoolSource
from marft_lab.world_models.rollout_source import ImaginedRolloutSource
from marft_lab.world_models.settings import DynaSettings
from tests.crews import told
from tests.episodes import episodes, make_action
from tests.helpers import settings
from tests.marft_lab.test_league import league
from tests.playing_ahead import TASKS, FakeRollouts, ahead, ahead_of, fake, next_step


class TestCapacity:
    @given(
        lag=st.integers(0, 5), per_step=st.integers(1, 4), steps=st.integers(1, 12),
        equal=st.sets(st.integers(0, 60), max_size=20), seed=st.integers(0, 9),
    )  # fmt: skip
    def test_no_group_is_too_old_and_none_is_begun_in_vain(
        self, lag: int, per_step: int, steps: int, equal: set[int], seed: int
    ) -> None:
        """Groups of ``equal`` are given up when their turn comes, or at a time before: others come in their place."""
        chance = random.Random(seed)
        begun: dict[int, int] = {}  # the version at which each group was
        first = 0
        for version in range(steps):
            given_up = taken = 0
            number = first
            while taken < per_step:
                known = given_up + (chance.random() < 0.5 and number in equal)
                end = first_blocked_group(first, known, lag=lag, per_step=per_step, remaining_steps=steps - version)
                for one in range(len(begun), end):
                    begun[one] = version
                assert number in begun, "the learner never waits for what may not be begun"
                assert version - begun[number] <= lag
                given_up += number in equal
                taken += number not in equal
                number += 1
            first = number
        if not equal:
            assert len(begun) == steps * per_step

    def test_as_many_steps_are_ahead_as_the_lag_says(self) -> None:
        rollouts = fake(ahead_of(2))
        gathering, state = ahead(rollouts), State()
        for step in range(4):
            state, collection = next_step(gathering, rollouts, state)
            assert len(rollouts.begun) == 2 * (step + 1 + 3)
            assert collection.metrics["policy_lag_max"] == min(step, 2)
            assert collection.metrics["async/groups_dropped"] == 0
        assert rollouts.numbers[:7] != sorted(rollouts.numbers[:7])


class TestOrder:
    def test_a_run_learns_from_the_groups_of_a_synchronous_one_in_whatever_order_they_end(self) -> None:
        rollouts = fake(ahead_of(3))
        rollouts.at_once = False
        gathering, state, steps = ahead(rollouts), State(), []
        ending = threading.Thread(target=_end_in_another_order, args=(rollouts, 20), daemon=True)
        ending.start()
        for _ in range(6):
            state, collection = next_step(gathering, rollouts, state)
            steps.append([(e.stream, e.task.id, e.sample) for e in collection.training_episodes])
        ending.join()
        assert steps == [
            [(e.stream, e.task.id, e.sample) for e in _synchronous(rollouts.run, step)] for step in range(6)
        ]

    def test_groups_of_equal_rewards_make_way_for_the_next_ones(self) -> None:
        run = ahead_of(1, "--algorithm", "{name = 'dapo'}")
        rollouts = fake(run, pay=lambda a: float(a.sample and a.task.id not in ("t1", "t3")))
        gathering, state, learned = ahead(rollouts), State(), list[str]()
        for _ in range(4):
            state, collection = next_step(gathering, rollouts, state)
            tasks = [episode.task.id for episode in collection.training_episodes]
            assert len(tasks) == 4
            assert collection.metrics["policy_lag_max"] <= 1
            assert len(collection.episodes) == 4 + 2 * collection.metrics["groups_discarded"]
            learned += tasks
        assert not {"t1", "t3"} & set(learned)

    def test_a_step_of_equal_groups_alone_comes_to_an_end(self) -> None:
        rollouts = fake(ahead_of(1, "--algorithm", "{name = 'dapo', dynamic_sampling = 2}"), pay=lambda _: 1.0)
        _, collection = next_step(ahead(rollouts), rollouts, State())
        assert collection.metrics["groups_discarded"] == 6
        assert len(collection.training_episodes) == 1  # alone it is compared with nothing

    def test_where_the_last_equal_group_has_failed_the_one_before_it_is_counted(self) -> None:
        rollouts = fake(ahead_of(1, "--algorithm", "{name = 'dapo', dynamic_sampling = 1}"), pay=lambda _: 1.0)
        made, (last, _) = rollouts.episode, sample_attempts(rollouts.run, TASKS, 1, 3, 1)
        rollouts.episode = lambda attempt, version: replace(  # type: ignore[method-assign]
            made(attempt, version), status="failed" if attempt.task.id == last.task.id else "terminated"
        )
        _, collection = next_step(ahead(rollouts), rollouts, State())
        assert len(collection.training_episodes) == 1
        assert all(episode.is_scored for episode in collection.training_episodes)

    def test_what_is_too_old_is_dropped_counted_and_replaced(self, tmp_path: Path) -> None:
        """A run that goes on with a smaller lag than it has begun with."""
        rollouts = fake(ahead_of(4))
        gathering, state = ahead(rollouts), State()
        for _ in range(3):
            state, _ = next_step(gathering, rollouts, state)
        gathering.save(tmp_path)
        stricter = fake(ahead_of(1))
        stricter.now = state.step
        again = ahead(stricter, state, tmp_path)
        dropped = []
        for _ in range(3):
            state, collection = next_step(again, stricter, state)
            assert collection.metrics["policy_lag_max"] <= 1
            assert len(collection.training_episodes) == 4
            dropped.append(collection.metrics["async/groups_dropped"])
        assert sum(dropped) == 6  # of the ten that were ahead, those of versions 0 and 1

    def test_where_all_that_was_ahead_is_too_old_as_much_is_begun_in_its_place(self, tmp_path: Path) -> None:
        rollouts = fake(ahead_of(2))
        gathering = ahead(rollouts)
        state, _ = next_step(gathering, rollouts, State())
        gathering.save(tmp_path)
        stricter = fake(ahead_of(1))
        state, stricter.now = replace(state, step=9), 9
        _, collection = next_step(ahead(stricter, state, tmp_path), stricter, state)
        assert collection.metrics["async/groups_dropped"] == 6
        assert len(collection.training_episodes) == 4
        assert collection.metrics["policy_lag_max"] == 0

    def test_a_task_that_is_set_aside_is_passed_over_and_another_comes_in_its_place(self) -> None:
        rollouts = fake(ahead_of(2))
        gathering, state = ahead(rollouts), State()
        state, _ = next_step(gathering, rollouts, state)
        rollouts.excluded_tasks["t2"], before = "it ended its workers", len(rollouts.begun)
        for _ in range(5):
            state, collection = next_step(gathering, rollouts, state)
            assert len(collection.training_episodes) == 4
            assert collection.metrics["policy_lag_max"] == min(state.step - 1, 2)
            assert collection.metrics["async/groups_dropped"] == 0
        assert "t2" not in rollouts.numbers[before:]
        assert len(rollouts.begun) == before + 2 * 5

    def test_a_run_whose_tasks_are_all_set_aside_says_so(self) -> None:
        rollouts = fake(ahead_of(1))
        rollouts.excluded_tasks = {task.id: "it ended its workers" for task in TASKS}
        with pytest.raises(RunError, match="all 5 training tasks are set aside: it ended its workers"):
            ahead(rollouts).collect(State(), lambda _: None)

    def test_groups_are_forked_as_their_credit_asks_and_belong_together(self) -> None:
        rollouts = fake(ahead_of(1, "--algorithm", "{name = 'coma'}"))
        producer = Producer(cast("RolloutRunner", rollouts), TASKS)
        producer.begin(0)
        group = producer.take(0)
        assert len(group.episodes) == 2
        assert len(group.recorded) > 2
        assert all(episode.fork for episode in group.recorded[2:])
        producer.close()


def _end_in_another_order(rollouts: FakeRollouts, count: int) -> None:
    chance, left = random.Random(1), set(range(count))
    while left:
        there = [number for number in left if number < len(rollouts.begun)]
        if there:
            number = chance.choice(there)
            left.discard(number)
            rollouts.finish(number)
        time.sleep(0.001)


def _synchronous(run: RunSettings, step: int) -> list[Episode]:
    per_step = run.rollout.tasks_per_step
    rollouts = fake(run)
    return [rollouts.episode(attempt, 0) for attempt in sample_attempts(run, TASKS, step, step * per_step, per_step)]


class TestFailures:
    def test_what_goes_wrong_with_a_later_group_is_heard_at_once(self) -> None:
        rollouts = fake(ahead_of(2))
        rollouts.at_once = False
        gathering = ahead(rollouts)
        threading.Timer(0.1, lambda: rollouts.begun[4][1].outcome.set_exception(RunError("the engine is gone"))).start()
        with pytest.raises(RunError, match="the engine is gone"):
            gathering.collect(State(), lambda _: None)
        gathering.close()
        assert all(begun.outcome.done() for _, begun, _ in rollouts.begun)

    def test_a_run_that_goes_back_drops_what_the_abandoned_policy_played(self) -> None:
        rollouts = fake(ahead_of(2))
        gathering = ahead(rollouts)
        state, _ = next_step(gathering, rollouts, State())
        before = len(rollouts.begun)
        gathering.on_rollback(state)
        assert len(rollouts.begun) == before + 6
        assert rollouts.numbers[-6:] == rollouts.numbers[2:8]
        streams = [attempts[0].stream for attempts, _, _ in rollouts.begun]
        assert streams[-6:] == streams[2:8]  # under the same keys
        _, collection = next_step(gathering, rollouts, state)
        assert collection.metrics["async/groups_dropped"] == 6
        assert collection.metrics["policy_lag_max"] == 0

    def test_nothing_is_begun_for_steps_that_do_not_come(self) -> None:
        rollouts = fake(ahead_of(3, steps=2))
        gathering, state = ahead(rollouts), State()
        for _ in range(2):
            state, _ = next_step(gathering, rollouts, state)
        assert len(rollouts.begun) == 4


class TestKeeping:
    @pytest.mark.slow
    @given(st.lists(episodes(), min_size=1, max_size=3), st.integers(0, 99))
    def test_groups_are_read_as_they_were_written(self, some: list[Episode], number: int) -> None:
        named = [replace(one, task=TASKS[0], stream=f"train/{n}") for n, one in enumerate(some)]
        with tempfile.TemporaryDirectory() as folder:
            write_groups(Path(folder), [Group(number, named[1:], named)], "ahead")
            (group,) = read_groups(Path(folder), TASKS, "ahead")
        assert group.number == number
        assert [id(e) for e in group.episodes] == [id(e) for e in group.recorded[1:]]
        assert told(group.recorded) == told(named)

    def test_what_was_played_and_not_learned_from_is_not_played_again(self, tmp_path: Path) -> None:
        rollouts = fake(ahead_of(2))
        gathering = ahead(rollouts)
        state, _ = next_step(gathering, rollouts, State())
        gathering.save(tmp_path)
        later = fake(rollouts.run)
        again = ahead(later, state, tmp_path)
        _, one = next_step(gathering, rollouts, state)
        later.now = 1
        _, other = next_step(again, later, state)
        assert [e.name for e in other.training_episodes] == [e.name for e in one.training_episodes]
        assert later.numbers == rollouts.numbers[8:]
        assert other.training_episodes[0].task.data == TASKS[int(other.training_episodes[0].task.id[1:])].data

    @pytest.mark.parametrize(("text", "told"), [
        ('{"groups": [{"number": -1, "episodes": 0, "played": []}]}', "groups"),
        ('{"groups": [{"number": 1, "episodes": 0, "played": [], "age": 2}]}', "groups"),
        ('{"groups": [], "lag": 2}', "lag"),
    ])  # fmt: skip
    def test_a_damaged_list_of_groups_is_refused(self, text: str, told: str, tmp_path: Path) -> None:
        (tmp_path / "ahead.json").write_text(text)
        with pytest.raises(ValueError, match=rf"ahead\.json holds what no run writes: {told}"):
            read_groups(tmp_path, TASKS, "ahead")


class TestReuse:
    def run(self, *overrides: str) -> RunSettings:
        return settings("tiny", "runs", "--rollout.reuse", "3", "--training.steps", "9", *overrides)

    def steps(self, run: RunSettings, count: int, folder: Path | None = None) -> tuple[list[list[str]], Any, State]:
        rollouts = fake(ahead_of(0).model_copy(update={"rollout": run.rollout, "algorithm": run.algorithm}))
        gathering = ReplayBuffer(ahead(rollouts), cast("RolloutRunner", rollouts), TASKS, folder)
        state, learned = State(), []
        for _ in range(count):
            state, collection = next_step(gathering, rollouts, state)
            learned.append([episode.name for episode in collection.training_episodes])
        return learned, gathering, state

    def test_every_episode_is_learned_from_in_so_many_steps(self) -> None:
        learned, _, _ = self.steps(self.run(), 6)
        times = [name for step in learned for name in step]
        assert {times.count(name) for name in learned[0] + learned[3]} == {3}
        assert [len(step) for step in learned] == [4, 8, 12, 12, 12, 12]
        assert learned[4] == [*learned[4][:4], *learned[3][:4], *learned[2][:4]]

    def test_attempts_of_other_policies_are_no_measure_for_newer_ones_at_their_task(self) -> None:
        """Five tasks, two a step: the third step comes by a task of the first again."""
        learned, _, _ = self.steps(self.run("--algorithm", "{name = 'grpo'}"), 6)
        for step in learned:
            streams = dict[str, set[str]]()
            for name in step:
                stream, task, _ = name.split(" ")
                streams.setdefault(task, set()).add(stream)
            assert all(len(found) == 1 for found in streams.values())
        assert min(len(step) for step in learned[2:]) == 8

    def test_what_is_learned_from_again_survives_a_stop(self, tmp_path: Path) -> None:
        learned, gathering, state = self.steps(self.run(), 3)
        gathering.save(tmp_path)
        rollouts = fake(ahead_of(0).model_copy(update={"rollout": self.run().rollout}))
        again = ReplayBuffer(ahead(rollouts, state), cast("RolloutRunner", rollouts), TASKS, tmp_path)
        _, collection = next_step(again, rollouts, state)
        assert [e.name for e in collection.training_episodes][4:] == learned[2][:8]

    def test_how_many_are_learned_from_again_and_how_old_they_are_is_shown(self) -> None:
        _, gathering, state = self.steps(self.run(), 4)
        metrics = gathering.collect(state, lambda _: None).metrics
        assert (metrics["reused_episodes"], metrics["policy_lag_max"]) == (8.0, 2.0)

    def test_what_is_ahead_is_kept_dropped_and_let_go_beside_what_is_learned_from_again(self, tmp_path: Path) -> None:
        rollouts = fake(ahead_of(2, "--rollout.reuse", "2"))
        gathering = ReplayBuffer(ahead(rollouts), cast("RolloutRunner", rollouts), TASKS)
        state, _ = next_step(gathering, rollouts, State())
        gathering.save(tmp_path)
        assert [group.number for group in read_groups(tmp_path, TASKS, "ahead")] == [2, 3, 4, 5, 6, 7]
        assert [group.number for group in read_groups(tmp_path, TASKS, "again")] == [0]
        rollouts.at_once = False
        gathering.on_rollback(state)
        gathering.close()
        assert len(rollouts.begun) == 8 + 6
        assert all(begun.outcome.done() for _, begun, _ in rollouts.begun)

    def test_a_step_that_has_nothing_to_learn_from_is_passed_on_as_it_is(self) -> None:
        _, gathering, state = self.steps(self.run(), 3)
        rollouts = gathering._rollouts
        rollouts.at_once = False
        gathering.on_rollback(state)
        for attempts, begun, version in rollouts.begun[-2:]:
            begun.outcome.set_result([replace(rollouts.episode(one, version), status="failed") for one in attempts])
        collection = gathering.collect(state, lambda _: None)
        assert (len(collection.episodes), collection.training_episodes) == (4, [])

    def test_what_an_abandoned_policy_played_is_not_learned_from_again(self) -> None:
        _, gathering, state = self.steps(self.run(), 3)
        gathering.on_rollback(state)
        assert len(gathering.collect(state, lambda _: None).training_episodes) == 4


class TestRefusals:
    def test_an_engine_that_shares_the_learners_weights_cannot_sample_while_they_move(self) -> None:
        with pytest.raises(ValueError, match=r"max_policy_lag: engine 'local' .* set engine\.kind = 'process'"):
            settings("tiny", "runs", "--rollout.max_policy_lag", "1")

    def test_what_is_learned_from_again_is_corrected(self) -> None:
        assert settings("tiny", "runs", "--rollout.reuse", "2").algorithm.sampler_correction.level == "geometric"
        token = settings("tiny", "runs", "--rollout.reuse", "2", "--algorithm.level", "token")
        assert token.algorithm.sampler_correction.level == "token"
        with pytest.raises(ValueError, match=r"rollout\.reuse: .*level = 'none' weighs nothing"):
            settings("tiny", "runs", "--rollout.reuse", "2", "--algorithm.sampler_correction.level", "none")

    def test_a_credit_that_remembers_would_count_episodes_several_times(self) -> None:
        with pytest.raises(ValueError, match=r"credit 'rae' remembers"):
            settings(
                "tiny",
                "runs",
                "--rollout.reuse",
                "2",
                "--algorithm",
                "{credit = {name = 'rae'}, critic = {kind = 'none'}}",
            )

    def test_the_lag_may_be_another_when_a_run_goes_on_and_reuse_may_not(self) -> None:
        one, other = ahead_of(1), ahead_of(3)
        assert not find_changes(one, other)
        assert set(find_changes(one, ahead_of(1, "--rollout.reuse", "2"))) == {"rollout.reuse"}


class TestOpening:
    def test_with_a_lag_they_are_played_ahead(self) -> None:
        rollouts: Any = fake(ahead_of(1))
        assert isinstance(open_source(rollouts, TASKS, State(), None), AsyncRolloutSource)

    def test_without_a_lag_steps_are_played_when_they_come(self) -> None:
        rollouts: Any = fake(settings("tiny"))
        rollouts.play = lambda attempts, **_: [rollouts.episode(attempt, 0) for attempt in attempts]
        gathering = open_source(rollouts, TASKS, State(), None)
        assert isinstance(gathering, SyncRolloutSource)
        collection = gathering.collect(State(), lambda _: None)
        assert [e.name for e in collection.episodes] == [e.name for e in _synchronous(rollouts.run, 0)]

    def test_with_a_pool_each_task_is_played_against_a_version_of_it(self) -> None:
        rollouts: Any = fake(league(Path("runs")))
        rollouts.publish_versions = (published := dict[str, int]()).update
        assert isinstance(open_source(rollouts, TASKS, State(), None), OpponentPoolSource)
        assert published == {"rival": 0}

    def test_with_a_world_model_imagined_episodes_are_added(self) -> None:
        rollouts = object.__new__(LocalRolloutRunner)
        rollouts.run = settings("tiny", "runs", dyna={}, algorithm={"name": "grpo"})
        source = open_source(rollouts, TASKS, State(), None)
        gathering = DynaSettings.from_run(rollouts.run).wrap_source(source, rollouts, None)
        assert isinstance(gathering, ImaginedRolloutSource)
        assert gathering.usage_seconds(0.5) == 0.5


def test_idle_time_is_that_in_which_nothing_is_played() -> None:
    times = iter([0.0, 2.0, 3.0, 7.0, 8.0])
    clock = IdleClock(lambda: next(times))
    clock.start()
    clock.start()
    clock.stop()
    clock.stop()
    assert clock.total_idle_seconds() == 2.0 + 7.0 - 3.0


def test_time_is_idle_before_anything_is_played_and_not_while_something_is() -> None:
    times = iter([10.0, 12.0, 15.0, 20.0, 31.0])
    clock = IdleClock(lambda: next(times))
    clock.start()  # at 12
    assert clock.total_idle_seconds() == 2.0
    clock.stop()  # at 15
    assert clock.total_idle_seconds() == 2.0 + 20.0 - 15.0
    clock.start()  # at 31
    assert clock.total_idle_seconds() == 2.0 + 31.0 - 15.0


def test_the_oldest_token_of_a_policy_in_training_counts() -> None:
    old = replace(make_action("a", policy="frozen"), versions=VersionRange(0, 0))
    new = replace(make_action("b", policy="trained"), versions=VersionRange(4, 6))
    episode = Episode(TASKS[0], "train/0", 0, (old, new), "terminated")
    assert max_policy_lag([episode], ["trained"], lambda _: 6) == 2
    assert max_policy_lag([], ["trained"], lambda _: 6) == 0
