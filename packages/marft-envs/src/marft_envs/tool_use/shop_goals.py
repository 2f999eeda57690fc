"""Goals for shop users: a few words each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.tool_use.goals import Draft, Goal, Identity, World
from marft_envs.tool_use.retail_data import short_tables
from marft_envs.tool_use.shop import Shop

POLICY = "Pending orders can be cancelled, items of delivered ones taken back. Look first, then ask for a yes."


def cancel(draft: Draft) -> Goal | None:
    """Draw a goal: cancel an order. The order may be delivered already."""
    order = draft.one("orders")
    if order is None:
        return None
    name, told, total = order["order_id"], draft.told(), str(order["payment_history"][0]["amount"])
    pending = order["status"] == "pending"
    return Goal(
        f"cancel {name}", f"Cancel {name}." if told else "Cancel an order.", {"order": name},
        [] if told else ["order"], [name],
        [["look", {"id": name}]], [["cancel", {"id": name}]] if pending else [], [total if pending else "delivered"],
        f"Cancel {name} for {total} back?" if pending else "",
        f"Done, {total} for {name}." if pending else f"Sorry, {name} is delivered.",
    )  # fmt: skip


def give_back(draft: Draft) -> Goal | None:
    """Draw a goal: return an item. Its order may still be pending."""
    order = draft.one("orders")
    if order is None:
        return None
    item = draft.random.choice(order["items"])
    name, what, price, told = order["order_id"], item["name"], str(item["price"]), draft.told()
    delivered = order["status"] == "delivered"
    return Goal(
        f"return {what} of {name}", f"Return the {what} of {name}." if told else f"Return the {what}.",
        {"order": name, "item": what},
        [] if told else ["order"], [name, what], [["look", {"id": name}]],
        [["refund", {"id": name, "item": what}]] if delivered else [], [price if delivered else "pending"],
        f"Return the {what} of {name} for {price} back?" if delivered else "",
        f"Done, {price} for the {what} of {name}." if delivered else f"Sorry, the {what} of {name} is pending.",
    )  # fmt: skip


def identity(user: Mapping[str, Any], told: bool) -> Identity:  # noqa: ARG001
    """Return an empty identity: this service does not ask for the user's identity."""
    return Identity()


SHOP = World(Shop, short_tables, (cancel, give_back), identity, POLICY)
