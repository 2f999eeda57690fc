"""Goals for shop users: a few words each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft_envs.tool_use.goals import Goal, GoalSampler, Identity, ServiceWorld
from marft_envs.tool_use.retail_data import generate_short_tables
from marft_envs.tool_use.shop import ShopToolbox

POLICY = "Pending orders can be cancelled, items of delivered ones taken back. Look first, then ask for a yes."


def cancel_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: cancel an order. The order may be delivered already."""
    order = sampler.draw_record("orders")
    if order is None:
        return None
    name, is_explicit, total = order["order_id"], sampler.draw_explicit(), str(order["payment_history"][0]["amount"])
    pending = order["status"] == "pending"
    return Goal(
        f"cancel {name}",
        f"Cancel {name}." if is_explicit else "Cancel an order.",
        {"order": name},
        [] if is_explicit else ["order"],
        [name],
        [["look", {"id": name}]],
        [["cancel", {"id": name}]] if pending else [],
        [total if pending else "delivered"],
        f"Cancel {name} for {total} back?" if pending else "",
        f"Done, {total} for {name}." if pending else f"Sorry, {name} is delivered.",
    )


def return_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: return an item. Its order may still be pending."""
    order = sampler.draw_record("orders")
    if order is None:
        return None
    item = sampler.random.choice(order["items"])
    name, item_name, price, is_explicit = order["order_id"], item["name"], str(item["price"]), sampler.draw_explicit()
    is_delivered = order["status"] == "delivered"
    return Goal(
        f"return {item_name} of {name}",
        f"Return the {item_name} of {name}." if is_explicit else f"Return the {item_name}.",
        {"order": name, "item": item_name},
        [] if is_explicit else ["order"],
        [name, item_name],
        [["look", {"id": name}]],
        [["refund", {"id": name, "item": item_name}]] if is_delivered else [],
        [price if is_delivered else "pending"],
        f"Return the {item_name} of {name} for {price} back?" if is_delivered else "",
        f"Done, {price} for the {item_name} of {name}."
        if is_delivered
        else f"Sorry, the {item_name} of {name} is pending.",
    )


def build_identity(user: Mapping[str, Any], is_explicit: bool) -> Identity:  # noqa: ARG001
    """Return an empty identity: this service does not ask for the user's identity."""
    return Identity()


SHOP = ServiceWorld(ShopToolbox, generate_short_tables, (cancel_goal, return_goal), build_identity, POLICY)
