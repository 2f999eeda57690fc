"""What is to be bought, and what a purchase is worth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from random import Random
from typing import Any

from marft_envs.shop.catalogue import Catalogue, Product, Style

BOUNDS = tuple(10.0 * tens for tens in range(1, 100))  # dollars, as WebShop's


@dataclass(frozen=True, slots=True)
class Goal:
    """A product that is looked for, and what of it matters.

    Args:
        target: number of a product that is worth 1.
        price_upper: dollars.
    """

    target: int
    noun: str
    attributes: tuple[str, ...]
    options: Mapping[str, str]
    price_upper: float

    def data(self) -> dict[str, Any]:
        """The goal in plain values."""
        return {**asdict(self), "attributes": list(self.attributes), "options": dict(self.options)}

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Goal:
        """The goal that plain values are of."""
        return cls(**{**data, "attributes": tuple(data["attributes"])})


def draw_goal(catalogue: Catalogue, attributes: int, options: int, random: Random) -> Goal:
    """A goal that some product of the catalogue meets. Its bound is the larger one of two among the first four tens
    above the price, as WebShop draws it.

    Args:
        attributes, options: how many of each it names, at most.
    """
    product = random.choice(catalogue.products)
    wanted = random.sample(product.attributes, min(attributes, len(product.attributes)))
    kinds = sorted(random.sample(sorted(product.options), min(options, len(product.options))))
    bounds = [bound for bound in BOUNDS if bound > product.price][:4]
    return Goal(
        target=product.number, noun=product.kind.noun,
        attributes=tuple(attribute for attribute in product.attributes if attribute in wanted),
        options={kind: random.choice(product.options[kind]) for kind in kinds},
        price_upper=max(random.sample(bounds, 2)),
    )  # fmt: skip


def instruction(goal: Goal, style: Style) -> str:
    """The goal in words."""
    if style == "plain":
        options = "".join(f", {value}" for value in goal.options.values())
        return f"Wanted: {' '.join((*goal.attributes, goal.noun))}{options}, under ${goal.price_upper:g}."
    options = ", and ".join(f"{kind}: {value}" for kind, value in goal.options.items())
    with_options = f" with {options}," if options else ""
    return (
        f"I am looking for a {', '.join(goal.attributes)} {goal.noun}{with_options} and price lower than "
        f"{goal.price_upper:.2f} dollars."
    )


def worth(goal: Goal, target: Product, bought: Product, chosen: Mapping[str, str]) -> float:
    """What a purchase is worth, from 0 to 1: WebShop's reward (Yao et al. 2022, §3.1 and appendix A.5).

    ``r = r_type · (matched attributes + matched options + [price ≤ bound]) / (attributes + options + 1)``

    Args:
        target: the product of the goal.
        chosen: by kind of option.
    """
    matched = sum(has_attribute(bought, attribute) for attribute in goal.attributes)
    options = sum(_same_option(kind, value, chosen) for kind, value in goal.options.items())
    fits = bought.price <= goal.price_upper
    return type_score(target, bought) * (matched + options + fits) / (len(goal.attributes) + len(goal.options) + 1)


def type_score(target: Product, bought: Product) -> float:
    """How much of a kind two products are: 0 where no noun of the target's name is in the other's, 0.1 for less than a
    tenth of them; else 1 for the same noun, two shared levels of category, or over a fifth of the nouns; else 0.5."""
    shared = len(target.nouns & bought.nouns) / len(target.nouns)
    if shared < 0.1:
        return 0.1 if shared else 0.0
    levels = {target.kind.department, target.kind.group, target.kind.noun}
    same = len(levels & {bought.kind.department, bought.kind.group, bought.kind.noun}) >= 2
    return 1.0 if target.kind.noun == bought.kind.noun or same or shared > 0.2 else 0.5


def has_attribute(product: Product, attribute: str) -> bool:
    """Whether a product's attributes, name, features or description say it."""
    wanted = set(attribute.lower().split())
    if any(wanted <= set(own.split()) or set(own.split()) <= wanted for own in product.attributes):
        return True
    return attribute.lower() in product.text.lower()


def _same_option(kind: str, value: str, chosen: Mapping[str, str]) -> bool:
    """Sizes are the same word for word; of others one may say more than the other."""
    if kind not in chosen:
        return False
    wanted, own = set(value.split()), set(chosen[kind].split())
    return chosen[kind] == value if kind == "size" else wanted <= own or own <= wanted
