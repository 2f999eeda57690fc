"""Shop pages, where text in brackets marks a clickable label, and actions on them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from marft_envs.shop.catalog import Product

BACK, PREVIOUS, NEXT = "back to search", "< prev", "next >"
DESCRIPTION, FEATURES, BUY = "description", "features", "buy now"
_ACTION = re.compile(r"\b(search|click)\[([^\[\]]*)\]", re.IGNORECASE)


class Page(NamedTuple):
    """A page with its text and its clickable labels."""

    text: str
    clickable: tuple[str, ...]


def search_page() -> Page:
    """Return the start page."""
    return Page("Search page.", ())


def results_page(products: Sequence[Product], number: int, pages: int, by_row: bool) -> Page:
    """Return a page of search results.

    Args:
        products: products on this page.
        number: number of the page, starting at 1.
        pages: number of pages; 0 if nothing was found.
        by_row: True if products are clicked by row instead of by number.
    """
    if not pages:
        return Page(f"Nothing found.\n[{BACK}]", (BACK,))
    buttons = (*((PREVIOUS,) if number > 1 else ()), *((NEXT,) if number < pages else ()), BACK)
    labels = tuple(str(row if by_row else product.number) for row, product in enumerate(products, 1))
    rows = [
        f"[{label}] {listed_product.name} ${listed_product.price:g}"
        for label, listed_product in zip(labels, products, strict=True)
    ]
    text = "\n".join((f"Page {number} of {pages}.", *rows, _format_buttons(buttons)))
    return Page(text, (*labels, *buttons))


def product_page(product: Product, chosen: Mapping[str, str]) -> Page:
    """Return the page of a product, with its options.

    Args:
        product: the product.
        chosen: chosen value, by kind of option.
    """
    rows = [f"{product.title} ${product.price:g}"]
    for kind, values in product.options.items():
        chosen_text = f" chosen: {chosen[kind]}" if kind in chosen else ""
        rows.append(f"{kind}: {_format_buttons(values)}{chosen_text}")
    buttons = (DESCRIPTION, FEATURES, BUY, PREVIOUS, BACK)
    values = tuple(value for values in product.options.values() for value in values)
    return Page("\n".join((*rows, _format_buttons(buttons))), (*values, *buttons))


def part_page(product: Product, part: str) -> Page:
    """Return the features page or the description page of a product."""
    text = "\n".join(product.features) if part == FEATURES else product.description
    return Page(f"{product.title}: {part}\n{text}\n{_format_buttons((PREVIOUS, BACK))}", (PREVIOUS, BACK))


def _format_buttons(buttons: Sequence[str]) -> str:
    return " ".join(f"[{button}]" for button in buttons)


class ParsedAction(NamedTuple):
    """A parsed action; an empty ``verb`` means no action."""

    verb: str
    words: str


def parse_action(text: str) -> ParsedAction:
    """Parse the last action in a text, in WebShop's notation.

    >>> parse_action("Not click[7], but search[red  scarf]"), parse_action("buy it")
    (ParsedAction(verb='search', words='red scarf'), ParsedAction(verb='', words=''))
    """
    actions = _ACTION.findall(text)
    if not actions:
        return ParsedAction("", "")
    verb, words = actions[-1]
    return ParsedAction(verb.lower(), " ".join(words.lower().split()))
