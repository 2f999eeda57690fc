"""Retail tables, generated from a seed, and goals for retail users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product
from random import Random

from marft_envs.tool_use.goals import Calls, Goal, GoalSampler, Identity, ServiceWorld, about_record, make_call
from marft_envs.tool_use.retail import REASONS, Retail
from marft_envs.tool_use.toolbox import Record, RecordView

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
    methods: Record = {}
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


POLICY = """You serve the customers of a shop, with its tools.
- First find out who the user is: by e-mail, or by name and zip code. Help no one with what is another user's.
- Say what you will do to an order or a profile, and go on only once the user says yes.
- Pending orders can be cancelled (reason: no longer needed, or ordered by mistake), and their address, payment or items changed; items only to other variants of the same product, and once.
- Delivered orders can be returned, with the refund to how it was paid or to a gift card, or exchanged for other variants of the same products. Collect all items first: an order is returned or exchanged once.
- Nothing else can be done to orders, and nothing at all to those that are processed or cancelled: say so.
- Answer questions from what the tools say, and make nothing up."""  # noqa: E501


def build_identity(user: RecordView, is_explicit: bool) -> Identity:
    """Return an identity by e-mail, or by name and zip code."""
    name, email = user["name"], user["email"]
    return Identity(
        {"email": email, "name": f"{name['first_name']} {name['last_name']}", "zip": user["address"]["zip"]},
        ["email"],
        [make_call("find_user_id_by_email", email=email)],
        f"My e-mail is {email}." if is_explicit else "",
    )


@about_record("orders")
def cancel_goal(sampler: GoalSampler, order: RecordView) -> Goal:
    """Draw a goal: cancel an order. The order may not be pending."""
    order_id, reason = order["order_id"], sampler.random.choice(REASONS)
    hidden = sampler.draw_hidden("order", "reason")
    pending, total = order["status"] == "pending", _format_amount(order["payment_history"][0]["amount"])
    reason_text = "" if "reason" in hidden else f" It is {reason}."
    done = f"Order {order_id} is cancelled, {total} will be refunded."
    return Goal(
        aim=f"cancel order {order_id} ({reason})",
        says=f"I want to cancel {_order_phrase(order_id, hidden)}.{reason_text}",
        facts={"order": order_id, "reason": reason},
        withheld=hidden,
        keys=[order_id],
        reads=_lookup_calls(order_id),
        writes=[make_call("cancel_pending_order", order_id=order_id, reason=reason)] if pending else [],
        outputs=[total if pending else order["status"]],
        offer=f"Shall I cancel order {order_id} ({reason}) and refund {total}?" if pending else "",
        report=done if pending else f"Sorry, order {order_id} is {order['status']} and cannot be cancelled.",
    )


@about_record("orders")
def return_goal(sampler: GoalSampler, order: RecordView) -> Goal:
    """Draw a goal: return some items from an order. The order may not be delivered."""
    order_id, hidden = order["order_id"], sampler.draw_hidden("order", "payment")
    items = sampler.random.sample(order["items"], sampler.random.randint(1, len(order["items"])))
    names = _join_words([item["name"] for item in items])
    card = next(method for method in sampler.user["payment_methods"] if "gift_card" in method)
    is_delivered = order["status"] == "delivered"
    item_ids = [item["item_id"] for item in items]
    write = make_call("return_delivered_order_items", order_id=order_id, item_ids=item_ids, payment_method_id=card)
    refusal = f"Sorry, the {names} of order {order_id} cannot be returned: it is {order['status']}."
    return Goal(
        aim=f"return the {names} of order {order_id} to {card}",
        says=f"I would like to return the {names} of "
        f"{_order_phrase(order_id, hidden)}.{_payment_sentence(card, hidden)}",
        facts={"order": order_id, "payment": card, "item": names},
        withheld=hidden,
        keys=[order_id, *(item["name"] for item in items)],
        reads=_lookup_calls(order_id),
        writes=[write] if is_delivered else [],
        outputs=[] if is_delivered else [order["status"]],
        offer=f"Shall I take back the {names} of order {order_id}, with the refund to {card}?" if is_delivered else "",
        report=f"The return of the {names} of order {order_id} is requested." if is_delivered else refusal,
    )


@about_record("orders", "pending", "delivered")
def exchange_goal(sampler: GoalSampler, order: RecordView) -> Goal | None:
    """Draw a goal: exchange items from a delivered order, or modify items in a pending order."""
    options_found = [(item, variant) for item in order["items"] if (variant := _draw_variant(sampler, item))]
    if not options_found:
        return None
    chosen = sampler.random.sample(options_found, sampler.random.randint(1, len(options_found)))
    order_id, hidden = order["order_id"], sampler.draw_hidden("order", "payment")
    difference = _format_amount(abs(round(sum(variant["price"] - item["price"] for item, variant in chosen), 2)))
    card, names = next(iter(sampler.user["payment_methods"])), _join_words([item["name"] for item, _ in chosen])
    wanted_variants = _join_words([f"{item['name']} in {_format_options(variant)}" for item, variant in chosen])
    write = make_call(
        "exchange_delivered_order_items" if order["status"] == "delivered" else "modify_pending_order_items",
        order_id=order_id,
        item_ids=[item["item_id"] for item, _ in chosen],
        new_item_ids=[variant["item_id"] for _, variant in chosen],
        payment_method_id=card,
    )
    product_reads = [make_call("get_product_details", product_id=item["product_id"]) for item, _ in chosen]
    return Goal(
        aim=f"change order {order_id} to {wanted_variants} with {card}",
        says=f"In {_order_phrase(order_id, hidden)} I want another variant: "
        f"{wanted_variants}.{_payment_sentence(card, hidden)}",
        facts={"order": order_id, "payment": card, "item": names, "new": wanted_variants},
        withheld=hidden,
        keys=[order_id, *(item["name"] for item, _ in chosen)],
        reads=[*_lookup_calls(order_id), *product_reads],
        writes=[write],
        outputs=[difference],
        offer=f"Shall I change order {order_id} to {wanted_variants}, a difference of {difference} with {card}?",
        report=f"The {names} of order {order_id} will be changed.",
    )


@about_record("orders", "pending")
def change_payment_goal(sampler: GoalSampler, order: RecordView) -> Goal:
    """Draw a goal: change a pending order's payment method."""
    order_id, hidden = order["order_id"], sampler.draw_hidden("order", "payment")
    payment = order["payment_history"][0]
    new_method = next(method for method in sampler.user["payment_methods"] if method != payment["payment_method_id"])
    method_text = "in another way" if "payment" in hidden else f"with {new_method}"
    return Goal(
        aim=f"pay order {order_id} with {new_method}",
        says=f"I want to pay {_order_phrase(order_id, hidden)} {method_text}.",
        facts={"order": order_id, "payment": new_method},
        withheld=hidden,
        keys=[order_id, new_method],
        reads=_lookup_calls(order_id),
        writes=[make_call("modify_pending_order_payment", order_id=order_id, payment_method_id=new_method)],
        offer=f"Shall I have order {order_id} paid with {new_method}?",
        report=f"Order {order_id} is now paid with {new_method}.",
    )


def change_address_goal(sampler: GoalSampler) -> Goal | None:
    """Draw a goal: change the address in a pending order or in the user's profile."""
    new, hidden = draw_address(sampler.random), sampler.draw_hidden("address")
    order = sampler.draw_record("orders", "pending") if sampler.random.random() < 0.5 else None
    key = order["order_id"] if order else sampler.user["user_id"]
    if key in sampler.used and not order:
        return None
    sampler.used.add(key)
    address, subject = _format_address(new), f"order {key}" if order else "my profile"
    order_write = make_call("modify_pending_order_address", order_id=key, **new)
    return Goal(
        aim=f"address of {key}: {address}",
        says=f"Please change the address of {subject}{'' if hidden else f' to {address}'}.",
        facts={"address": address},
        withheld=hidden,
        keys=[new["address1"], *([key] if order else [])],
        reads=_lookup_calls(key) if order else [make_call("get_user_details", user_id=key)],
        writes=[order_write if order else make_call("modify_user_address", user_id=key, **new)],
        offer=f"Shall I change the address of {subject.replace('my', 'your')} to {address}?",
        report=f"The address of {subject.replace('my', 'your')} is now {address}.",
    )


@about_record("orders")
def price_question(sampler: GoalSampler, order: RecordView) -> Goal:
    """Draw a question: the price paid for an order."""
    order_id, hidden = order["order_id"], sampler.draw_hidden("order")
    total = _format_amount(order["payment_history"][0]["amount"])
    return Goal(
        aim=f"price of order {order_id}",
        says=f"What did I pay for {_order_phrase(order_id, hidden)}?",
        facts={"order": order_id},
        withheld=hidden,
        keys=[order_id],
        reads=_lookup_calls(order_id),
        outputs=[total],
        report=f"For order {order_id} you paid {total}.",
    )


def variants_question(sampler: GoalSampler) -> Goal | None:
    """Draw a question: the number of available variants."""
    row = sampler.random.choice(sorted(sampler.database["products"].values(), key=lambda row: str(row["name"])))
    if row["product_id"] in sampler.used:
        return None
    sampler.used.add(row["product_id"])
    count = str(sum(variant["available"] for variant in row["variants"].values()))
    return Goal(
        aim=f"variants of {row['name']}",
        says=f"How many variants of the {row['name']} are available?",
        facts={},
        keys=[row["name"]],
        reads=[
            make_call("list_all_product_types"),
            make_call("get_product_details", product_id=row["product_id"]),
        ],
        outputs=[count],
        report=f"Of the {row['name']}, {count} variants are available.",
    )


def _draw_variant(sampler: GoalSampler, item: RecordView) -> Record | None:
    """Draw another available variant from the same product; None if no variant fits."""
    variants = sampler.database["products"][item["product_id"]]["variants"].values()
    candidates = [variant for variant in variants if variant["available"] and variant["item_id"] != item["item_id"]]
    return sampler.random.choice(candidates) if candidates else None


def _lookup_calls(order_id: str) -> Calls:
    return [make_call("get_order_details", order_id=order_id)]


def _order_phrase(order_id: str, hidden: Sequence[str]) -> str:
    return "an order of mine" if "order" in hidden else f"order {order_id}"


def _payment_sentence(method: str, hidden: Sequence[str]) -> str:
    return "" if "payment" in hidden else f" Use {method} for the money."


def _format_amount(amount: float) -> str:
    return f"{amount:.2f}"


def _format_options(variant: RecordView) -> str:
    return ", ".join(str(value) for value in variant["options"].values())


def _format_address(address_fields: Mapping[str, str]) -> str:
    return ", ".join(address_fields[key] for key in ("address1", "address2", "city", "state", "country", "zip"))


def _join_words(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


CHANGE_GOALS = (cancel_goal, return_goal, exchange_goal, change_payment_goal, change_address_goal)
QUESTIONS = (price_question, variants_question)
RETAIL = ServiceWorld(Retail, generate_retail_tables, (*CHANGE_GOALS, *QUESTIONS), build_identity, POLICY)
