"""Services with tools: what small databases allow, what it costs, and who is told what."""

from __future__ import annotations

import json
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from marft_envs.tool_use.airline import Airline
from marft_envs.tool_use.benchmarks import load_benchmark
from marft_envs.tool_use.class_toolbox import build_toolbox_class
from marft_envs.tool_use.retail import Retail
from marft_envs.tool_use.retail_goals import generate_retail_tables
from marft_envs.tool_use.toolbox import EpisodeTables, Error
from tests.conversations import Played, environment, wants
from tests.marft_envs.test_tool_use_files import leaderboard

DAY, NEXT = "2024-05-20", "2024-05-21"
CABINS = ("basic_economy", "economy", "business")


def on(**changes: Any) -> dict[str, Any]:
    """A flight on a day."""
    seats, prices = dict.fromkeys(CABINS, 5), dict(zip(CABINS, (60, 100, 300), strict=True))
    return {"status": "available", "available_seats": seats, "prices": prices, **changes}


def flight(number: str, origin: str, destination: str, leaves: str, lands: str, **dates: Any) -> dict[str, Any]:
    return {
        "flight_number": number, "origin": origin, "destination": destination, "scheduled_departure_time_est": leaves,
        "scheduled_arrival_time_est": lands, "dates": {day.removeprefix("d").replace("_", "-"): one for day, one in dates.items()},
    }  # fmt: skip


ANN = {"first_name": "Ann", "last_name": "A", "dob": "1990-01-01"}
BEA = {"first_name": "Bea", "last_name": "B", "dob": "1991-01-01"}
BASE: dict[str, Any] = {
    "users": {"u": {
        "user_id": "u", "name": {"first_name": "Ann", "last_name": "A"}, "membership": "gold", "reservations": ["R"],
        "payment_methods": {
            "card": {"source": "credit_card", "id": "card"}, "gift_card_1": {"source": "gift_card", "amount": 400, "id": "gift_card_1"},
            "certificate_1": {"source": "certificate", "amount": 900, "id": "certificate_1"},
        },
    }},
    "flights": {
        "F1": flight("F1", "SFO", "JFK", "20:00:00", "02:00:00+1", d2024_05_20=on()),
        "F2": flight("F2", "JFK", "BOS", "06:00:00", "07:00:00", d2024_05_20=on(), d2024_05_21=on()),
    },
    "reservations": {"R": {
        "reservation_id": "R", "user_id": "u", "origin": "SFO", "destination": "JFK", "flight_type": "one_way", "cabin": "economy",
        "flights": [{"flight_number": "F1", "date": DAY, "price": 100, "origin": "SFO", "destination": "JFK"}], "passengers": [ANN, BEA],
        "payment_history": [{"payment_id": "card", "amount": 200}], "created_at": "2024-05-01T00:00:00", "total_baggages": 0,
        "nonfree_baggages": 0, "insurance": "no",
    }},
}  # fmt: skip
FIRST = {"flight_number": "F1", "date": DAY}


class TestAirline:
    def booked(self, base: dict[str, Any], pays: float, **changes: Any) -> Any:
        keys = {
            "user_id": "u", "origin": "SFO", "destination": "JFK", "flight_type": "one_way", "cabin": "economy", "flights": [FIRST],
            "passengers": [ANN, BEA], "payment_methods": [{"payment_id": "card", "amount": pays}], "total_baggages": 0,
            "nonfree_baggages": 0, "insurance": "no",
        }  # fmt: skip
        return Airline(EpisodeTables(base)).book_reservation(**{**keys, **changes})

    def test_who_lands_after_midnight_flies_on_the_next_day(self) -> None:
        ((first, second),) = Airline(EpisodeTables(BASE)).search_onestop_flight("SFO", "BOS", DAY)
        assert (first["flight_number"], first["date"]) == ("F1", DAY)
        assert (second["flight_number"], second["date"]) == ("F2", NEXT)

    @pytest.mark.parametrize(("changes", "price"), [
        ({}, 200), ({"insurance": "yes"}, 260), ({"total_baggages": 6}, 200), ({"cabin": "business", "passengers": [ANN]}, 300),
        ({"insurance": "yes", "total_baggages": 8, "nonfree_baggages": 2}, 360),
    ])  # fmt: skip
    def test_seats_insurance_and_bags_are_paid_for_everybody(self, changes: dict[str, Any], price: int) -> None:
        assert self.booked(BASE, price, **changes)["payment_history"][0]["amount"] == price
        with pytest.raises(Error, match=f"total price is {price}, but paid {price - 30}"):
            self.booked(BASE, price - 30, **changes)

    @pytest.mark.parametrize(("day", "words"), [
        (on(available_seats={"economy": 1}), "not enough seats on flight F1"), (on(status="delayed"), "F1 not available"),
        (on(available_seats={"business": 3}), "no cabin is called economy"),
    ])  # fmt: skip
    def test_a_flight_without_seats_for_all_or_that_does_not_go_is_not_booked(self, day: Any, words: str) -> None:
        base = deepcopy(BASE)
        base["flights"]["F1"]["dates"][DAY] = day
        with pytest.raises(Error, match=words):
            self.booked(base, 200)

    def test_a_change_is_paid_by_what_covers_it_and_no_certificate(self) -> None:
        for method, words in (("certificate_1", "certificate cannot be used"), ("gift_card_1", ""), ("card", "")):
            for held in (400, 399):  # what two seats in business cost more
                base = deepcopy(BASE)
                base["users"]["u"]["payment_methods"]["gift_card_1"]["amount"] = held
                tables = EpisodeTables(base)
                short = words or ("gift card balance is not enough" if method == "gift_card_1" and held < 400 else "")
                if short:
                    with pytest.raises(Error, match=short):
                        Airline(tables).update_reservation_flights("R", "business", [FIRST], method)  # type: ignore[list-item]
                    assert tables.changes() == {}
                else:
                    done = Airline(tables).update_reservation_flights("R", "business", [FIRST], method)  # type: ignore[list-item]
                    assert done["payment_history"][-1] == {"payment_id": method, "amount": 400}

    def test_as_many_fly_as_before(self) -> None:
        for people in ([ANN], [ANN, BEA, BEA], []):
            with pytest.raises(Error, match="number of passengers does not match"):
                Airline(EpisodeTables(BASE)).update_reservation_passengers("R", people)  # type: ignore[arg-type]
        assert Airline(EpisodeTables(BASE)).update_reservation_passengers("R", [BEA, ANN])["passengers"] == [BEA, ANN]  # type: ignore[list-item]


class TestRetail:
    def test_nobody_is_found_under_another_zip_code(self) -> None:
        tools = Retail(EpisodeTables(generate_retail_tables(3)))
        user = next(iter(tools.tables.rows("users")))
        names = user["name"]["first_name"].upper(), user["name"]["last_name"].upper()
        assert tools.find_user_id_by_name_zip(*names, user["address"]["zip"]) == user["user_id"]
        with pytest.raises(Error, match="user not found"):
            tools.find_user_id_by_name_zip(*names, "00000x")

    @pytest.mark.parametrize("dearer", [True, False])
    def test_changed_items_are_paid_by_a_gift_card_or_given_back_to_it(self, dearer: bool) -> None:
        tables = EpisodeTables(generate_retail_tables(3))
        tools, seen = Retail(tables), 0
        for order in [one for one in tables.rows("orders") if one["status"] == "pending"]:
            item, user = order["items"][0], tables.edit("users", order["user_id"])
            card = next(one for one in user["payment_methods"] if "gift" in one)
            user["payment_methods"][card]["balance"] = 5000.0
            variants = tools.get_product_details(item["product_id"])["variants"].values()
            new = next((v for v in variants if v["available"] and v["price"] != item["price"] and (v["price"] > item["price"]) is dearer), None)  # fmt: skip
            if new:
                more, seen = round(new["price"] - item["price"], 2), seen + 1
                done = tools.modify_pending_order_items(order["order_id"], [item["item_id"]], [new["item_id"]], card)
                kind = "payment" if dearer else "refund"
                assert done["payment_history"][-1] == {
                    "transaction_type": kind, "amount": abs(more), "payment_method_id": card
                }  # fmt: skip
                assert user["payment_methods"][card]["balance"] == pytest.approx(5000 - more)
        assert seen

    def test_the_order_in_which_items_are_named_makes_no_difference(self) -> None:
        base = generate_retail_tables(3)
        order = next(o for o in base["orders"].values() if o["status"] == "delivered" and len(o["items"]) > 1)
        ids, card = [one["item_id"] for one in order["items"]], order["payment_history"][0]["payment_method_id"]
        news = [
            next(v["item_id"] for v in base["products"][one["product_id"]]["variants"].values() if v["available"])
            for one in order["items"]
        ]
        found = []
        for step in (1, -1):
            one, other = EpisodeTables(base), EpisodeTables(base)
            Retail(one).return_delivered_order_items(order["order_id"], ids[::step], card)
            rich = other.edit("users", order["user_id"])["payment_methods"].get(card, {})
            rich |= {"balance": 9000.0} if "balance" in rich else {}
            Retail(other).exchange_delivered_order_items(order["order_id"], ids[::step], news[::step], card)
            found.append((one.changes(), other.changes()))
        assert found[0] == found[1]


class TestWhoIsToldWhat:
    def test_others_are_told_of_each_call_once(self) -> None:
        made = environment()
        task = next(iter(wants(made, aim="cancel", writes=True, withheld=False)))
        order = task.data["goals"][0]["facts"]["order"]
        played = Played(made, task)
        played.call("look", id=order)
        assert played.say("Hm.", planner="Look.").observation.views == {"planner": f"look({order})\nAgent: Hm."}
        assert played.say("Well.", planner="Look.").observation.views == {"planner": "Agent: Well."}

    def test_an_agent_that_plays_the_user_is_told_all_that_it_knows_and_no_calls(self) -> None:
        made = environment(user="agent", volunteer_probability=0.0)
        task = next(iter(wants(made, aim="cancel", writes=True)))
        (goal,) = task.data["goals"]
        played = Played(made, task)
        assert all(fact in played.first.views["user"] for fact in goal["facts"].values())
        played.call("look", id=goal["facts"]["order"])
        assert played.say("Cancel it?", user="Yes.", planner="Ask.").observation.views.keys() == {"planner"}

    def test_what_an_agent_agreed_to_it_may_take_back(self) -> None:
        made = environment(user="agent", volunteer_probability=1.0)
        task = next(iter(wants(made, aim="cancel", writes=True)))
        played = Played(made, task)
        played.say("Cancel it?", user="Yes.")
        played.say("Are you sure?", user="No, wait.")
        with pytest.raises(Error, match="the user has not agreed"):
            played.call("cancel", id=task.data["goals"][0]["facts"]["order"])

    def test_users_tell_as_much_at_once_as_they_are_said_to(self) -> None:
        for volunteers, told in ((1.0, True), (0.0, False)):
            for task in islice(environment(world="retail", volunteer_probability=volunteers).demonstrations(), 20):
                known = {slot for goal in task.data["goals"] for slot in goal["withheld"]}
                assert bool(task.data["identity"]["says"]) is told
                assert not known if told else known or "variants" in task.data["goals"][0]["aim"]


def test_all_messages_of_a_turn_are_said(tmp_path: Path) -> None:
    keys = leaderboard(tmp_path)
    row = json.loads((tmp_path / "tasks.json").read_text())
    row["question"][0] = [{"role": "user", "content": "Hello."}, {"role": "user", "content": "Write."}]
    (tmp_path / "tasks.json").write_text(json.dumps(row))
    (task,) = load_benchmark("bfcl", keys["tasks"], "", keys["answers"], "").tasks
    assert task.data["messages"] == ["Hello. Write.", "Go on.", "Count two more."]


class Keeper:
    """What it is given, and adds to."""

    def _load_scenario(self, scenario: dict[str, Any]) -> None:
        self.rows = scenario["rows"]

    def add(self, row: str) -> int:
        """Add a row."""
        self.rows.append(row)
        return len(self.rows)


def test_an_episode_leaves_the_next_one_the_state_that_a_task_begins_with() -> None:
    box, initial = (
        build_toolbox_class({"Keeper": "tests.marft_envs.test_tool_use_rules:Keeper"}),
        {"Keeper": {"rows": ["a"]}},
    )
    for _ in range(2):
        assert box(initial).add("b") == 2  # type: ignore[attr-defined]
    assert initial == {"Keeper": {"rows": ["a"]}}
