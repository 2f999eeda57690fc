"""Which tasks are drawn: by levels of difficulty that go with success, and by odds; pure, and the same when it goes on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from marft.common.errors import RunError
from marft.common.types import Episode, Task
from marft.config import RunSettings
from marft.config.run import CurriculumSettings
from marft.envs.reasoning_gym import ReasoningGym
from marft.rollout.async_rollout.sources import AsyncRolloutSource, SyncRolloutSource
from marft.rollout.rollout_batch import load_training_tasks, sample_attempts
from marft.rollout.runner import RolloutRunner
from marft.rollout.task_sampler import (
    TaskSampler,
    advance_curriculum,
    difficulty_levels,
    initial_curriculum,
    level_shares,
    restore_curriculum,
    update_curriculum,
)
from marft.runs.run_folder import RunFolder
from marft.runs.state import CurriculumState, SavedCurriculum, State
from marft.trainer.train import train
from tests.helpers import settings
from tests.marft.runs.test_resume import StopAfter, assert_same
from tests.nights import BY_NIGHT
from tests.playing_ahead import PROCESS, fake

TASKS = [Task(f"t{n}", "o", {"level": n % 3 + 1}) for n in range(30)]
BY = CurriculumSettings(episodes=4, promote_threshold=0.75, demote_threshold=0.25)


def run_of(*overrides: str, **curriculum: Any) -> RunSettings:
    return settings(
        "tiny",
        "runs",
        *overrides,
        curriculum={"episodes": 4, "promote_threshold": 0.75, "demote_threshold": 0.25, **curriculum},
    )


def after(standing: CurriculumState, *solved: tuple[int, bool], levels: int = 3, draw: int = 100) -> CurriculumState:
    return update_curriculum(standing, BY, levels, solved, draw)


class TestMoving:
    def test_a_harder_level_is_asked_once_the_hardest_is_solved_often_enough(self) -> None:
        standing = after(initial_curriculum(BY, 3), *[(0, True)] * 3, (0, False))
        assert standing == CurriculumState((0, 100), (0, 1))

    def test_an_easier_one_once_it_hardly_ever_is(self) -> None:
        standing = after(CurriculumState((0,), (1,)), *[(1, False)] * 3, (1, True))
        assert standing == CurriculumState((0, 100), (1, 0))

    def test_nothing_moves_in_between_and_what_was_solved_is_counted_anew(self) -> None:
        assert after(CurriculumState((0,), (1,)), (1, True), (1, True), (1, False), (1, False)) == CurriculumState(
            (0,), (1,)
        )

    def test_a_run_begins_at_the_level_that_it_is_told_to_or_the_hardest_that_there_is(self) -> None:
        begins = [initial_curriculum(CurriculumSettings(initial_levels=start), 3) for start in (1, 2, 3, 9)]
        assert begins == [CurriculumState((0,), (hardest,)) for hardest in (0, 1, 2, 2)]

    def test_nothing_moves_before_enough_was_tried(self) -> None:
        standing = after(initial_curriculum(BY, 3), (0, True), (0, True), (0, True))
        assert standing == CurriculumState((0,), (0,), solved=3, tried=3)
        assert after(standing, (0, True)).hardest == (0, 1)

    def test_only_what_is_at_the_hardest_level_counts(self) -> None:
        standing = CurriculumState((0,), (1,))
        assert after(standing, *[(0, True)] * 9, *[(2, False)] * 9) == standing

    def test_there_is_nothing_beyond_the_last_level_nor_before_the_first(self) -> None:
        assert after(CurriculumState((0,), (2,)), *[(2, True)] * 4) == CurriculumState((0,), (2,))
        assert after(initial_curriculum(BY, 3), *[(0, False)] * 4) == CurriculumState((0,), (0,))

    @given(st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=25))
    def test_what_is_drawn_at_a_place_never_changes_once_it_may_have_begun(self, steps: list[tuple[bool, int]]) -> None:
        standing, draw = initial_curriculum(BY, 3), 0
        seen: dict[int, int] = {}
        for solved, more in steps:
            draw += more
            seen |= {place: standing.level_at(place) for place in range(draw)}
            standing = after(standing, *[(standing.hardest[-1], solved)] * 4, draw=draw)
            assert all(standing.level_at(place) == hardest for place, hardest in seen.items())
            assert list(standing.begins) == sorted(set(standing.begins))
            assert set(standing.hardest) <= {0, 1, 2}

    def test_a_run_that_goes_back_asks_what_it_asked_then(self) -> None:
        standing = CurriculumState((0, 50, 90), (0, 1, 2), solved=3, tried=3)
        assert restore_curriculum(standing, CurriculumState((0,), (0,)), draw=80) == CurriculumState(
            (0, 50, 80), (0, 1, 0)
        )
        assert restore_curriculum(standing, CurriculumState((0, 50, 90), (0, 1, 2)), draw=95) == CurriculumState(
            (0, 50, 90), (0, 1, 2)
        )

    @given(st.integers(1, 9), st.floats(0, 0.99), st.data())
    def test_shares_are_one_in_sum_and_none_is_for_harder_levels(self, levels: int, review: float, data: Any) -> None:
        hardest = data.draw(st.integers(0, levels - 1))
        found = level_shares(hardest, levels, review)
        assert sum(found) == pytest.approx(1.0)
        assert all(share == 0.0 for share in found[hardest + 1 :])
        assert found[hardest] >= (1.0 if hardest == 0 else 1.0 - review - 1e-12)


class TestLevels:
    def test_they_are_in_the_order_of_their_numbers_or_as_named(self) -> None:
        tasks = [Task(str(n), "o", {"level": f"Level {n}"}) for n in (10, 9, 2)]
        assert difficulty_levels(CurriculumSettings(), tasks) == ["Level 2", "Level 9", "Level 10"]
        named = CurriculumSettings(levels=("Level 9", "Level 2", "Level 10", "Level 11"))
        assert difficulty_levels(named, tasks) == ["Level 9", "Level 2", "Level 10"]

    @pytest.mark.parametrize(("data", "told"), [
        ({"size": 3}, r"task 'a' has no level 'level' in its data, .* its fields: size"), ({"level": 0.5}, "has no level 'level'"),
        ({"level": True}, "has no level"), ({}, "its fields: none"), ({"level": "odd"}, "task 'a' is of level 'odd', which is not named"),
    ])  # fmt: skip
    def test_a_task_without_one_is_refused(self, data: dict[str, Any], told: str) -> None:
        levels = ("even",) if "odd" in data.values() else ()
        with pytest.raises(ValueError, match=told):
            difficulty_levels(CurriculumSettings(levels=levels), [Task("a", "o", data)])

    @pytest.mark.parametrize(("changes", "told"), [
        ({"promote_threshold": 0.2, "demote_threshold": 0.2}, "demote_threshold is at or above promote_threshold"), ({"levels": [1, 1]}, "names one twice"), ({"levels": [1, "1"]}, "names one twice"), ({"review_fraction": 1.0}, "leaves nothing"),
        ({"initial_levels": 0}, "greater than or equal to 1"), ({"wy": 1}, "unknown key 'wy'"),
    ])  # fmt: skip
    def test_settings_that_cannot_be_meant_are_refused(self, changes: dict[str, Any], told: str) -> None:
        with pytest.raises((ValidationError, ValueError), match=told):
            CurriculumSettings.model_validate(changes)


class TestDrawing:
    def test_tasks_are_of_the_levels_that_are_asked_in_their_shares(self) -> None:
        draws, standing = TaskSampler(run_of(review_fraction=0.4), TASKS), CurriculumState((0, 300), (0, 2))
        first = Counter(task_at(draws, n, standing).data["level"] for n in range(300))
        assert set(first) == {1}
        later = Counter(task_at(draws, n, standing).data["level"] for n in range(300, 900))
        assert later[3] / 600 == pytest.approx(0.6, abs=0.06)
        assert later[1] / 600 == pytest.approx(0.2, abs=0.05)

    def test_a_pass_holds_no_task_twice_and_the_commonest_always(self) -> None:
        draws, standing = TaskSampler(run_of(), TASKS), CurriculumState((0,), (1,))
        passes: dict[str, list[str]] = {}
        for number in range(400):
            task, name = draws.task_at(number, standing)
            assert task is not None
            passes.setdefault(name, []).append(task.id)
        hardest = {task.id for task in TASKS if task.data["level"] == 2}
        for ids in list(passes.values())[:-1]:
            assert len(ids) == len(set(ids))
            assert hardest <= set(ids)
        assert len(passes) > 10

    def test_what_is_drawn_is_a_pure_function_of_the_place(self) -> None:
        standing = CurriculumState((0, 7, 30), (0, 1, 2))
        one = TaskSampler(run_of(), TASKS)
        forwards = [one.task_at(number, standing) for number in range(60)]
        backwards = [TaskSampler(run_of(), TASKS).task_at(number, standing) for number in reversed(range(60))]
        assert forwards == backwards[::-1]
        assert len({(task.id, name) for task, name in forwards if task}) == 60, "no stream comes twice"

    def test_a_level_that_is_asked_again_begins_with_other_tasks(self) -> None:
        draws, standing = TaskSampler(run_of(), TASKS), CurriculumState((0, 10, 20), (0, 1, 0))
        first, again = ([task_at(draws, begin + n, standing).id for n in range(10)] for begin in (0, 20))
        assert sorted(first) == sorted(again)
        assert first != again

    def test_streams_of_attempts_differ_wherever_a_task_comes_again(self) -> None:
        standing = CurriculumState((0, 5), (0, 1))
        attempts = sample_attempts(run_of(), TASKS, 3, 0, 60, curriculum=standing)
        keys = [(attempt.stream, attempt.task.id, attempt.sample) for attempt in attempts]
        assert len(set(keys)) == len(keys) == 120

    def test_a_level_that_no_task_has_any_more_is_said(self) -> None:
        draws = TaskSampler(run_of(), [task for task in TASKS if task.data["level"] == 1])
        with pytest.raises(RunError, match="the run has come to level 3, and its tasks are of 1; go on with"):
            draws.task_at(0, CurriculumState((0,), (2,)))

    @pytest.mark.parametrize(
        "table",
        [
            {"begins": [], "hardest": []},
            {"begins": [0, 5], "hardest": [0]},
            {"begins": [5], "hardest": [0]},
            {"begins": [0, 5, 5], "hardest": [0, 1, 0]},
            {"begins": [0], "hardest": [0], "solved": 2},
        ],
    )
    def test_a_standing_that_no_run_has_is_refused(self, table: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="curriculum: stretches that are"):
            TypeAdapter(SavedCurriculum).validate_json(json.dumps({"solved": 0, "tried": 1, **table}))

    def test_levels_that_are_all_set_aside_are_said(self) -> None:
        aside = {task.id: "it ended its workers" for task in TASKS if task.data["level"] == 1}
        draws = TaskSampler(run_of(), TASKS)
        with pytest.raises(RunError, match="all 10 training tasks are set aside: it ended its workers"):
            draws.task_at(0, CurriculumState((0,), (0,)), aside)
        assert draws.task_at(0, CurriculumState((0,), (2,)), aside) is not None

    def test_odds_say_how_often_a_task_comes(self, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_text("question,answer,weight\n" + "".join(f"{n}?,{n},{w}\n" for n, w in enumerate((4, 2, 1, 1, 0))))
        run = settings(environment={
            "name": "table", "path": str(path), "weight": "weight", "split_fractions": {"validation": 0.0, "test": 0.0},
        })  # fmt: skip
        draws = load_training_tasks(run)
        assert [task.prompt for task in draws] == ["0?", "1?", "2?", "3?"], "one of weight 0 is never trained on"
        found = Counter(task_at(draws, number).prompt for number in range(1600))
        assert [found[f"{n}?"] / 1600 for n in range(4)] == pytest.approx([0.5, 0.25, 0.125, 0.125], abs=0.04)

    @pytest.mark.parametrize("weight", ["-1", "many", "", "1 or 2"])
    def test_a_weight_that_is_none_is_named(self, weight: str, tmp_path: Path) -> None:
        path = tmp_path / "rows.csv"
        path.write_text(f"question,answer,weight\na?,1,1\nb?,2,{weight}\n")
        run = settings(environment={"name": "table", "path": str(path), "weight": "weight"})
        with pytest.raises(ValueError, match=r"line 3: column 'weight' holds .* is no weight: 2 is twice as often"):
            load_training_tasks(run)

    def test_odds_say_which_tasks_of_a_level_come_and_not_how_often_the_level_does(self) -> None:
        class Odd(ReasoningGym):
            def sampling_weight(self, task: Task) -> float:
                return {1: 4.0, 2: 1.0}[task.data["level"]] * (3.0 if task.id in ("t0", "t1") else 1.0)

        environment = Odd.model_validate({"dataset": "chain_sum"})
        run = run_of(review_fraction=0.5).model_copy(update={"environment": environment})
        draws = TaskSampler(run, [task for task in TASKS if task.data["level"] < 3])
        found = Counter(task_at(draws, n, CurriculumState((0,), (1,))).id for n in range(2400))
        for first, level in (("t0", 0), ("t1", 1)):
            of_level = sum(count for name, count in found.items() if int(name[1:]) % 3 == level)
            assert of_level / 2400 == pytest.approx(0.5, abs=0.04)
            assert found[first] / of_level == pytest.approx(3 / 12, abs=0.04)

    def test_a_run_whose_tasks_are_all_set_aside_says_so(self) -> None:
        draws = TaskSampler(settings(), TASKS)
        with pytest.raises(RunError, match="all 30 training tasks are set aside: it ended its workers"):
            draws.task_at(0, CurriculumState(), {task.id: "it ended its workers" for task in TASKS})

    def test_odds_that_cannot_be_meant_are_named(self) -> None:
        class Odd(ReasoningGym):
            def sampling_weight(self, task: Task) -> float:
                return float("nan") if task.id == "t3" else 1.0

        run = settings()
        run = run.model_copy(update={"environment": Odd.model_validate({"dataset": "chain_sum"})})
        with pytest.raises(ValueError, match="odds of training task 't3' are nan"):
            TaskSampler(run, TASKS)


def task_at(draws: TaskSampler, number: int, standing: CurriculumState | None = None) -> Task:
    task, _ = draws.task_at(number, standing or CurriculumState())
    assert task is not None
    return task


def test_a_step_moves_the_level_and_says_how_each_was_solved() -> None:
    draws = TaskSampler(run_of(), TASKS)
    played = [Episode(TASKS[n], "train/0", 0, (), "terminated", success=True) for n in (0, 3, 6, 9)]
    played += [Episode(TASKS[1], "train/0", s, (), "terminated", success=bool(s)) for s in (0, 1)]
    played += [Episode(TASKS[0], "train/0", 9, (), "failed"), Episode(TASKS[0], "train/0", 8, (), "terminated")]
    standing, metrics = advance_curriculum(draws, draws.initial_curriculum(), played, draw=8)
    assert standing == CurriculumState((0, 8), (0, 1))
    assert metrics == {"curriculum/level": 2.0, "curriculum/solved/1": 1.0, "curriculum/solved/2": 0.5}


def test_what_is_in_play_ahead_of_the_learner_keeps_its_level() -> None:
    run = run_of(*PROCESS, "--rollout.max_policy_lag", "2", "--training.steps", "50")
    rollouts, state = fake(run), State()
    gathering = AsyncRolloutSource(cast("RolloutRunner", rollouts), TASKS, state)
    draws = TaskSampler(run, TASKS)
    collection = gathering.collect(state, lambda _: None)
    assert (collection.next_draw, collection.tasks_drawn) == (6, 2)
    solved = [replace(episode, success=True) for episode in collection.episodes]
    standing, _ = advance_curriculum(draws, draws.initial_curriculum(), solved, collection.next_draw)
    assert standing == CurriculumState((0, 6), (0, 1))
    state = State(step=1, tasks_drawn=2, curriculum=standing)
    rollouts.now = 1
    gathering.on_publish(state)
    levels = [attempts[0].task.data["level"] for attempts, _, _ in rollouts.begun]
    assert levels[:6] == [1] * 6
    assert 2 in levels[6:]
    later = gathering.collect(state, lambda _: None)
    again = AsyncRolloutSource(cast("RolloutRunner", fake(run)), TASKS, state).collect(state, lambda _: None)
    assert [e.name for e in again.episodes] == [e.name for e in later.episodes], "a run that goes on plays the same"
    assert again.next_draw == later.next_draw


def test_without_a_lag_a_step_draws_from_where_the_pass_and_the_curriculum_stand() -> None:
    rollouts: Any = fake(run_of())
    rollouts.play = lambda attempts, **_: [rollouts.episode(attempt, 0) for attempt in attempts]
    standing = CurriculumState((0,), (1,))
    found = SyncRolloutSource(rollouts, TASKS).collect(
        State(step=3, tasks_drawn=7, curriculum=standing), lambda _: None
    )
    expected = sample_attempts(rollouts.run, TASKS, 3, 7, 2, curriculum=standing)
    assert [(e.stream, e.task.id, e.sample) for e in found.episodes] == [
        (one.stream, one.task.id, one.sample) for one in expected
    ]


def test_a_task_of_the_level_that_is_asked_now_is_passed_over_where_it_is_set_aside() -> None:
    run = run_of(*PROCESS, "--rollout.max_policy_lag", "2", "--training.steps", "50")
    state = State(curriculum=CurriculumState((0,), (1,)))
    draws = TaskSampler(run, TASKS)
    aside = task_at(draws, 3, state.curriculum)
    rollouts = fake(run)
    rollouts.excluded_tasks[aside.id] = "it ended its workers"
    collection = AsyncRolloutSource(cast("RolloutRunner", rollouts), TASKS, state).collect(state, lambda _: None)
    expected = [task_at(draws, number, state.curriculum).id for number in range(7) if number != 3]
    assert (rollouts.numbers, collection.next_draw) == (expected, 7)


class TestMixtures:
    def mixture(self, **changes: Any) -> ReasoningGym:
        members = [
            {"dataset": "chain_sum", "cohort": "short", "params": {"min_terms": 2, "max_terms": 2}},
            {"dataset": "chain_sum", "weight": 2.0, "levels": [{"min_terms": n, "max_terms": n} for n in (2, 3)]},
            {"dataset": "gcd", "weight": 1.0},
        ]
        return ReasoningGym.model_validate({"mixture": members, "train_tasks": 200, "held_out_tasks": 40, **changes})

    def test_data_sets_share_no_question_and_have_what_their_weights_say(self) -> None:
        environment = self.mixture()
        tasks = {split: environment.tasks(split) for split in ("train", "validation", "test")}
        prompts = [task.prompt for of in tasks.values() for task in of]
        assert len(set(prompts)) == len(prompts) == 280
        for split, of in (("train", 200), ("test", 40)):
            found = Counter((task.data["dataset"], task.data["level"]) for task in tasks[split])
            assert found == {
                ("short", 1): of / 4,
                ("chain_sum", 1): of / 4,
                ("chain_sum", 2): of / 4,
                ("gcd", 1): of / 4,
            }
        first = Counter(task.data["dataset"] for task in tasks["test"][:16])
        assert first == {"short": 4, "chain_sum": 8, "gcd": 4}, "the first of a split are a mixture as well"

    def test_data_sets_come_as_often_as_their_weights_say_however_many_questions_they_have(self) -> None:
        few = {"dataset": "chain_sum", "params": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1}}
        run = settings(environment={
            "name": "reasoning_gym", "mixture": [few, {"dataset": "gcd"}], "train_tasks": 1000, "held_out_tasks": 10,
        })  # fmt: skip
        draws = load_training_tasks(run)
        assert sum(task.data["dataset"] == "chain_sum" for task in draws) < 200
        found = Counter(task_at(draws, number).data["dataset"] for number in range(1000))
        assert found["gcd"] / 1000 == pytest.approx(0.5, abs=0.05)

    def test_the_packages_own_levels_are_of_growing_difficulty(self) -> None:
        environment = ReasoningGym(dataset="chain_sum", levels=3, train_tasks=30, held_out_tasks=3)
        for task in environment.tasks("train"):
            assert task.prompt.count("+") + task.prompt.count(" - ") == task.data["level"]
        held = ReasoningGym(dataset="chain_sum", levels=2, params={"min_digits": 3, "max_digits": 3}, train_tasks=8)
        assert all(len(task.prompt.split("problem: ")[1].split()[0]) == 3 for task in held.tasks("train"))

    @pytest.mark.parametrize(("changes", "told"), [
        ({}, "needs a data set (dataset), or several (mixture)"), ({"dataset": "gcd", "mixture": [{"dataset": "gcd"}]}, "and not both"),
        ({"mixture": [{"dataset": "gcd"}, {"dataset": "gcd"}]}, "holds 'gcd' twice; give one of them a name of its own (cohort)"),
        ({"mixture": [{"dataset": "gdc"}]}, "no data set 'gdc'; did you mean 'gcd'?"), ({"dataset": "gsm_symbolic", "levels": 2}, "no curriculum of its own"),
        ({"dataset": "chain_sum", "levels": 50}, "has 11 levels, not 50"), ({"mixture": [{"dataset": "gcd"}], "levels": 2}, "stand in the tables of mixture"),
        ({"dataset": "chain_sum", "levels": [{"min_term": 2}]}, "no parameter 'min_term'; did you mean 'min_terms'?"),
    ])  # fmt: skip
    def test_what_cannot_be_made_is_refused(self, changes: dict[str, Any], told: str) -> None:
        with pytest.raises(ValidationError) as caught:
            ReasoningGym.model_validate(changes)
        assert told in str(caught.value)


@BY_NIGHT
@pytest.mark.slow
def test_a_run_with_a_curriculum_that_stops_and_goes_on_equals_one_that_never_did(tmp_path: Path) -> None:
    def run_in(folder: str) -> RunSettings:
        levels = [{"min_terms": n, "max_terms": n} for n in (2, 3, 4)]
        return settings(
            "tiny", tmp_path / folder, "--training.steps", "3", "--checkpoints.every", "3",
            environment={"name": "reasoning_gym", "dataset": "chain_sum", "levels": levels, "train_tasks": 60, "held_out_tasks": 3},
            curriculum={"episodes": 4, "promote_threshold": 0.01, "demote_threshold": 0.0, "initial_levels": 2},
        )  # fmt: skip

    straight, stopped = (RunFolder.create(run_in(name)) for name in ("straight", "stopped"))
    ended = train(straight.settings(), straight)
    standing = ended.curriculum
    assert standing is not None
    assert standing.begins[0] == 0
    assert len(standing.begins) > 1, "it has moved"
    assert train(stopped.settings(), stopped, callbacks=[StopAfter(1)]).step == 1
    assert train(stopped.settings(), stopped, resume=True).step == 3
    assert_same(stopped, straight, "step_000003")
    assert {row["curriculum/level"] for row in straight.read_metrics()} != {2.0}
