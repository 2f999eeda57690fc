"""Goals for retail users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.tool_use.goals import Draft, Goal, Identity, World
from marft_envs.tool_use.retail import REASONS, Retail
from marft_envs.tool_use.retail_data import address, retail_tables
from marft_envs.tool_use.tables import Record

POLICY = """You serve the customers of a shop, with its tools.
- First find out who the user is: by e-mail, or by name and zip code. Help no one with what is another user's.
- Say what you will do to an order or a profile, and go on only once the user says yes.
- Pending orders can be cancelled (reason: no longer needed, or ordered by mistake), and their address, payment or items changed; items only to other variants of the same product, and once.
- Delivered orders can be returned, with the refund to how it was paid or to a gift card, or exchanged for other variants of the same products. Collect all items first: an order is returned or exchanged once.
- Nothing else can be done to orders, and nothing at all to those that are processed or cancelled: say so.
- Answer questions from what the tools say, and make nothing up."""  # noqa: E501
VERBS = {"pending": "cancelled", "delivered": "returned"}


def identity(user: Mapping[str, Any], told: bool) -> Identity:
    """Return an identity by e-mail, or by name and zip code."""
    name, email = user["name"], user["email"]
    return Identity(
        {"email": email, "name": f"{name['first_name']} {name['last_name']}", "zip": user["address"]["zip"]},
        ["email"],
        [["find_user_id_by_email", {"email": email}]],
        f"My e-mail is {email}." if told else "",
    )


def cancel(draft: Draft) -> Goal | None:
    """Draw a goal: cancel an order. The order may not be pending."""
    order = draft.one("orders")
    if order is None:
        return None
    order_id, reason, told = order["order_id"], draft.random.choice(REASONS), [draft.told(), draft.told()]
    pending, total = order["status"] == "pending", _money(order["payment_history"][0]["amount"])
    return Goal(
        f"cancel order {order_id} ({reason})",
        f"I want to cancel {_named(order_id, told[0])}.{f' It is {reason}.' if told[1] else ''}",
        {"order": order_id, "reason": reason}, _withheld(order=told[0], reason=told[1]), [order_id], _reads(order_id),
        [["cancel_pending_order", {"order_id": order_id, "reason": reason}]] if pending else [],
        [total if pending else order["status"]],
        f"Shall I cancel order {order_id} ({reason}) and refund {total}?" if pending else "",
        f"Order {order_id} is cancelled, {total} will be refunded."
        if pending else f"Sorry, order {order_id} is {order['status']} and cannot be cancelled.",
    )  # fmt: skip


def give_back(draft: Draft) -> Goal | None:
    """Draw a goal: return some items from an order. The order may not be delivered."""
    order = draft.one("orders")
    if order is None:
        return None
    order_id, told = order["order_id"], [draft.told(), draft.told()]
    items = draft.random.sample(order["items"], draft.random.randint(1, len(order["items"])))
    names = _listed([item["name"] for item in items])
    card = next(one for one in draft.user["payment_methods"] if "gift_card" in one)
    delivered = order["status"] == "delivered"
    return Goal(
        f"return the {names} of order {order_id} to {card}",
        f"I would like to return the {names} of {_named(order_id, told[0])}.{_paid(card) if told[1] else ''}",
        {"order": order_id, "payment": card, "item": names}, _withheld(order=told[0], payment=told[1]),
        [order_id, *(item["name"] for item in items)], _reads(order_id),
        [["return_delivered_order_items", {
            "order_id": order_id, "item_ids": [item["item_id"] for item in items], "payment_method_id": card,
        }]] if delivered else [],
        [] if delivered else [order["status"]],
        f"Shall I take back the {names} of order {order_id}, with the refund to {card}?" if delivered else "",
        f"The return of the {names} of order {order_id} is requested." if delivered else
        f"Sorry, the {names} of order {order_id} cannot be returned: it is {order['status']}.",
    )  # fmt: skip


def swap(draft: Draft) -> Goal | None:
    """Draw a goal: exchange items from a delivered order, or modify items in a pending order."""
    order = draft.one("orders", "pending", "delivered")
    if order is None:
        return None
    found = [(item, variant) for item in order["items"] if (variant := _other(draft, item))]
    if not found:
        return None
    chosen = draft.random.sample(found, draft.random.randint(1, len(found)))
    order_id, told = order["order_id"], [draft.told(), draft.told()]
    more = round(sum(variant["price"] - item["price"] for item, variant in chosen), 2)
    card, names = next(iter(draft.user["payment_methods"])), _listed([item["name"] for item, _ in chosen])
    wishes = _listed([f"{item['name']} in {_options(variant)}" for item, variant in chosen])
    tool = "exchange_delivered_order_items" if order["status"] == "delivered" else "modify_pending_order_items"
    return Goal(
        f"change order {order_id} to {wishes} with {card}",
        f"In {_named(order_id, told[0])} I want another variant: {wishes}.{_paid(card) if told[1] else ''}",
        {"order": order_id, "payment": card, "item": names, "new": wishes},
        _withheld(order=told[0], payment=told[1]), [order_id, *(item["name"] for item, _ in chosen)],
        [*_reads(order_id), *(["get_product_details", {"product_id": item["product_id"]}] for item, _ in chosen)],
        [[tool, {
            "order_id": order_id, "item_ids": [item["item_id"] for item, _ in chosen],
            "new_item_ids": [variant["item_id"] for _, variant in chosen], "payment_method_id": card,
        }]],
        [_money(abs(more))],
        f"Shall I change order {order_id} to {wishes}, a difference of {_money(abs(more))} with {card}?",
        f"The {names} of order {order_id} will be changed.",
    )  # fmt: skip


def pay_otherwise(draft: Draft) -> Goal | None:
    """Draw a goal: change a pending order's payment method."""
    order = draft.one("orders", "pending")
    if order is None:
        return None
    order_id, told = order["order_id"], [draft.told(), draft.told()]
    paid = order["payment_history"][0]
    other = next(one for one in draft.user["payment_methods"] if one != paid["payment_method_id"])
    return Goal(
        f"pay order {order_id} with {other}",
        f"I want to pay {_named(order_id, told[0])} {f'with {other}' if told[1] else 'in another way'}.",
        {"order": order_id, "payment": other}, _withheld(order=told[0], payment=told[1]), [order_id, other],
        _reads(order_id),
        [["modify_pending_order_payment", {"order_id": order_id, "payment_method_id": other}]],
        [], f"Shall I have order {order_id} paid with {other}?", f"Order {order_id} is now paid with {other}.",
    )  # fmt: skip


def send_elsewhere(draft: Draft) -> Goal | None:
    """Draw a goal: change the address in a pending order or in the user's profile."""
    new, told = address(draft.random), draft.told()
    order = draft.one("orders", "pending") if draft.random.random() < 0.5 else None
    key = order["order_id"] if order else draft.user["user_id"]
    if key in draft.taken and not order:
        return None
    draft.taken.add(key)
    what = f"order {key}" if order else "my profile"
    call = ["modify_pending_order_address", {"order_id": key, **new}] if order else [
        "modify_user_address", {"user_id": key, **new}
    ]  # fmt: skip
    return Goal(
        f"address of {key}: {_line(new)}",
        f"Please change the address of {what}{f' to {_line(new)}' if told else ''}.", {"address": _line(new)},
        _withheld(address=told), [new["address1"], *([key] if order else [])],
        _reads(key) if order else [["get_user_details", {"user_id": key}]], [call], [],
        f"Shall I change the address of {what.replace('my', 'your')} to {_line(new)}?",
        f"The address of {what.replace('my', 'your')} is now {_line(new)}.",
    )  # fmt: skip


def ask_price(draft: Draft) -> Goal | None:
    """Draw a question: the price paid for an order."""
    order = draft.one("orders")
    if order is None:
        return None
    order_id, told, total = order["order_id"], draft.told(), _money(order["payment_history"][0]["amount"])
    return Goal(
        f"price of order {order_id}",
        f"What did I pay for {_named(order_id, told)}?", {"order": order_id}, _withheld(order=told), [order_id],
        _reads(order_id), [], [total], "", f"For order {order_id} you paid {total}.",
    )  # fmt: skip


def ask_variants(draft: Draft) -> Goal | None:
    """Draw a question: the number of available variants."""
    row = draft.random.choice(sorted(draft.base["products"].values(), key=lambda row: str(row["name"])))
    if row["product_id"] in draft.taken:
        return None
    draft.taken.add(row["product_id"])
    count = str(sum(variant["available"] for variant in row["variants"].values()))
    return Goal(
        f"variants of {row['name']}",
        f"How many variants of the {row['name']} are available?", {}, [], [row["name"]],
        [["list_all_product_types", {}], ["get_product_details", {"product_id": row["product_id"]}]], [], [count], "",
        f"Of the {row['name']}, {count} variants are available.",
    )  # fmt: skip


def _other(draft: Draft, item: Mapping[str, Any]) -> Record | None:
    """Draw another available variant from the same product; None if no variant fits."""
    variants = draft.base["products"][item["product_id"]]["variants"].values()
    others = [one for one in variants if one["available"] and one["item_id"] != item["item_id"]]
    return draft.random.choice(others) if others else None


def _reads(order_id: str) -> list[list[Any]]:
    return [["get_order_details", {"order_id": order_id}]]


def _withheld(**told: bool) -> list[str]:
    return [slot for slot, known in told.items() if not known]


def _named(order_id: str, told: bool) -> str:
    return f"order {order_id}" if told else "an order of mine"


def _paid(method: str) -> str:
    return f" Use {method} for the money."


def _money(amount: float) -> str:
    return f"{amount:.2f}"


def _options(variant: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in variant["options"].values())


def _line(place: Mapping[str, str]) -> str:
    return ", ".join(place[key] for key in ("address1", "address2", "city", "state", "country", "zip"))


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


RETAIL = World(
    Retail, retail_tables, (cancel, give_back, swap, pay_otherwise, send_elsewhere, ask_price, ask_variants), identity,
    POLICY,
)  # fmt: skip
