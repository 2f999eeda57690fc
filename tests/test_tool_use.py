"""Services with tools over a database: what their tools do and refuse, what a user says, and what counts in the end."""

from __future__ import annotations

import json
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.config.load import load_recipe
from marft.envs.tool_use.airline import FREE_BAGS, Airline
from marft.envs.tool_use.airline_data import airline_tables
from marft.envs.tool_use.arithmetic import value_of
from marft.envs.tool_use.checking import expected
from marft.envs.tool_use.goals import Draft
from marft.envs.tool_use.retail import Retail
from marft.envs.tool_use.retail_data import retail_tables, short_tables
from marft.envs.tool_use.shop import Shop
from marft.envs.tool_use.tables import Tables
from marft.envs.tool_use.toolbox import Error, offered, run, writing
from marft.envs.tool_use.worlds import WORLDS
from tests.conversations import Played, environment, scripted, wants
from tests.nights import NIGHT

TREES = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.none(), lambda inner: st.dictionaries(st.sampled_from("xyz"), inner), max_leaves=5
)
TABLE = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), TREES, min_size=1), max_size=3)


class TestTables:
    @given(TABLE, TABLE)
    def test_what_has_changed_is_what_is_otherwise_however_it_came_about(self, before: Any, after: Any) -> None:
        def written(keys: list[str]) -> Tables:
            tables = Tables({"t": before})
            for key in keys:
                record = tables.edit("t", key) if key in before else {}
                record.clear()
                record.update(after[key])
                if key not in before:
                    tables.put("t", key, record)
            return tables

        one, other = written(sorted(after)), written(sorted(after, reverse=True))
        assert one.digest() == other.digest()
        same = all(before.get(key) == value for key, value in after.items())
        assert (one.changes() == {}) == same

    def test_what_is_shared_is_never_written(self) -> None:
        base = {"t": {"a": {"list": [1], "price": 1.0}}}
        shown = json.dumps(base)
        tables = Tables(base)
        tables.edit("t", "a")["list"].append(2)
        tables.edit("t", "a")["price"] = 1
        assert json.dumps(base) == shown
        assert tables.changes() == {"t/a/list": "[1, 2]"}  # 1.0 and 1 are the same amount

    def test_what_was_changed_back_has_not_changed(self) -> None:
        tables = Tables({"t": {"a": {"x": 1, "y": {"z": 2}}}})
        tables.edit("t", "a")["y"] = {}
        assert tables.changes() == {"t/a/y": "{}", "t/a/y/z": "gone"}
        tables.edit("t", "a")["y"] = {"z": 2}
        assert tables.changes() == {}
        tables.put("t", "b", {"x": 1})
        assert [row["x"] for row in tables.rows("t")] == [1, 1]


def order_that_is(status: str, tables: Tables) -> Any:
    return next(order for order in tables.rows("orders") if order["status"] == status)


def refusal(call: Any, *given: Any) -> str:
    with pytest.raises(Error) as caught:
        call(*given)
    return str(caught.value)


class TestRetail:
    tables: Tables
    tools: Retail

    @pytest.fixture(autouse=True)
    def _world(self) -> None:
        self.tables = Tables(retail_tables(3))
        self.tools = Retail(self.tables)

    def test_a_cancelled_order_is_paid_back_at_once_to_gift_cards_alone(self) -> None:
        for order in [one for one in self.tables.rows("orders") if one["status"] == "pending"]:
            paid = order["payment_history"][0]
            user = self.tools.get_user_details(order["user_id"])
            before = user["payment_methods"][paid["payment_method_id"]].get("balance")
            self.tools.cancel_pending_order(order["order_id"], "ordered by mistake")
            user = self.tools.get_user_details(order["user_id"])
            after = user["payment_methods"][paid["payment_method_id"]].get("balance")
            assert after == (None if before is None else pytest.approx(before + paid["amount"]))
            again = self.tools.get_order_details(order["order_id"])
            assert (again["status"], again["cancel_reason"]) == ("cancelled", "ordered by mistake")
            assert [one["transaction_type"] for one in again["payment_history"]] == ["payment", "refund"]

    @pytest.mark.parametrize("status", ["delivered", "processed"])
    def test_orders_that_are_not_pending_stay_as_they_are(self, status: str) -> None:
        order = order_that_is(status, self.tables)["order_id"]
        assert refusal(self.tools.cancel_pending_order, order, "no longer needed") == "non-pending order cannot be cancelled"
        assert "cannot be modified" in refusal(self.tools.modify_pending_order_payment, order, "x")
        assert "cannot be modified" in refusal(self.tools.modify_pending_order_address, order, *"abcdef")
        assert self.tables.changes() == {}
        assert len(self.tools.broken) == 3

    def test_a_reason_must_be_one_of_two(self) -> None:
        order = order_that_is("pending", self.tables)["order_id"]
        assert refusal(self.tools.cancel_pending_order, order, "bored") == "invalid reason"

    def test_a_return_goes_to_how_it_was_paid_or_to_a_gift_card(self) -> None:
        order = next(
            one for one in self.tables.rows("orders")
            if one["status"] == "delivered" and "gift_card" in one["payment_history"][0]["payment_method_id"]
        )  # fmt: skip
        methods = self.tools.get_user_details(order["user_id"])["payment_methods"]
        other = next(name for name in methods if "gift_card" not in name)
        items = [order["items"][0]["item_id"]]
        assert "original payment method" in refusal(self.tools.return_delivered_order_items, order["order_id"], items, other)
        assert "not found" in refusal(self.tools.return_delivered_order_items, order["order_id"], items * 2, next(iter(methods)))
        self.tools.return_delivered_order_items(order["order_id"], items, order["payment_history"][0]["payment_method_id"])
        assert self.tools.get_order_details(order["order_id"])["status"] == "return requested"
        assert "non-delivered" in refusal(self.tools.return_delivered_order_items, order["order_id"], items, other)

    def test_items_are_changed_to_variants_of_the_same_product_that_are_there(self) -> None:
        order = order_that_is("pending", self.tables)
        item, card = order["items"][0], next(iter(self.tools.get_user_details(order["user_id"])["payment_methods"]))
        other = next(row for row in self.tables.rows("products") if row["product_id"] != item["product_id"])
        wrong = next(iter(other["variants"]))
        change = self.tools.modify_pending_order_items
        assert "not found or available" in refusal(change, order["order_id"], [item["item_id"]], [wrong], card)
        assert "should match" in refusal(change, order["order_id"], [item["item_id"]], [], card)
        variants = self.tools.get_product_details(item["product_id"])["variants"].values()
        new = next(one for one in variants if one["available"] and one["item_id"] != item["item_id"])
        change(order["order_id"], [item["item_id"]], [new["item_id"]], card)
        again = self.tools.get_order_details(order["order_id"])
        assert again["items"][0]["options"] == new["options"]
        assert again["payment_history"][-1]["amount"] == pytest.approx(abs(new["price"] - item["price"]), abs=0.01)
        assert "non-pending" in refusal(change, order["order_id"], [new["item_id"]], [item["item_id"]], card)

    def test_a_user_is_found_by_e_mail_or_by_name_and_zip_code(self) -> None:
        user = next(iter(self.tables.rows("users")))
        name = user["name"]
        assert self.tools.find_user_id_by_email(user["email"].upper()) == user["user_id"]
        found = self.tools.find_user_id_by_name_zip(name["first_name"], name["last_name"], user["address"]["zip"])
        assert found == user["user_id"]
        assert refusal(self.tools.find_user_id_by_email, "no@one.example") == "user not found"

    def test_a_short_tool_does_what_the_long_one_does(self) -> None:
        base = short_tables(5)
        for order in base["orders"].values():
            short, long = Tables(base), Tables(base)
            if order["status"] == "pending":
                assert Shop(short).cancel(order["order_id"]).endswith(f"{order['payment_history'][0]['amount']} back")
                Retail(long).cancel_pending_order(order["order_id"], "no longer needed")
            else:
                item = order["items"][-1]["item_id"]
                Shop(short).refund(order["order_id"], item)
                Retail(long).return_delivered_order_items(order["order_id"], [item], "card")
            assert short.changes() == long.changes() != {}


class TestAirline:
    tables: Tables
    tools: Airline

    @pytest.fixture(autouse=True)
    def _world(self) -> None:
        self.tables = Tables(airline_tables(3))
        self.tools = Airline(self.tables)

    def made(self, **wanted: Any) -> Any:
        for seed in range(3, 60):
            self.tables = Tables(airline_tables(seed))
            self.tools = Airline(self.tables)
            for made in self.tables.rows("reservations"):
                if all(made[key] == value for key, value in wanted.items()):
                    return made
        raise AssertionError(wanted)

    def test_basic_economy_is_not_moved_and_not_cancelled_but_in_other_hands(self) -> None:
        made = self.made(cabin="basic_economy", insurance="no", created_at="2024-05-02T10:00:00")
        flights = [{"flight_number": made["flights"][0]["flight_number"], "date": "2024-05-30"}]
        card = made["payment_history"][0]["payment_id"]
        change = self.tools.update_reservation_flights
        assert "basic economy" in refusal(change, made["reservation_id"], "basic_economy", flights, card)
        assert "cannot be cancelled" in refusal(self.tools.cancel_reservation, made["reservation_id"])
        assert self.tables.changes() == {}
        loose = Airline(self.tables, strict=False)
        loose.cancel_reservation(made["reservation_id"])
        assert loose.broken == ["this fare cannot be cancelled"]
        assert self.tables.changes()[f"reservations/{made['reservation_id']}/status"] == '"cancelled"'

    @pytest.mark.parametrize("why", [{"cabin": "business"}, {"insurance": "yes"}, {"created_at": "2024-05-15T10:00:00"}])
    def test_what_may_be_cancelled_is(self, why: Any) -> None:
        made = self.made(**why)
        done = self.tools.cancel_reservation(made["reservation_id"])
        assert sum(one["amount"] for one in done["payment_history"]) == 0
        assert "already" in refusal(self.tools.cancel_reservation, made["reservation_id"])

    def test_a_cancelled_flight_may_be_given_back(self) -> None:
        made = self.made(cabin="economy", insurance="no", created_at="2024-05-02T10:00:00")
        assert not self.tools.may_be_cancelled(made)
        flight = made["flights"][0]
        self.tables.edit("flights", flight["flight_number"])["dates"][flight["date"]]["status"] = "cancelled"
        assert self.tools.may_be_cancelled(made)

    def test_bags_that_are_not_free_are_paid_for(self) -> None:
        made = self.made(cabin="economy")
        user, name = self.tools.get_user_details(made["user_id"]), made["reservation_id"]
        free = FREE_BAGS[user["membership"]]["economy"] * len(made["passengers"])
        gift = next(one for one in user["payment_methods"] if "gift" in one)
        before = user["payment_methods"][gift]["amount"]
        total = max(free, made["total_baggages"]) + 2
        update = self.tools.update_reservation_baggages
        assert f"{free} bags are free" in refusal(update, name, total, 0, gift)
        update(name, total, total - free, gift)
        paid = before - self.tools.get_user_details(made["user_id"])["payment_methods"][gift]["amount"]
        assert paid == 50 * (total - free - made["nonfree_baggages"])
        assert "not removed" in refusal(update, name, total - 1, total - 1 - free, gift)

    def test_a_booking_costs_what_it_costs_and_uses_certificates_up(self) -> None:
        flight = next(iter(self.tables.rows("flights")))
        day = next(one for one in flight["dates"] if flight["dates"][one]["available_seats"]["economy"])
        user = next(iter(self.tables.rows("users")))
        price = flight["dates"][day]["prices"]["economy"] + 30
        self.tools.send_certificate(user["user_id"], 500)
        booking = {
            "user_id": user["user_id"], "origin": flight["origin"], "destination": flight["destination"], "flight_type": "one_way",
            "cabin": "economy", "flights": [{"flight_number": flight["flight_number"], "date": day}],
            "passengers": [{"first_name": "A", "last_name": "B", "dob": "1990-01-01"}], "total_baggages": 0,
            "nonfree_baggages": 0, "insurance": "yes",
        }  # fmt: skip
        with pytest.raises(Error, match=f"total price is {price}, but paid {price - 1}"):
            self.tools.book_reservation(**booking, payment_methods=[{"payment_id": "certificate_3221322", "amount": price - 1}])
        with pytest.raises(Error, match="not enough balance"):
            self.tools.book_reservation(**booking, payment_methods=[{"payment_id": "certificate_3221322", "amount": 501}])
        done = self.tools.book_reservation(**booking, payment_methods=[{"payment_id": "certificate_3221322", "amount": price}])
        again = self.tools.get_user_details(user["user_id"])
        assert done["reservation_id"] == again["reservations"][-1] == "HATHAT"
        assert "certificate_3221322" not in again["payment_methods"]

    def test_a_change_of_cabin_costs_the_difference_for_everybody(self) -> None:
        for made in list(self.tables.rows("reservations")):
            (flight,) = made["flights"]
            day = self.tables.find("flights", flight["flight_number"])["dates"][flight["date"]]  # type: ignore[index]
            people, number = len(made["passengers"]), {"flight_number": flight["flight_number"], "date": flight["date"]}
            if made["cabin"] != "business" and day["available_seats"]["business"] >= people:
                done = self.tools.update_reservation_flights(
                    made["reservation_id"], "business", [number], made["payment_history"][0]["payment_id"]
                )
                assert done["cabin"] == "business"
                assert done["payment_history"][-1]["amount"] == (day["prices"]["business"] - flight["price"]) * people
                return
        raise AssertionError("no such reservation")

    def test_flights_with_one_stop_wait_for_the_first_to_land(self) -> None:
        pairs = [
            pair
            for origin in ("SFO", "JFK", "LAX", "ORD", "DFW")
            for destination in ("SFO", "JFK", "LAX", "ORD", "DFW")
            for pair in self.tools.search_onestop_flight(origin, destination, "2024-05-17")
        ]
        assert pairs
        for first, second in pairs:
            assert first["destination"] == second["origin"]
            assert first["scheduled_arrival_time_est"] <= second["scheduled_departure_time_est"]


@given(st.text("0123456789+-*/(). e", max_size=20))
def test_an_expression_is_worked_out_or_refused(expression: str) -> None:
    try:
        float(value_of(expression))
    except Error as error:
        assert str(error) == "invalid expression"


def test_expressions_are_arithmetic_alone() -> None:
    assert value_of(" 2 * (3.5 - 1) / -2") == "-2.5"
    for wrong in ("", "1 / 0", "__import__('os')", "2 ** 99", "9" * 600, "True", "(" * 400):
        assert refusal(value_of, wrong) == "invalid expression"


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
        assert (ended.observation.text, ended.terminated, ended.success, ended.reward) == ("User: Thanks. ###STOP###", True, True, 1.0)
        assert ended.info["measures"] == {"user_turns": 3.0, "tool_calls": 1.0, "policy_violations": 0.0}
        assert ended.info["right_tools"] == ["cancel", "look"]

    def test_nothing_is_written_before_the_user_agrees(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        order = task.data["goals"][0]["facts"]["order"]
        played = Played(self.shop, task)
        assert "has not agreed" in refusal(lambda: played.call("cancel", id=order))
        step = played.say(f"{order} is cancelled.")
        assert (step.terminated, step.success, step.info["measures"]["policy_violations"]) == (True, False, 1.0)
        loose = environment(confirmation=False)
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

    def test_a_refusal_must_be_right(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=False, withheld=False)))
        order = task.data["goals"][0]["facts"]["order"]
        assert Played(self.shop, task).say(f"Sorry, {order} is delivered.").success
        assert not Played(self.shop, task).say(f"Sorry, {order} is lost.").success
        can = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        assert Played(self.shop, can).say(f"Sorry, {can.data['goals'][0]['facts']['order']} cannot be.").success is False

    def test_a_second_wish_comes_once_the_first_is_settled(self) -> None:
        made = environment(goals=2, together=0.0, volunteers=1.0)
        task = next(one for one in made.demonstrations() if not any(goal["writes"] for goal in one.data["goals"]))
        first, second = task.data["goals"]
        played = Played(made, task)
        assert played.say(first["report"]).observation.text == f"User: Also: {second['says']}"
        assert played.say(second["report"]).success

    def test_what_was_said_along_with_something_else_is_missed(self) -> None:
        made = environment(goals=2, together=1.0, volunteers=1.0)
        task = next(one for one in made.demonstrations() if not any(goal["writes"] for goal in one.data["goals"]))
        first, second = task.data["goals"]
        played = Played(made, task)
        assert played.say(first["report"]).observation.text == f"User: I still want this: {second['says']}"

    def test_a_conversation_is_cut_off(self) -> None:
        made = environment(turns=2, patience=9)
        played = Played(made, next(iter(made.demonstrations())))
        assert not played.say("Hm.").truncated
        step = played.say("Hm.")
        assert (step.truncated, step.terminated, step.success) == (True, False, False)

    def test_others_are_shown_what_the_agent_did(self) -> None:
        task = next(iter(wants(self.shop, aim="cancel", writes=True, withheld=False)))
        order = task.data["goals"][0]["facts"]["order"]
        played = Played(self.shop, task)
        played.call("look", id=order)
        step = played.say("Hello\nyou.", planner="Look.")
        assert step.observation.views == {"planner": f"look({order})\nAgent: Hello you."}
        assert step.info["allowed_tools"] == {"planner": [], "agent": ["cancel", "look", "refund"]}


class TestWhatCounts:
    def test_something_else_that_was_changed_spoils_it(self) -> None:
        made = environment(reward="parts", confirmation=False)
        task = next(iter(wants(made, aim="cancel", writes=True, withheld=False)))
        order, total = task.data["goals"][0]["facts"]["order"], task.data["goals"][0]["outputs"][0]
        other = next(name for name, one in short_tables(task.data["database"])["orders"].items() if one["status"] == "delivered")
        right, spoilt = Played(made, task), Played(made, task)
        right.call("cancel", id=order)
        spoilt.call("cancel", id=order)
        item = short_tables(task.data["database"])["orders"][other]["items"][0]["item_id"]
        spoilt.call("refund", id=other, item=item)
        ends = [one.say(f"{order} is cancelled for {total}.") for one in (right, spoilt)]
        assert [(one.success, one.reward, one.info["progress"]) for one in ends] == [(True, 1.0, 1.0), (False, 0.0, 1.0)]

    def test_parts_add_up_to_what_was_done(self) -> None:
        made = environment(reward="parts")
        task = next(iter(wants(made, aim="cancel", writes=True, withheld=False)))
        order, total = task.data["goals"][0]["facts"]["order"], task.data["goals"][0]["outputs"][0]
        played = Played(made, task)
        rewards = [played.say(f"Cancel {order} for {total} back?").reward, played.say("Done.").reward]
        assert rewards == [0.5, 0.0]

    def test_a_write_that_a_later_one_overrides_is_no_part(self) -> None:
        base = {"users": {}, "orders": retail_tables(3)["orders"], "products": {}}
        order = next(name for name, one in base["orders"].items() if one["status"] == "pending")
        address = dict.fromkeys(("address1", "address2", "city", "state", "country", "zip"), "x")

        def fresh() -> Any:
            tables = Tables(base)
            return Retail(tables), tables

        calls = [["modify_pending_order_address", {"order_id": order, **address, "city": city}] for city in ("a", "b")]
        found = expected(fresh, calls, ["1,234"])
        assert len(found.parts) == 2
        _, tables = fresh()
        assert found.done(tables.changes(), "") == 0.0
        box = Retail(tables)
        run(box, calls[1:])
        assert found.done(tables.changes(), "") == pytest.approx(2 / 3)
        assert found.solved(tables.changes(), "It is 1234.")

    def test_a_reference_that_is_refused_leaves_nothing(self) -> None:
        tables = Tables(retail_tables(3))
        run(Retail(tables), [["cancel_pending_order", {"order_id": "none", "reason": "x"}], ["cancel_pending_order", {"a": 1}]])
        assert tables.changes() == {}


class TestTasks:
    @pytest.mark.parametrize("world", WORLDS)
    def test_they_are_the_same_again_and_splits_share_none(self, world: str) -> None:
        made = [environment(world=world, goals=2, train_tasks=12, held_out_tasks=4) for _ in range(2)]
        one, other = ([task.data for split in ("train", "validation", "test") for task in m.tasks(split)] for m in made)  # type: ignore[arg-type]
        assert one == other
        assert len({json.dumps(data, sort_keys=True) for data in one}) == len(one) == 20
        assert json.loads(json.dumps(one)) == one

    @pytest.mark.parametrize("world", WORLDS)
    @given(seed=st.integers(0, 2**32))
    def test_every_goal_can_be_served_under_the_rules(self, world: str, seed: int) -> None:
        random, of = Random(seed), WORLDS[world]
        base = of.tables(seed % 7)
        draft = Draft(random, base, base["users"][sorted(base["users"])[0]], 0.5)
        for make in of.makers:
            goal = make(draft)
            if goal is None:
                continue
            tables = Tables(base)
            box = of.toolbox(tables)
            for name, arguments in [*goal.reads, *goal.writes]:
                getattr(box, name)(**arguments)
            assert bool(tables.changes()) == bool(goal.writes) == bool(goal.offer)
            assert box.broken == []
            whole = f"{goal.offer} {goal.report}".lower()
            assert all(key.lower() in (goal.offer or goal.report).lower() for key in goal.keys), goal
            assert all(output.lower() in whole for output in goal.outputs), goal
            assert set(goal.withheld) <= set(goal.facts)

    def test_tools_that_write_are_told_from_those_that_read(self) -> None:
        assert writing(Shop) == {"cancel", "refund"}
        assert offered(Shop) == ("cancel", "look", "refund")
        assert len(writing(Retail)) == 7
        assert len(writing(Airline)) == 6


class TestTheScript:
    @pytest.mark.slow
    @pytest.mark.parametrize("world", WORLDS)
    @pytest.mark.parametrize(("recipe", "goals"), [("tool_use", (1, 2, 3, 4)), ("tool_use_single", (4, 3, 2, 1))])
    def test_one_with_skill_solves_every_task_in_the_fewest_steps(self, recipe: str, goals: tuple[int, ...], world: str) -> None:
        keys = {"environment.world": world, "environment.turns": 60, "rollout.max_steps": 60}
        for number in goals if NIGHT else goals[:1]:
            for episode in scripted(recipe, 1.0, 200 if NIGHT else 6, **keys, **{"environment.goals": number}):
                assert episode.success, episode.error
                assert len(episode.transitions) == episode.task.data["fewest_steps"]
                assert episode.transitions[-1].declared.measures["policy_violations"] == 0

    @pytest.mark.slow
    def test_habits_fail_part_of_the_tasks(self) -> None:
        for recipe, low, high in (("tool_use", 0.3, 0.7), ("tool_use_single", 0.5, 0.9)):
            episodes = scripted(recipe, 0.65, 300 if NIGHT else 40)
            assert all(episode.scored for episode in episodes)
            assert low < sum(bool(episode.success) for episode in episodes) / len(episodes) < high

    def test_an_agent_may_play_the_user(self) -> None:
        made = load_recipe("tool_use").environment
        user = {
            "role": "user", "policy": "agent", "instructions": "You are a customer.", "memory": "own",
        }  # fmt: skip
        agents = [one.model_dump() for one in load_recipe("tool_use").agents]
        changes = {"agents": [*agents, user], "environment.user": "agent", "team.sees": "previous"}
        episodes = scripted("tool_use", 1.0, 8, made.demonstrations(), **changes)  # type: ignore[attr-defined]
        assert [episode.success for episode in episodes] == [True] * 8, [one.error for one in episodes]
        assert all("###STOP###" in episode.actions[-1].text for episode in episodes)


def test_who_plays_the_user_must_be_there_and_nobody_else() -> None:
    assert list(environment().problems(["planner", "agent"])) == []
    assert "needs an agent whose role is 'user'" in next(iter(environment(user="agent").problems(["user", "agent"])))
    assert "the user is scripted" in next(iter(environment().problems(["agent", "user"])))
    assert list(environment(user="agent").problems(["agent", "user"])) == []
