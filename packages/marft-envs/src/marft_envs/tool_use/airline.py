"""Airline tools: users, flights with seats and prices by day and cabin, and reservations.

Names, arguments and effects on the tables match the airline domain of τ-bench (Yao et al. 2024, arXiv:2406.12045), so
its data runs here unchanged. A change of cabin is also recorded, as in τ²-bench. The tools of τ-bench do not enforce
fare rules; these tools do if they are strict.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from typing import Any

from typing_extensions import TypedDict

from marft.agents.environment import tool
from marft_envs.tool_use.desk import Desk
from marft_envs.tool_use.tables import Record
from marft_envs.tool_use.toolbox import writes

NOW = "2024-05-15T15:00:00"
YESTERDAY = "2024-05-14T15:00:00"
NEW_IDS = ("HATHAT", "HATHAU", "HATHAV")  # ids of new reservations in an episode
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas",
    "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix",
    "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte",
    "MSP": "Minneapolis", "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
INSURANCE, BAG = 30, 50  # dollars per passenger, and per bag that is not free
FREE_BAGS = {  # number per passenger, by membership and cabin
    "regular": {"basic_economy": 0, "economy": 1, "business": 2},
    "silver": {"basic_economy": 1, "economy": 2, "business": 3},
    "gold": {"basic_economy": 2, "economy": 3, "business": 3},
}


class FlightOn(TypedDict):
    """A flight by its number and day (2024-05-20)."""

    flight_number: str
    date: str


class Passenger(TypedDict):
    first_name: str
    last_name: str
    dob: str


class Payment(TypedDict):
    payment_id: str
    amount: float


class Airline(Desk):
    """Tools for the airline world."""

    @tool
    def get_user_details(self, user_id: str) -> Mapping[str, Any]:
        """Read a user's profile: membership, payment methods, reservations."""
        return self._found("users", user_id, "user")

    @tool
    def get_reservation_details(self, reservation_id: str) -> Mapping[str, Any]:
        """Read a reservation: flights, cabin, passengers, bags, payments."""
        return self._found("reservations", reservation_id, "reservation")

    @tool
    def list_all_airports(self) -> Mapping[str, str]:
        """List all airports, with their cities."""
        return AIRPORTS

    @tool
    def search_direct_flight(self, origin: str, destination: str, date: str) -> list[Record]:
        """Find direct flights between two airports on a day (2024-05-20)."""
        return list(self._available(origin, destination, date))

    @tool
    def search_onestop_flight(self, origin: str, destination: str, date: str) -> list[list[Record]]:
        """Find pairs of flights with one stop between two airports on a day."""
        found = []
        for first in self._available(origin, "", date):
            arrives = str(first["scheduled_arrival_time_est"])
            day = _next_day(date) if "+1" in arrives else date
            for second in self._available(str(first["destination"]), destination, day):
                if arrives.removesuffix("+1") <= second["scheduled_departure_time_est"]:
                    found.append([{**first, "date": date}, {**second, "date": day}])
        return found

    @tool
    def get_flight_status(self, flight_number: str, date: str) -> str:
        """Read the status of a flight on a day."""
        return str(self._day({"flight_number": flight_number, "date": date})["status"])

    @writes
    def book_reservation(
        self, user_id: str, origin: str, destination: str, flight_type: str, cabin: str, flights: list[FlightOn],
        passengers: list[Passenger], payment_methods: list[Payment], total_baggages: int, nonfree_baggages: int,
        insurance: str,
    ) -> Mapping[str, Any]:  # fmt: skip
        """Book flights. flight_type is one_way or round_trip, cabin basic_economy, economy or business, insurance yes
        or no. The payments must add up to the price."""
        user = self._found("users", user_id, "user")
        people = len(passengers)
        self._must(bool(flights and passengers), "a booking has flights and passengers")
        booked = [self._seats(flight, cabin, people) for flight in flights]
        price = sum(flight["price"] for flight in booked) * people
        price += INSURANCE * people * (insurance == "yes") + BAG * nonfree_baggages
        self._bags_are(user, cabin, people, total_baggages, nonfree_baggages)
        self._pays(user, payment_methods, price)
        reservation_id = next((one for one in NEW_IDS if self.tables.find("reservations", one) is None), "")
        self._must(bool(reservation_id), "too many reservations")
        reservation = {
            "reservation_id": reservation_id, "user_id": user_id, "origin": origin, "destination": destination,
            "flight_type": flight_type, "cabin": cabin, "flights": booked, "passengers": _copies(passengers),
            "payment_history": _copies(payment_methods), "created_at": NOW, "total_baggages": total_baggages,
            "nonfree_baggages": nonfree_baggages, "insurance": insurance,
        }  # fmt: skip
        self.tables.put("reservations", reservation_id, reservation)
        written = self._edit("users", user_id)
        for payment in payment_methods:
            if payment["payment_id"] in written["payment_methods"]:  # a certificate is used up by its first payment
                self._take(user_id, payment["payment_id"], payment["amount"], spent=True)
        written["reservations"].append(reservation_id)
        return reservation

    @writes
    def cancel_reservation(self, reservation_id: str) -> Mapping[str, Any]:
        """Cancel a whole reservation."""
        reservation = self._found("reservations", reservation_id, "reservation")
        self._rule(reservation.get("status") != "cancelled", "the reservation is cancelled already")
        self._rule(self.may_be_cancelled(reservation), "this fare cannot be cancelled")
        written = self._edit("reservations", reservation_id)
        written["payment_history"] += [
            {"payment_id": paid["payment_id"], "amount": -paid["amount"]} for paid in reservation["payment_history"]
        ]
        written["status"] = "cancelled"
        return written

    @writes
    def update_reservation_flights(
        self, reservation_id: str, cabin: str, flights: list[FlightOn], payment_id: str
    ) -> Mapping[str, Any]:
        """Change the flights or the cabin of a reservation. List all its flights, also those that stay."""
        reservation = self._found("reservations", reservation_id, "reservation")
        people = len(reservation["passengers"])
        kept = {(one["flight_number"], one["date"]): one for one in reservation["flights"]}
        moved = [(flight["flight_number"], flight["date"]) for flight in flights] != list(kept)
        self._rule(
            not (moved and reservation["cabin"] == "basic_economy"), "flights of basic economy cannot be changed"
        )
        stays = cabin == reservation["cabin"]
        changed = [
            dict(kept[flight["flight_number"], flight["date"]])
            if stays and (flight["flight_number"], flight["date"]) in kept
            else self._seats(flight, cabin, people)
            for flight in flights
        ]
        price = (sum(one["price"] for one in changed) - sum(one["price"] for one in reservation["flights"])) * people
        self._may_pay(reservation["user_id"], payment_id, price)
        written = self._edit("reservations", reservation_id)
        written |= {"flights": changed, "cabin": cabin}
        self._charge(written, payment_id, price)
        return written

    @writes
    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> Mapping[str, Any]:
        """Change how many bags a reservation has, and how many of them are paid for."""
        reservation = self._found("reservations", reservation_id, "reservation")
        user = self._found("users", reservation["user_id"], "user")
        self._rule(total_baggages >= reservation["total_baggages"], "bags can be added, not removed")
        self._bags_are(user, reservation["cabin"], len(reservation["passengers"]), total_baggages, nonfree_baggages)
        price = BAG * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        self._may_pay(reservation["user_id"], payment_id, price)
        written = self._edit("reservations", reservation_id)
        written |= {"total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages}
        self._charge(written, payment_id, price)
        return written

    @writes
    def update_reservation_passengers(self, reservation_id: str, passengers: list[Passenger]) -> Mapping[str, Any]:
        """Change who flies; as many as before."""
        reservation = self._found("reservations", reservation_id, "reservation")
        same = len(passengers) == len(reservation["passengers"])
        self._state(same, "number of passengers does not match")
        written = self._edit("reservations", reservation_id)
        written["passengers"] = _copies(passengers)
        return written

    @writes
    def send_certificate(self, user_id: str, amount: int) -> str:
        """Give a user a certificate of an amount of dollars."""
        self._found("users", user_id, "user")
        methods = self._edit("users", user_id)["payment_methods"]
        name = next(
            (one for one in (f"certificate_{n}" for n in (3221322, 3221323, 3221324)) if one not in methods), ""
        )
        self._must(bool(name), "too many certificates")
        methods[name] = {"source": "certificate", "amount": amount, "id": name}
        return f"Certificate {name} added to user {user_id} with amount {amount}."

    def may_be_cancelled(self, reservation: Mapping[str, Any]) -> bool:
        """Return True if a reservation may be cancelled.

        One of four conditions must hold: it is insured, it is in business class, it was made within the last day, or
        the airline cancelled one of its flights.
        """
        flown = [self.tables.find("flights", flight["flight_number"]) for flight in reservation["flights"]]
        days = [
            route["dates"].get(flight["date"], {}) if route else {}
            for route, flight in zip(flown, reservation["flights"], strict=True)
        ]
        return (
            reservation["created_at"] >= YESTERDAY
            or any(day.get("status") == "cancelled" for day in days)
            or reservation["cabin"] == "business"
            or reservation["insurance"] == "yes"
        )

    def _day(self, flight: Mapping[str, Any]) -> Mapping[str, Any]:
        number, date = flight["flight_number"], flight["date"]
        days: Mapping[str, Mapping[str, Any]] = self._found("flights", number, f"flight {number}")["dates"]
        self._must(date in days, f"flight {number} not found on date {date}")
        return days[date]

    def _seats(self, flight: FlightOn, cabin: str, people: int) -> Record:
        """Return a flight in a reservation's format.

        Raises:
            Error: the flight or cabin does not exist or is not available, or has fewer than ``people`` free seats.
        """
        day, number = self._day(flight), flight["flight_number"]
        self._must(day["status"] == "available", f"flight {number} not available on date {flight['date']}")
        self._must(cabin in day["available_seats"], f"no cabin is called {cabin}")
        self._must(day["available_seats"][cabin] >= people, f"not enough seats on flight {number}")
        route = self._found("flights", number, f"flight {number}")
        return {
            "flight_number": number, "date": flight["date"], "price": day["prices"][cabin],
            "origin": route["origin"], "destination": route["destination"],
        }  # fmt: skip

    def _available(self, origin: str, destination: str, date: str) -> Iterator[Record]:
        for flight in self.tables.rows("flights"):
            day = flight["dates"].get(date, {"status": ""})
            if (
                flight["origin"] == origin
                and destination in ("", flight["destination"])
                and day["status"] == "available"
            ):
                yield {**{key: value for key, value in flight.items() if key != "dates"}, **day}

    def _bags_are(self, user: Mapping[str, Any], cabin: str, people: int, total: int, paid: int) -> None:
        free = FREE_BAGS.get(user["membership"], {}).get(cabin, 0) * people
        self._rule(total >= paid >= 0, "bags that are paid for are some of all bags")
        self._rule(paid == max(0, total - free), f"{free} bags are free, each other one is {BAG} dollars")

    def _pays(self, user: Mapping[str, Any], payments: Sequence[Payment], price: float) -> None:
        by_method: dict[str, float] = {}
        for payment in payments:
            self._must(payment["amount"] >= 0, "nothing is paid by an amount below 0")
            by_method[payment["payment_id"]] = by_method.get(payment["payment_id"], 0) + payment["amount"]
        for name, amount in by_method.items():
            method = user["payment_methods"].get(name)
            self._must(method is not None, f"payment method {name} not found")
            short = method["source"] in ("gift_card", "certificate") and method["amount"] < amount
            self._state(not short, f"not enough balance in payment method {name}")
        paid = sum(by_method.values())
        self._must(paid == price, f"payment amount does not add up, total price is {price}, but paid {paid}")

    def _may_pay(self, user_id: str, payment_id: str, price: float) -> None:
        methods = self._found("users", user_id, "user")["payment_methods"]
        self._must(payment_id in methods, "payment method not found")
        method = methods[payment_id]
        self._state(method["source"] != "certificate", "certificate cannot be used to update reservation")
        short = method["source"] == "gift_card" and method["amount"] < price
        self._state(not short, "gift card balance is not enough")

    def _charge(self, reservation: Record, payment_id: str, price: float) -> None:
        self._take(reservation["user_id"], payment_id, price)
        if price != 0:
            reservation["payment_history"].append({"payment_id": payment_id, "amount": price})

    def _take(self, user_id: str, payment_id: str, amount: float, spent: bool = False) -> None:
        """Deduct an amount from a gift card; delete a used certificate if ``spent`` is True."""
        methods = self._edit("users", user_id)["payment_methods"]
        if methods[payment_id]["source"] == "gift_card":
            methods[payment_id]["amount"] -= amount
        elif methods[payment_id]["source"] == "certificate" and spent:
            del methods[payment_id]


def _copies(rows: Sequence[Mapping[str, Any]]) -> list[Record]:
    return [deepcopy(dict(row)) for row in rows]


def _next_day(day: str) -> str:
    return str(datetime.date.fromisoformat(day) + datetime.timedelta(days=1))
