"""Product catalog generated from a seed, shared by all sessions in a process, with its vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal, NamedTuple

from marft.common.seeds import derive_seed
from marft_envs.shop.search import SearchIndex


class ProductKind(NamedTuple):
    """A kind of product: its noun and categories."""

    noun: str
    group: str
    department: str


PRODUCT_KINDS = tuple(
    ProductKind(noun, group, department)
    for department, groups in {
        "clothing": {
            "accessories": "scarf hat belt glove tie",
            "outerwear": "coat jacket vest",
            "basics": "shirt sock dress skirt",
            "shoes": "boot sandal sneaker slipper",
        },
        "home": {
            "bedroom": "pillow blanket curtain rug",
            "kitchen": "pan kettle mug bowl knife",
            "furniture": "chair table shelf lamp",
        },
        "electronics": {
            "audio": "speaker headphone radio microphone",
            "computing": "keyboard mouse monitor tablet",
            "photo": "camera tripod lens",
        },
        "food": {
            "snacks": "cookie cracker chip candy",
            "drinks": "tea coffee juice",
            "pantry": "sauce noodle cereal honey",
        },
        "beauty": {"skin": "cream lotion serum soap", "hair": "shampoo conditioner brush comb"},
    }.items()
    for group, nouns in groups.items()
    for noun in nouns.split()
)
BRANDS = (
    "Norda",
    "Velio",
    "Quinta",
    "Marlow",
    "Tessen",
    "Brightly",
    "Oakhill",
    "Sunder",
    "Kipra",
    "Lumet",
    "Ferro",
)
MATERIALS: Mapping[str, tuple[str, ...]] = {
    "clothing": ("wool", "cotton", "silk", "leather", "linen"),
    "home": ("steel", "oak", "cotton", "glass", "bamboo"),
    "electronics": ("aluminum", "carbon", "plastic", "steel"),
    "food": ("almond", "cocoa", "lemon", "oat", "ginger"),
    "beauty": ("aloe", "argan", "coconut", "shea"),
}
QUALITIES: Mapping[str, tuple[str, ...]] = {
    "clothing": (
        "soft", "warm", "light", "slim fit", "long lasting", "machine washable", "water resistant", "hand made",
        "stretchy", "quick drying", "lined", "classic",
    ),
    "home": (
        "heavy duty", "easy clean", "eco friendly", "foldable", "space saving", "dishwasher safe", "hand made",
        "non slip", "vintage", "rust proof", "easy assembly", "modern",
    ),
    "electronics": (
        "wireless", "fast charging", "noise cancelling", "long lasting", "portable", "high definition", "light",
        "water resistant", "plug and play", "dust proof", "slim", "quiet",
    ),
    "food": (
        "gluten free", "sugar free", "low sodium", "organic", "fat free", "dairy free", "crunchy", "high protein",
        "non gmo", "kosher", "small batch", "spicy",
    ),
    "beauty": (
        "cruelty free", "paraben free", "fragrance free", "long lasting", "travel size", "anti aging", "oil free",
        "gentle", "vegan", "alcohol free", "rich", "refreshing",
    ),
}  # fmt: skip
OPTIONS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "clothing": {
        "size": ("x-small", "small", "medium", "large", "x-large"),
        "color": ("black", "white", "red", "navy", "olive", "grey"),
    },
    "home": {"color": ("black", "white", "walnut", "cream", "teal"), "pieces": ("one", "two", "four", "six")},
    "electronics": {"color": ("black", "silver", "blue", "gold"), "warranty": ("none", "1 year", "2 years")},
    "food": {"flavor": ("original", "vanilla", "mint", "berry"), "pack": ("single", "3 pack", "6 pack", "12 pack")},
    "beauty": {"scent": ("unscented", "rose", "citrus", "lavender"), "volume": ("50 ml", "100 ml", "250 ml")},
}
PLAIN_PRODUCT_KINDS = tuple(kind for kind in PRODUCT_KINDS if kind.noun in ("scarf", "hat", "belt", "coat"))
PLAIN_MATERIALS = ("wool", "silk", "cotton")
PLAIN_QUALITIES = ("soft", "warm", "thin", "old")
PLAIN_OPTIONS = {"size": ("small", "medium", "large"), "color": ("red", "blue", "green")}


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
    kind: ProductKind
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
class ProductCatalog:
    """All products, with number n at index n − 1, and their search index."""

    products: tuple[Product, ...]
    index: SearchIndex

    def __getitem__(self, number: int) -> Product:
        return self.products[number - 1]

    def search(self, query: str, limit: int) -> list[Product]:
        """Return products that share a word with a query, best match first."""
        return [self.products[index] for index in self.index.search(query, limit)]


@lru_cache(maxsize=8)
def generate_catalog(size: int, seed: int, style: Style) -> ProductCatalog:
    """Generate the catalog for a seed; sessions in a process share it, and every process gets the same catalog."""
    make = _make_plain_product if style == "plain" else _make_full_product
    random = Random(derive_seed(seed, "shop", style, size))
    products = tuple(make(number, random) for number in range(1, size + 1))
    return ProductCatalog(products, SearchIndex([product.text for product in products]))


def _make_plain_product(number: int, random: Random) -> Product:
    """Generate a product with few words, all in its name: ``soft wool scarf``."""
    kind, material = random.choice(PLAIN_PRODUCT_KINDS), random.choice(PLAIN_MATERIALS)
    quality = random.choice(PLAIN_QUALITIES)
    return Product(
        number=number, kind=kind, name=f"{quality} {material} {kind.noun}", nouns=frozenset((material, kind.noun)),
        attributes=(quality, material), features=(f"{quality}",), description=f"A {kind.noun} of {material}.",
        price=10.0 * random.randint(1, 5) + random.randint(1, 9), options=PLAIN_OPTIONS,
    )  # fmt: skip


def _make_full_product(number: int, random: Random) -> Product:
    """Generate a product with a brand, five qualities (two in the name), and a subset of options."""
    kind, brand = random.choice(PRODUCT_KINDS), random.choice(BRANDS)
    material = random.choice(MATERIALS[kind.department])
    qualities = random.sample(QUALITIES[kind.department], 5)
    named_qualities, listed_qualities, described_quality = qualities[:2], qualities[2:4], qualities[4]
    name = f"{brand} {named_qualities[0]} {material} {kind.noun}, {named_qualities[1]}"
    options = {option: _draw_values(values, random) for option, values in OPTIONS[kind.department].items()}
    return Product(
        number=number, kind=kind, name=name, nouns=frozenset((brand.lower(), material, kind.noun)),
        attributes=(material, *qualities),
        features=(*(f"{quality.capitalize()}." for quality in listed_qualities), f"Made of {material}."),
        description=f"This {kind.noun} by {brand} is {described_quality}; it belongs to our {kind.group}.",
        price=round(random.uniform(6, 180), 2), options=options,
    )  # fmt: skip


def _draw_values(values: tuple[str, ...], random: Random) -> tuple[str, ...]:
    """Draw at least two of the values and keep their order."""
    drawn_values = random.sample(values, random.randint(2, len(values)))
    return tuple(value for value in values if value in drawn_values)
