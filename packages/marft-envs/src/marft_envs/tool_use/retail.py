"""Retail tools: users, products with variants, and orders (pending, processed, delivered or cancelled).

Names, arguments and effects on the tables match the retail domain of τ-bench (Yao et al. 2024, arXiv:2406.12045), so
its data runs here unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from marft.agents.environment import tool
from marft_envs.tool_use.desk import Desk
from marft_envs.tool_use.tables import Record
from marft_envs.tool_use.toolbox import writes

REASONS = ("no longer needed", "ordered by mistake")


class Retail(Desk):
    """Tools for the retail world."""

    @tool
    def find_user_id_by_email(self, email: str) -> str:
        """Find a user by e-mail address."""
        return self._user_where(lambda user: user["email"].lower() == email.lower())

    @tool
    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a user by first name, last name and zip code."""
        wanted = (first_name.lower(), last_name.lower(), zip)
        return self._user_where(
            lambda user: (
                (user["name"]["first_name"].lower(), user["name"]["last_name"].lower(), user["address"]["zip"])
                == wanted
            )
        )

    @tool
    def get_user_details(self, user_id: str) -> Mapping[str, Any]:
        """Read a user's profile: addresses, payment methods, orders."""
        return self._found("users", user_id, "user")

    @tool
    def get_order_details(self, order_id: str) -> Mapping[str, Any]:
        """Read an order: its status, items, payments. Ids look like #W1234567."""
        return self._found("orders", order_id, "order")

    @tool
    def get_product_details(self, product_id: str) -> Mapping[str, Any]:
        """Read a product and its variants, by product id (not item id)."""
        return self._found("products", product_id, "product")

    @tool
    def list_all_product_types(self) -> Mapping[str, str]:
        """List the names and product ids of all products."""
        return {row["name"]: row["product_id"] for row in sorted(self.tables.rows("products"), key=_name)}

    @writes
    def cancel_pending_order(self, order_id: str, reason: str) -> Mapping[str, Any]:
        """Cancel a pending order. The reason is 'no longer needed' or 'ordered by mistake'."""
        order = self._order_that_is("pending", order_id, "cancelled")
        self._state(reason in REASONS, "invalid reason")
        refunds = [
            {"transaction_type": "refund", "amount": paid["amount"], "payment_method_id": paid["payment_method_id"]}
            for paid in order["payment_history"]
        ]
        for refund in refunds:
            self._pay(order["user_id"], refund["payment_method_id"], -refund["amount"])
        written = self._edit("orders", order_id)
        written |= {"status": "cancelled", "cancel_reason": reason}
        written["payment_history"] += refunds
        return written

    @writes
    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Mapping[str, Any]:
        """Change where a pending order is sent."""
        self._order_to_modify(order_id)
        order = self._edit("orders", order_id)
        order["address"] = _address(address1, address2, city, state, country, zip)
        return order

    @writes
    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> Mapping[str, Any]:
        """Pay a pending order by another method of the user's."""
        order = self._order_to_modify(order_id)
        method = self._method(order["user_id"], payment_method_id)
        paid = order["payment_history"][0]
        once = len(order["payment_history"]) == 1 and paid["transaction_type"] == "payment"
        self._must(once, "there should be exactly one payment for a pending order")
        self._state(
            paid["payment_method_id"] != payment_method_id,
            "the new payment method should be different from the current one",
        )
        self._covers(method, paid["amount"], "pay for the order")
        written = self._edit("orders", order_id)
        written["payment_history"] += [
            {"transaction_type": "payment", "amount": paid["amount"], "payment_method_id": payment_method_id},
            {**paid, "transaction_type": "refund"},
        ]
        self._pay(order["user_id"], payment_method_id, paid["amount"])
        self._pay(order["user_id"], paid["payment_method_id"], -paid["amount"])
        return written

    @writes
    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Mapping[str, Any]:
        """Change items of a pending order to other variants of the same products. Works once for an order."""
        order = self._order_that_is("pending", order_id, "modified")
        more = self._price_difference(order, item_ids, new_item_ids)
        method = self._method(order["user_id"], payment_method_id)
        self._covers(method, more, "pay for the new item")
        written = self._edit("orders", order_id)
        kind = "payment" if more > 0 else "refund"
        written["payment_history"].append(
            {"transaction_type": kind, "amount": abs(more), "payment_method_id": payment_method_id}
        )
        self._pay(order["user_id"], payment_method_id, more)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in written["items"] if item["item_id"] == item_id)
            variant = self._variant(item["product_id"], new_item_id)
            item |= {"item_id": new_item_id, "price": variant["price"], "options": variant["options"]}
        written["status"] = "pending (item modified)"
        return written

    @writes
    def return_delivered_order_items(
        self, order_id: str, item_ids: list[str], payment_method_id: str
    ) -> Mapping[str, Any]:
        """Take back items of a delivered order; the refund goes to how it was paid, or to a gift card of the user's."""
        order = self._order_that_is("delivered", order_id, "returned")
        self._method(order["user_id"], payment_method_id)
        self._state(
            "gift_card" in payment_method_id or payment_method_id == order["payment_history"][0]["payment_method_id"],
            "payment method should be either the original payment method or a gift card",
        )
        self._has_items(order, item_ids)
        written = self._edit("orders", order_id)
        written |= {
            "status": "return requested",
            "return_items": sorted(item_ids),
            "return_payment_method_id": payment_method_id,
        }
        return written

    @writes
    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> Mapping[str, Any]:
        """Exchange items of a delivered order for other variants of the same products. Works once for an order."""
        order = self._order_that_is("delivered", order_id, "exchanged")
        more = self._price_difference(order, item_ids, new_item_ids)
        self._covers(self._method(order["user_id"], payment_method_id), more, "pay for the price difference")
        written = self._edit("orders", order_id)
        written |= {
            "status": "exchange requested",
            "exchange_items": sorted(item_ids),
            "exchange_new_items": sorted(new_item_ids),
            "exchange_payment_method_id": payment_method_id,
            "exchange_price_difference": more,
        }
        return written

    @writes
    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> Mapping[str, Any]:
        """Change a user's own address; orders keep theirs."""
        self._found("users", user_id, "user")
        user = self._edit("users", user_id)
        user["address"] = _address(address1, address2, city, state, country, zip)
        return user

    def _user_where(self, fits: Any) -> str:
        for user_id in self.tables.base["users"]:
            if fits(self._found("users", user_id, "user")):
                return str(user_id)
        self._must(False, "user not found")
        raise AssertionError

    def _order_that_is(self, status: str, order_id: str, done: str) -> Mapping[str, Any]:
        order = self._found("orders", order_id, "order")
        self._state(order["status"] == status, f"non-{status} order cannot be {done}")
        return order

    def _order_to_modify(self, order_id: str) -> Mapping[str, Any]:
        """Return an order whose address or payment may be changed."""
        return self._order_that_is("pending", order_id, "modified")

    def _method(self, user_id: str, payment_method_id: str) -> Mapping[str, Any]:
        methods: Mapping[str, Mapping[str, Any]] = self._found("users", user_id, "user")["payment_methods"]
        self._must(payment_method_id in methods, "payment method not found")
        return methods[payment_method_id]

    def _covers(self, method: Mapping[str, Any], amount: float, purpose: str) -> None:
        short = method["source"] == "gift_card" and method["balance"] < amount
        self._state(not short, f"insufficient gift card balance to {purpose}")

    def _pay(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Deduct an amount from a gift card; a negative amount is a refund. Other payment methods are unchanged."""
        if "gift_card" in payment_method_id:
            card = self._edit("users", user_id)["payment_methods"][payment_method_id]
            card["balance"] = round(card["balance"] - amount, 2)

    def _has_items(self, order: Mapping[str, Any], item_ids: Sequence[str]) -> None:
        there = [item["item_id"] for item in order["items"]]
        for item_id in item_ids:
            self._must(item_ids.count(item_id) <= there.count(item_id), f"{item_id} not found")

    def _price_difference(self, order: Mapping[str, Any], old: Sequence[str], new: Sequence[str]) -> float:
        """Return the price of the new items minus the price of the old items, in dollars."""
        self._has_items(order, old)
        self._must(len(old) == len(new), "the number of items to be exchanged should match")
        more = 0.0
        for item_id, new_item_id in zip(old, new, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == item_id)
            more += self._variant(item["product_id"], new_item_id)["price"] - item["price"]
        return round(more, 2)

    def _variant(self, product_id: str, item_id: str) -> Mapping[str, Any]:
        variants: Mapping[str, Mapping[str, Any]] = self._found("products", product_id, "product")["variants"]
        there = item_id in variants and variants[item_id]["available"]
        self._must(there, f"new item {item_id} not found or available")
        return variants[item_id]


def _name(row: Mapping[str, Any]) -> str:
    return str(row["name"])


def _address(address1: str, address2: str, city: str, state: str, country: str, zip_code: str) -> Record:
    return {
        "address1": address1, "address2": address2, "city": city, "state": state, "country": country, "zip": zip_code
    }  # fmt: skip
