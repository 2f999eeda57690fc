"""Retail tools in the version of τ²-bench (Barres et al. 2025)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from marft.agents.environment import tool
from marft_envs.tool_use.retail import Retail


class RetailTau2(Retail):
    """Retail tools from τ-bench, and a tool that reads an item.

    Unlike in τ-bench, an order's address and payment can still be changed after its items were changed.
    """

    @tool
    def get_item_details(self, item_id: str) -> Mapping[str, Any]:
        """Read a variant of a product, by item id (not product id): options, availability, price."""
        variant = next(
            (row["variants"][item_id] for row in self.tables.rows("products") if item_id in row["variants"]), None
        )
        self._require(variant is not None, "item not found")
        return variant or {}

    def _modifiable_order(self, order_id: str) -> Mapping[str, Any]:
        order = self._get_record("orders", order_id, "order")
        self._require_state("pending" in order["status"], "non-pending order cannot be modified")
        return order
