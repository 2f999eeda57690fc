"""Airline tools: users, flights with seats and prices by day and cabin, and reservations.

Names, arguments and effects on the tables match the airline domain of τ-bench (Yao et al. 2024, arXiv:2406.12045), so
its data runs here unchanged. Cabin changes are also recorded, as in τ²-bench. With ``strict``, the tools enforce fare
rules, which the tools of τ-bench do not.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

from typing_extensions import TypedDict

from marft.config.interfaces.environment import tool
from marft_envs.tool_use.toolbox import Record, RecordView, ServiceToolbox, write_tool

CURRENT_TIME = "2024-05-15T15:00:00"
YESTERDAY = "2024-05-14T15:00:00"
NEW_IDS = ("HATHAT", "HATHAU", "HATHAV")  # ids of new reservations in an episode
AIRPORTS = {
    "SFO": "San Francisco", "JFK": "New York", "LAX": "Los Angeles", "ORD": "Chicago", "DFW": "Dallas",
    "DEN": "Denver", "SEA": "Seattle", "ATL": "Atlanta", "MIA": "Miami", "BOS": "Boston", "PHX": "Phoenix",
    "IAH": "Houston", "LAS": "Las Vegas", "MCO": "Orlando", "EWR": "Newark", "CLT": "Charlotte",
    "MSP": "Minneapolis", "DTW": "Detroit", "PHL": "Philadelphia", "LGA": "LaGuardia",
}  # fmt: skip
INSURANCE_PRICE, BAG_PRICE = 30, 50  # dollars per passenger, and per paid bag
FREE_BAGS = {  # free bags per passenger, by membership and cabin
    "regular": {"basic_economy": 0, "economy": 1, "business": 2},
    "silver": {"basic_economy": 1, "economy": 2, "business": 3},
    "gold": {"basic_economy": 2, "economy": 3, "business": 3},
}


class FlightOn(TypedDict):
    """Flight number and day (2024-05-20)."""

    flight_number: str
    date: str


class Passenger(TypedDict):
    first_name: str
    last_name: str
    dob: str


class Payment(TypedDict):
    payment_id: str
    amount: float


class Airline(ServiceToolbox):
    """Tools for the airline world."""

    @tool
    def get_user_details(self, user_id: str) -> RecordView:
        """Read a user's profile: membership, payment methods, reservations."""
        return self._get_record("users", user_id, "user")

    @tool
    def get_reservation_details(self, reservation_id: str) -> RecordView:
        """Read a reservation: flights, cabin, passengers, bags, payments."""
        return self._get_record("reservations", reservation_id, "reservation")

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
        pairs = []
        for first in self._available(origin, "", date):
            arrival = str(first["scheduled_arrival_time_est"])
            day = _next_day(date) if "+1" in arrival else date
            for second in self._available(str(first["destination"]), destination, day):
                if arrival.removesuffix("+1") <= second["scheduled_departure_time_est"]:
                    pairs.append([{**first, "date": date}, {**second, "date": day}])
        return pairs

    @tool
    def get_flight_status(self, flight_number: str, date: str) -> str:
        """Read the status of a flight on a day."""
        return str(self._flight_day({"flight_number": flight_number, "date": date})["status"])

    @write_tool
    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: str,
        cabin: str,
        flights: list[FlightOn],
        passengers: list[Passenger],
        payment_methods: list[Payment],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: str,
    ) -> RecordView:
        """Book flights. The payments must add up to the price.

        flight_type: one_way or round_trip. cabin: basic_economy, economy or business. insurance: yes or no.
        """
        user = self._get_record("users", user_id, "user")
        passenger_count = len(passengers)
        self._require(bool(flights and passengers), "a booking has flights and passengers")
        booked_flights = [self._flight_entry(flight, cabin, passenger_count) for flight in flights]
        price = sum(flight["price"] for flight in booked_flights) * passenger_count
        price += INSURANCE_PRICE * passenger_count * (insurance == "yes") + BAG_PRICE * nonfree_baggages
        self._check_bags(user, cabin, passenger_count, total_baggages, nonfree_baggages)
        self._check_payments(user, payment_methods, price)
        reservation_id = next((new_id for new_id in NEW_IDS if self.tables.find("reservations", new_id) is None), "")
        self._require(bool(reservation_id), "too many reservations")
        reservation = {
            "reservation_id": reservation_id, "user_id": user_id, "origin": origin, "destination": destination,
            "flight_type": flight_type, "cabin": cabin, "flights": booked_flights, "passengers": _copy_rows(passengers),
            "payment_history": _copy_rows(payment_methods), "created_at": CURRENT_TIME,
            "total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages, "insurance": insurance,
        }  # fmt: skip
        self.tables.put("reservations", reservation_id, reservation)
        user_record = self._edit("users", user_id)
        for payment in payment_methods:
            if payment["payment_id"] in user_record["payment_methods"]:  # the first payment uses up a certificate
                self._deduct(user_id, payment["payment_id"], payment["amount"], spent=True)
        user_record["reservations"].append(reservation_id)
        return reservation

    @write_tool
    def cancel_reservation(self, reservation_id: str) -> RecordView:
        """Cancel a whole reservation."""
        reservation = self._get_record("reservations", reservation_id, "reservation")
        self._check_policy(reservation.get("status") != "cancelled", "the reservation is cancelled already")
        self._check_policy(self.is_cancelable(reservation), "this fare cannot be cancelled")
        written = self._edit("reservations", reservation_id)
        written["payment_history"] += [
            {"payment_id": payment["payment_id"], "amount": -payment["amount"]}
            for payment in reservation["payment_history"]
        ]
        written["status"] = "cancelled"
        return written

    @write_tool
    def update_reservation_flights(
        self, reservation_id: str, cabin: str, flights: list[FlightOn], payment_id: str
    ) -> RecordView:
        """Change the flights or the cabin of a reservation. List all its flights, including unchanged ones."""
        reservation = self._get_record("reservations", reservation_id, "reservation")
        passenger_count = len(reservation["passengers"])
        current = {
            (flight_entry["flight_number"], flight_entry["date"]): flight_entry
            for flight_entry in reservation["flights"]
        }
        is_moved = [(flight["flight_number"], flight["date"]) for flight in flights] != list(current)
        self._check_policy(
            not (is_moved and reservation["cabin"] == "basic_economy"), "flights of basic economy cannot be changed"
        )
        same_cabin = cabin == reservation["cabin"]
        changed = [
            dict(current[flight["flight_number"], flight["date"]])
            if same_cabin and (flight["flight_number"], flight["date"]) in current
            else self._flight_entry(flight, cabin, passenger_count)
            for flight in flights
        ]
        price = (
            sum(flight_entry["price"] for flight_entry in changed)
            - sum(flight_entry["price"] for flight_entry in reservation["flights"])
        ) * passenger_count
        self._check_payment(reservation["user_id"], payment_id, price)
        written = self._edit("reservations", reservation_id)
        written |= {"flights": changed, "cabin": cabin}
        self._charge(written, payment_id, price)
        return written

    @write_tool
    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> RecordView:
        """Change the number of bags of a reservation, and the number of paid bags."""
        reservation = self._get_record("reservations", reservation_id, "reservation")
        user = self._get_record("users", reservation["user_id"], "user")
        self._check_policy(total_baggages >= reservation["total_baggages"], "bags can be added, not removed")
        self._check_bags(user, reservation["cabin"], len(reservation["passengers"]), total_baggages, nonfree_baggages)
        price = BAG_PRICE * max(0, nonfree_baggages - reservation["nonfree_baggages"])
        self._check_payment(reservation["user_id"], payment_id, price)
        written = self._edit("reservations", reservation_id)
        written |= {"total_baggages": total_baggages, "nonfree_baggages": nonfree_baggages}
        self._charge(written, payment_id, price)
        return written

    @write_tool
    def update_reservation_passengers(self, reservation_id: str, passengers: list[Passenger]) -> RecordView:
        """Replace the passengers of a reservation. Their number must stay the same."""
        reservation = self._get_record("reservations", reservation_id, "reservation")
        same_count = len(passengers) == len(reservation["passengers"])
        self._require_state(same_count, "number of passengers does not match")
        written = self._edit("reservations", reservation_id)
        written["passengers"] = _copy_rows(passengers)
        return written

    @write_tool
    def send_certificate(self, user_id: str, amount: int) -> str:
        """Give a user a certificate. The amount is in dollars."""
        self._get_record("users", user_id, "user")
        methods = self._edit("users", user_id)["payment_methods"]
        name = next(
            (
                certificate_id
                for certificate_id in (f"certificate_{n}" for n in (3221322, 3221323, 3221324))
                if certificate_id not in methods
            ),
            "",
        )
        self._require(bool(name), "too many certificates")
        methods[name] = {"source": "certificate", "amount": amount, "id": name}
        return f"Certificate {name} added to user {user_id} with amount {amount}."

    def is_cancelable(self, reservation: RecordView) -> bool:
        """Return True if a reservation may be canceled.

        One of four conditions must hold: it is insured, it is in business class, it was made within the last day, or
        the airline canceled one of its flights.
        """
        routes = [self.tables.find("flights", flight["flight_number"]) for flight in reservation["flights"]]
        days = [
            route["dates"].get(flight["date"], {}) if route else {}
            for route, flight in zip(routes, reservation["flights"], strict=True)
        ]
        return (
            reservation["created_at"] >= YESTERDAY
            or any(day.get("status") == "cancelled" for day in days)
            or reservation["cabin"] == "business"
            or reservation["insurance"] == "yes"
        )

    def _flight_day(self, flight: RecordView) -> RecordView:
        number, date = flight["flight_number"], flight["date"]
        days: Mapping[str, RecordView] = self._get_record("flights", number, f"flight {number}")["dates"]
        self._require(date in days, f"flight {number} not found on date {date}")
        return days[date]

    def _flight_entry(self, flight: FlightOn, cabin: str, passenger_count: int) -> Record:
        """Return a flight in a reservation's format.

        Raises:
            Error: the flight or cabin does not exist or is not available, or has fewer than ``passenger_count`` free
                seats.
        """
        day, number = self._flight_day(flight), flight["flight_number"]
        self._require(day["status"] == "available", f"flight {number} not available on date {flight['date']}")
        self._require(cabin in day["available_seats"], f"no cabin is called {cabin}")
        self._require(day["available_seats"][cabin] >= passenger_count, f"not enough seats on flight {number}")
        route = self._get_record("flights", number, f"flight {number}")
        return {
            "flight_number": number,
            "date": flight["date"],
            "price": day["prices"][cabin],
            "origin": route["origin"],
            "destination": route["destination"],
        }

    def _available(self, origin: str, destination: str, date: str) -> Iterator[Record]:
        for flight in self.tables.rows("flights"):
            day = flight["dates"].get(date, {"status": ""})
            if (
                flight["origin"] == origin
                and destination in ("", flight["destination"])
                and day["status"] == "available"
            ):
                yield {**{key: value for key, value in flight.items() if key != "dates"}, **day}

    def _check_bags(self, user: RecordView, cabin: str, passenger_count: int, total: int, paid_bags: int) -> None:
        free = FREE_BAGS.get(user["membership"], {}).get(cabin, 0) * passenger_count
        self._check_policy(total >= paid_bags >= 0, "bags that are paid for are some of all bags")
        self._check_policy(
            paid_bags == max(0, total - free), f"{free} bags are free, each other one is {BAG_PRICE} dollars"
        )

    def _check_payments(self, user: RecordView, payments: Sequence[Payment], price: float) -> None:
        by_method: dict[str, float] = {}
        for payment in payments:
            self._require(payment["amount"] >= 0, "nothing is paid by an amount below 0")
            by_method[payment["payment_id"]] = by_method.get(payment["payment_id"], 0) + payment["amount"]
        for name, amount in by_method.items():
            method = user["payment_methods"].get(name)
            self._require(method is not None, f"payment method {name} not found")
            is_short = method["source"] in ("gift_card", "certificate") and method["amount"] < amount
            self._require_state(not is_short, f"not enough balance in payment method {name}")
        total_paid = sum(by_method.values())
        self._require(
            total_paid == price, f"payment amount does not add up, total price is {price}, but paid {total_paid}"
        )

    def _check_payment(self, user_id: str, payment_id: str, price: float) -> None:
        methods = self._get_record("users", user_id, "user")["payment_methods"]
        self._require(payment_id in methods, "payment method not found")
        method = methods[payment_id]
        self._require_state(method["source"] != "certificate", "certificate cannot be used to update reservation")
        is_short = method["source"] == "gift_card" and method["amount"] < price
        self._require_state(not is_short, "gift card balance is not enough")

    def _charge(self, reservation: Record, payment_id: str, price: float) -> None:
        self._deduct(reservation["user_id"], payment_id, price)
        if price != 0:
            reservation["payment_history"].append({"payment_id": payment_id, "amount": price})

    def _deduct(self, user_id: str, payment_id: str, amount: float, spent: bool = False) -> None:
        """Deduct an amount from a gift card; delete a used certificate if ``spent`` is True."""
        methods = self._edit("users", user_id)["payment_methods"]
        if methods[payment_id]["source"] == "gift_card":
            methods[payment_id]["amount"] -= amount
        elif methods[payment_id]["source"] == "certificate" and spent:
            del methods[payment_id]


def _copy_rows(rows: Sequence[RecordView]) -> list[Record]:
    return [deepcopy(dict(row)) for row in rows]


def _next_day(day: str) -> str:
    return str(datetime.date.fromisoformat(day) + datetime.timedelta(days=1))
