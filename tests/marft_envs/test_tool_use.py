"""Services with tools over a database: what their tools do to it, and what they refuse."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft_envs.tool_use.airline import FREE_BAGS, Airline, FlightOn
from marft_envs.tool_use.airline_goals import generate_airline_tables
from marft_envs.tool_use.retail import Retail
from marft_envs.tool_use.retail_goals import generate_retail_tables, generate_short_tables
from marft_envs.tool_use.shop import ShopToolbox
from marft_envs.tool_use.toolbox import EpisodeTables, Error, evaluate

TREES = st.recursive(
    st.integers(0, 3) | st.text("ab", max_size=2) | st.none(),
    lambda inner: st.dictionaries(st.sampled_from("xyz"), inner),
    max_leaves=5,
)
TABLE = st.dictionaries(st.sampled_from("abc"), st.dictionaries(st.sampled_from("xyz"), TREES, min_size=1), max_size=3)


class TestTables:
    @given(TABLE, TABLE)
    def test_what_has_changed_is_what_is_otherwise_however_it_came_about(self, before: Any, after: Any) -> None:
        def written(keys: list[str]) -> EpisodeTables:
            tables = EpisodeTables({"t": before})
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
        tables = EpisodeTables(base)
        tables.edit("t", "a")["list"].append(2)
        tables.edit("t", "a")["price"] = 1
        assert json.dumps(base) == shown
        assert tables.changes() == {"t/a/list": "[1, 2]"}  # 1.0 and 1 are the same amount

    def test_what_was_changed_back_has_not_changed(self) -> None:
        tables = EpisodeTables({"t": {"a": {"x": 1, "y": {"z": 2}}}})
        tables.edit("t", "a")["y"] = {}
        assert tables.changes() == {"t/a/y": "{}", "t/a/y/z": "gone"}
        tables.edit("t", "a")["y"] = {"z": 2}
        assert tables.changes() == {}
        tables.put("t", "b", {"x": 1})
        assert [row["x"] for row in tables.rows("t")] == [1, 1]


def order_that_is(status: str, tables: EpisodeTables) -> Any:
    return next(order for order in tables.rows("orders") if order["status"] == status)


def refusal(call: Any, *given: Any) -> str:
    with pytest.raises(Error) as caught:
        call(*given)
    return str(caught.value)


class TestRetail:
    tables: EpisodeTables
    tools: Retail

    @pytest.fixture(autouse=True)
    def _environment(self) -> None:
        self.tables = EpisodeTables(generate_retail_tables(3))
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
        assert (
            refusal(self.tools.cancel_pending_order, order, "no longer needed")
            == "non-pending order cannot be cancelled"
        )
        assert "cannot be modified" in refusal(self.tools.modify_pending_order_payment, order, "x")
        assert "cannot be modified" in refusal(self.tools.modify_pending_order_address, order, *"abcdef")
        assert self.tables.changes() == {}
        assert len(self.tools.violations) == 3

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
        assert "original payment method" in refusal(
            self.tools.return_delivered_order_items, order["order_id"], items, other
        )
        assert "not found" in refusal(
            self.tools.return_delivered_order_items, order["order_id"], items * 2, next(iter(methods))
        )
        self.tools.return_delivered_order_items(
            order["order_id"], items, order["payment_history"][0]["payment_method_id"]
        )
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

    def test_an_exchange_is_written_down_with_what_it_costs(self) -> None:
        for order in [one for one in self.tables.rows("orders") if one["status"] == "delivered"]:
            item = order["items"][0]
            variants = self.tools.get_product_details(item["product_id"])["variants"].values()
            new = [one for one in variants if one["available"] and one["item_id"] != item["item_id"]][-1]
            card = next(
                one for one in self.tools.get_user_details(order["user_id"])["payment_methods"] if "gift" not in one
            )
            done = self.tools.exchange_delivered_order_items(
                order["order_id"], [item["item_id"]], [new["item_id"]], card
            )
            assert done["exchange_price_difference"] == pytest.approx(new["price"] - item["price"], abs=0.01)
            assert (done["exchange_items"], done["exchange_new_items"]) == ([item["item_id"]], [new["item_id"]])
            assert done["items"] == order["items"]  # which are sent back first

    def test_a_gift_card_pays_what_it_holds_and_no_more(self) -> None:
        order = next(
            one for one in self.tables.rows("orders")
            if one["status"] == "pending" and "gift" not in one["payment_history"][0]["payment_method_id"]
        )  # fmt: skip
        user, paid = order["user_id"], order["payment_history"][0]
        card = next(one for one in self.tools.get_user_details(user)["payment_methods"] if "gift" in one)
        held = self.tables.edit("users", user)["payment_methods"][card]
        held["balance"] = paid["amount"] - 0.01
        pay = self.tools.modify_pending_order_payment
        assert "insufficient gift card balance" in refusal(pay, order["order_id"], card)
        assert "should be different" in refusal(pay, order["order_id"], paid["payment_method_id"])
        held["balance"] = paid["amount"] + 5
        done = pay(order["order_id"], card)
        assert held["balance"] == pytest.approx(5)
        assert [one["transaction_type"] for one in done["payment_history"]] == ["payment", "payment", "refund"]
        assert "exactly one payment" in refusal(pay, order["order_id"], paid["payment_method_id"])

    def test_a_gift_card_gets_back_what_is_paid_otherwise(self) -> None:
        order = next(
            one for one in self.tables.rows("orders")
            if one["status"] == "pending" and "gift" in one["payment_history"][0]["payment_method_id"]
        )  # fmt: skip
        methods = self.tools.get_user_details(order["user_id"])["payment_methods"]
        card, before = next((name, one["balance"]) for name, one in methods.items() if "gift" in name)
        self.tools.modify_pending_order_payment(order["order_id"], next(one for one in methods if "gift" not in one))
        after = self.tools.get_user_details(order["user_id"])["payment_methods"][card]["balance"]
        assert after == pytest.approx(before + order["payment_history"][0]["amount"])

    def test_new_items_that_a_gift_card_does_not_cover_are_refused(self) -> None:
        for order in [one for one in self.tables.rows("orders") if one["status"] in ("pending", "delivered")]:
            item = order["items"][0]
            variants = self.tools.get_product_details(item["product_id"])["variants"].values()
            dearer = [one for one in variants if one["available"] and one["price"] > item["price"]]
            user = self.tables.edit("users", order["user_id"])
            card = next(one for one in user["payment_methods"] if "gift" in one)
            user["payment_methods"][card]["balance"] = 0
            name = "modify_pending" if order["status"] == "pending" else "exchange_delivered"
            for new in dearer[:1]:
                given = (order["order_id"], [item["item_id"]], [new["item_id"]], card)
                assert "insufficient gift card balance" in refusal(getattr(self.tools, f"{name}_order_items"), *given)

    def test_a_user_is_found_by_e_mail_or_by_name_and_zip_code(self) -> None:
        user = next(iter(self.tables.rows("users")))
        name = user["name"]
        assert self.tools.find_user_id_by_email(user["email"].upper()) == user["user_id"]
        found = self.tools.find_user_id_by_name_zip(name["first_name"], name["last_name"], user["address"]["zip"])
        assert found == user["user_id"]
        assert refusal(self.tools.find_user_id_by_email, "no@one.example") == "user not found"

    def test_a_short_tool_does_what_the_long_one_does(self) -> None:
        base = generate_short_tables(5)
        for order in base["orders"].values():
            short, long = EpisodeTables(base), EpisodeTables(base)
            if order["status"] == "pending":
                assert (
                    ShopToolbox(short)
                    .cancel(order["order_id"])
                    .endswith(f"{order['payment_history'][0]['amount']} back")
                )
                Retail(long).cancel_pending_order(order["order_id"], "no longer needed")
            else:
                item = order["items"][-1]["item_id"]
                ShopToolbox(short).refund(order["order_id"], item)
                Retail(long).return_delivered_order_items(order["order_id"], [item], "card")
            assert short.changes() == long.changes() != {}


class TestAirline:
    tables: EpisodeTables
    tools: Airline

    @pytest.fixture(autouse=True)
    def _environment(self) -> None:
        self.tables = EpisodeTables(generate_airline_tables(3))
        self.tools = Airline(self.tables)

    def made(self, **wanted: Any) -> Any:
        for seed in range(3, 60):
            self.tables = EpisodeTables(generate_airline_tables(seed))
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
        assert loose.violations == ["this fare cannot be cancelled"]
        assert self.tables.changes()[f"reservations/{made['reservation_id']}/status"] == '"cancelled"'

    @pytest.mark.parametrize(
        "why", [{"cabin": "business"}, {"insurance": "yes"}, {"created_at": "2024-05-15T10:00:00"}]
    )
    def test_what_may_be_cancelled_is(self, why: Any) -> None:
        made = self.made(**why)
        done = self.tools.cancel_reservation(made["reservation_id"])
        assert sum(one["amount"] for one in done["payment_history"]) == 0
        assert "already" in refusal(self.tools.cancel_reservation, made["reservation_id"])

    def test_a_cancelled_flight_may_be_given_back(self) -> None:
        made = self.made(cabin="economy", insurance="no", created_at="2024-05-02T10:00:00")
        assert not self.tools.is_cancelable(made)
        flight = made["flights"][0]
        self.tables.edit("flights", flight["flight_number"])["dates"][flight["date"]]["status"] = "cancelled"
        assert self.tools.is_cancelable(made)

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
            self.tools.book_reservation(
                **booking, payment_methods=[{"payment_id": "certificate_3221322", "amount": price - 1}]
            )
        with pytest.raises(Error, match="not enough balance"):
            self.tools.book_reservation(
                **booking, payment_methods=[{"payment_id": "certificate_3221322", "amount": 501}]
            )
        done = self.tools.book_reservation(
            **booking, payment_methods=[{"payment_id": "certificate_3221322", "amount": price}]
        )
        again = self.tools.get_user_details(user["user_id"])
        assert done["reservation_id"] == again["reservations"][-1] == "HATHAT"
        assert "certificate_3221322" not in again["payment_methods"]

    def test_a_change_of_cabin_costs_the_difference_for_everybody(self) -> None:
        for made in list(self.tables.rows("reservations")):
            (flight,) = made["flights"]
            day = self.tables.find("flights", flight["flight_number"])["dates"][flight["date"]]  # type: ignore[index]
            people, number = (
                len(made["passengers"]),
                FlightOn(flight_number=flight["flight_number"], date=flight["date"]),
            )
            if made["cabin"] != "business" and day["available_seats"]["business"] >= people:
                done = self.tools.update_reservation_flights(
                    made["reservation_id"], "business", [number], made["payment_history"][0]["payment_id"]
                )
                assert done["cabin"] == "business"
                assert done["payment_history"][-1]["amount"] == (day["prices"]["business"] - flight["price"]) * people
                return
        raise AssertionError("no such reservation")

    def test_flights_that_stay_keep_their_price(self) -> None:
        made = self.made(cabin="economy")
        (flight,) = made["flights"]
        number, card = (
            FlightOn(flight_number=flight["flight_number"], date=flight["date"]),
            made["payment_history"][0]["payment_id"],
        )
        day = self.tables.edit("flights", flight["flight_number"])["dates"][flight["date"]]
        day["prices"]["economy"] += 100
        done = self.tools.update_reservation_flights(made["reservation_id"], "economy", [number], card)
        assert (done["flights"], len(done["payment_history"])) == ([flight], 1)

    def test_no_amount_is_below_nothing(self) -> None:
        made = self.made(cabin="economy")
        (flight,), user = made["flights"], made["user_id"]
        methods = list(self.tools.get_user_details(user)["payment_methods"])
        number = {"flight_number": flight["flight_number"], "date": flight["date"]}
        booking = [
            user,
            flight["origin"],
            flight["destination"],
            "one_way",
            "economy",
            [number],
            made["passengers"][:1],
        ]
        payments = [{"payment_id": methods[0], "amount": 10_000}, {"payment_id": methods[1], "amount": -9_000}]
        assert "below 0" in refusal(self.tools.book_reservation, *booking, payments, 0, 0, "no")
        assert "has flights" in refusal(self.tools.book_reservation, *booking[:5], [], [], [], 0, 0, "no")

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
    with suppress(Error):
        float(evaluate(expression))


def test_expressions_are_arithmetic_alone() -> None:
    assert evaluate(" 2 * (3.5 - 1) / -2") == "-2.5"
    for wrong in ("", "1 / 0", "__import__('os')", "2 ** 99", "9" * 600, "True", "(" * 400):
        assert refusal(evaluate, wrong) == "invalid expression"
