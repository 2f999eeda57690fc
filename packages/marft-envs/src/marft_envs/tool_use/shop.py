"""Retail world with three tools and short names, answers and arguments, for small models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.agents.environment import tool
from marft_envs.tool_use.retail import REASONS, Retail
from marft_envs.tool_use.tables import Tables
from marft_envs.tool_use.toolbox import Toolbox, writes


class Shop(Toolbox):
    """Tools that show orders, cancel them and take items back, with the rules from the retail world."""

    def __init__(self, tables: Tables, strict: bool = True) -> None:
        super().__init__(tables, strict)
        self._retail = Retail(tables, strict)
        self.broken = self._retail.broken

    @tool
    def look(self, id: str) -> str:
        """An order."""
        order = self._found("orders", id, "order")
        return f"{order['status']}, {described(order)}"

    @writes
    def cancel(self, id: str) -> str:
        """Cancel an order."""
        self._retail.cancel_pending_order(id, REASONS[0])
        return f"ok, {self._found('orders', id, 'order')['payment_history'][0]['amount']} back"

    @writes
    def refund(self, id: str, item: str) -> str:
        """Take an item back."""
        order = self._found("orders", id, "order")
        found = [one for one in order["items"] if one["name"] == item]
        self._must(bool(found), f"{item} not found")
        paid_by = order["payment_history"][0]["payment_method_id"]
        self._retail.return_delivered_order_items(id, [found[0]["item_id"]], paid_by)
        return f"ok, {found[0]['price']} back"


def described(order: Mapping[str, Any]) -> str:
    """Return an order's items and total price: ``mug 24, cap 15, total 39``."""
    items = [f"{item['name']} {item['price']}" for item in order["items"]]
    return ", ".join([*items, f"total {order['payment_history'][0]['amount']}"])
