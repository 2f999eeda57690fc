"""Product catalog generated from a seed, shared by all sessions in a process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal

from marft.common.seeds import derive_seed
from marft_envs.shop.search import Index
from marft_envs.shop.words import (
    BRANDS,
    KINDS,
    MATERIALS,
    OPTIONS,
    PLAIN_KINDS,
    PLAIN_MATERIALS,
    PLAIN_OPTIONS,
    PLAIN_QUALITIES,
    QUALITIES,
    Kind,
)

Style = Literal["plain", "full"]


@dataclass(frozen=True, slots=True)
class Product:
    """One product.

    Args:
        number: number on pages; the title ends with it.
        kind: kind of product.
        name: title without the number.
        nouns: nouns in the name: brand, material, kind.
        attributes: true properties. Some are in the name, the others in the features and the description.
        features: lines of the features page.
        description: text of the description page.
        price: price in dollars.
        options: values for the buyer to choose from, by kind of option.
    """

    number: int
    kind: Kind
    name: str
    nouns: frozenset[str]
    attributes: tuple[str, ...]
    features: tuple[str, ...]
    description: str
    price: float
    options: Mapping[str, tuple[str, ...]]

    @property
    def title(self) -> str:
        """Name and number."""
        return f"{self.name} {self.number}"

    @property
    def text(self) -> str:
        """Text used by the search index."""
        return " ".join((self.title, *self.features, self.description))


@dataclass(frozen=True, slots=True)
class Catalogue:
    """All products, with number n at index n − 1, and their search index."""

    products: tuple[Product, ...]
    index: Index

    def __getitem__(self, number: int) -> Product:
        return self.products[number - 1]

    def find(self, query: str, most: int) -> list[Product]:
        """Return products that share a word with a query, best match first."""
        return [self.products[place] for place in self.index.best(query, most)]


@lru_cache(maxsize=8)
def catalogue_of(size: int, seed: int, style: Style) -> Catalogue:
    """Generate the catalog for a seed; sessions in a process share it, and every process gets the same catalog."""
    make = _plain if style == "plain" else _full
    random = Random(derive_seed(seed, "shop", style, size))
    products = tuple(make(number, random) for number in range(1, size + 1))
    return Catalogue(products, Index([product.text for product in products]))


def _plain(number: int, random: Random) -> Product:
    """Generate a product with few words, all in its name: ``soft wool scarf``."""
    kind, material = random.choice(PLAIN_KINDS), random.choice(PLAIN_MATERIALS)
    quality = random.choice(PLAIN_QUALITIES)
    return Product(
        number=number, kind=kind, name=f"{quality} {material} {kind.noun}", nouns=frozenset((material, kind.noun)),
        attributes=(quality, material), features=(f"{quality}",), description=f"A {kind.noun} of {material}.",
        price=10.0 * random.randint(1, 5) + random.randint(1, 9), options=PLAIN_OPTIONS,
    )  # fmt: skip


def _full(number: int, random: Random) -> Product:
    """Generate a product with a brand, five qualities (two in the name), and a subset of options."""
    kind, brand = random.choice(KINDS), random.choice(BRANDS)
    material = random.choice(MATERIALS[kind.department])
    qualities = random.sample(QUALITIES[kind.department], 5)
    named, listed, described = qualities[:2], qualities[2:4], qualities[4]
    name = f"{brand} {named[0]} {material} {kind.noun}, {named[1]}"
    options = {option: _some(values, random) for option, values in OPTIONS[kind.department].items()}
    return Product(
        number=number, kind=kind, name=name, nouns=frozenset((brand.lower(), material, kind.noun)),
        attributes=(material, *qualities),
        features=(*(f"{quality.capitalize()}." for quality in listed), f"Made of {material}."),
        description=f"This {kind.noun} by {brand} is {described}; it belongs to our {kind.group}.",
        price=round(random.uniform(6, 180), 2), options=options,
    )  # fmt: skip


def _some(values: tuple[str, ...], random: Random) -> tuple[str, ...]:
    """Draw at least two of the values and keep their order."""
    offered = random.sample(values, random.randint(2, len(values)))
    return tuple(value for value in values if value in offered)
