"""Small fictional world for one question: people, towns, rivers and firms, and tables with numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random

FIRST_NAMES = ("Ada", "Bo", "Cleo", "Dan", "Eva", "Finn", "Gus", "Hana", "Ivo", "Juno", "Kai", "Lena")
LAST_NAMES = ("Arden", "Brook", "Cole", "Drake", "Ellis", "Frost", "Grant", "Holm", "Ives", "Kern", "Lund", "Moss")
TOWNS = (
    "Alden",
    "Brod",
    "Cranmoor",
    "Dunwick",
    "Elsby",
    "Farrow",
    "Glimmen",
    "Harth",
    "Inver",
    "Jorvik",
    "Kelso",
    "Lorne",
    "Marley",
    "Norby",
    "Ostrava",
    "Penrith",
)
RIVERS = ("Arno", "Bure", "Cam", "Dee", "Exe", "Foss", "Gade", "Humber", "Isla", "Kent", "Lea", "Mole")
FIRMS = ("Acton", "Belmar", "Corvex", "Delphin", "Estrel", "Fenwick", "Gorham", "Helvar", "Iskra", "Junker")
CRAFTS = ("baker", "carver", "diver", "farmer", "glazier", "joiner", "mason", "painter", "potter", "tailor")
ITEMS = ("tea", "rice", "salt", "soap", "rope", "wool", "nails", "jam", "cork", "oats")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "person": ("born", "craft", "town"),
    "town": ("people", "river", "mayor"),
    "river": ("length",),
    "firm": ("founded", "head", "town"),
}
Table = list[list[str]]


@dataclass(frozen=True, slots=True)
class World:
    """A fictional world.

    Args:
        pages: fields by title.
        titles: titles by kind.
        tables: rows by table name.
    """

    pages: Mapping[str, Mapping[str, str]]
    titles: Mapping[str, Sequence[str]]
    tables: Mapping[str, Table]


def draw_world(random: Random, person_count: int, town_count: int) -> World:
    """Generate a world with the given numbers of people and towns, and half as many firms as people.

    Every town has its own river. Some people share a first or last name.
    """
    names = _draw_names(random, person_count)
    town_names, rivers = random.sample(TOWNS, town_count), random.sample(RIVERS, town_count)
    firms = random.sample(FIRMS, max(1, person_count // 2))
    pages: dict[str, dict[str, str]] = {}
    for name in names:
        fields = (_draw_number(random, 1900, 1990), random.choice(CRAFTS), random.choice(town_names))
        pages[name] = dict(zip(FIELDS["person"], fields, strict=True))
    for town_name, river in zip(town_names, rivers, strict=True):
        fields = (_draw_number(random, 1000, 9999), river, random.choice(names))
        pages[town_name] = dict(zip(FIELDS["town"], fields, strict=True))
        pages[river] = {"length": _draw_number(random, 11, 99)}
    for firm, head in zip(firms, random.sample(names, len(firms)), strict=True):
        fields = (_draw_number(random, 1991, 2020), head, random.choice(town_names))
        pages[firm] = dict(zip(FIELDS["firm"], fields, strict=True))
    order = random.sample(sorted(pages), len(pages))
    titles = {"person": names, "town": town_names, "river": rivers, "firm": firms}
    return World({title: pages[title] for title in order}, titles, _draw_tables(random, names))


def _draw_names(random: Random, count: int) -> list[str]:
    """Draw names that share first and last names, so a search needs both."""
    side = next(side for side in range(2, len(FIRST_NAMES) + 1) if side * side >= count)
    pairs = list(product(random.sample(FIRST_NAMES, side), random.sample(LAST_NAMES, side)))
    return [" ".join(pair) for pair in random.sample(pairs, count)]


def _draw_tables(random: Random, names: Sequence[str]) -> dict[str, Table]:
    chosen = random.sample(list(names), min(4, len(names)))
    points = random.sample(range(11, 99), len(chosen))
    prices = [[item, _draw_number(random, 2, 99), _draw_number(random, 2, 99)] for item in random.sample(ITEMS, 4)]
    return {
        "scores": [
            ["name", "points"],
            *([name, str(points_value)] for name, points_value in zip(chosen, points, strict=True)),
        ],
        "prices": [["item", "price", "stock"], *prices],
    }


def _draw_number(random: Random, low: int, high: int) -> str:
    return str(random.randint(low, high))


def format_page(fields: Mapping[str, str]) -> str:
    """Format the fields of a page.

    >>> format_page({"born": "1912", "town": "Brod"})
    'born: 1912\\ntown: Brod'
    """
    return "\n".join(f"{name}: {value}" for name, value in fields.items())
