"""Airline tables, generated from a seed."""

from __future__ import annotations

from datetime import date, timedelta
from functools import lru_cache
from itertools import permutations, product
from random import Random
from typing import Any

from marft_envs.tool_use.airline import AIRPORTS, BAG, FREE_BAGS, INSURANCE
from marft_envs.tool_use.retail_data import FIRST, LAST
from marft_envs.tool_use.tables import Record

CABINS = ("basic_economy", "economy", "business")
FIRST_DAY, DAYS = date(2024, 5, 16), 6
FIVE = tuple(AIRPORTS)[:5]  # airports with flights
USERS, RESERVATIONS_EACH = 3, 5
ALPHABET = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"


@lru_cache(maxsize=512)
def airline_tables(seed: int) -> dict[str, dict[str, Record]]:
    """Return generated users, flights and reservations, in τ-bench's layout.

    The tables are cached and shared: do not write to them.
    """
    random = Random(seed)
    flights = {}
    for number, (origin, destination) in enumerate(random.sample(list(permutations(FIVE, 2)), 14), 1):
        name = f"HAT{number:03d}"
        flights[name] = _flight(random, name, origin, destination)
    users: dict[str, Record] = {}
    reservations: dict[str, Record] = {}
    for first, last in random.sample(list(product(FIRST, LAST)), USERS):
        user = _user(random, first, last)
        users[user["user_id"]] = user
        for _ in range(RESERVATIONS_EACH):
            made = _reservation(random, user, list(flights.values()))
            reservations[made["reservation_id"]] = made
            user["reservations"].append(made["reservation_id"])
    return {"users": users, "flights": flights, "reservations": reservations}


def passenger(random: Random) -> Record:
    """Draw a passenger."""
    born = date(1950, 1, 1) + timedelta(days=random.randrange(20_000))
    return {"first_name": random.choice(FIRST), "last_name": random.choice(LAST), "dob": str(born)}


def _flight(random: Random, name: str, origin: str, destination: str) -> Record:
    leaves = random.randint(5, 19)
    days: dict[str, Any] = {}
    for day in range(DAYS):
        base = random.randint(50, 150)
        prices = dict(zip(CABINS, (base, base + random.randint(20, 80), base + random.randint(200, 400)), strict=True))
        seats = {cabin: random.choice((0, 3, 8, 15)) for cabin in CABINS}
        days[str(FIRST_DAY + timedelta(days=day))] = {"status": "available", "available_seats": seats, "prices": prices}
    return {
        "flight_number": name, "origin": origin, "destination": destination,
        "scheduled_departure_time_est": f"{leaves:02d}:00:00",
        "scheduled_arrival_time_est": f"{leaves + random.randint(1, 4):02d}:30:00", "dates": days,
    }  # fmt: skip


def _user(random: Random, first: str, last: str) -> Record:
    card, gift = f"credit_card_{random.randint(10**6, 10**7 - 1)}", f"gift_card_{random.randint(10**6, 10**7 - 1)}"
    return {
        "user_id": f"{first.lower()}_{last.lower()}_{random.randint(1000, 9999)}",
        "name": {"first_name": first, "last_name": last}, "dob": passenger(random)["dob"],
        "email": f"{first.lower()}.{last.lower()}@example.com",
        "payment_methods": {
            card: {"source": "credit_card", "brand": "visa", "last_four": str(random.randint(1000, 9999)), "id": card},
            gift: {"source": "gift_card", "amount": random.randint(100, 900), "id": gift},
        },
        "saved_passengers": [passenger(random)], "membership": random.choice(tuple(FREE_BAGS)), "reservations": [],
    }  # fmt: skip


def _reservation(random: Random, user: Record, flights: list[Record]) -> Record:
    flight, cabin, people = random.choice(flights), random.choice(CABINS), random.randint(1, 2)
    day = random.choice(sorted(flight["dates"]))
    price, insured = flight["dates"][day]["prices"][cabin], random.random() < 0.3
    free = FREE_BAGS[user["membership"]][cabin] * people
    bags = free + random.choice((0, 0, 1))
    card = next(iter(user["payment_methods"]))
    origin, destination = flight["origin"], flight["destination"]
    return {
        "reservation_id": "".join(random.choice(ALPHABET) for _ in range(6)), "user_id": user["user_id"],
        "origin": origin, "destination": destination, "flight_type": "one_way", "cabin": cabin,
        "flights": [{
            "origin": origin, "destination": destination, "flight_number": flight["flight_number"], "date": day,
            "price": price,
        }],
        "passengers": [passenger(random) for _ in range(people)],
        "payment_history": [
            {"payment_id": card, "amount": (price + INSURANCE * insured) * people + BAG * (bags - free)}
        ],
        "created_at": f"2024-05-{random.choice((2, 9, 12, 15)):02d}T10:00:00", "total_baggages": bags,
        "nonfree_baggages": bags - free, "insurance": "yes" if insured else "no",
    }  # fmt: skip
