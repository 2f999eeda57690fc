"""Goals for airline users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.tool_use.airline import BAG, FREE_BAGS, INSURANCE, YESTERDAY, Airline
from marft_envs.tool_use.airline_data import CABINS, airline_tables, passenger
from marft_envs.tool_use.goals import Draft, Goal, Identity, World
from marft_envs.tool_use.tables import Record

POLICY = """You serve the passengers of an airline, with its tools. It is 15 May 2024, 15:00.
- First get the user id. Help no one with what is another user's.
- Say what you will change or book, and go on only once the user says yes.
- A reservation can be cancelled where it was made in the last 24 hours, the airline has cancelled a flight of it, it is business class, or it is insured; else it cannot.
- Flights of basic economy cannot be changed; others can, on the same route. Any cabin can be changed, for all flights of a reservation at once, for the difference in price. Certificates pay for bookings only.
- Bags can be added, not removed. For each passenger are free: regular members 0 in basic economy, 1 in economy, 2 in business; silver members 1, 2, 3; gold members 2, 3, 3. Each other bag is 50 dollars.
- Names of passengers can be changed, their number cannot. Insurance is bought with the booking alone, for 30 dollars each.
- Where something cannot be done, say so, and make nothing up."""  # noqa: E501


def identity(user: Mapping[str, Any], told: bool) -> Identity:
    """Return an identity by user id."""
    name = user["user_id"]
    return Identity(
        {"user": name, "name": f"{user['name']['first_name']} {user['name']['last_name']}", "email": user["email"]},
        ["user"], [["get_user_details", {"user_id": name}]], f"My user id is {name}." if told else "",
    )  # fmt: skip


def cancel(draft: Draft) -> Goal | None:
    """Draw a goal: cancel a reservation. Its fare may not allow this."""
    made = draft.one("reservations")
    if made is None:
        return None
    name, told = made["reservation_id"], draft.told()
    allowed = made["cabin"] == "business" or made["insurance"] == "yes" or made["created_at"] >= YESTERDAY
    paid = str(sum(one["amount"] for one in made["payment_history"]))
    return Goal(
        f"cancel reservation {name}",
        f"I want to cancel {_named(name, told)}; I cannot fly.",
        {"reservation": name, "reason": "I am ill"}, [] if told else ["reservation"], [name], _reads(name),
        [["cancel_reservation", {"reservation_id": name}]] if allowed else [],
        [paid if allowed else made["cabin"].replace("_", " ")],
        f"Shall I cancel reservation {name} and refund {paid} dollars?" if allowed else "",
        f"Reservation {name} is cancelled, {paid} dollars will be refunded."
        if allowed else
        f"Sorry, reservation {name} is {made['cabin'].replace('_', ' ')} without insurance, and cannot be cancelled.",
    )  # fmt: skip


def add_bags(draft: Draft) -> Goal | None:
    """Draw a goal: add 1 to 3 bags. Some may be free."""
    made = draft.one("reservations")
    if made is None:
        return None
    name, told, more = made["reservation_id"], [draft.told(), draft.told()], draft.random.randint(1, 3)
    free = FREE_BAGS[draft.user["membership"]][made["cabin"]] * len(made["passengers"])
    total, card = made["total_baggages"] + more, _card(draft)
    paid = max(0, total - free)
    price = BAG * max(0, paid - made["nonfree_baggages"])
    return Goal(
        f"{more} more bags on reservation {name} with {card}",
        f"I want to take {more} more bags on {_named(name, told[0])}.{_by(card) if told[1] else ''}",
        {"reservation": name, "payment": card, "bags": f"{more} more"},
        [slot for slot, known in zip(("reservation", "payment"), told, strict=True) if not known], [name],
        _reads(name),
        [["update_reservation_baggages", {
            "reservation_id": name, "total_baggages": total, "nonfree_baggages": paid, "payment_id": card,
        }]],
        [str(price)], f"Shall I add {more} bags to reservation {name} for {price} dollars with {card}?",
        f"Reservation {name} now has {total} bags, for {price} dollars more.",
    )  # fmt: skip


def change_cabin(draft: Draft) -> Goal | None:
    """Draw a goal: change the cabin."""
    made = draft.one("reservations")
    if made is None:
        return None
    cabin = draft.random.choice([one for one in CABINS if one != made["cabin"]])
    flights = [{"flight_number": one["flight_number"], "date": one["date"]} for one in made["flights"]]
    difference = _difference(draft, made, flights, cabin)
    if difference is None:
        return None
    words = f"the cabin of {{}} to {cabin.replace('_', ' ')}"
    return _flights_changed(draft, made, flights, cabin, difference, words, [cabin.replace("_", " ")])


def change_day(draft: Draft) -> Goal | None:
    """Draw a goal: fly on another day. Basic economy does not allow this."""
    made = draft.one("reservations")
    if made is None:
        return None
    (flight,) = made["flights"]
    days = [day for day in draft.base["flights"][flight["flight_number"]]["dates"] if day != flight["date"]]
    day = draft.random.choice(days)
    flights = [{"flight_number": flight["flight_number"], "date": day}]
    words = f"the flight of {{}} to {day}"
    if made["cabin"] == "basic_economy":
        name, told = made["reservation_id"], draft.told()
        return Goal(
            f"change {words.format(f'reservation {name}')}",
            f"I want to change {words.format(_named(name, told))}.", {"reservation": name, "date": day},
            [] if told else ["reservation"], [name], _reads(name), [], ["basic economy"], "",
            f"Sorry, the flight of reservation {name} cannot be changed: it is basic economy.",
        )  # fmt: skip
    difference = _difference(draft, made, flights, made["cabin"])
    return (
        None if difference is None else _flights_changed(draft, made, flights, made["cabin"], difference, words, [day])
    )


def rename(draft: Draft) -> Goal | None:
    """Draw a goal: replace a passenger."""
    made = draft.one("reservations")
    if made is None:
        return None
    name, told, new = made["reservation_id"], [draft.told(), draft.told()], passenger(draft.random)
    old = made["passengers"][0]
    who, person = (
        f"{old['first_name']} {old['last_name']}",
        f"{new['first_name']} {new['last_name']}, born {new['dob']}",
    )
    return Goal(
        f"{person} in place of {who} on reservation {name}",
        f"On {_named(name, told[0])} somebody else will fly in place of {who}{f': {person}' if told[1] else ''}.",
        {"reservation": name, "passenger": person},
        [slot for slot, known in zip(("reservation", "passenger"), told, strict=True) if not known],
        [name, new["last_name"]], _reads(name),
        [["update_reservation_passengers", {"reservation_id": name, "passengers": [new, *made["passengers"][1:]]}]],
        [], f"Shall I have {person} fly in place of {who} on reservation {name}?",
        f"On reservation {name}, {person} will fly.",
    )  # fmt: skip


def book(draft: Draft) -> Goal | None:
    """Draw a goal: book a direct flight for the user."""
    if "booking" in draft.taken:
        return None
    flight = draft.random.choice(sorted(draft.base["flights"].values(), key=lambda one: str(one["flight_number"])))
    day, cabin = draft.random.choice(sorted(flight["dates"])), draft.random.choice(CABINS)
    on = flight["dates"][day]
    if not on["available_seats"][cabin]:
        return None
    draft.taken.add("booking")
    told, insured, card, user = [draft.told(), draft.told()], draft.random.random() < 0.5, _card(draft), draft.user
    price = on["prices"][cabin] + INSURANCE * insured
    route, number = f"{flight['origin']} to {flight['destination']}", flight["flight_number"]
    insurance = "with insurance" if insured else "without insurance"
    return Goal(
        f"book {number} on {day} in {cabin}, {insurance}, with {card}",
        f"Book me a direct flight from {route} on {day} in {cabin.replace('_', ' ')}, without bags"
        f"{f', {insurance}' if told[0] else ''}.{_by(card) if told[1] else ''}",
        {"insurance": insurance, "payment": card, "passenger": "only me", "bags": "no bags"},
        [slot for slot, known in zip(("insurance", "payment"), told, strict=True) if not known],
        [flight["origin"], flight["destination"], day],
        [["search_direct_flight", {
            "origin": flight["origin"], "destination": flight["destination"], "date": day,
        }]],
        [["book_reservation", {
            "user_id": user["user_id"], "origin": flight["origin"], "destination": flight["destination"],
            "flight_type": "one_way", "cabin": cabin, "flights": [{"flight_number": number, "date": day}],
            "passengers": [{**user["name"], "dob": user["dob"]}],
            "payment_methods": [{"payment_id": card, "amount": price}], "total_baggages": 0, "nonfree_baggages": 0,
            "insurance": "yes" if insured else "no",
        }]],
        [str(price)], f"Shall I book {number} from {route} on {day} {insurance} for {price} dollars with {card}?",
        f"{number} on {day} is booked for {price} dollars.",
    )  # fmt: skip


def ask_price(draft: Draft) -> Goal | None:
    """Draw a question: the price paid for a reservation."""
    made = draft.one("reservations")
    if made is None:
        return None
    name, told, paid = made["reservation_id"], draft.told(), str(made["payment_history"][0]["amount"])
    return Goal(
        f"price of reservation {name}",
        f"What did I pay for {_named(name, told)}?", {"reservation": name}, [] if told else ["reservation"], [name],
        _reads(name), [], [paid], "", f"For reservation {name} you paid {paid} dollars.",
    )  # fmt: skip


def _flights_changed(
    draft: Draft, made: Mapping[str, Any], flights: list[Record], cabin: str, difference: int, words: str,
    keys: list[str],
) -> Goal:  # fmt: skip
    name, told, card = made["reservation_id"], [draft.told(), draft.told()], _card(draft)
    price = f"{abs(difference)} dollars {'more' if difference >= 0 else 'back'}"
    return Goal(
        f"change {words.format(f'reservation {name}')} with {card}",
        f"I want to change {words.format(_named(name, told[0]))}.{_by(card) if told[1] else ''}",
        {"reservation": name, "payment": card, "date": flights[0]["date"], "cabin": cabin.replace("_", " ")},
        [slot for slot, known in zip(("reservation", "payment"), told, strict=True) if not known], [name, *keys],
        [
            *_reads(name),
            ["search_direct_flight", {
                "origin": made["origin"], "destination": made["destination"], "date": flights[0]["date"],
            }],
        ],
        [["update_reservation_flights", {
            "reservation_id": name, "cabin": cabin, "flights": flights, "payment_id": card,
        }]],
        [str(abs(difference))], f"Shall I change {words.format(f'reservation {name}')} for {price}, with {card}?",
        f"I have changed {words.format(f'reservation {name}')} for {price}.",
    )  # fmt: skip


def _difference(draft: Draft, made: Mapping[str, Any], flights: list[Record], cabin: str) -> int | None:
    """Return the price difference after a change, in dollars; None if seats are missing."""
    days = [draft.base["flights"][one["flight_number"]]["dates"][one["date"]] for one in flights]
    people = len(made["passengers"])
    if any(day["available_seats"][cabin] < people for day in days):
        return None
    return int(sum(day["prices"][cabin] for day in days) - sum(one["price"] for one in made["flights"])) * people


def _card(draft: Draft) -> str:
    return str(next(iter(draft.user["payment_methods"])))


def _by(card: str) -> str:
    return f" Use {card}."


def _named(name: str, told: bool) -> str:
    return f"reservation {name}" if told else "a reservation of mine"


def _reads(name: str) -> list[list[Any]]:
    return [["get_reservation_details", {"reservation_id": name}]]


AIRLINE = World(
    Airline, airline_tables, (cancel, add_bags, change_cabin, change_day, rename, book, ask_price), identity, POLICY
)
