"""Retail world with three tools and short names, answers and arguments, for small models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.agents.environment import tool
from marft_envs.tool_use.retail import REASONS, Retail
from marft_envs.tool_use.tables import EpisodeTables
from marft_envs.tool_use.toolbox import Toolbox, write_tool


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


def describe_order(order: Mapping[str, Any]) -> str:
    """Return an order's items and total price: ``mug 24, cap 15, total 39``."""
    items = [f"{item['name']} {item['price']}" for item in order["items"]]
    return ", ".join([*items, f"total {order['payment_history'][0]['amount']}"])
