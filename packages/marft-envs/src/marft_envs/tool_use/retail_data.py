"""Retail tables, generated from a seed."""

from __future__ import annotations

from functools import lru_cache
from itertools import product
from random import Random
from typing import Any

from marft_envs.tool_use.tables import Record

FIRST_NAMES = (
    "Ada",
    "Bo",
    "Carla",
    "Dino",
    "Elif",
    "Finn",
    "Greta",
    "Hugo",
    "Ines",
    "Jonas",
    "Kira",
    "Leo",
    "Mona",
    "Nils",
)
LAST_NAMES = (
    "Abel",
    "Brandt",
    "Costa",
    "Dahl",
    "Egger",
    "Falk",
    "Gruber",
    "Holm",
    "Iversen",
    "Jansen",
    "Keller",
    "Lund",
)
STREETS = ("Mill Lane", "Canal Street", "Orchard Road", "Harbour Way", "Station Road", "Garden Court")
CITIES = (
    ("Portland", "OR", "972"),
    ("Austin", "TX", "787"),
    ("Boise", "ID", "837"),
    ("Tampa", "FL", "336"),
    ("Madison", "WI", "537"),
    ("Reno", "NV", "895"),
)
PRODUCT_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "Kettle": {"colour": ("black", "white", "red"), "capacity": ("1 l", "1.5 l")},
    "Lamp": {"colour": ("brass", "black", "green"), "height": ("small", "tall")},
    "Backpack": {"colour": ("navy", "grey", "olive"), "size": ("S", "M", "L")},
    "Jacket": {"colour": ("navy", "red", "black"), "size": ("S", "M", "L")},
    "Headphones": {"colour": ("black", "white"), "fit": ("on-ear", "in-ear", "over-ear")},
    "Chair": {"material": ("oak", "steel", "leather"), "colour": ("black", "white")},
    "Keyboard": {"layout": ("full", "compact"), "switch": ("linear", "clicky", "tactile")},
    "Puzzle": {"pieces": ("500", "1000", "2000"), "theme": ("sea", "city", "forest")},
}
SHORT_PRODUCTS = ("mug", "cap", "bag", "pen", "toy", "hat")
STATUSES = ("pending", "pending", "delivered", "delivered", "processed")
USER_COUNT, ORDERS_PER_USER = 4, 5
SHORT_ORDER_COUNT = 6


@lru_cache(maxsize=512)
def generate_retail_tables(seed: int) -> dict[str, dict[str, Record]]:
    """Return generated users, products and orders, in τ-bench's layout.

    The tables are cached and shared: do not write to them.
    """
    random = Random(seed)
    products = {row["product_id"]: row for row in (_draw_product(random, name) for name in PRODUCT_OPTIONS)}
    users: dict[str, Record] = {}
    orders: dict[str, Record] = {}
    for first, last in random.sample(list(product(FIRST_NAMES, LAST_NAMES)), USER_COUNT):
        user = _draw_user(random, first, last)
        users[user["user_id"]] = user
        for status in random.sample(STATUSES, ORDERS_PER_USER):
            order = _draw_order(random, user, list(products.values()), status)
            orders[order["order_id"]] = order
            user["orders"].append(order["order_id"])
    return {"users": users, "products": products, "orders": orders}


@lru_cache(maxsize=4096)
def generate_short_tables(seed: int) -> dict[str, dict[str, Record]]:
    """Return tables for a single user, with short ids, names and prices."""
    random = Random(seed)
    card = {"source": "credit_card", "id": "card"}
    user: Record = {"user_id": "ann", "payment_methods": {"card": card}, "orders": []}
    orders = {}
    for number in random.sample(range(100, 1000), SHORT_ORDER_COUNT):
        items: list[Record] = [
            {"name": name, "item_id": name, "price": random.randint(10, 99)}
            for name in random.sample(SHORT_PRODUCTS, random.randint(1, 2))
        ]
        payment = {
            "transaction_type": "payment",
            "payment_method_id": "card",
            "amount": sum(item["price"] for item in items),
        }
        name = f"W{number}"
        orders[name] = {
            "order_id": name,
            "user_id": "ann",
            "items": items,
            "status": random.choice(("pending", "delivered")),
            "payment_history": [payment],
        }
        user["orders"].append(name)
    return {"users": {"ann": user}, "products": {}, "orders": orders}


def draw_address(random: Random) -> Record:
    """Draw an address."""
    city, state, zip_code = random.choice(CITIES)
    return {
        "address1": f"{random.randint(1, 999)} {random.choice(STREETS)}",
        "address2": f"Unit {random.randint(1, 99)}",
        "city": city,
        "state": state,
        "country": "USA",
        "zip": f"{zip_code}{random.randint(10, 99)}",
    }


def _draw_product(random: Random, name: str) -> Record:
    options = PRODUCT_OPTIONS[name]
    variants: dict[str, Record] = {}
    for values in random.sample(list(product(*options.values())), 5):
        item_id = _draw_digits(random, 10)
        variants[item_id] = {
            "item_id": item_id,
            "options": dict(zip(options, values, strict=True)),
            "available": random.random() < 0.8,
            "price": round(random.uniform(20, 200), 2),
        }
    return {"name": name, "product_id": _draw_digits(random, 10), "variants": variants}


def _draw_user(random: Random, first: str, last: str) -> Record:
    name = f"{first.lower()}_{last.lower()}_{_draw_digits(random, 4)}"
    methods: dict[str, Any] = {}
    for source in ("gift_card", random.choice(("paypal", "credit_card"))):
        method_id = f"{source}_{_draw_digits(random, 7)}"
        methods[method_id] = {"source": source, "id": method_id}
        if source == "gift_card":
            methods[method_id]["balance"] = random.randint(200, 999)
        elif source == "credit_card":
            methods[method_id] |= {"brand": "visa", "last_four": _draw_digits(random, 4)}
    return {
        "user_id": name,
        "name": {"first_name": first, "last_name": last},
        "address": draw_address(random),
        "email": f"{first.lower()}.{last.lower()}{_draw_digits(random, 3)}@example.com",
        "payment_methods": methods,
        "orders": [],
    }


def _draw_order(random: Random, user: Record, products: list[Record], status: str) -> Record:
    items = []
    for row in random.sample(products, random.randint(1, 3)):
        variant = random.choice(list(row["variants"].values()))
        items.append(
            {
                "name": row["name"],
                "product_id": row["product_id"],
                "item_id": variant["item_id"],
                "price": variant["price"],
                "options": variant["options"],
            }
        )
    payment_method = random.choice(list(user["payment_methods"]))
    total = round(sum(item["price"] for item in items), 2)
    return {
        "order_id": f"#W{_draw_digits(random, 7)}",
        "user_id": user["user_id"],
        "address": user["address"],
        "items": items,
        "fulfillments": [],
        "status": status,
        "payment_history": [{"transaction_type": "payment", "amount": total, "payment_method_id": payment_method}],
    }


def _draw_digits(random: Random, count: int) -> str:
    """Draw a number with ``count`` digits and no leading zero."""
    return str(random.randint(10 ** (count - 1), 10**count - 1))
