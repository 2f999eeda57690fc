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

from marft.common.types import JointAction, Step, Task
from marft.config import load_recipe
from marft.envs.scripted_policy import PolicyInput
from marft_envs.rooms.environment import Rooms, draw_kitchen, simulate_run, symmetry_invariant_text
from marft_envs.rooms.kitchen import KitchenLayout, layout_from_dict
from marft_envs.rooms.session import RoomsSession
from marft_envs.rooms.views import parse_action, parse_actions, parse_view
from marft_lab.scripted_team import ScriptedTeam
from tests.episodes import make_action
from tests.nights import some

TWO = Rooms()
COOK = Rooms.model_construct(players=("cook",))
PLAIN = KitchenLayout(
    rooms=("hall", "kitchen", "pantry"), doors=(("hall", "kitchen"), ("kitchen", "pantry")), narrow=("kitchen",),
    sources={"pantry": ("leek",), "hall": ("plate",)}, pot="kitchen", hatch="hall", starts=("pantry", "hall"),
    orders=(("leek",),),
)  # fmt: skip
HARD = [
    {"orders": 3},
    {"players": ("a", "b", "c"), "rooms": 5, "orders": 2, "size": 2},
    {"order": "sequential", "walk": 2, "boil": 2},
    {"actions": "choose", "orders": 2},
    {"crates": 1, "rooms": 4},
    {"locked": 1, "rooms": 4, "loops": 1},
    {"controller": "solver", "walk": 2},
    {"controller": "solver", "actions": "choose", "order": "sequential"},
]


def acted(shift: RoomsSession, **texts: str) -> Step:
    actions = tuple(make_action(agent=role, text=text) for role, text in texts.items())
    return asyncio.run(shift.step(JointAction(None, actions)))


def opened(layout: KitchenLayout = PLAIN, deadline: int = 30, rules: Rooms = TWO) -> RoomsSession:
    shift = RoomsSession(layout, deadline, rules)
    asyncio.run(shift.reset())
    return shift


def changed(**changes: object) -> KitchenLayout:
    return layout_from_dict({**PLAIN.to_dict(), **changes})


def played(environment: Rooms, task: Task, skill: float, seed: int = 0) -> tuple[Step, float]:
    shift, script, random, earned = environment.start(task, 0), environment.script(skill), Random(seed), 0.0
    shown = shift.reset_sync()
    for number in range(1000):
        texts = {
            role: script(
                PolicyInput(
                    task, role, number, [{"content": shown.for_role(role)}], random, shown.options.get(role, ())
                )
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
    contents = [
        {symmetry_invariant_text(layout_from_dict(t.data)) for t in one.tasks(s)}
        for s in ("train", "validation", "test")
    ]  # type: ignore[arg-type]
    assert [len(part) for part in contents] == [30, 10, 10]
    assert len(set.union(*contents)) == 50
    task = one.tasks("train")[0]
    assert json.loads(json.dumps(task.data)) == task.data
    told = {"deadline", "fewest_steps"}
    assert layout_from_dict(task.data).to_dict() == {key: value for key, value in task.data.items() if key not in told}


def test_there_are_as_many_kitchens_as_tasks_are_asked_for() -> None:
    drawn = [Rooms().generate_task(Random(seed)).content for seed in range(200)]
    assert len(set(drawn)) > 190  # of about twenty thousand


def test_a_kitchen_is_the_same_whatever_its_rooms_and_ingredients_are_called() -> None:
    names = {"hall": "yard", "kitchen": "attic", "pantry": "porch", "leek": "pea"}

    def renamed(value: object) -> object:
        if isinstance(value, Mapping):
            return {names.get(key, key): renamed(each) for key, each in value.items()}
        if isinstance(value, list):
            return [renamed(each) for each in value]
        return names.get(value, value)  # type: ignore[call-overload]

    plain = {key: renamed(value) for key, value in PLAIN.to_dict().items()}
    plain["doors"] = [sorted(each) for each in plain["doors"]]  # type: ignore[attr-defined]
    other = layout_from_dict(plain)
    assert symmetry_invariant_text(other) == symmetry_invariant_text(PLAIN)
    for changes in (
        {"narrow": []},
        {"hatch": "pantry"},
        {"starts": ["hall", "hall"]},
        {"locked": [["hall", "kitchen"]]},
    ):
        assert symmetry_invariant_text(changed(**changes)) != symmetry_invariant_text(PLAIN)
    assert symmetry_invariant_text(changed(starts=["hall", "pantry"])) == symmetry_invariant_text(
        PLAIN
    )  # who is where does not count


class TestRules:
    def test_a_narrow_room_holds_one(self) -> None:
        shift = opened()
        acted(shift, cook="take leek", waiter="take plate")
        shown = acted(shift, cook="go kitchen", waiter="go kitchen").observation  # at time 1 the waiter comes first
        assert "The kitchen was full." in shown.views["cook"]
        assert "You are in the narrow kitchen and hold plate." in shown.views["waiter"]
        assert shift.kitchen.conflicts == 1

    def test_who_leaves_makes_room_for_whoever_comes_after(self) -> None:
        shift = opened(changed(starts=["kitchen", "hall"]))
        step = acted(shift, cook="go pantry", waiter="go kitchen")
        assert step.info["measures"]["conflicts"] == 0
        assert "in the narrow kitchen" in step.observation.views["waiter"]

    def test_a_door_lets_one_through_at_a_time(self) -> None:
        shift = opened(changed(narrow=[], starts=["hall", "kitchen"]))
        shown = acted(shift, cook="go kitchen", waiter="go hall").observation
        assert "The door to the hall was in use." in shown.views["waiter"]

    def test_soup_is_what_is_in_the_pot_and_counts_where_it_was_ordered(self) -> None:
        shift = opened(changed(sources={"pantry": ["leek", "pea"], "hall": ["plate"]}, narrow=[]))
        for cook, waiter in (
            ("take pea", "take plate"),
            ("go kitchen", "wait"),
            ("put pot", "go kitchen"),
            ("wait", "take soup"),
        ):
            step = acted(shift, cook=cook, waiter=waiter)
        assert "hold pea soup" in step.observation.views["waiter"]
        acted(shift, waiter="go hall", cook="wait")
        step = acted(shift, waiter="serve", cook="wait")
        assert "Nobody ordered pea soup." in step.observation.views["waiter"]
        assert (step.reward, step.success, step.info["progress"]) == (0.0, False, 0.0)
        assert step.info["measures"]["mistakes"] == 1

    def test_a_crate_takes_two(self) -> None:
        shift = opened(changed(crates={"pantry": "kitchen"}, starts=["pantry", "pantry"]))
        assert (
            "To the narrow kitchen (behind a crate)"
            in acted(shift, cook="lift", waiter="wait").observation.views["cook"]
        )
        assert "You cannot go kitchen." in acted(shift, cook="go kitchen", waiter="wait").observation.views["cook"]
        shown = acted(shift, cook="lift", waiter="lift").observation
        assert "crate" not in shown.views["cook"]

    def test_a_locked_door_takes_the_key(self) -> None:
        shift = opened(changed(locked=[["kitchen", "pantry"]], keys=["pantry"]))
        assert "(locked)" in acted(shift, cook="go kitchen", waiter="wait").observation.views["cook"]
        acted(shift, cook="take key", waiter="wait")
        shown = acted(shift, cook="open kitchen", waiter="wait").observation
        assert "(locked)" not in shown.views["cook"]
        assert "hold nothing" in shown.views["cook"]

    def test_a_shelf_passes_one_thing_on(self) -> None:
        shift = opened(changed(narrow=[], starts=["pantry", "pantry"]))
        acted(shift, cook="take leek", waiter="wait")
        assert "leek on the shelf" in acted(shift, cook="put shelf", waiter="wait").observation.views["waiter"]

    def test_a_pot_takes_its_time(self) -> None:
        layout = changed(sources={"kitchen": ["leek", "plate"]}, hatch="kitchen", starts=["kitchen"])
        shift = opened(layout, rules=COOK.model_copy(update={"boil": 2}))
        for text in ("take leek", "put pot"):
            shown = acted(shift, cook=text).observation
        assert "pot (cooking)" in shown.views["cook"]
        acted(shift, cook="take plate")
        assert "You cannot take soup." in acted(shift, cook="take soup").observation.views["cook"]
        assert "hold leek soup" in acted(shift, cook="take soup").observation.views["cook"]

    def test_who_lifted_a_moment_ago_does_not_lift_any_more(self) -> None:
        shift = opened(changed(crates={"pantry": "kitchen"}, starts=["pantry", "pantry"]))
        acted(shift, cook="lift", waiter="wait")
        assert "crate" in acted(shift, cook="wait", waiter="lift").observation.views["cook"]

    def test_a_door_is_free_again_a_moment_later(self) -> None:
        shift = opened(changed(narrow=[], starts=["pantry", "hall"]))
        acted(shift, cook="go kitchen", waiter="wait")
        assert acted(shift, cook="go pantry", waiter="wait").info["measures"]["conflicts"] == 0

    def test_who_is_in_the_way_costs_a_moment_and_not_the_walk(self) -> None:
        shift = opened(changed(starts=["pantry", "kitchen"]), rules=Rooms(walk=3))
        assert acted(shift, cook="go kitchen", waiter="wait").observation.turn == ("cook", "waiter")

    def test_a_key_is_never_lost(self) -> None:
        shift = opened(changed(locked=[["kitchen", "pantry"]], keys=["pantry"]))
        acted(shift, cook="take key", waiter="wait")
        assert "You cannot drop." in acted(shift, cook="drop", waiter="wait").observation.views["cook"]

    def test_work_counts_by_its_stages(self) -> None:
        shift = opened(changed(narrow=[]))
        done = []
        for cook, waiter in (
            ("take leek", "take plate"), ("go kitchen", "go kitchen"), ("put pot", "wait"), ("wait", "take soup"),
            ("wait", "go hall"), ("wait", "serve"),
        ):  # fmt: skip
            done.append(acted(shift, cook=cook, waiter=waiter).info["progress"])
        assert done == pytest.approx([0, 0, 1 / 3, 2 / 3, 2 / 3, 1])

    def test_who_chooses_calls_out_what_is_cooked_and_taken(self) -> None:
        shift = opened(changed(narrow=[], starts=["kitchen", "kitchen"]), rules=Rooms(actions="choose"))
        shift.kitchen.players[0].holds, shift.kitchen.players[1].holds = "leek", "plate"
        shift.reset_sync()
        shown = acted(shift, cook="put pot", waiter="wait").observation
        assert "cook said: leek soup is ready" in shown.views["waiter"]
        assert "take soup" in shown.options["waiter"]
        shown = acted(shift, cook="wait", waiter="take soup; say nothing of it").observation
        assert "waiter said: leek soup is taken" in shown.views["cook"]

    def test_what_fails_is_not_called_out(self) -> None:
        shift = opened(rules=Rooms(actions="choose"))
        shown = acted(shift, cook="put pot", waiter="wait").observation
        assert "said" not in shown.views["waiter"]

    def test_only_what_was_ordered_is_served_by_the_deadline(self) -> None:
        shift = opened(deadline=2)
        assert not acted(shift, cook="wait", waiter="wait").terminated
        step = acted(shift, cook="wait", waiter="wait")
        assert (step.terminated, step.success, step.reward) == (True, False, 0.0)

    def test_the_way_through_a_door_may_take_longer_and_then_others_act_alone(self) -> None:
        shift = opened(rules=Rooms(walk=2))
        assert acted(shift, cook="go kitchen", waiter="take plate").observation.turn == ("waiter",)

    def test_one_after_another_sees_what_came_of_the_one_before(self) -> None:
        shift = opened(
            changed(starts=["pantry", "pantry"], narrow=[]),
            rules=Rooms(order="sequential"),
        )
        shown = acted(shift, cook="go kitchen").observation
        assert shown.turn == ("waiter",)
        assert "cook" not in shown.views["waiter"]

    def test_time_that_is_left_may_pay(self) -> None:
        layout = changed(sources={"kitchen": ["leek", "plate"]}, hatch="kitchen", starts=["kitchen"])
        shift = opened(layout, 10, COOK.model_copy(update={"time_bonus": 0.5}))
        for text in ("take leek", "put pot", "take plate", "take soup"):
            acted(shift, cook=text)
        step = acted(shift, cook="serve")
        assert (step.success, step.reward) == (True, pytest.approx(0.5 + 0.5 * 5 / 10))

    def test_work_on_the_way_may_pay_until_it_is_undone(self) -> None:
        layout = changed(sources={"kitchen": ["leek", "plate"]}, hatch="kitchen", starts=["kitchen"])
        for said, reward in (
            (("put pot",), 1 / 3), (("put pot", "take plate", "take soup"), 2 / 3),
            (("put pot", "take plate", "take soup", "drop"), 0),
            (("put pot", "take plate", "take soup", "serve"), 1),
        ):  # fmt: skip
            shift = opened(layout, 10, COOK.model_copy(update={"reward": "progress"}))
            acted(shift, cook="take leek")
            assert sum(acted(shift, cook=text).reward for text in said) == pytest.approx(reward)


class TestWords:
    def test_what_is_said_is_heard_by_others_until_something_else_is(self) -> None:
        shift = opened()
        acted(shift, cook="take leek; say Coming!", waiter="wait")
        shown = acted(shift, cook="wait", waiter="wait").observation
        assert "cook said: Coming!" in shown.views["waiter"]
        assert "You said: Coming!" in shown.views["cook"]
        assert "cook said" not in shown.views["cook"]

    def test_nobody_says_more_than_is_heard(self) -> None:
        shown = acted(opened(), cook="wait; say " + "x" * 500, waiter="wait").observation
        assert "cook said: " + "x" * 100 + "\n" in shown.views["waiter"] + "\n"

    @pytest.mark.parametrize(
        "text", ["", "dance", "go", "go moon", "take", "say", "🍲", "put", "open hall", "serve", "x" * 5000]
    )
    def test_what_is_no_action_costs_the_turn_and_is_told(self, text: str) -> None:
        shift = opened()
        step = acted(shift, cook=text, waiter="wait")
        told = step.observation.views["cook"].splitlines()[0]
        assert told.startswith(("You cannot", "That was no action"))
        assert len(told) < 60
        assert step.info["measures"]["mistakes"] == 1

    def test_an_agent_that_says_nothing_loses_its_turn(self) -> None:
        assert acted(opened(), cook="take leek").info["measures"]["mistakes"] == 1

    @given(st.text(max_size=60), st.text(max_size=60))
    @settings(max_examples=30)
    def test_any_text_is_an_action_or_told_that_it_is_none(self, one: str, two: str) -> None:
        shift = opened()
        step = acted(shift, cook=one, waiter=two)
        assert step.observation.turn == ("cook", "waiter")
        assert parse_view(step.observation.for_role("cook")).room == shift.kitchen.players[0].room

    def test_one_agent_speaks_for_all_by_name(self) -> None:
        assert parse_actions("Cook: take leek; say hello\nwaiter: wait", ["cook", "waiter"]) == {
            "cook": parse_action("take leek; say hello"), "waiter": parse_action("wait")
        }  # fmt: skip
        shift = opened(rules=Rooms(controller="solver"))
        shown = acted(shift, solver="cook: take leek\nwaiter: take plate").observation
        assert shown.turn == ("solver",)
        views = [parse_view(shown.for_role("solver"), name, ("cook", "waiter")) for name in ("cook", "waiter")]
        assert [view.holds for view in views] == ["leek", "plate"]


class TestDrawing:
    def test_a_kitchen_in_which_players_get_stuck_is_none(self) -> None:
        stuck = changed(
            narrow=["kitchen", "hall", "pantry"],
            starts=["pantry", "kitchen"],
            sources={"hall": ["plate", "leek"]},
            hatch="pantry",
        )
        assert simulate_run(stuck, TWO) == (0, 0)
        assert min(simulate_run(PLAIN, TWO)) > 0

    def test_what_can_never_be_run_is_refused_in_words(self) -> None:
        level = Rooms(rooms=2, orders=1, size=1, others=0, narrow=1.0, loops=0, locked=0, crates=1, slack=0.0)
        with pytest.raises(ValueError, match="make fewer rooms narrow, or shut fewer doors"):
            draw_kitchen(Random(0), level)

    @pytest.mark.parametrize(
        ("table", "words"),
        [
            ({"players": ("a",)}, "at least 2 items"),
            ({"controller": "s", "actions": "choose"}, "one after another"),
            ({"orders": 0}, "greater than or equal to 1"),
            ({"players": ("Cook", "cook")}, "differ in more than case"),
            ({"players": ("you", "cook")}, "be no word of the views"),
            ({"players": ("crate", "cook")}, "be no word of the views"),
            ({"players": ("a: b", "cook"), "controller": "boss"}, "must be words"),
            ({"rooms": 99}, "less than or equal to"),
        ],
    )
    def test_what_cannot_be_meant_is_refused(self, table: dict[str, object], words: str) -> None:
        with pytest.raises(ValidationError, match=words):
            Rooms(**table)  # type: ignore[arg-type]

    def test_a_player_that_nobody_plays_is_named(self) -> None:
        assert list(Rooms().problems(["cook", "waiter"])) == []
        assert "no agent is called 'waiter'; did you mean 'waiters'?" in next(
            iter(Rooms().problems(["cook", "waiters"]))
        )
        assert "controller" in next(iter(Rooms(controller="boss").problems(["cook", "waiter"])))


@pytest.mark.parametrize("name", ["rooms", "rooms_single"])
def test_the_recipes_team_is_played_by_the_script(name: str) -> None:
    run = load_recipe(
        name, changes={"models.base.path": "tiny", "environment.train_tasks": 3, "environment.held_out_tasks": 1}
    )
    with ScriptedTeam(run, run.environment.script(1.0)) as team:
        episodes = list(team.play(run.environment.tasks("train")))  # type: ignore[attr-defined]
    assert all(episode.success for episode in episodes), [episode.error for episode in episodes]
