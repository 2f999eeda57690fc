"""The world ``sokoban``: moves as gym-sokoban has them, fewest moves, dead ends, published rewards, who sees what."""

from __future__ import annotations

import doctest
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.common.types import Task
from marft.config.interfaces.environment import Session
from marft_envs.grids.maps import symmetries
from marft_envs.sokoban import rules
from marft_envs.sokoban.environment import Sokoban
from marft_envs.sokoban.rules import SokobanState, render_rows
from marft_envs.sokoban.solver import (
    best_directions,
    draw_start,
    generate_room,
    list_pushes,
    solvable_states,
    symmetry_invariant_text,
)
from tests.grids import FEW, STEPS, by_script, first_shown, play, pushed, solved_in, spoken, with_changes
from tests.nights import NIGHT

WAYS = st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=14)
SEEDS = st.integers(0, 2**32)
LEVEL = ("######", "#    #", "# $. #", "# @  #", "#   .#", "######")


def yard_of(seed: int, boxes: int, size: int = 6) -> SokobanState:
    """A state that a game could start in."""
    random = Random(seed)
    while True:
        empty = generate_room(size, boxes, random)
        found = draw_start(empty, 1, 0, random) if empty else None
        if found:
            return found[0]


@cache
def world(**keys: Any) -> Sokoban:
    return Sokoban.model_validate({"train_tasks": 20, "held_out_tasks": 5, **keys})


def of(environment: Sokoban, rows: tuple[str, ...] = LEVEL, fewest: int = 6) -> Session:
    return environment.start(Task("t", "", {"map": list(rows), "fewest_moves": fewest}), 0)


def test_examples_are_true() -> None:
    assert doctest.testmod(rules) == (0, 2)


@FEW
@given(SEEDS, st.integers(1, 3), WAYS)
def test_moves_are_those_of_gym_sokoban(seed: int, boxes: int, ways: list[str]) -> None:
    yard = yard_of(seed, boxes)
    rows = list(render_rows(yard))
    for way in ways:
        after, problem = yard.apply_move(way)
        rows = pushed(rows, way)
        assert list(render_rows(after)) == rows
        assert bool(problem) == (after == yard) == (way not in yard.legal_moves)
        assert SokobanState.from_map(rows) == after
        yard = after


@pytest.mark.parametrize("boxes", [1, 2])
def test_fewest_moves_are_those_that_trying_all_finds(boxes: int) -> None:
    for seed in range(40 if NIGHT else 3):
        yard = yard_of(seed, boxes, size=5)
        known = solvable_states(yard.room)
        assert known.moves_to_solution(yard.player, yard.boxes) == solved_in(list(render_rows(yard)))
        for _ in range(3):
            yard, _ = yard.apply_move(Random(seed).choice(yard.legal_moves)) if yard.legal_moves else (yard, "")
            assert known.moves_to_solution(yard.player, yard.boxes) == solved_in(list(render_rows(yard)))


@settings(FEW, suppress_health_check=[HealthCheck.filter_too_much])
@given(SEEDS, st.integers(1, 3), WAYS)
def test_what_is_called_lost_can_not_be_solved(seed: int, boxes: int, ways: list[str]) -> None:
    yard = yard_of(seed, boxes, size=5)
    for way in ways:
        yard, _ = yard.apply_move(way)
        if yard.dead_end_reason:
            break
    assume(yard.dead_end_reason)
    assert solved_in(list(render_rows(yard))) is None


@FEW
@given(SEEDS, st.integers(1, 2))
def test_a_push_leaves_what_it_says_and_the_best_ways_lead_to_the_end(seed: int, boxes: int) -> None:
    yard = yard_of(seed, boxes)
    known = solvable_states(yard.room)
    here = known.moves_to_solution(yard.player, yard.boxes)
    assert here
    assert min(push.moves for push in list_pushes(yard)) == here
    for count in range(here, 0, -1):
        assert known.moves_to_solution(yard.player, yard.boxes) == count
        yard, problem = yard.apply_move(best_directions(yard)[0])
        assert not problem
    assert yard.is_solved
    assert best_directions(yard) == []


@pytest.mark.parametrize(
    ("rows", "lost"),
    [
        (("#####", "#$ .#", "# @ #", "#####"), "The box at 2,2 can never reach a goal."),
        (("######", "#.$$ #", "# $$ #", "#. @.#", "#. . #", "######"), "Boxes at 2,3; 2,4 can never be pushed again."),
        (("#####", "#*@ #", "#$ .#", "#####"), "The box at 3,2 can never reach a goal."),
        (("#####", "#*@ #", "#####"), ""),
        (("########", "#@$$$ .#", "#   $..#", "#     .#", "########"), "Boxes at 2,3; 2,4 can never be pushed again."),
        (LEVEL, ""),
    ],
)  # fmt: skip
def test_dead_ends_are_told(rows: tuple[str, ...], lost: str) -> None:
    assert SokobanState.from_map(rows).dead_end_reason == lost


def test_a_player_who_cannot_move_has_lost() -> None:
    assert SokobanState.from_map(("#####", "#@$$.", "#$ ..", "#####")).dead_end_reason
    assert SokobanState.from_map(("######", "#@$$ #", "#$ . #", "#$ ..#", "#  . #", "######")).legal_moves == ()


def published_return(rows: tuple[str, ...], ways: list[str], most: int) -> float:
    """What single moves earn, as the published worker adds it up."""

    def far(state: list[str]) -> int:
        boxes = [(r, c) for r, row in enumerate(state) for c, x in enumerate(row) if x in "$*"]
        goals = [(r, c) for r, row in enumerate(state) for c, x in enumerate(row) if x in ".*+"]
        return sum(min(abs(r - y) + abs(c - x) for y, x in goals) for r, c in boxes)

    state, total = list(rows), 0.0
    for way in ways[:most]:
        after = pushed(state, way)
        total += -0.05 if after == state else -0.01
        change = "".join(after).count("*") - "".join(state).count("*")
        total += 1.0 if change > 0 else -0.5 if change < 0 else 0.0
        total += 0.1 * (0.99 * -far(after) + far(state))
        state = after
        if "$" not in "".join(state):
            return total + 10.0
        if SokobanState.from_map(state).dead_end_reason:
            return total
    return total


@FEW
@given(SEEDS, st.integers(1, 2), WAYS)
def test_the_published_reward_is_that_of_the_published_worker(seed: int, boxes: int, ways: list[str]) -> None:
    rows = tuple(render_rows(yard_of(seed, boxes)))
    steps = play(of(world(moves="one", reward="published", max_steps=9, boxes=boxes), rows), list(ways))
    assert sum(step.reward for step in steps) == pytest.approx(published_return(rows, ways, 9))


def test_what_is_published_takes_five_off_after_two_hundred_moves() -> None:
    rows = ("######", "#@   #", "#  $ #", "#  . #", "######")
    for moves, end in ((199, False), (200, True), (201, True)):
        [step] = play(of(world(reward="published", max_steps=9), rows), ["up " * moves])
        counted = min(moves, 200)
        assert step.terminated == end
        assert step.reward == pytest.approx(counted * (-0.05 + 0.1 * 0.01) - (5.0 if end else 0.0))


@FEW
@given(SEEDS, st.integers(1, 2), WAYS)
def test_boxes_pay_the_share_that_is_on_goals_and_success_the_last(seed: int, boxes: int, ways: list[str]) -> None:
    rows = tuple(render_rows(yard_of(seed, boxes)))
    steps = play(of(world(moves="one", max_steps=20, boxes=boxes), rows), list(ways))
    assert sum(step.reward for step in steps) == pytest.approx(steps[-1].info["progress"])
    costly = play(of(world(moves="one", max_steps=20, boxes=boxes, move_cost=0.1), rows), list(ways))
    assert sum(step.reward for step in costly) == pytest.approx(steps[-1].info["progress"] - 0.1 * len(steps))
    alone = play(of(world(moves="one", max_steps=20, boxes=boxes, reward="success"), rows), list(ways))
    assert sum(step.reward for step in alone) == float(bool(alone[-1].success))


def test_what_goes_wrong_is_told_and_a_dead_end_is_the_end() -> None:
    steps = play(of(world(moves="one", boxes=1, max_steps=9)), ["left", "left", "push", "up", "up", "right"])
    assert steps[1].observation.text.startswith("left is blocked.\nAt 4,2. Box 3,3.")
    assert steps[2].observation.text.startswith("No move: say one move, not 'push'.\n")
    along = ("#####", "#.  #", "# $@#", "#   #", "#####")  # up to the wall, where a goal is, too
    assert not play(of(world(moves="one"), along), ["down", "left", "up"])[-1].terminated
    last = play(of(world(moves="list"), ("#####", "# . #", "#@$ #", "#####")), ["right, left"])[-1]
    assert last.terminated
    assert not last.success
    assert last.observation.text == "The box at 3,4 can never reach a goal."
    against = play(of(world(moves="one"), ("#####", "#.@ #", "# $ #", "# # #", "#####")), ["down"])[-1]
    assert against.observation.text.startswith("The box at 3,3 does not go down.\n")


def test_who_is_shown_what() -> None:
    environment = world(moves="one", view="near", map_for=("tool",), pushes_for=("tool",))
    shown = first_shown(of(environment, ("######", "#  ###", "#@$ .#", "#  ###", "######")))
    assert shown.for_role("plan") == "At 3,2. Box 3,3. Open: up, down, right."
    assert shown.views == {"tool": "Goal 3,5.\nPushes: here, then right is 2."}
    grid = first_shown(of(world(boxes=2), LEVEL)).text
    near, rows = "At 4,3. Boxes 3,3. Open: up, down, left, right.", "\n".join(LEVEL)
    assert grid == f"{near}\n{rows}\nGoals 3,4; 5,5."
    small = ("####", "#@$.", "####")
    for view, charted in {"both": "\n".join(small) + "\nGoal 2,4.", "list": "Goal 2,4.", "near": "Goal 2,4."}.items():
        walls = "" if view == "near" else "\nWalls: 1,1; 1,2; 1,3; 1,4; 2,1; 3,1; 3,2; 3,3; 3,4."
        shown = first_shown(of(world(view=view), small))
        assert (shown.text, shown.views) == (f"At 2,2. Box 2,3. Open: right.\n{charted}{walls}", {})


@pytest.mark.parametrize(("keys", "most"), [({"moves": "one"}, 12), ({"moves": "list"}, 5), ({"max_steps": 3}, 3)])
def test_an_episode_has_so_many_steps_and_no_more(keys: dict[str, Any], most: int) -> None:
    environment = world(**keys, max_moves=6)
    steps = play(of(environment), ["left" if number % 2 else "right" for number in range(20)])
    assert len(steps) == most


def test_what_others_say_is_paid_to_them_alone_where_that_is_wished_for() -> None:
    rows = ("######", "#@$. #", "######")
    [step] = play(
        of(world(moves="one", max_steps=1, local_reward=2.0), rows), [spoken("left", tool="right", critic="hm")]
    )
    assert (step.reward, step.agent_rewards) == (0.0, {"tool": 2.0, "critic": 0.0})


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"min_moves": 5, "max_moves": 3}, "no task is so"),
        ({"pushes_for": ["tool"], "boxes": 2}, "rooms with one box"),
        ({"pushes_for": ["tool"], "size": 9}, "of size 8 at most"),
        ({"moves": "list", "actions": "choices"}, "choices are single moves"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Sokoban.model_validate(keys)
    assert Sokoban(pushes_for=("tool",), size=8).instrument_roles == ("tool",)


def test_roles_that_nobody_has_and_rooms_that_are_none_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"environment\.pushes_for: no agent is called 'tools'; did you mean 'tool'"):
        with_changes("sokoban", pushes_for=["tools"])
    with pytest.raises(ValueError, match="lower min_moves or boxes, or raise max_moves or size"):
        Sokoban(size=4, min_moves=99).tasks("train")


@FEW
@given(SEEDS, st.integers(0, 7))
def test_a_room_is_the_same_from_every_side_and_anywhere_in_its_frame(seed: int, side: int) -> None:
    yard = yard_of(seed, 1)
    rows = list(symmetries(tuple(render_rows(yard))))[side]
    framed = ["#" * (len(rows[0]) + 1), *("#" + row for row in rows)]
    assert (
        symmetry_invariant_text(SokobanState.from_map(rows))
        == symmetry_invariant_text(SokobanState.from_map(framed))
        == symmetry_invariant_text(yard)
    )


@pytest.mark.parametrize("keys", [{}, {"min_moves": 5, "max_moves": 9}, {"size": 7, "boxes": 2}])
def test_rooms_are_as_hard_as_wished_and_no_side_of_a_held_out_one_is_trained_on(keys: dict[str, Any]) -> None:
    environment = world(**keys, train_tasks=30, held_out_tasks=5)
    parts = [environment.tasks(split) for split in ("train", "validation", "test")]  # type: ignore[arg-type]
    parts.append(list(islice(environment.demonstrations(), 15)))
    sides = [{symmetry_invariant_text(SokobanState.from_map(task.data["map"])) for task in part} for part in parts]
    assert sum(map(len, sides)) == len(set.union(*sides)) == 55
    for task in parts[0]:
        yard = SokobanState.from_map(task.data["map"])
        assert len(yard.boxes) == len(yard.room.goals) == keys.get("boxes", 1)
        assert not yard.boxes & yard.room.goals
        assert not yard.dead_end_reason
        assert task.prompt == first_shown(environment.start(task, 0)).text
        assert keys.get("min_moves", 3) <= task.data["fewest_moves"] <= keys.get("max_moves", 99)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("sokoban", {}),
        ("sokoban_single", {}),
        ("sokoban", {"moves": "list", "map_for": [], "pushes_for": [], "view": "grid", "boxes": 2, "max_moves": 0}),
        ("sokoban", {"pushes_for": [], "map_for": [], "view": "both", "boxes": 2, "size": 7, "max_moves": 14}),
    ],
)
def test_a_script_of_skill_solves_every_room_in_the_fewest_steps(name: str, changes: dict[str, Any]) -> None:
    episodes = by_script(with_changes(name, **{"train_tasks": 12, "held_out_tasks": 2, **changes}))
    assert all(episode.success for episode in episodes)
    assert [len(episode.transitions) for episode in episodes] == [e.task.data["fewest_steps"] for e in episodes]


def test_a_weak_script_solves_some() -> None:
    solved = [bool(episode.success) for episode in by_script(with_changes("sokoban"), tasks=10, skill=0.65)]
    assert 1 <= sum(solved) <= 9
