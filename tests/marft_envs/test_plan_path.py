"""The world ``plan_path``: its mazes, its published rules and rewards, who sees what, and who plays it."""

from __future__ import annotations

import math
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.common.types import Task
from marft.config.interfaces.environment import Session
from marft.config.load import load_recipe
from marft.envs.tasks import read_tasks
from marft_envs.grids.maps import DIRECTIONS, canonical_text
from marft_envs.plan_path.environment import PlanPath
from marft_envs.plan_path.rules import Maze
from tests.grids import FEW, STEPS, by_script, first_shown, play, relaxed, spoken, with_changes

WAY = st.sampled_from(sorted(DIRECTIONS))
ROWS = ("S.#", ".#.", "..G")


def world(**keys: object) -> PlanPath:
    return PlanPath.model_validate({"train_tasks": 20, "held_out_tasks": 5, **keys})


def of_map(environment: PlanPath, rows: tuple[str, ...] = ROWS) -> Session:
    """A session in a map of one's own."""
    return environment.start(Task("t", "", {"map": list(rows), "fewest_moves": Maze(rows).min_moves}), 0)


def published_return(rows: tuple[str, ...], ways: list[str], most: int) -> float:
    """What single moves earn, as the published worker adds it up: cost, shaping by Manhattan distance, goal, shortest
    way."""
    at, goal = ((next((r, row.index(x)) for r, row in enumerate(rows) if x in row)) for x in "SG")
    away, total = relaxed(rows, goal), 0.0
    fewest = away[at]
    for number, way in enumerate(ways[:most], 1):
        there = at[0] + STEPS[way][0], at[1] + STEPS[way][1]
        legal = there in away or (
            0 <= there[0] < len(rows) and 0 <= there[1] < len(rows) and rows[there[0]][there[1]] != "#"
        )
        after = there if legal else at
        distance_before = abs(at[0] - goal[0]) + abs(at[1] - goal[1])
        distance_after = abs(after[0] - goal[0]) + abs(after[1] - goal[1])
        total += (-0.01 if legal else -0.1) + 0.99 * -distance_after + distance_before
        at = after
        if at == goal:
            return total + 1.0 + (0.5 if number == fewest else 0.0)
    return total


@FEW
@given(st.lists(WAY, min_size=1, max_size=12))
def test_the_published_reward_is_that_of_the_published_worker(ways: list[str]) -> None:
    environment = world(moves="one", reward="published", max_steps=9)
    steps = play(of_map(environment), list(ways))
    assert sum(step.reward for step in steps) == pytest.approx(published_return(ROWS, ways, 9))


def test_what_is_published_pays_for_moves_that_cannot_be_read_and_for_ten_thousand() -> None:
    environment = world(reward="published", max_steps=20)
    assert [step.reward for step in play(of_map(environment), ["hm", ""])] == [-2.0, -2.0]
    ended = play(of_map(environment), ["up " * 1000] * 20)
    assert [step.terminated for step in ended] == [False] * 9 + [True]
    assert [step.reward for step in ended[-2:]] == pytest.approx([1000 * (0.04 - 0.1), 1000 * (0.04 - 0.1) - 1.0])
    assert environment.reward_range == (-math.inf, math.inf)
    assert world().reward_range == (-1.0, 1.0)


@FEW
@given(st.lists(WAY, min_size=1, max_size=12), st.sampled_from(["one", "list"]))
def test_progress_pays_the_share_of_the_way_that_is_done_and_success_the_goal(ways: list[str], moves: str) -> None:
    answers = list(ways) if moves == "one" else [", ".join(ways)]
    steps = play(of_map(world(moves=moves, max_steps=12)), answers)
    alone = play(of_map(world(moves=moves, max_steps=12, reward="success")), answers)
    assert sum(step.reward for step in steps) == pytest.approx(steps[-1].info["progress"])
    assert sum(step.reward for step in alone) == float(bool(alone[-1].success))
    assert steps[-1].success == alone[-1].success == (steps[-1].info["progress"] == 1.0)
    assert all(0.0 <= step.info["progress"] <= 1.0 for step in steps)


def test_illegal_moves_and_what_is_no_move_are_told_and_cost_a_step() -> None:
    steps = play(of_map(world(moves="one", max_steps=5)), ["up", "hm", "left 3", None, "down"])
    told = [step.observation.text.split("\n")[0] for step in steps]
    assert told == [
        "up is blocked.",
        "No move: say one move, not 'hm'.",
        "No move: say one move, not 'left 3'.",
        "No move: say one move, not nothing.",
        "",
    ]
    assert [step.terminated for step in steps] == [False] * 4 + [True]
    assert [step.info["measures"]["illegal_moves"] for step in steps] == [1.0, 2.0, 3.0, 4.0, 4.0]
    assert [step.success for step in steps] == [False] * 5


def test_a_shortest_way_is_one_without_a_single_move_more_and_whoever_arrives_last_has_not_failed() -> None:
    rows, shortest = ("S.G", "###", "..."), 1.0 + 1.5
    [*_, last] = play(of_map(world(moves="one", reward="published", max_steps=2), rows), ["right", "right"])
    assert (last.success, last.terminated) == (True, True)
    assert last.reward == pytest.approx(-0.01 + shortest)
    [*_, last] = play(of_map(world(moves="one", reward="published"), rows), ["up", "right", "right"])
    assert last.reward == pytest.approx(-0.01 + shortest - 0.5)


@pytest.mark.parametrize(("keys", "most"), [({"moves": "one"}, 8), ({"moves": "list"}, 5), ({"max_steps": 3}, 3)])
def test_an_episode_has_so_many_steps_and_no_more(keys: dict[str, object], most: int) -> None:
    environment = world(**keys, max_moves=4)
    steps = play(of_map(environment), ["up"] * 20)
    assert len(steps) == most
    assert [step.terminated for step in steps] == [False] * (most - 1) + [True]


def test_what_went_wrong_is_told_once_and_in_short() -> None:
    [step] = play(of_map(world()), ["up, up, left, up"])
    assert step.observation.text.startswith("up is blocked. left is blocked.\nAt 1,1.")
    assert step.info["measures"] == {"illegal_moves": 4.0}
    [step] = play(of_map(world()), ["I say\nso " + "x" * 99])
    assert step.observation.text.startswith(f"No move: say a list of moves, not 'I say so {'x' * 31}…'.\n")


def test_one_move_a_step_is_one_and_a_list_goes_on_from_where_it_came_to() -> None:
    assert "say one move" in play(of_map(world(moves="one")), ["down, down"])[0].observation.text
    steps = play(of_map(world(moves="list")), ["left, down, U, R, D", "down, down, right, right, up, up"])
    assert steps[0].observation.text.startswith("left is blocked. down is blocked.\nAt 1,2. Open: left.\n.S#\n")
    assert steps[0].info["progress"] == 0.0
    assert not steps[1].success  # down from 1,2 is a wall
    through = play(of_map(world(moves="list")), ["down", '#### ["D", "R", "R", "U", "U"]'])
    assert [step.reward for step in through] == pytest.approx([0.25, 0.75])  # it ends at the goal, whatever follows


def test_what_others_say_is_paid_to_them_alone_where_that_is_wished_for() -> None:
    answer = spoken("down", tool="right", critic="left 3")
    [step] = play(of_map(world(moves="one", max_steps=1, local_reward=2.0)), [answer])
    assert step.reward == pytest.approx(0.25)
    assert step.agent_rewards == {"tool": pytest.approx(0.0), "critic": 0.0}
    [step] = play(of_map(world(moves="one", max_steps=1, local_reward=2.0)), [spoken("right", tool="down")])
    assert (step.reward, step.agent_rewards) == (0.0, {"tool": pytest.approx(0.5)})
    assert not play(of_map(world(moves="one")), [answer])[0].agent_rewards


def test_who_is_shown_what() -> None:
    environment = world(moves="one", view="near", map_for=["tool"], distances_for=["tool"], size=3)
    shown = first_shown(of_map(environment))
    assert shown.for_role("plan") == "At 1,1. Open: down, right."
    assert shown.for_role("tool") == "At 1,1. Open: down, right.\n\nGoal 3,3.\nAway 4: 2,1 is nearer; 1,2 is farther."
    apart = first_shown(of_map(world(moves="one", view="near", map_for=["chart"], distances_for=["tool"], size=3)))
    assert apart.views == {"chart": "Goal 3,3.", "tool": "Away 4: 2,1 is nearer; 1,2 is farther."}
    both = first_shown(of_map(world(view="both", size=3)))
    assert both.text == "At 1,1. Open: down, right.\nS.#\n.#.\n..G\nGoal 3,3.\nWalls: 1,3; 2,2."
    assert not both.views
    choices = first_shown(of_map(world(moves="one", actions="choices")))
    assert choices.options == {"plan": ("down", "right")}


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"min_moves": 5, "max_moves": 3}, "no task is so"),
        ({"actions": "choices"}, "choices are single moves"),
        ({"walls": 0.9}, "less than or equal to 0.6"),
        ({"view": "map"}, "near"),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        world(**keys)


def test_roles_that_nobody_has_and_mazes_that_are_none_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"environment\.map_for: no agent is called 'tol'; did you mean 'tool'"):
        load_recipe("plan_path", changes={"models.base.path": "tiny", "environment.map_for": ["tol"]})
    with pytest.raises(ValueError, match=r"environment\.mover: no agent is called 'plan'"):
        load_recipe("plan_path_single", changes={"models.base.path": "tiny", "environment.actions": "choices"})
    with pytest.raises(ValueError, match="lower min_moves or walls, or raise max_moves or size"):
        world(size=3, min_moves=9).tasks("train")


@pytest.mark.parametrize("keys", [{"size": 4}, {"size": 5, "min_moves": 4, "max_moves": 4}, {"walls": 0.45, "size": 6}])
def test_mazes_are_as_hard_as_wished_and_no_side_of_a_held_out_one_is_trained_on(keys: dict[str, int]) -> None:
    environment = world(**keys, train_tasks=80, held_out_tasks=20)
    parts = [environment.tasks(split) for split in ("train", "validation", "test")]  # type: ignore[arg-type]
    parts.append(list(islice(environment.demonstrations(), 40)))
    assert [len(part) for part in parts] == [80, 20, 20, 40]
    sides = [{canonical_text(task.data["map"]) for task in part} for part in parts]
    assert len(set.union(*sides)) == sum(map(len, parts))
    for task in parts[0]:
        goal = next((r, row.index("G")) for r, row in enumerate(task.data["map"]) if "G" in row)
        start = next((r, row.index("S")) for r, row in enumerate(task.data["map"]) if "S" in row)
        assert task.data["fewest_moves"] == relaxed(task.data["map"], goal)[start]
        assert keys.get("min_moves", 1) <= task.data["fewest_moves"] <= keys.get("max_moves", 99)
        assert task.prompt == first_shown(environment.start(task, 0)).text
    assert read_tasks(environment, "train")


@pytest.mark.parametrize("walls", [0.0, 0.2, 0.4])
def test_so_many_cells_are_walls(walls: float) -> None:
    cells = "".join("".join(task.data["map"]) for task in world(size=12, walls=walls, train_tasks=60).tasks("train"))
    assert cells.count("#") / len(cells) == pytest.approx(walls, abs=0.04)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("plan_path", {}),
        ("plan_path_single", {}),
        ("plan_path", {"moves": "list", "map_for": [], "distances_for": [], "view": "both", "size": 9}),
        ("plan_path", {"actions": "choices"}),
    ],
)
def test_a_script_of_skill_solves_every_maze_in_the_fewest_steps(name: str, changes: dict[str, object]) -> None:
    table: dict[str, object] = {f"environment.{key}": value for key, value in changes.items()}
    if "actions" in changes:
        table["team"] = {"organization": "turns", "order": "sequential"}
    few = {"models.base.path": "tiny", "environment.train_tasks": 30, "environment.held_out_tasks": 5}
    run = load_recipe(name, changes={**few, **table})
    episodes = by_script(run)
    assert all(episode.success for episode in episodes)
    assert [len(episode.transitions) for episode in episodes] == [e.task.data["fewest_steps"] for e in episodes]
    if "actions" in changes:
        assert all(action.choice is not None for episode in episodes for action in episode.actions[1::2])


def test_a_weak_script_solves_some() -> None:
    solved = [bool(episode.success) for episode in by_script(with_changes("plan_path"), tasks=10, skill=0.65)]
    assert 1 <= sum(solved) <= 9
