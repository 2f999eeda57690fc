"""Retail world with three tools, short names, answers and arguments, and goals of a few words, for small models."""

from __future__ import annotations

from marft.config.interfaces.environment import tool
from marft_envs.tool_use.goals import Goal, GoalSampler, Identity, ServiceWorld, about_record, make_call
from marft_envs.tool_use.retail import REASONS, Retail
from marft_envs.tool_use.retail_goals import generate_short_tables
from marft_envs.tool_use.toolbox import EpisodeTables, RecordView, Toolbox, write_tool


class ShopToolbox(Toolbox):
    """Tools that show orders, cancel them and take items back, with the rules from the retail world."""

    def __init__(self, tables: EpisodeTables, strict: bool = True) -> None:
        super().__init__(tables, strict)
        self._retail = Retail(tables, strict)
        self.violations = self._retail.violations

    @tool
    def look(self, id: str) -> str:
        """An order."""
        order = self._get_record("orders", id, "order")
        return f"{order['status']}, {describe_order(order)}"

    @write_tool
    def cancel(self, id: str) -> str:
        """Cancel an order."""
        self._retail.cancel_pending_order(id, REASONS[0])
        return f"ok, {self._get_record('orders', id, 'order')['payment_history'][0]['amount']} back"

    @write_tool
    def refund(self, id: str, item: str) -> str:
        """Take an item back."""
        order = self._get_record("orders", id, "order")
        items = [order_item for order_item in order["items"] if order_item["name"] == item]
        self._require(bool(items), f"{item} not found")
        payment_method = order["payment_history"][0]["payment_method_id"]
        self._retail.return_delivered_order_items(id, [items[0]["item_id"]], payment_method)
        return f"ok, {items[0]['price']} back"


def describe_order(order: RecordView) -> str:
    """Return an order's items and total price: ``mug 24, cap 15, total 39``."""
    items = [f"{item['name']} {item['price']}" for item in order["items"]]
    return ", ".join([*items, f"total {order['payment_history'][0]['amount']}"])


POLICY = "Pending orders can be cancelled, items of delivered ones taken back. Look first, then ask for a yes."


@about_record("orders")
def cancel_goal(sampler: GoalSampler, order: RecordView) -> Goal:
    """Draw a goal: cancel an order. The order may be delivered already."""
    name, hidden, total = order["order_id"], sampler.draw_hidden("order"), order["payment_history"][0]["amount"]
    pending = order["status"] == "pending"
    return Goal(
        aim=f"cancel {name}",
        says="Cancel an order." if hidden else f"Cancel {name}.",
        facts={"order": name},
        withheld=hidden,
        keys=[name],
        reads=[make_call("look", id=name)],
        writes=[make_call("cancel", id=name)] if pending else [],
        outputs=[str(total) if pending else "delivered"],
        offer=f"Cancel {name} for {total} back?" if pending else "",
        report=f"Done, {total} for {name}." if pending else f"Sorry, {name} is delivered.",
    )


@about_record("orders")
def return_goal(sampler: GoalSampler, order: RecordView) -> Goal:
    """Draw a goal: return an item. Its order may still be pending."""
    item = sampler.random.choice(order["items"])
    name, item_name, price, hidden = order["order_id"], item["name"], item["price"], sampler.draw_hidden("order")
    is_delivered = order["status"] == "delivered"
    subject = f"{item_name} of {name}"
    return Goal(
        aim=f"return {subject}",
        says=f"Return the {item_name if hidden else subject}.",
        facts={"order": name, "item": item_name},
        withheld=hidden,
        keys=[name, item_name],
        reads=[make_call("look", id=name)],
        writes=[make_call("refund", id=name, item=item_name)] if is_delivered else [],
        outputs=[str(price) if is_delivered else "pending"],
        offer=f"Return the {subject} for {price} back?" if is_delivered else "",
        report=f"Done, {price} for the {subject}." if is_delivered else f"Sorry, the {subject} is pending.",
    )


def build_identity(user: RecordView, is_explicit: bool) -> Identity:  # noqa: ARG001
    """Return an empty identity: this service does not ask for the user's identity."""
    return Identity()


SHOP = ServiceWorld(ShopToolbox, generate_short_tables, (cancel_goal, return_goal), build_identity, POLICY)
