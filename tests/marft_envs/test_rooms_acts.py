"""Kitchens of several rooms: what is possible where, what signs say, and what makes two kitchens the same."""

from __future__ import annotations

from random import Random

import pytest

from marft.common.types import Step
from marft_envs.rooms.environment import Rooms, draw_kitchen, symmetry_invariant_text
from marft_envs.rooms.kitchen import KEY, Kitchen, KitchenLayout, items_by_door
from marft_envs.rooms.session import RoomsSession
from tests.marft_envs.test_rooms_world import COOK, PLAIN, acted, changed, opened, played

ROW = {
    "rooms": ["attic", "hall", "pantry", "yard"], "doors": [["attic", "hall"], ["hall", "pantry"], ["pantry", "yard"]],
    "narrow": [], "pot": "attic", "hatch": "yard", "starts": ["hall", "hall"],
}  # fmt: skip


def kitchen(layout: KitchenLayout, **holding: str) -> Kitchen:
    """A kitchen whose players hold this, the first in the room of the pot."""
    made = Kitchen.from_layout(layout, ("cook", "waiter"))
    made.players[0].room = layout.pot
    for player in made.players:
        player.holds = holding.get(player.name, "")
    return made


def possible(made: Kitchen) -> set[str]:
    """What the first player can do, but for ways and waiting."""
    return {act for act in made.possible_actions(made.players[0]) if not act.startswith(("go", "wait"))}


class TestWhatIsPossible:
    def test_soup_is_taken_with_a_plate_alone(self) -> None:
        for holds, acts in (
            ("plate", {"take soup", "put shelf", "drop"}),
            ("leek", {"put shelf", "drop"}),
            ("", set()),
        ):
            made = kitchen(PLAIN, cook=holds)
            made.pot = ["leek"]
            assert possible(made) == acts

    @pytest.mark.parametrize("thing", ["plate", "key", "leek soup"])
    def test_what_is_no_ingredient_does_not_go_into_the_pot(self, thing: str) -> None:
        assert "put pot" in possible(kitchen(PLAIN, cook="leek"))
        assert "put pot" not in possible(kitchen(PLAIN, cook=thing))

    def test_a_pot_holds_as_much_as_a_dish(self) -> None:
        made = kitchen(changed(orders=[["leek", "pea"]]), cook="leek")
        for pot, fits in (([], True), (["leek"], True), (["leek", "pea"], False)):
            made.pot = list(pot)
            assert ("put pot" in possible(made)) is fits
            assert made.has_soup is not fits

    def test_a_shelf_holds_one_thing(self) -> None:
        shift = opened(changed(narrow=[], starts=["pantry", "pantry"]))
        acted(shift, cook="take leek", waiter="take leek")
        shown = acted(shift, cook="put shelf", waiter="put shelf").observation
        assert shift.kitchen.shelves == {"pantry": "leek"}
        assert sum("Too late to put shelf." in view for view in shown.views.values()) == 1
        assert "put shelf" not in shift._possible_actions["cook"]

    def test_what_an_act_came_to_is_told_once(self) -> None:
        shift = opened()
        assert "You cannot serve." in acted(shift, cook="serve", waiter="wait").observation.views["cook"]
        assert "You cannot" not in acted(shift, cook="wait", waiter="wait").observation.views["cook"]

    def test_what_is_said_counts_once_however_long_it_is(self) -> None:
        shift = opened()
        acted(shift, cook="wait; say one two three", waiter="wait; say a")
        step = acted(shift, cook="wait; say four", waiter="wait")
        assert step.info["measures"]["words"] == 3  # type: ignore[index]


class TestProgress:
    @pytest.mark.parametrize(("pot", "share"), [
        ([], 0.0), (["leek"], 1 / 8), (["leek", "pea"], 2 / 8), (["pea", "rice"], 2 / 8), (["leek", "leek"], 0.0),
        (["leek", "rice"], 0.0), (["tomato"], 0.0),
    ])  # fmt: skip
    def test_what_can_become_no_dish_counts_for_nothing(self, pot: list[str], share: float) -> None:
        made = kitchen(changed(orders=[["leek", "pea"], ["pea", "rice"]]))
        made.pot = pot
        assert made.progress() == share


class TestSigns:
    def test_they_say_where_the_nearest_one_is(self) -> None:
        sources = {"attic": ["plate"], "yard": ["plate", "leek"]}
        assert items_by_door(kitchen(changed(**ROW, sources=sources)), "hall") == {
            "attic": ["pot", "plate"], "pantry": ["hatch", "leek"]
        }  # fmt: skip
        assert items_by_door(kitchen(changed(**ROW, sources=sources)), "pantry")["yard"] == ["hatch", "plate", "leek"]

    def test_keys_and_crates_are_on_them_while_they_are_there(self) -> None:
        layout = changed(**ROW, locked=[["pantry", "yard"]], keys=["pantry"], crates={"attic": "hall"})
        made = kitchen(layout)
        assert [KEY in items_by_door(made, "hall")["pantry"], "crate" in items_by_door(made, "hall")["attic"]] == [
            True,
            True,
        ]
        made.shelves.clear()
        made.crates.clear()
        assert [KEY in items_by_door(made, "hall")["pantry"], "crate" in items_by_door(made, "hall")["attic"]] == [
            False,
            False,
        ]
        made.shelves["attic"] = KEY
        assert KEY in items_by_door(made, "hall")["attic"]


class TestDrawing:
    @pytest.mark.parametrize("changes", [
        {"keys": ["hall"], "locked": [["kitchen", "pantry"]]}, {"crates": {"pantry": "kitchen"}},
        {"crates": {"kitchen": "pantry"}}, {"sources": {"pantry": ["plate"], "hall": ["leek"]}}, {"pot": "hall"},
        {"sources": {"pantry": ["leek", "pea"], "hall": ["plate"]}}, {"orders": [["leek", "leek"]]},
    ])  # fmt: skip
    def test_whatever_else_is_otherwise_makes_another_kitchen(self, changes: dict[str, object]) -> None:
        others = [PLAIN, changed(crates={"kitchen": "hall"}), changed(keys=["pantry"], locked=[["kitchen", "pantry"]])]
        assert symmetry_invariant_text(changed(**changes)) not in {symmetry_invariant_text(other) for other in others}

    def test_a_kitchen_has_what_its_level_says(self) -> None:
        level = Rooms(rooms=4, orders=3, size=1, others=2, narrow=0.3, loops=1, locked=1, crates=1, slack=0.5)
        for seed in range(5):
            layout, deadline, _ = draw_kitchen(Random(seed), level)
            wanted = {thing for order in layout.orders for thing in order}
            there = [thing for things in layout.sources.values() for thing in things]
            assert len(set(layout.orders)) == len(wanted) == 3
            assert len(there) == len(set(there)) == 3 + 2 + 1
            assert wanted | {"plate"} <= set(there)
            assert (len(layout.doors), len(layout.locked), len(layout.keys), len(layout.crates)) == (4, 1, 1, 1)
            _, tight, _ = draw_kitchen(Random(seed), level.model_copy(update={"slack": 0.0}))
            assert tight < deadline <= tight * 1.5 + 1


def test_a_full_pot_is_soup_after_its_time_and_at_once_where_it_takes_none() -> None:
    for boil in (0, 2):
        layout = changed(sources={"kitchen": ["leek", "plate"]}, hatch="kitchen", starts=["kitchen"])
        shift = opened(layout, rules=COOK.model_copy(update={"boil": boil}))
        for text in ("take leek", "put pot"):
            acted(shift, cook=text)
        cooked = []
        for _ in range(4):
            cooked.append(shift.kitchen.has_soup)
            acted(shift, cook="wait")
        assert cooked == [False] * boil + [True] * (4 - boil)


@pytest.mark.parametrize("table", [{}, {"walk": 3}, {"order": "sequential"}], ids=str)
def test_the_steps_that_a_task_says_are_those_of_players_who_see_one_room(
    table: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment, steps = Rooms(train_tasks=3, held_out_tasks=1, **table), list[Step]()  # type: ignore[arg-type]
    whole = RoomsSession.step_sync
    monkeypatch.setattr(
        RoomsSession, "step_sync", lambda shift, lines: steps.append(step := whole(shift, lines)) or step
    )
    for task in environment.tasks("train"):
        steps.clear()
        played(environment, task, skill=1.0)
        assert len(steps) == task.data["fewest_steps"]
