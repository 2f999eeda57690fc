"""Retail tools: users, products with variants, and orders (pending, processed, delivered or cancelled).

Names, arguments and effects on the tables match the retail domain of τ-bench (Yao et al. 2024, arXiv:2406.12045), so
its data runs here unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from marft.config.interfaces.environment import tool
from marft_envs.tool_use.toolbox import Record, RecordView, ServiceToolbox, write_tool

REASONS = ("no longer needed", "ordered by mistake")


class Retail(ServiceToolbox):
    """Tools for the retail world."""

    @tool
    def find_user_id_by_email(self, email: str) -> str:
        """Find a user by e-mail address."""
        return self._find_user(lambda user: user["email"].lower() == email.lower())

    @tool
    def find_user_id_by_name_zip(self, first_name: str, last_name: str, zip: str) -> str:
        """Find a user by first name, last name and zip code."""
        name_and_zip = (first_name.lower(), last_name.lower(), zip)
        return self._find_user(
            lambda user: (
                (user["name"]["first_name"].lower(), user["name"]["last_name"].lower(), user["address"]["zip"])
                == name_and_zip
            )
        )

    @tool
    def get_user_details(self, user_id: str) -> RecordView:
        """Read a user's profile: addresses, payment methods, orders."""
        return self._get_record("users", user_id, "user")

    @tool
    def get_order_details(self, order_id: str) -> RecordView:
        """Read an order: its status, items, payments. Ids look like #W1234567."""
        return self._get_record("orders", order_id, "order")

    @tool
    def get_product_details(self, product_id: str) -> RecordView:
        """Read a product and its variants, by product id (not item id)."""
        return self._get_record("products", product_id, "product")

    @tool
    def list_all_product_types(self) -> Mapping[str, str]:
        """List the names and product ids of all products."""
        return {row["name"]: row["product_id"] for row in sorted(self.tables.rows("products"), key=_row_name)}

    @write_tool
    def cancel_pending_order(self, order_id: str, reason: str) -> RecordView:
        """Cancel a pending order. The reason is 'no longer needed' or 'ordered by mistake'."""
        order = self._require_order("pending", order_id, "cancelled")
        self._require_state(reason in REASONS, "invalid reason")
        refunds = [
            {
                "transaction_type": "refund",
                "amount": payment["amount"],
                "payment_method_id": payment["payment_method_id"],
            }
            for payment in order["payment_history"]
        ]
        for refund in refunds:
            self._deduct(order["user_id"], refund["payment_method_id"], -refund["amount"])
        written = self._edit("orders", order_id)
        written |= {"status": "cancelled", "cancel_reason": reason}
        written["payment_history"] += refunds
        return written

    @write_tool
    def modify_pending_order_address(
        self, order_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> RecordView:
        """Change where a pending order is sent."""
        self._modifiable_order(order_id)
        order = self._edit("orders", order_id)
        order["address"] = _make_address(address1, address2, city, state, country, zip)
        return order

    @write_tool
    def modify_pending_order_payment(self, order_id: str, payment_method_id: str) -> RecordView:
        """Pay a pending order by another method of the user's."""
        order = self._modifiable_order(order_id)
        method = self._payment_method(order["user_id"], payment_method_id)
        payment = order["payment_history"][0]
        has_single_payment = len(order["payment_history"]) == 1 and payment["transaction_type"] == "payment"
        self._require(has_single_payment, "there should be exactly one payment for a pending order")
        self._require_state(
            payment["payment_method_id"] != payment_method_id,
            "the new payment method should be different from the current one",
        )
        self._check_balance(method, payment["amount"], "pay for the order")
        written = self._edit("orders", order_id)
        written["payment_history"] += [
            {"transaction_type": "payment", "amount": payment["amount"], "payment_method_id": payment_method_id},
            {**payment, "transaction_type": "refund"},
        ]
        self._deduct(order["user_id"], payment_method_id, payment["amount"])
        self._deduct(order["user_id"], payment["payment_method_id"], -payment["amount"])
        return written

    @write_tool
    def modify_pending_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> RecordView:
        """Change items of a pending order to other variants of the same products. Works once for an order."""
        order = self._require_order("pending", order_id, "modified")
        price_change = self._price_difference(order, item_ids, new_item_ids)
        method = self._payment_method(order["user_id"], payment_method_id)
        self._check_balance(method, price_change, "pay for the new item")
        written = self._edit("orders", order_id)
        kind = "payment" if price_change > 0 else "refund"
        written["payment_history"].append(
            {"transaction_type": kind, "amount": abs(price_change), "payment_method_id": payment_method_id}
        )
        self._deduct(order["user_id"], payment_method_id, price_change)
        for item_id, new_item_id in zip(item_ids, new_item_ids, strict=True):
            item = next(item for item in written["items"] if item["item_id"] == item_id)
            variant = self._variant(item["product_id"], new_item_id)
            item |= {"item_id": new_item_id, "price": variant["price"], "options": variant["options"]}
        written["status"] = "pending (item modified)"
        return written

    @write_tool
    def return_delivered_order_items(self, order_id: str, item_ids: list[str], payment_method_id: str) -> RecordView:
        """Take back items of a delivered order; the refund goes to how it was paid, or to a gift card of the user's."""
        order = self._require_order("delivered", order_id, "returned")
        self._payment_method(order["user_id"], payment_method_id)
        self._require_state(
            "gift_card" in payment_method_id or payment_method_id == order["payment_history"][0]["payment_method_id"],
            "payment method should be either the original payment method or a gift card",
        )
        self._check_items(order, item_ids)
        written = self._edit("orders", order_id)
        written |= {
            "status": "return requested",
            "return_items": sorted(item_ids),
            "return_payment_method_id": payment_method_id,
        }
        return written

    @write_tool
    def exchange_delivered_order_items(
        self, order_id: str, item_ids: list[str], new_item_ids: list[str], payment_method_id: str
    ) -> RecordView:
        """Exchange items of a delivered order for other variants of the same products. Works once for an order."""
        order = self._require_order("delivered", order_id, "exchanged")
        price_change = self._price_difference(order, item_ids, new_item_ids)
        self._check_balance(
            self._payment_method(order["user_id"], payment_method_id), price_change, "pay for the price difference"
        )
        written = self._edit("orders", order_id)
        written |= {
            "status": "exchange requested",
            "exchange_items": sorted(item_ids),
            "exchange_new_items": sorted(new_item_ids),
            "exchange_payment_method_id": payment_method_id,
            "exchange_price_difference": price_change,
        }
        return written

    @write_tool
    def modify_user_address(
        self, user_id: str, address1: str, address2: str, city: str, state: str, country: str, zip: str
    ) -> RecordView:
        """Change a user's own address; orders keep theirs."""
        self._get_record("users", user_id, "user")
        user = self._edit("users", user_id)
        user["address"] = _make_address(address1, address2, city, state, country, zip)
        return user

    def _find_user(self, condition: Callable[[RecordView], bool]) -> str:
        for user_id in self.tables.base["users"]:
            if condition(self._get_record("users", user_id, "user")):
                return str(user_id)
        self._require(False, "user not found")
        raise AssertionError

    def _require_order(self, status: str, order_id: str, action: str) -> RecordView:
        order = self._get_record("orders", order_id, "order")
        self._require_state(order["status"] == status, f"non-{status} order cannot be {action}")
        return order

    def _modifiable_order(self, order_id: str) -> RecordView:
        """Return an order whose address or payment may be changed."""
        return self._require_order("pending", order_id, "modified")

    def _payment_method(self, user_id: str, payment_method_id: str) -> RecordView:
        methods: Mapping[str, RecordView] = self._get_record("users", user_id, "user")["payment_methods"]
        self._require(payment_method_id in methods, "payment method not found")
        return methods[payment_method_id]

    def _check_balance(self, method: RecordView, amount: float, purpose: str) -> None:
        is_short = method["source"] == "gift_card" and method["balance"] < amount
        self._require_state(not is_short, f"insufficient gift card balance to {purpose}")

    def _deduct(self, user_id: str, payment_method_id: str, amount: float) -> None:
        """Deduct an amount from a gift card; a negative amount is a refund. Other payment methods are unchanged."""
        if "gift_card" in payment_method_id:
            card = self._edit("users", user_id)["payment_methods"][payment_method_id]
            card["balance"] = round(card["balance"] - amount, 2)

    def _check_items(self, order: RecordView, item_ids: Sequence[str]) -> None:
        order_item_ids = [item["item_id"] for item in order["items"]]
        for item_id in item_ids:
            self._require(item_ids.count(item_id) <= order_item_ids.count(item_id), f"{item_id} not found")

    def _price_difference(self, order: RecordView, old: Sequence[str], new: Sequence[str]) -> float:
        """Return the price of the new items minus the price of the old items, in dollars."""
        self._check_items(order, old)
        self._require(len(old) == len(new), "the number of items to be exchanged should match")
        difference = 0.0
        for item_id, new_item_id in zip(old, new, strict=True):
            item = next(item for item in order["items"] if item["item_id"] == item_id)
            difference += self._variant(item["product_id"], new_item_id)["price"] - item["price"]
        return round(difference, 2)

    def _variant(self, product_id: str, item_id: str) -> RecordView:
        variants: Mapping[str, RecordView] = self._get_record("products", product_id, "product")["variants"]
        is_available = item_id in variants and variants[item_id]["available"]
        self._require(is_available, f"new item {item_id} not found or available")
        return variants[item_id]


def _row_name(row: RecordView) -> str:
    return str(row["name"])


def _make_address(address1: str, address2: str, city: str, state: str, country: str, zip_code: str) -> Record:
    return {
        "address1": address1,
        "address2": address2,
        "city": city,
        "state": state,
        "country": country,
        "zip": zip_code,
    }


class RetailTau2(Retail):
    """Retail tools from τ-bench, and a tool that reads an item.

    Unlike in τ-bench, an order's address and payment can still be changed after its items were changed.
    """

    @tool
    def get_item_details(self, item_id: str) -> RecordView:
        """Read a variant of a product, by item id (not product id): options, availability, price."""
        variant = next(
            (row["variants"][item_id] for row in self.tables.rows("products") if item_id in row["variants"]), None
        )
        self._require(variant is not None, "item not found")
        return variant or {}

    def _modifiable_order(self, order_id: str) -> RecordView:
        order = self._get_record("orders", order_id, "order")
        self._require_state("pending" in order["status"], "non-pending order cannot be modified")
        return order
