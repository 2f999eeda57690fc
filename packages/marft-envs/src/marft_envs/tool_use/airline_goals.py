"""Goals for airline users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.tool_use.airline import BAG_PRICE, FREE_BAGS, INSURANCE_PRICE, YESTERDAY, Airline
from marft_envs.tool_use.airline_data import CABINS, draw_passenger, generate_airline_tables
from marft_envs.tool_use.goals import Goal, GoalSampler, Identity, ServiceWorld
from marft_envs.tool_use.tables import Record

POLICY = """You serve the passengers of an airline, with its tools. It is 15 May 2024, 15:00.
- First get the user id. Help no one with what is another user's.
- Say what you will change or book, and go on only once the user says yes.
- A reservation can be cancelled where it was made in the last 24 hours, the airline has cancelled a flight of it, it is business class, or it is insured; else it cannot.
- Flights of basic economy cannot be changed; others can, on the same route. Any cabin can be changed, for all flights of a reservation at once, for the difference in price. Certificates pay for bookings only.
- Bags can be added, not removed. For each passenger are free: regular members 0 in basic economy, 1 in economy, 2 in business; silver members 1, 2, 3; gold members 2, 3, 3. Each other bag is 50 dollars.
- Names of passengers can be changed, their number cannot. Insurance is bought with the booking alone, for 30 dollars each.
- Where something cannot be done, say so, and make nothing up."""  # noqa: E501


def build_identity(user: Mapping[str, Any], is_explicit: bool) -> Identity:
    """Return an identity by user id."""
    name = user["user_id"]
    return Identity(
        {"user": name, "name": f"{user['name']['first_name']} {user['name']['last_name']}", "email": user["email"]},
        ["user"],
        [["get_user_details", {"user_id": name}]],
        f"My user id is {name}." if is_explicit else "",
    )


def cancel_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: cancel a reservation. Its fare may not allow this."""
    reservation = sampler.draw_record("reservations")
    if reservation is None:
        return None
    name, is_explicit = reservation["reservation_id"], sampler.draw_explicit()
    allowed = (
        reservation["cabin"] == "business"
        or reservation["insurance"] == "yes"
        or reservation["created_at"] >= YESTERDAY
    )
    refund = str(sum(payment["amount"] for payment in reservation["payment_history"]))
    return Goal(
        f"cancel reservation {name}",
        f"I want to cancel {_reservation_phrase(name, is_explicit)}; I cannot fly.",
        {"reservation": name, "reason": "I am ill"},
        [] if is_explicit else ["reservation"],
        [name],
        _lookup_calls(name),
        [["cancel_reservation", {"reservation_id": name}]] if allowed else [],
        [refund if allowed else reservation["cabin"].replace("_", " ")],
        f"Shall I cancel reservation {name} and refund {refund} dollars?" if allowed else "",
        f"Reservation {name} is cancelled, {refund} dollars will be refunded."
        if allowed
        else f"Sorry, reservation {name} is {reservation['cabin'].replace('_', ' ')} without insurance, and cannot be "
        "cancelled.",
    )


def add_bags_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: add 1 to 3 bags. Some may be free."""
    reservation = sampler.draw_record("reservations")
    if reservation is None:
        return None
    name, is_explicit, more = (
        reservation["reservation_id"],
        [sampler.draw_explicit(), sampler.draw_explicit()],
        sampler.random.randint(1, 3),
    )
    free = FREE_BAGS[sampler.user["membership"]][reservation["cabin"]] * len(reservation["passengers"])
    total, card = reservation["total_baggages"] + more, _first_card(sampler)
    paid_bags = max(0, total - free)
    price = BAG_PRICE * max(0, paid_bags - reservation["nonfree_baggages"])
    return Goal(
        f"{more} more bags on reservation {name} with {card}",
        f"I want to take {more} more bags on "
        f"{_reservation_phrase(name, is_explicit[0])}.{_payment_sentence(card) if is_explicit[1] else ''}",
        {"reservation": name, "payment": card, "bags": f"{more} more"},
        [slot for slot, is_known in zip(("reservation", "payment"), is_explicit, strict=True) if not is_known],
        [name],
        _lookup_calls(name),
        [
            [
                "update_reservation_baggages",
                {
                    "reservation_id": name,
                    "total_baggages": total,
                    "nonfree_baggages": paid_bags,
                    "payment_id": card,
                },
            ]
        ],
        [str(price)],
        f"Shall I add {more} bags to reservation {name} for {price} dollars with {card}?",
        f"Reservation {name} now has {total} bags, for {price} dollars more.",
    )


def change_cabin_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: change the cabin."""
    reservation = sampler.draw_record("reservations")
    if reservation is None:
        return None
    cabin = sampler.random.choice([item for item in CABINS if item != reservation["cabin"]])
    flights = [{"flight_number": item["flight_number"], "date": item["date"]} for item in reservation["flights"]]
    price_change = _price_difference(sampler, reservation, flights, cabin)
    if price_change is None:
        return None
    words = f"the cabin of {{}} to {cabin.replace('_', ' ')}"
    return _change_flights_goal(sampler, reservation, flights, cabin, price_change, words, [cabin.replace("_", " ")])


def change_day_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: fly on another day. Basic economy does not allow this."""
    reservation = sampler.draw_record("reservations")
    if reservation is None:
        return None
    (flight,) = reservation["flights"]
    days = [day for day in sampler.database["flights"][flight["flight_number"]]["dates"] if day != flight["date"]]
    day = sampler.random.choice(days)
    flights = [{"flight_number": flight["flight_number"], "date": day}]
    words = f"the flight of {{}} to {day}"
    if reservation["cabin"] == "basic_economy":
        name, is_explicit = reservation["reservation_id"], sampler.draw_explicit()
        return Goal(
            f"change {words.format(f'reservation {name}')}",
            f"I want to change {words.format(_reservation_phrase(name, is_explicit))}.",
            {"reservation": name, "date": day},
            [] if is_explicit else ["reservation"],
            [name],
            _lookup_calls(name),
            [],
            ["basic economy"],
            "",
            f"Sorry, the flight of reservation {name} cannot be changed: it is basic economy.",
        )
    price_change = _price_difference(sampler, reservation, flights, reservation["cabin"])
    return (
        None
        if price_change is None
        else _change_flights_goal(sampler, reservation, flights, reservation["cabin"], price_change, words, [day])
    )


def rename_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: replace a passenger."""
    reservation = sampler.draw_record("reservations")
    if reservation is None:
        return None
    name, is_explicit, new = (
        reservation["reservation_id"],
        [sampler.draw_explicit(), sampler.draw_explicit()],
        draw_passenger(sampler.random),
    )
    old = reservation["passengers"][0]
    old_name, new_passenger = (
        f"{old['first_name']} {old['last_name']}",
        f"{new['first_name']} {new['last_name']}, born {new['dob']}",
    )
    return Goal(
        f"{new_passenger} in place of {old_name} on reservation {name}",
        f"On {_reservation_phrase(name, is_explicit[0])} somebody else will fly in place of "
        f"{old_name}{f': {new_passenger}' if is_explicit[1] else ''}.",
        {"reservation": name, "passenger": new_passenger},
        [slot for slot, is_known in zip(("reservation", "passenger"), is_explicit, strict=True) if not is_known],
        [name, new["last_name"]],
        _lookup_calls(name),
        [
            [
                "update_reservation_passengers",
                {"reservation_id": name, "passengers": [new, *reservation["passengers"][1:]]},
            ]
        ],
        [],
        f"Shall I have {new_passenger} fly in place of {old_name} on reservation {name}?",
        f"On reservation {name}, {new_passenger} will fly.",
    )


def book_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: book a direct flight for the user."""
    if "booking" in sampler.used:
        return None
    flight = sampler.random.choice(
        sorted(sampler.database["flights"].values(), key=lambda item: str(item["flight_number"]))
    )
    day, cabin = sampler.random.choice(sorted(flight["dates"])), sampler.random.choice(CABINS)
    flight_day = flight["dates"][day]
    if not flight_day["available_seats"][cabin]:
        return None
    sampler.used.add("booking")
    is_explicit, is_insured, card, user = (
        [sampler.draw_explicit(), sampler.draw_explicit()],
        sampler.random.random() < 0.5,
        _first_card(sampler),
        sampler.user,
    )
    price = flight_day["prices"][cabin] + INSURANCE_PRICE * is_insured
    route, number = f"{flight['origin']} to {flight['destination']}", flight["flight_number"]
    insurance = "with insurance" if is_insured else "without insurance"
    return Goal(
        f"book {number} on {day} in {cabin}, {insurance}, with {card}",
        f"Book me a direct flight from {route} on {day} in {cabin.replace('_', ' ')}, without bags"
        f"{f', {insurance}' if is_explicit[0] else ''}.{_payment_sentence(card) if is_explicit[1] else ''}",
        {"insurance": insurance, "payment": card, "passenger": "only me", "bags": "no bags"},
        [slot for slot, is_known in zip(("insurance", "payment"), is_explicit, strict=True) if not is_known],
        [flight["origin"], flight["destination"], day],
        [
            [
                "search_direct_flight",
                {
                    "origin": flight["origin"],
                    "destination": flight["destination"],
                    "date": day,
                },
            ]
        ],
        [
            [
                "book_reservation",
                {
                    "user_id": user["user_id"],
                    "origin": flight["origin"],
                    "destination": flight["destination"],
                    "flight_type": "one_way",
                    "cabin": cabin,
                    "flights": [{"flight_number": number, "date": day}],
                    "passengers": [{**user["name"], "dob": user["dob"]}],
                    "payment_methods": [{"payment_id": card, "amount": price}],
                    "total_baggages": 0,
                    "nonfree_baggages": 0,
                    "insurance": "yes" if is_insured else "no",
                },
            ]
        ],
        [str(price)],
        f"Shall I book {number} from {route} on {day} {insurance} for {price} dollars with {card}?",
        f"{number} on {day} is booked for {price} dollars.",
    )


def price_question(sampler: GoalSampler) -> Goal | None:
    """Draw a question: the price paid for a reservation."""
    reservation = sampler.draw_record("reservations")
    if reservation is None:
        return None
    name, is_explicit, price = (
        reservation["reservation_id"],
        sampler.draw_explicit(),
        str(reservation["payment_history"][0]["amount"]),
    )
    return Goal(
        f"price of reservation {name}",
        f"What did I pay for {_reservation_phrase(name, is_explicit)}?",
        {"reservation": name},
        [] if is_explicit else ["reservation"],
        [name],
        _lookup_calls(name),
        [],
        [price],
        "",
        f"For reservation {name} you paid {price} dollars.",
    )


def _change_flights_goal(
    sampler: GoalSampler,
    reservation: Mapping[str, Any],
    flights: list[Record],
    cabin: str,
    price_change: int,
    words: str,
    keys: list[str],
) -> Goal:
    name, is_explicit, card = (
        reservation["reservation_id"],
        [sampler.draw_explicit(), sampler.draw_explicit()],
        _first_card(sampler),
    )
    price = f"{abs(price_change)} dollars {'more' if price_change >= 0 else 'back'}"
    return Goal(
        f"change {words.format(f'reservation {name}')} with {card}",
        f"I want to change {words.format(_reservation_phrase(name, is_explicit[0]))}."
        f"{_payment_sentence(card) if is_explicit[1] else ''}",
        {"reservation": name, "payment": card, "date": flights[0]["date"], "cabin": cabin.replace("_", " ")},
        [slot for slot, is_known in zip(("reservation", "payment"), is_explicit, strict=True) if not is_known],
        [name, *keys],
        [
            *_lookup_calls(name),
            [
                "search_direct_flight",
                {
                    "origin": reservation["origin"],
                    "destination": reservation["destination"],
                    "date": flights[0]["date"],
                },
            ],
        ],
        [
            [
                "update_reservation_flights",
                {
                    "reservation_id": name,
                    "cabin": cabin,
                    "flights": flights,
                    "payment_id": card,
                },
            ]
        ],
        [str(abs(price_change))],
        f"Shall I change {words.format(f'reservation {name}')} for {price}, with {card}?",
        f"I have changed {words.format(f'reservation {name}')} for {price}.",
    )


def _price_difference(
    sampler: GoalSampler, reservation: Mapping[str, Any], flights: list[Record], cabin: str
) -> int | None:
    """Return the price difference after a change, in dollars; None if seats are missing."""
    days = [sampler.database["flights"][item["flight_number"]]["dates"][item["date"]] for item in flights]
    passenger_count = len(reservation["passengers"])
    if any(day["available_seats"][cabin] < passenger_count for day in days):
        return None
    return (
        int(sum(day["prices"][cabin] for day in days) - sum(item["price"] for item in reservation["flights"]))
        * passenger_count
    )


def _first_card(sampler: GoalSampler) -> str:
    return str(next(iter(sampler.user["payment_methods"])))


def _payment_sentence(card: str) -> str:
    return f" Use {card}."


def _reservation_phrase(name: str, is_explicit: bool) -> str:
    return f"reservation {name}" if is_explicit else "a reservation of mine"


def _lookup_calls(name: str) -> list[list[Any]]:
    return [["get_reservation_details", {"reservation_id": name}]]


AIRLINE = ServiceWorld(
    Airline,
    generate_airline_tables,
    (cancel_goal, add_bags_goal, change_cabin_goal, change_day_goal, rename_goal, book_goal, price_question),
    build_identity,
    POLICY,
)
