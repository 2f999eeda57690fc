"""Vocabulary for the shop's products."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


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
