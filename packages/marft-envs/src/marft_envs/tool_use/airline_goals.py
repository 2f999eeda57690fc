"""Airline tables, generated from a seed, and goals for airline users."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from functools import lru_cache
from itertools import permutations, product
from random import Random

from marft_envs.tool_use.airline import AIRPORTS, BAG_PRICE, FREE_BAGS, INSURANCE_PRICE, YESTERDAY, Airline
from marft_envs.tool_use.goals import Calls, Goal, GoalSampler, Identity, ServiceWorld, about_record, make_call
from marft_envs.tool_use.retail_goals import FIRST_NAMES, LAST_NAMES
from marft_envs.tool_use.toolbox import Record, RecordView

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
    days: Record = {}
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


POLICY = """You serve the passengers of an airline, with its tools. It is 15 May 2024, 15:00.
- First get the user id. Help no one with what is another user's.
- Say what you will change or book, and go on only once the user says yes.
- A reservation can be cancelled where it was made in the last 24 hours, the airline has cancelled a flight of it, it is business class, or it is insured; else it cannot.
- Flights of basic economy cannot be changed; others can, on the same route. Any cabin can be changed, for all flights of a reservation at once, for the difference in price. Certificates pay for bookings only.
- Bags can be added, not removed. For each passenger are free: regular members 0 in basic economy, 1 in economy, 2 in business; silver members 1, 2, 3; gold members 2, 3, 3. Each other bag is 50 dollars.
- Names of passengers can be changed, their number cannot. Insurance is bought with the booking alone, for 30 dollars each.
- Where something cannot be done, say so, and make nothing up."""  # noqa: E501


def build_identity(user: RecordView, is_explicit: bool) -> Identity:
    """Return an identity by user id."""
    name = user["user_id"]
    return Identity(
        {"user": name, "name": f"{user['name']['first_name']} {user['name']['last_name']}", "email": user["email"]},
        ["user"],
        [make_call("get_user_details", user_id=name)],
        f"My user id is {name}." if is_explicit else "",
    )


@about_record("reservations")
def cancel_goal(sampler: GoalSampler, reservation: RecordView) -> Goal:
    """Draw a goal: cancel a reservation. Its fare may not allow this."""
    name, hidden, fare = reservation["reservation_id"], sampler.draw_hidden("reservation"), _cabin_name(reservation)
    allowed = (
        reservation["cabin"] == "business"
        or reservation["insurance"] == "yes"
        or reservation["created_at"] >= YESTERDAY
    )
    refund = str(sum(payment["amount"] for payment in reservation["payment_history"]))
    done = f"Reservation {name} is cancelled, {refund} dollars will be refunded."
    refusal = f"Sorry, reservation {name} is {fare} without insurance, and cannot be cancelled."
    return Goal(
        aim=f"cancel reservation {name}",
        says=f"I want to cancel {_reservation_phrase(name, hidden)}; I cannot fly.",
        facts={"reservation": name, "reason": "I am ill"},
        withheld=hidden,
        keys=[name],
        reads=_lookup_calls(name),
        writes=[make_call("cancel_reservation", reservation_id=name)] if allowed else [],
        outputs=[refund if allowed else fare],
        offer=f"Shall I cancel reservation {name} and refund {refund} dollars?" if allowed else "",
        report=done if allowed else refusal,
    )


@about_record("reservations")
def add_bags_goal(sampler: GoalSampler, reservation: RecordView) -> Goal:
    """Draw a goal: add 1 to 3 bags. Some may be free."""
    name, hidden = reservation["reservation_id"], sampler.draw_hidden("reservation", "payment")
    more = sampler.random.randint(1, 3)
    free = FREE_BAGS[sampler.user["membership"]][reservation["cabin"]] * len(reservation["passengers"])
    total, card = reservation["total_baggages"] + more, _first_card(sampler)
    paid_bags = max(0, total - free)
    price = BAG_PRICE * max(0, paid_bags - reservation["nonfree_baggages"])
    bags = {"total_baggages": total, "nonfree_baggages": paid_bags}
    return Goal(
        aim=f"{more} more bags on reservation {name} with {card}",
        says=f"I want to take {more} more bags on {_reservation_phrase(name, hidden)}."
        f"{_payment_sentence(card, hidden)}",
        facts={"reservation": name, "payment": card, "bags": f"{more} more"},
        withheld=hidden,
        keys=[name],
        reads=_lookup_calls(name),
        writes=[make_call("update_reservation_baggages", reservation_id=name, **bags, payment_id=card)],
        outputs=[str(price)],
        offer=f"Shall I add {more} bags to reservation {name} for {price} dollars with {card}?",
        report=f"Reservation {name} now has {total} bags, for {price} dollars more.",
    )


@about_record("reservations")
def change_cabin_goal(sampler: GoalSampler, reservation: RecordView) -> Goal | None:
    """Draw a goal: change the cabin."""
    cabin = sampler.random.choice([item for item in CABINS if item != reservation["cabin"]])
    flights = [{"flight_number": item["flight_number"], "date": item["date"]} for item in reservation["flights"]]
    change = {"flights": flights, "cabin": cabin}
    cabin_name = _cabin_name(change)
    return _change_flights_goal(sampler, reservation, change, f"the cabin of {{}} to {cabin_name}", cabin_name)


@about_record("reservations")
def change_day_goal(sampler: GoalSampler, reservation: RecordView) -> Goal | None:
    """Draw a goal: fly on another day. Basic economy does not allow this."""
    (flight,) = reservation["flights"]
    days = [day for day in sampler.database["flights"][flight["flight_number"]]["dates"] if day != flight["date"]]
    day = sampler.random.choice(days)
    change = {"flights": [{"flight_number": flight["flight_number"], "date": day}], "cabin": reservation["cabin"]}
    words = f"the flight of {{}} to {day}"
    if reservation["cabin"] != "basic_economy":
        return _change_flights_goal(sampler, reservation, change, words, day)
    name, hidden = reservation["reservation_id"], sampler.draw_hidden("reservation")
    return Goal(
        aim=f"change {words.format(f'reservation {name}')}",
        says=f"I want to change {words.format(_reservation_phrase(name, hidden))}.",
        facts={"reservation": name, "date": day},
        withheld=hidden,
        keys=[name],
        reads=_lookup_calls(name),
        outputs=["basic economy"],
        report=f"Sorry, the flight of reservation {name} cannot be changed: it is basic economy.",
    )


@about_record("reservations")
def rename_goal(sampler: GoalSampler, reservation: RecordView) -> Goal:
    """Draw a goal: replace a passenger."""
    name, hidden = reservation["reservation_id"], sampler.draw_hidden("reservation", "passenger")
    new, old = draw_passenger(sampler.random), reservation["passengers"][0]
    passengers = [new, *reservation["passengers"][1:]]
    old_name = f"{old['first_name']} {old['last_name']}"
    new_passenger = f"{new['first_name']} {new['last_name']}, born {new['dob']}"
    passenger_text = "" if "passenger" in hidden else f": {new_passenger}"
    return Goal(
        aim=f"{new_passenger} in place of {old_name} on reservation {name}",
        says=f"On {_reservation_phrase(name, hidden)} somebody else will fly in place of {old_name}{passenger_text}.",
        facts={"reservation": name, "passenger": new_passenger},
        withheld=hidden,
        keys=[name, new["last_name"]],
        reads=_lookup_calls(name),
        writes=[make_call("update_reservation_passengers", reservation_id=name, passengers=passengers)],
        offer=f"Shall I have {new_passenger} fly in place of {old_name} on reservation {name}?",
        report=f"On reservation {name}, {new_passenger} will fly.",
    )


def book_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: book a direct flight for the user."""
    if "booking" in sampler.used:
        return None
    flights = sorted(sampler.database["flights"].values(), key=lambda item: str(item["flight_number"]))
    flight = sampler.random.choice(flights)
    day, cabin = sampler.random.choice(sorted(flight["dates"])), sampler.random.choice(CABINS)
    flight_day = flight["dates"][day]
    if not flight_day["available_seats"][cabin]:
        return None
    sampler.used.add("booking")
    hidden, is_insured = sampler.draw_hidden("insurance", "payment"), sampler.random.random() < 0.5
    card, user, number = _first_card(sampler), sampler.user, flight["flight_number"]
    price = flight_day["prices"][cabin] + INSURANCE_PRICE * is_insured
    ends = {"origin": flight["origin"], "destination": flight["destination"]}
    route = " to ".join(ends.values())
    insurance = "with insurance" if is_insured else "without insurance"
    booking = make_call(
        "book_reservation",
        user_id=user["user_id"],
        **ends,
        flight_type="one_way",
        cabin=cabin,
        flights=[{"flight_number": number, "date": day}],
        passengers=[{**user["name"], "dob": user["dob"]}],
        payment_methods=[{"payment_id": card, "amount": price}],
        total_baggages=0,
        nonfree_baggages=0,
        insurance="yes" if is_insured else "no",
    )
    return Goal(
        aim=f"book {number} on {day} in {cabin}, {insurance}, with {card}",
        says=f"Book me a direct flight from {route} on {day} in {cabin.replace('_', ' ')}, without bags"
        f"{'' if 'insurance' in hidden else f', {insurance}'}.{_payment_sentence(card, hidden)}",
        facts={"insurance": insurance, "payment": card, "passenger": "only me", "bags": "no bags"},
        withheld=hidden,
        keys=[*ends.values(), day],
        reads=[make_call("search_direct_flight", **ends, date=day)],
        writes=[booking],
        outputs=[str(price)],
        offer=f"Shall I book {number} from {route} on {day} {insurance} for {price} dollars with {card}?",
        report=f"{number} on {day} is booked for {price} dollars.",
    )


@about_record("reservations")
def price_question(sampler: GoalSampler, reservation: RecordView) -> Goal:
    """Draw a question: the price paid for a reservation."""
    name, hidden = reservation["reservation_id"], sampler.draw_hidden("reservation")
    price = str(reservation["payment_history"][0]["amount"])
    return Goal(
        aim=f"price of reservation {name}",
        says=f"What did I pay for {_reservation_phrase(name, hidden)}?",
        facts={"reservation": name},
        withheld=hidden,
        keys=[name],
        reads=_lookup_calls(name),
        outputs=[price],
        report=f"For reservation {name} you paid {price} dollars.",
    )


def _change_flights_goal(
    sampler: GoalSampler, reservation: RecordView, change: RecordView, words: str, key: str
) -> Goal | None:
    """Draw a goal: change the flights or the cabin; None if seats are missing.

    Args:
        sampler: sampler of the goal.
        reservation: reservation to change.
        change: new ``flights`` and ``cabin``.
        words: description of the change, with ``{}`` for the reservation.
        key: word that an offer or a report must contain.
    """
    days = [sampler.database["flights"][item["flight_number"]]["dates"][item["date"]] for item in change["flights"]]
    cabin, passenger_count = change["cabin"], len(reservation["passengers"])
    if any(day["available_seats"][cabin] < passenger_count for day in days):
        return None
    old_price = sum(item["price"] for item in reservation["flights"])
    price_change = int(sum(day["prices"][cabin] for day in days) - old_price) * passenger_count
    name, hidden = reservation["reservation_id"], sampler.draw_hidden("reservation", "payment")
    card, day = _first_card(sampler), change["flights"][0]["date"]
    price = f"{abs(price_change)} dollars {'more' if price_change >= 0 else 'back'}"
    search = {"origin": reservation["origin"], "destination": reservation["destination"], "date": day}
    update = {"reservation_id": name, "cabin": cabin, "flights": change["flights"], "payment_id": card}
    return Goal(
        aim=f"change {words.format(f'reservation {name}')} with {card}",
        says=f"I want to change {words.format(_reservation_phrase(name, hidden))}.{_payment_sentence(card, hidden)}",
        facts={"reservation": name, "payment": card, "date": day, "cabin": _cabin_name(change)},
        withheld=hidden,
        keys=[name, key],
        reads=[*_lookup_calls(name), make_call("search_direct_flight", **search)],
        writes=[make_call("update_reservation_flights", **update)],
        outputs=[str(abs(price_change))],
        offer=f"Shall I change {words.format(f'reservation {name}')} for {price}, with {card}?",
        report=f"I have changed {words.format(f'reservation {name}')} for {price}.",
    )


def _first_card(sampler: GoalSampler) -> str:
    return str(next(iter(sampler.user["payment_methods"])))


def _cabin_name(booking: RecordView) -> str:
    return str(booking["cabin"]).replace("_", " ")


def _payment_sentence(card: str, hidden: Sequence[str]) -> str:
    return "" if "payment" in hidden else f" Use {card}."


def _reservation_phrase(name: str, hidden: Sequence[str]) -> str:
    return "a reservation of mine" if "reservation" in hidden else f"reservation {name}"


def _lookup_calls(name: str) -> Calls:
    return [make_call("get_reservation_details", reservation_id=name)]


AIRLINE = ServiceWorld(
    Airline,
    generate_airline_tables,
    (cancel_goal, add_bags_goal, change_cabin_goal, change_day_goal, rename_goal, book_goal, price_question),
    build_identity,
    POLICY,
)
