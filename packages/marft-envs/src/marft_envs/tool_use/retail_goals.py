"""Goals for retail users."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.tool_use.goals import Goal, GoalSampler, Identity, ServiceWorld
from marft_envs.tool_use.retail import REASONS, Retail
from marft_envs.tool_use.retail_data import draw_address, generate_retail_tables
from marft_envs.tool_use.tables import Record

POLICY = """You serve the customers of a shop, with its tools.
- First find out who the user is: by e-mail, or by name and zip code. Help no one with what is another user's.
- Say what you will do to an order or a profile, and go on only once the user says yes.
- Pending orders can be cancelled (reason: no longer needed, or ordered by mistake), and their address, payment or items changed; items only to other variants of the same product, and once.
- Delivered orders can be returned, with the refund to how it was paid or to a gift card, or exchanged for other variants of the same products. Collect all items first: an order is returned or exchanged once.
- Nothing else can be done to orders, and nothing at all to those that are processed or cancelled: say so.
- Answer questions from what the tools say, and make nothing up."""  # noqa: E501
STATUS_VERBS = {"pending": "cancelled", "delivered": "returned"}


def build_identity(user: Mapping[str, Any], is_explicit: bool) -> Identity:
    """Return an identity by e-mail, or by name and zip code."""
    name, email = user["name"], user["email"]
    return Identity(
        {"email": email, "name": f"{name['first_name']} {name['last_name']}", "zip": user["address"]["zip"]},
        ["email"],
        [["find_user_id_by_email", {"email": email}]],
        f"My e-mail is {email}." if is_explicit else "",
    )


def cancel_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: cancel an order. The order may not be pending."""
    order = sampler.draw_record("orders")
    if order is None:
        return None
    order_id, reason, is_explicit = (
        order["order_id"],
        sampler.random.choice(REASONS),
        [sampler.draw_explicit(), sampler.draw_explicit()],
    )
    pending, total = order["status"] == "pending", _format_amount(order["payment_history"][0]["amount"])
    return Goal(
        f"cancel order {order_id} ({reason})",
        f"I want to cancel {_order_phrase(order_id, is_explicit[0])}.{f' It is {reason}.' if is_explicit[1] else ''}",
        {"order": order_id, "reason": reason},
        _withheld_slots(order=is_explicit[0], reason=is_explicit[1]),
        [order_id],
        _lookup_calls(order_id),
        [["cancel_pending_order", {"order_id": order_id, "reason": reason}]] if pending else [],
        [total if pending else order["status"]],
        f"Shall I cancel order {order_id} ({reason}) and refund {total}?" if pending else "",
        f"Order {order_id} is cancelled, {total} will be refunded."
        if pending
        else f"Sorry, order {order_id} is {order['status']} and cannot be cancelled.",
    )


def return_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: return some items from an order. The order may not be delivered."""
    order = sampler.draw_record("orders")
    if order is None:
        return None
    order_id, is_explicit = order["order_id"], [sampler.draw_explicit(), sampler.draw_explicit()]
    items = sampler.random.sample(order["items"], sampler.random.randint(1, len(order["items"])))
    names = _join_words([item["name"] for item in items])
    card = next(method for method in sampler.user["payment_methods"] if "gift_card" in method)
    is_delivered = order["status"] == "delivered"
    return Goal(
        f"return the {names} of order {order_id} to {card}",
        f"I would like to return the {names} of "
        f"{_order_phrase(order_id, is_explicit[0])}.{_payment_sentence(card) if is_explicit[1] else ''}",
        {"order": order_id, "payment": card, "item": names},
        _withheld_slots(order=is_explicit[0], payment=is_explicit[1]),
        [order_id, *(item["name"] for item in items)],
        _lookup_calls(order_id),
        [
            [
                "return_delivered_order_items",
                {
                    "order_id": order_id,
                    "item_ids": [item["item_id"] for item in items],
                    "payment_method_id": card,
                },
            ]
        ]
        if is_delivered
        else [],
        [] if is_delivered else [order["status"]],
        f"Shall I take back the {names} of order {order_id}, with the refund to {card}?" if is_delivered else "",
        f"The return of the {names} of order {order_id} is requested."
        if is_delivered
        else f"Sorry, the {names} of order {order_id} cannot be returned: it is {order['status']}.",
    )


def exchange_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: exchange items from a delivered order, or modify items in a pending order."""
    order = sampler.draw_record("orders", "pending", "delivered")
    if order is None:
        return None
    options_found = [(item, variant) for item in order["items"] if (variant := _draw_variant(sampler, item))]
    if not options_found:
        return None
    chosen = sampler.random.sample(options_found, sampler.random.randint(1, len(options_found)))
    order_id, is_explicit = order["order_id"], [sampler.draw_explicit(), sampler.draw_explicit()]
    price_change = round(sum(variant["price"] - item["price"] for item, variant in chosen), 2)
    card, names = next(iter(sampler.user["payment_methods"])), _join_words([item["name"] for item, _ in chosen])
    wanted_variants = _join_words([f"{item['name']} in {_format_options(variant)}" for item, variant in chosen])
    tool = "exchange_delivered_order_items" if order["status"] == "delivered" else "modify_pending_order_items"
    return Goal(
        f"change order {order_id} to {wanted_variants} with {card}",
        f"In {_order_phrase(order_id, is_explicit[0])} I want another variant: "
        f"{wanted_variants}.{_payment_sentence(card) if is_explicit[1] else ''}",
        {"order": order_id, "payment": card, "item": names, "new": wanted_variants},
        _withheld_slots(order=is_explicit[0], payment=is_explicit[1]),
        [order_id, *(item["name"] for item, _ in chosen)],
        [
            *_lookup_calls(order_id),
            *(["get_product_details", {"product_id": item["product_id"]}] for item, _ in chosen),
        ],
        [
            [
                tool,
                {
                    "order_id": order_id,
                    "item_ids": [item["item_id"] for item, _ in chosen],
                    "new_item_ids": [variant["item_id"] for _, variant in chosen],
                    "payment_method_id": card,
                },
            ]
        ],
        [_format_amount(abs(price_change))],
        f"Shall I change order {order_id} to {wanted_variants}, a difference of {_format_amount(abs(price_change))} "
        f"with {card}?",
        f"The {names} of order {order_id} will be changed.",
    )


def change_payment_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: change a pending order's payment method."""
    order = sampler.draw_record("orders", "pending")
    if order is None:
        return None
    order_id, is_explicit = order["order_id"], [sampler.draw_explicit(), sampler.draw_explicit()]
    payment = order["payment_history"][0]
    new_method = next(method for method in sampler.user["payment_methods"] if method != payment["payment_method_id"])
    return Goal(
        f"pay order {order_id} with {new_method}",
        f"I want to pay {_order_phrase(order_id, is_explicit[0])} "
        f"{f'with {new_method}' if is_explicit[1] else 'in another way'}.",
        {"order": order_id, "payment": new_method},
        _withheld_slots(order=is_explicit[0], payment=is_explicit[1]),
        [order_id, new_method],
        _lookup_calls(order_id),
        [["modify_pending_order_payment", {"order_id": order_id, "payment_method_id": new_method}]],
        [],
        f"Shall I have order {order_id} paid with {new_method}?",
        f"Order {order_id} is now paid with {new_method}.",
    )


def change_address_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: change the address in a pending order or in the user's profile."""
    new, is_explicit = draw_address(sampler.random), sampler.draw_explicit()
    order = sampler.draw_record("orders", "pending") if sampler.random.random() < 0.5 else None
    key = order["order_id"] if order else sampler.user["user_id"]
    if key in sampler.used and not order:
        return None
    sampler.used.add(key)
    subject = f"order {key}" if order else "my profile"
    call = (
        ["modify_pending_order_address", {"order_id": key, **new}]
        if order
        else ["modify_user_address", {"user_id": key, **new}]
    )
    return Goal(
        f"address of {key}: {_format_address(new)}",
        f"Please change the address of {subject}{f' to {_format_address(new)}' if is_explicit else ''}.",
        {"address": _format_address(new)},
        _withheld_slots(address=is_explicit),
        [new["address1"], *([key] if order else [])],
        _lookup_calls(key) if order else [["get_user_details", {"user_id": key}]],
        [call],
        [],
        f"Shall I change the address of {subject.replace('my', 'your')} to {_format_address(new)}?",
        f"The address of {subject.replace('my', 'your')} is now {_format_address(new)}.",
    )


def price_question(sampler: GoalSampler) -> Goal | None:
    """Draw a question: the price paid for an order."""
    order = sampler.draw_record("orders")
    if order is None:
        return None
    order_id, is_explicit, total = (
        order["order_id"],
        sampler.draw_explicit(),
        _format_amount(order["payment_history"][0]["amount"]),
    )
    return Goal(
        f"price of order {order_id}",
        f"What did I pay for {_order_phrase(order_id, is_explicit)}?",
        {"order": order_id},
        _withheld_slots(order=is_explicit),
        [order_id],
        _lookup_calls(order_id),
        [],
        [total],
        "",
        f"For order {order_id} you paid {total}.",
    )


def variants_question(sampler: GoalSampler) -> Goal | None:
    """Draw a question: the number of available variants."""
    row = sampler.random.choice(sorted(sampler.database["products"].values(), key=lambda row: str(row["name"])))
    if row["product_id"] in sampler.used:
        return None
    sampler.used.add(row["product_id"])
    count = str(sum(variant["available"] for variant in row["variants"].values()))
    return Goal(
        f"variants of {row['name']}",
        f"How many variants of the {row['name']} are available?",
        {},
        [],
        [row["name"]],
        [["list_all_product_types", {}], ["get_product_details", {"product_id": row["product_id"]}]],
        [],
        [count],
        "",
        f"Of the {row['name']}, {count} variants are available.",
    )


def _draw_variant(sampler: GoalSampler, item: Mapping[str, Any]) -> Record | None:
    """Draw another available variant from the same product; None if no variant fits."""
    variants = sampler.database["products"][item["product_id"]]["variants"].values()
    candidates = [variant for variant in variants if variant["available"] and variant["item_id"] != item["item_id"]]
    return sampler.random.choice(candidates) if candidates else None


def _lookup_calls(order_id: str) -> list[list[Any]]:
    return [["get_order_details", {"order_id": order_id}]]


def _withheld_slots(**is_explicit: bool) -> list[str]:
    return [slot for slot, is_known in is_explicit.items() if not is_known]


def _order_phrase(order_id: str, is_explicit: bool) -> str:
    return f"order {order_id}" if is_explicit else "an order of mine"


def _payment_sentence(method: str) -> str:
    return f" Use {method} for the money."


def _format_amount(amount: float) -> str:
    return f"{amount:.2f}"


def _format_options(variant: Mapping[str, Any]) -> str:
    return ", ".join(str(value) for value in variant["options"].values())


def _format_address(address_fields: Mapping[str, str]) -> str:
    return ", ".join(address_fields[key] for key in ("address1", "address2", "city", "state", "country", "zip"))


def _join_words(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


RETAIL = ServiceWorld(
    Retail,
    generate_retail_tables,
    (
        cancel_goal,
        return_goal,
        exchange_goal,
        change_payment_goal,
        change_address_goal,
        price_question,
        variants_question,
    ),
    build_identity,
    POLICY,
)
