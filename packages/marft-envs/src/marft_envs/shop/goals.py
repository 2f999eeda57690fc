"""Shopping goals, and the reward of a purchase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from marft_envs.shop.catalog import Product, ProductCatalog, Style

PRICE_LIMITS = tuple(10.0 * tens for tens in range(1, 100))  # price limits in dollars, as in WebShop


@dataclass(frozen=True, slots=True)
class Goal:
    """A wanted product, and the properties that matter.

    Args:
        target: number of a product with reward 1.
        noun: kind of product.
        attributes: wanted attributes.
        options: wanted value, by kind of option.
        price_upper: price limit in dollars.
    """

    target: int
    noun: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    price_upper: float

    def to_dict(self) -> dict[str, Any]:
        """Return the goal as plain values."""
        return {**asdict(self), "attributes": list(self.attributes), "options": dict(self.options)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Goal:
        """Rebuild a goal from plain values."""
        return cls(**{**data, "attributes": tuple(data["attributes"])})


def draw_goal(catalog: ProductCatalog, attributes: int, options: int, random: Random) -> Goal:
    """Draw a goal that a catalog product meets.

    The price limit is the larger of two values among the first four multiples of 10 above the price, as in WebShop.

    Args:
        catalog: the catalog.
        attributes: maximum number of wanted attributes.
        options: maximum number of wanted options.
        random: random generator.
    """
    product = random.choice(catalog.products)
    wanted = random.sample(product.attributes, min(attributes, len(product.attributes)))
    kinds = sorted(random.sample(sorted(product.options), min(options, len(product.options))))
    limits = [limit for limit in PRICE_LIMITS if limit > product.price][:4]
    return Goal(
        target=product.number,
        noun=product.kind.noun,
        attributes=tuple(attribute for attribute in product.attributes if attribute in wanted),
        options={kind: random.choice(product.options[kind]) for kind in kinds},
        price_upper=max(random.sample(limits, 2)),
    )


def format_instruction(goal: Goal, style: Style) -> str:
    """Describe the goal in words."""
    if style == "plain":
        options = "".join(f", {value}" for value in goal.options.values())
        return f"Wanted: {' '.join((*goal.attributes, goal.noun))}{options}, under ${goal.price_upper:g}."
    options = ", and ".join(f"{kind}: {value}" for kind, value in goal.options.items())
    with_options = f" with {options}," if options else ""
    return (
        f"I am looking for a {', '.join(goal.attributes)} {goal.noun}{with_options} and price lower than "
        f"{goal.price_upper:.2f} dollars."
    )


def purchase_reward(goal: Goal, target: Product, bought: Product, chosen: Mapping[str, str]) -> float:
    """Return WebShop's reward for a purchase, from 0 to 1 (Yao et al. 2022, §3.1 and appendix A.5).

    ``r = r_type · (matched attributes + matched options + [price ≤ bound]) / (attributes + options + 1)``

    Args:
        goal: the goal.
        target: the goal's product.
        bought: the purchased product.
        chosen: chosen value, by kind of option.
    """
    matched = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    options = sum(_option_matches(kind, value, chosen) for kind, value in goal.options.items())
    within_price = bought.price <= goal.price_upper
    return (
        type_score(target, bought) * (matched + options + within_price) / (len(goal.attributes) + len(goal.options) + 1)
    )


def type_score(target: Product, bought: Product) -> float:
    """Return r_type, the similarity between two products' kinds.

    It is 0 if the products' names share no noun, and 0.1 if they share less than a tenth of the target's nouns.
    Otherwise it is 1 for the same kind noun, two shared category levels, or more than a fifth of the nouns shared;
    else 0.5.
    """
    shared = len(target.nouns & bought.nouns) / len(target.nouns)
    if shared < 0.1:
        return 0.1 if shared else 0.0
    levels = {target.kind.department, target.kind.group, target.kind.noun}
    same = len(levels & {bought.kind.department, bought.kind.group, bought.kind.noun}) >= 2
    return 1.0 if target.kind.noun == bought.kind.noun or same or shared > 0.2 else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Return True if a product's attributes, name, features or description contain an attribute."""
    wanted = set(attribute.lower().split())
    if any(
        wanted <= set(own_attribute.split()) or set(own_attribute.split()) <= wanted
        for own_attribute in product.attributes
    ):
        return True
    return attribute.lower() in product.text.lower()


def _option_matches(kind: str, value: str, chosen: Mapping[str, str]) -> bool:
    """Compare an option's value.

    Sizes must be equal. Other values match if one contains all words of the other.
    """
    if kind not in chosen:
        return False
    wanted, chosen_words = set(value.split()), set(chosen[kind].split())
    return chosen[kind] == value if kind == "size" else wanted <= chosen_words or chosen_words <= wanted
