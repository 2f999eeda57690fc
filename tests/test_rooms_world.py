"""Kitchens of several rooms: all can be run by players who see their own room alone; who is in the way is told so."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.config import load_recipe
from marft.envs.rooms.drawing import Level, content_of, draw_kitchen, taken
from marft.envs.rooms.environment import Rooms
from marft.envs.rooms.layout import Layout, layout_of
from marft.envs.rooms.session import Rules, Shift
from marft.envs.rooms.sight import sight
from marft.envs.rooms.words import answer_of, answers_of
from marft.envs.scripts import Cue
from marft.scripted import ScriptedTeam
from marft.types import JointAction, Step, Task
from tests.episodes import make_action
from tests.nights import some

TWO = Rules(("cook", "waiter"))
PLAIN = Layout(
    rooms=("hall", "kitchen", "pantry"), doors=(("hall", "kitchen"), ("kitchen", "pantry")), narrow=("kitchen",),
    sources={"pantry": ("leek",), "hall": ("plate",)}, pot="kitchen", hatch="hall", starts=("pantry", "hall"),
    orders=(("leek",),),
)  # fmt: skip
HARD = [
    {"orders": 3},
    {"players": ("a", "b", "c"), "rooms": 5, "orders": 2, "size": 2},
    {"order": "one after another", "walk": 2, "boil": 2},
    {"actions": "choose", "orders": 2},
    {"crates": 1, "rooms": 4},
    {"locked": 1, "rooms": 4, "loops": 1},
    {"steered_by": "solver", "walk": 2},
    {"steered_by": "solver", "actions": "choose", "order": "one after another"},
]


def acted(shift: Shift, **texts: str) -> Step:
    actions = tuple(make_action(agent=role, text=text) for role, text in texts.items())
    return asyncio.run(shift.step(JointAction(None, actions)))


def opened(layout: Layout = PLAIN, deadline: int = 30, rules: Rules = TWO) -> Shift:
    shift = Shift(layout, deadline, rules)
    asyncio.run(shift.reset())
    return shift


def changed(**changes: object) -> Layout:
    return layout_of({**PLAIN.plain(), **changes})


def played(environment: Rooms, task: Task, skill: float, seed: int = 0) -> tuple[Step, float]:
    shift, script, random, earned = environment.start(task, 0), environment.script(skill), Random(seed), 0.0
    shown = shift.begin()
    for number in range(1000):
        texts = {
            role: script(
                Cue(task, role, number, [{"content": shown.seen_by(role)}], random, shown.options.get(role, ()))
            )
            for role in shown.turn
        }
        for role, options in shown.options.items():
            assert texts[role] in options
        step = acted(shift, **texts)
        earned += step.reward
        if step.terminated:
            return step, earned
        shown = step.observation
    raise AssertionError("a kitchen does not end")


@pytest.mark.parametrize("table", [{}, *some(HARD, of=2)], ids=str)
def test_whoever_sees_one_room_at_a_time_can_serve_everything_in_time(table: dict[str, object]) -> None:
    environment = Rooms(train_tasks=6, held_out_tasks=1, **table)  # type: ignore[arg-type]
    for task in environment.tasks("train"):
        step, earned = played(environment, task, skill=1.0)
        assert step.success
        assert step.info["progress"] == earned == pytest.approx(1.0)
        assert step.info["measures"]["served"] == environment.orders


def test_weak_players_solve_a_part_alone() -> None:
    environment = Rooms(train_tasks=40, held_out_tasks=1)
    solved = [played(environment, task, 0.65, seed)[0].success for seed, task in enumerate(environment.tasks("train"))]
    assert 0.2 < sum(map(bool, solved)) / len(solved) < 0.8


def test_no_skill_at_all_ends_at_the_deadline_and_earns_between_nothing_and_everything() -> None:
    environment = Rooms(train_tasks=5, held_out_tasks=1, orders=2, time_bonus=0.3)
    for seed, task in enumerate(environment.tasks("train")):
        step, earned = played(environment, task, 0.0, seed)
        assert step.terminated
        assert 0 <= earned <= 1


def test_tasks_are_plain_and_deterministic_and_split_by_content() -> None:
    one, two = Rooms(train_tasks=30, held_out_tasks=10), Rooms(train_tasks=30, held_out_tasks=10)
    assert one.tasks("train") == two.tasks("train")
    contents = [{content_of(layout_of(t.data)) for t in one.tasks(s)} for s in ("train", "validation", "test")]  # type: ignore[arg-type]
    assert [len(part) for part in contents] == [30, 10, 10]
    assert len(set.union(*contents)) == 50
    task = one.tasks("train")[0]
    assert json.loads(json.dumps(task.data)) == task.data
    told = {"deadline", "fewest_steps"}
    assert layout_of(task.data).plain() == {key: value for key, value in task.data.items() if key not in told}


@pytest.mark.parametrize("table", [{}, {"walk": 3}, {"order": "one after another"}], ids=str)
def test_the_steps_that_a_task_says_are_those_of_players_who_see_one_room(
    table: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, taken = Rooms(train_tasks=3, held_out_tasks=1, **table), list[Step]()  # type: ignore[arg-type]
    whole = Shift.take
    monkeypatch.setattr(Shift, "take", lambda shift, lines: taken.append(step := whole(shift, lines)) or step)
    for task in environment.tasks("train"):
        taken.clear()
        played(environment, task, skill=1.0)
        assert len(taken) == task.data["fewest_steps"]
