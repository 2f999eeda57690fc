"""Airline tables, generated from a seed."""

from __future__ import annotations

from datetime import date, timedelta
from functools import lru_cache
from itertools import permutations, product
from random import Random
from typing import Any

from marft_envs.tool_use.airline import AIRPORTS, BAG_PRICE, FREE_BAGS, INSURANCE_PRICE
from marft_envs.tool_use.retail_data import FIRST_NAMES, LAST_NAMES
from marft_envs.tool_use.tables import Record

CABINS = ("basic_economy", "economy", "business")
FIRST_DAY, DAYS = date(2024, 5, 16), 6
SERVED_AIRPORTS = tuple(AIRPORTS)[:5]  # airports with flights
USER_COUNT, RESERVATIONS_PER_USER = 3, 5
ID_ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


@lru_cache(maxsize=512)
def generate_airline_tables(seed: int) -> dict[str, dict[str, Record]]:
    """Return generated users, flights and reservations, in τ-bench's layout.

    The tables are cached and shared: do not write to them.
    """
    random = Random(seed)
    flights = {}
    for number, (origin, destination) in enumerate(random.sample(list(permutations(SERVED_AIRPORTS, 2)), 14), 1):
        name = f"HAT{number:03d}"
        flights[name] = _draw_flight(random, name, origin, destination)
    users: dict[str, Record] = {}
    reservations: dict[str, Record] = {}
    for first, last in random.sample(list(product(FIRST_NAMES, LAST_NAMES)), USER_COUNT):
        user = _draw_user(random, first, last)
        users[user["user_id"]] = user
        for _ in range(RESERVATIONS_PER_USER):
            reservation = _draw_reservation(random, user, list(flights.values()))
            reservations[reservation["reservation_id"]] = reservation
            user["reservations"].append(reservation["reservation_id"])
    return {"users": users, "flights": flights, "reservations": reservations}


def draw_passenger(random: Random) -> Record:
    """Draw a passenger."""
    birth_date = date(1950, 1, 1) + timedelta(days=random.randrange(20_000))
    return {"first_name": random.choice(FIRST_NAMES), "last_name": random.choice(LAST_NAMES), "dob": str(birth_date)}


def _draw_flight(random: Random, name: str, origin: str, destination: str) -> Record:
    departure_hour = random.randint(5, 19)
    days: dict[str, Any] = {}
    for day in range(DAYS):
        base = random.randint(50, 150)
        prices = dict(zip(CABINS, (base, base + random.randint(20, 80), base + random.randint(200, 400)), strict=True))
        seats = {cabin: random.choice((0, 3, 8, 15)) for cabin in CABINS}
        days[str(FIRST_DAY + timedelta(days=day))] = {"status": "available", "available_seats": seats, "prices": prices}
    return {
        "flight_number": name,
        "origin": origin,
        "destination": destination,
        "scheduled_departure_time_est": f"{departure_hour:02d}:00:00",
        "scheduled_arrival_time_est": f"{departure_hour + random.randint(1, 4):02d}:30:00",
        "dates": days,
    }


def _draw_user(random: Random, first: str, last: str) -> Record:
    card, gift = f"credit_card_{random.randint(10**6, 10**7 - 1)}", f"gift_card_{random.randint(10**6, 10**7 - 1)}"
    return {
        "user_id": f"{first.lower()}_{last.lower()}_{random.randint(1000, 9999)}",
        "name": {"first_name": first, "last_name": last},
        "dob": draw_passenger(random)["dob"],
        "email": f"{first.lower()}.{last.lower()}@example.com",
        "payment_methods": {
            card: {"source": "credit_card", "brand": "visa", "last_four": str(random.randint(1000, 9999)), "id": card},
            gift: {"source": "gift_card", "amount": random.randint(100, 900), "id": gift},
        },
        "saved_passengers": [draw_passenger(random)],
        "membership": random.choice(tuple(FREE_BAGS)),
        "reservations": [],
    }


def _draw_reservation(random: Random, user: Record, flights: list[Record]) -> Record:
    flight, cabin, passenger_count = random.choice(flights), random.choice(CABINS), random.randint(1, 2)
    day = random.choice(sorted(flight["dates"]))
    price, is_insured = flight["dates"][day]["prices"][cabin], random.random() < 0.3
    free = FREE_BAGS[user["membership"]][cabin] * passenger_count
    bags = free + random.choice((0, 0, 1))
    card = next(iter(user["payment_methods"]))
    origin, destination = flight["origin"], flight["destination"]
    return {
        "reservation_id": "".join(random.choice(ID_ALPHABET) for _ in range(6)), "user_id": user["user_id"],
        "origin": origin, "destination": destination, "flight_type": "one_way", "cabin": cabin,
        "flights": [{
            "origin": origin, "destination": destination, "flight_number": flight["flight_number"], "date": day,
            "price": price,
        }],
        "passengers": [draw_passenger(random) for _ in range(passenger_count)],
        "payment_history": [{
            "payment_id": card,
            "amount": (price + INSURANCE_PRICE * is_insured) * passenger_count + BAG_PRICE * (bags - free),
        }],
        "created_at": f"2024-05-{random.choice((2, 9, 12, 15)):02d}T10:00:00", "total_baggages": bags,
        "nonfree_baggages": bags - free, "insurance": "yes" if is_insured else "no",
    }  # fmt: skip
