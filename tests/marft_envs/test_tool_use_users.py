"""Conversations with users who are simulated: what they say, what counts in the end, and who can play them."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.config.load import load_recipe
from marft_envs.tool_use.airline import Airline
from marft_envs.tool_use.checkers import compute_expected
from marft_envs.tool_use.environment import WORLDS, is_confirmation
from marft_envs.tool_use.goals import GoalSampler
from marft_envs.tool_use.retail import Retail
from marft_envs.tool_use.retail_goals import generate_retail_tables, generate_short_tables
from marft_envs.tool_use.shop import ShopToolbox
from marft_envs.tool_use.toolbox import EpisodeTables, Error, apply_calls, tool_names, write_tool_names
from tests.conversations import Played, environment, scripted, wants
from tests.nights import BY_NIGHT, NIGHT, some


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(Error) as caught:
        call()
    return str(caught.value)


class TestUsers:
    shop = environment()

    def test_a_user_tells_what_it_is_asked_agrees_and_ends(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=True)))
        (goal,), order = task.data["goals"], task.data["goals"][0]["facts"]["order"]
        played = Played(self.shop, task)
        assert played.first.text.endswith("User: Cancel an order.")
        assert played.say("Which order?").observation.text == f"User: It is {order}."
        asked = played.say(f"Cancel {order} for {goal['outputs'][0]} back?")
        assert (asked.observation.text, asked.terminated, asked.info["progress"]) == ("User: Yes.", False, 0.5)
        played.call("cancel", id=order)
        ended = played.say("Done.")
        assert (ended.observation.text, ended.terminated, ended.success, ended.reward) == (
            "User: Thanks. ###STOP###",
            True,
            True,
            1.0,
        )
        assert ended.info["measures"] == {"user_turns": 3.0, "tool_calls": 1.0, "policy_violations": 0.0}
        assert ended.info["right_tools"] == ["cancel", "look"]

    def test_what_was_not_told_yet_is_told_before_anything_is_agreed_to(self) -> None:
        retail = environment(world="retail")
        for task in wants(retail, aim="cancel", writes=True, withheld=True):
            (goal,) = task.data["goals"]
            if goal["withheld"] == ["reason"]:
                break
        played = Played(retail, task)
        asked = played.say(f"Shall I cancel order {goal['facts']['order']}, and for which reason?")
        assert asked.observation.text == f"User: The reason: {goal['facts']['reason']}."
        assert (
            played.say(f"Shall I cancel order {goal['facts']['order']} for this reason?").observation.text
            == "User: Yes."
        )

    def test_nothing_is_written_before_the_user_agrees(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        order = task.data["goals"][0]["facts"]["order"]
        played = Played(self.shop, task)
        assert "has not agreed" in refusal(lambda: played.call("cancel", id=order))
        step = played.say(f"{order} is cancelled.")
        assert (step.terminated, step.success, step.info["measures"]["policy_violations"]) == (True, False, 1.0)
        loose = environment(require_confirmation=False)
        again = Played(loose, task)
        again.call("cancel", id=order)
        assert again.say(f"{order} is cancelled, you get {task.data['goals'][0]['outputs'][0]}.").success

    def test_a_user_agrees_to_nothing_else(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        played = Played(self.shop, task)
        assert played.say("Cancel W1?").observation.text.startswith("User: I still want this: Cancel W")
        assert played.say("Shall I?").observation.text.startswith("User: I still want this")
        ended = played.say("Hello.")
        assert (ended.observation.text, ended.success) == ("User: Never mind. ###STOP###", False)

    def test_whoever_does_nothing_solves_nothing(self) -> None:
        for task in islice(wants(self.shop, writes=False), 20):
            played = Played(self.shop, task)
            for _ in range(8):
                step = played.say("How can I help?")
                if step.terminated:
                    break
            assert (step.terminated, step.success, step.reward) == (True, False, 0.0)

    def test_a_user_that_gives_up_was_not_served(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=False, withheld=False)))
        played = Played(self.shop, task)
        for _ in range(3):
            step = played.say("Some orders are delivered.")
        assert (step.info["progress"], step.terminated, step.success) == (1.0, True, False)

    def test_a_refusal_must_be_right(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=False, withheld=False)))
        order = task.data["goals"][0]["facts"]["order"]
        assert Played(self.shop, task).say(f"Sorry, {order} is delivered.").success
        assert not Played(self.shop, task).say(f"Sorry, {order} is lost.").success
        can = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        assert (
            Played(self.shop, can).say(f"Sorry, {can.data['goals'][0]['facts']['order']} cannot be.").success is False
        )

    def test_a_second_wish_comes_once_the_first_is_settled(self) -> None:
        made = environment(goals=2, joint_goal_probability=0.0, volunteer_probability=1.0)
        task = next(one for one in made.demonstrations() if not any(goal["writes"] for goal in one.data["goals"]))
        first, second = task.data["goals"]
        played = Played(made, task)
        assert played.say(first["report"]).observation.text == f"User: Also: {second['says']}"
        assert played.say(second["report"]).success

    def test_what_was_said_along_with_something_else_is_missed(self) -> None:
        made = environment(goals=2, joint_goal_probability=1.0, volunteer_probability=1.0)
        task = next(one for one in made.demonstrations() if not any(goal["writes"] for goal in one.data["goals"]))
        first, second = task.data["goals"]
        played = Played(made, task)
        assert played.say(first["report"]).observation.text == f"User: I still want this: {second['says']}"

    def test_whoever_asks_what_else_there_is_is_not_agreed_with(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        (goal,) = task.data["goals"]
        played = Played(self.shop, task)
        assert played.say(goal["offer"]).observation.text == "User: Yes."
        played.call("cancel", id=goal["facts"]["order"])
        ended = played.say(f"{goal['report']} Anything else?")
        assert (ended.observation.text, ended.success) == ("User: No, thanks. ###STOP###", True)

    def test_a_yes_holds_for_the_turn_that_it_was_given_for(self) -> None:
        made = environment(goals=2, joint_goal_probability=0.0, volunteer_probability=1.0)
        task = next(one for one in made.demonstrations() if all(goal["writes"] for goal in one.data["goals"]))
        played = Played(made, task)
        played.say(task.data["goals"][0]["offer"])
        for name, arguments in task.data["goals"][0]["writes"]:
            played.call(name, **arguments)
        assert played.say(task.data["goals"][0]["report"]).observation.text.startswith("User: Also:")
        ((name, given),) = task.data["goals"][1]["writes"]
        assert "has not agreed" in refusal(lambda: played.call(name, **given))

    def test_a_conversation_is_cut_off(self) -> None:
        made = environment(max_turns=2, patience=9)
        played = Played(made, next(iter(made.demonstrations())))
        assert not played.say("Hm.").truncated
        step = played.say("Hm.")
        assert (step.truncated, step.terminated, step.success) == (True, False, False)
        ended = Played(environment(max_turns=1, patience=0), next(iter(made.demonstrations()))).say("Hm.")
        assert (ended.truncated, ended.terminated) == (False, True)

    def test_others_are_shown_what_the_agent_did(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        order = task.data["goals"][0]["facts"]["order"]
        played = Played(self.shop, task)
        played.call("look", id=order)
        step = played.say("Hello\nyou.", planner="Look.")
        assert step.observation.views == {"planner": f"look({order})\nAgent: Hello you."}
        assert step.info["allowed_tools"] == {"planner": [], "agent": ["cancel", "look", "refund"]}

    def test_who_never_stops_talking_is_cut_for_others(self) -> None:
        played = Played(self.shop, next(iter(self.shop.demonstrations())))
        view = played.say("x" * 100_000, planner="Look.").observation.views["planner"]
        assert "more characters" in view
        assert len(view) < 3000


@pytest.mark.parametrize(
    ("words", "agrees_to_it"),
    [
        ("Yes.", True),
        ("OK, go ahead!", True),
        ("yes please", True),
        ("No.", False),
        ("Yes, but not that one", False),
        ("Yesterday", False),
        ("", False),
    ],
)
def test_what_agrees_is_a_yes_without_a_no(words: str, agrees_to_it: bool) -> None:
    assert is_confirmation(words) == agrees_to_it


class TestWhatCounts:
    def test_something_else_that_was_changed_spoils_it(self) -> None:
        made = environment(reward="fraction", require_confirmation=False)
        task = next(iter(wants(made, aim="cancel", writes=True, withheld=False)))
        order, total = task.data["goals"][0]["facts"]["order"], task.data["goals"][0]["outputs"][0]
        other = next(
            name
            for name, one in generate_short_tables(task.data["database"])["orders"].items()
            if one["status"] == "delivered"
        )
        right, spoilt = Played(made, task), Played(made, task)
        right.call("cancel", id=order)
        spoilt.call("cancel", id=order)
        item = generate_short_tables(task.data["database"])["orders"][other]["items"][0]["item_id"]
        spoilt.call("refund", id=other, item=item)
        ends = [one.say(f"{order} is cancelled for {total}.") for one in (right, spoilt)]
        assert [(one.success, one.reward, one.info["progress"]) for one in ends] == [
            (True, 1.0, 1.0),
            (False, 0.0, 1.0),
        ]

    def test_parts_add_up_to_what_was_done(self) -> None:
        made = environment(reward="fraction")
        task = next(iter(wants(made, aim="cancel", writes=True, withheld=False)))
        order, total = task.data["goals"][0]["facts"]["order"], task.data["goals"][0]["outputs"][0]
        played = Played(made, task)
        rewards = [played.say(f"Cancel {order} for {total} back?").reward, played.say("Done.").reward]
        assert rewards == [0.5, 0.0]

    def test_a_write_that_a_later_one_overrides_is_no_part(self) -> None:
        base = {"users": {}, "orders": generate_retail_tables(3)["orders"], "products": {}}
        order = next(name for name, one in base["orders"].items() if one["status"] == "pending")
        address = dict.fromkeys(("address1", "address2", "city", "state", "country", "zip"), "x")

        def fresh() -> Retail:
            return Retail(EpisodeTables(base))

        calls = [["modify_pending_order_address", {"order_id": order, **address, "city": city}] for city in ("a", "b")]
        found = compute_expected(fresh, calls, ["1,234"])
        assert len(found.write_paths) == 2
        other = [calls[0][0], {"order_id": order, **dict.fromkeys(address, "y")}]
        assert len(compute_expected(fresh, [calls[0], other], []).write_paths) == 1
        tables = fresh().tables
        assert found.completed_fraction(tables.changes(), "") == 0.0
        box = Retail(tables)
        apply_calls(box, calls[1:])
        assert found.completed_fraction(tables.changes(), "") == pytest.approx(2 / 3)
        assert found.is_solved(tables.changes(), "It is 1234.")

    def test_a_reference_that_is_refused_leaves_nothing(self) -> None:
        tables = EpisodeTables(generate_retail_tables(3))
        apply_calls(
            Retail(tables),
            [["cancel_pending_order", {"order_id": "none", "reason": "x"}], ["cancel_pending_order", {"a": 1}]],
        )
        assert tables.changes() == {}


class TestTasks:
    @pytest.mark.parametrize("world", WORLDS)
    def test_they_are_the_same_again_and_splits_share_none(self, world: str) -> None:
        made = [environment(world=world, goals=2, train_tasks=6, held_out_tasks=2) for _ in range(2)]
        one, other = ([task.data for split in ("train", "validation", "test") for task in m.tasks(split)] for m in made)
        assert one == other
        assert len({json.dumps(data, sort_keys=True) for data in one}) == len(one) == 10
        assert json.loads(json.dumps(one)) == one

    @pytest.mark.parametrize("world", WORLDS)
    @given(seed=st.integers(0, 2**32))
    def test_every_goal_can_be_served_under_the_rules(self, world: str, seed: int) -> None:
        random, of = Random(seed), WORLDS[world]
        base = of.generate_tables(seed % 7)
        draft = GoalSampler(random, base, base["users"][sorted(base["users"])[0]], 0.5)
        for make in of.goal_generators:
            goal = make(draft)
            if goal is None:
                continue
            tables = EpisodeTables(base)
            box = of.toolbox(tables)
            for name, arguments in [*goal.reads, *goal.writes]:
                getattr(box, name)(**arguments)
            assert bool(tables.changes()) == bool(goal.writes) == bool(goal.offer)
            assert box.violations == []
            whole = f"{goal.offer} {goal.report}".lower()
            assert all(key.lower() in (goal.offer or goal.report).lower() for key in goal.keys), goal
            assert all(output.lower() in whole for output in goal.outputs), goal
            assert set(goal.withheld) <= set(goal.facts)

    def test_tools_that_write_are_told_from_those_that_read(self) -> None:
        assert write_tool_names(ShopToolbox) == {"cancel", "refund"}
        assert tool_names(ShopToolbox) == ("cancel", "look", "refund")
        assert len(write_tool_names(Retail)) == 7
        assert len(write_tool_names(Airline)) == 6


class TestTheScript:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("recipe", "goals", "world"),
        some(
            [
                (*way, world)
                for way in (("tool_use", (1, 2, 3, 4)), ("tool_use_single", (4, 3, 2, 1)))
                for world in WORLDS
            ],
            of=4,
        ),
    )
    def test_one_with_skill_solves_every_task_in_the_fewest_steps(
        self, recipe: str, goals: tuple[int, ...], world: str
    ) -> None:
        keys: dict[str, Any] = {"environment.world": world, "environment.max_turns": 60, "rollout.max_steps": 60}
        for number in goals if NIGHT else goals[:1]:
            keys["environment.goals"] = number
            for episode in scripted(recipe, 1.0, 200 if NIGHT else 3, **keys):
                assert episode.success, episode.error
                assert len(episode.transitions) == episode.task.data["fewest_steps"]
                assert episode.transitions[-1].declared.measures["policy_violations"] == 0

    @BY_NIGHT
    @pytest.mark.slow
    def test_habits_fail_part_of_the_tasks(self) -> None:
        for recipe, low, high in (("tool_use", 0.3, 0.7), ("tool_use_single", 0.5, 0.9)):
            episodes = scripted(recipe, 0.65, 300 if NIGHT else 24)
            assert all(episode.is_scored for episode in episodes)
            assert low < sum(bool(episode.success) for episode in episodes) / len(episodes) < high

    def test_an_agent_may_play_the_user(self) -> None:
        made = load_recipe("tool_use").environment
        user = {
            "role": "user", "policy": "agent", "instructions": "You are a customer.", "memory": "own",
        }  # fmt: skip
        agents = [one.model_dump() for one in load_recipe("tool_use").agents]
        changes = {"agents": [*agents, user], "environment.user": "agent", "team.visible": "previous"}
        episodes = scripted("tool_use", 1.0, 8, made.demonstrations(), **changes)  # type: ignore[attr-defined]
        assert [episode.success for episode in episodes] == [True] * 8, [one.error for one in episodes]
        assert all("###STOP###" in episode.actions[-1].text for episode in episodes)


def test_who_plays_the_user_must_be_there_and_nobody_else() -> None:
    assert list(environment().problems(["planner", "agent"])) == []
    assert "it needs an agent whose role is 'user', named last" in next(
        iter(environment(user="agent").problems(["user", "agent"]))
    )
    assert "it is scripted" in next(iter(environment().problems(["agent", "user"])))
    assert list(environment(user="agent").problems(["agent", "user"])) == []
