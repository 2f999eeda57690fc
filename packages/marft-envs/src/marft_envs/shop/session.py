"""Session for one visit to the shop."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.shop.catalogue import Catalogue, Product
from marft_envs.shop.goals import Goal, worth
from marft_envs.shop.pages import (
    BACK,
    BUY,
    DESCRIPTION,
    FEATURES,
    NEXT,
    PREVIOUS,
    Page,
    part_page,
    product_page,
    results_page,
    search_page,
)

_ACTION = re.compile(r"\b(search|click)\[([^\[\]]*)\]", re.IGNORECASE)
NO_ACTION = "No action was found: write search[words] or click[button]."


@dataclass(frozen=True)
class Rules:
    """Rules of a visit.

    Args:
        actor: role whose action counts; "" for the answering agent.
        readers: roles that see the wanted product; () for all.
        repeats: True to repeat the wanted product in every observation instead of only the first.
        choices: True if the actor chooses between options.
        results: products on a page of results.
        most: maximum products in a search result.
        by_row: True if products are clicked by row instead of by number.
        max_steps: maximum steps in a visit.
    """

    actor: str
    readers: tuple[str, ...]
    repeats: bool
    choices: bool
    results: int
    most: int
    by_row: bool
    max_steps: int


@dataclass(frozen=True)
class Place:
    """Current location in the shop."""

    kind: Literal["search", "results", "product", "part"] = "search"
    found: tuple[Product, ...] = ()
    page: int = 1
    product: Product | None = None
    part: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)


class Read(NamedTuple):
    """A parsed action; an empty ``verb`` means no action."""

    verb: str
    words: str


def read(text: str) -> Read:
    """Parse the last action in a text, in WebShop's notation.

    >>> read("Not click[7], but search[red  scarf]"), read("buy it")
    (Read(verb='search', words='red scarf'), Read(verb='', words=''))
    """
    found = _ACTION.findall(text)
    if not found:
        return Read("", "")
    verb, words = found[-1]
    return Read(verb.lower(), " ".join(words.lower().split()))


class ShopSession:
    """One attempt to buy the wanted product.

    Args:
        catalogue: the catalog.
        goal: the goal.
        wanted: text of the instruction.
        queries: queries offered to the actor; empty unless it chooses between options.
        rules: rules of the visit.
    """

    def __init__(self, catalogue: Catalogue, goal: Goal, wanted: str, queries: Sequence[str], rules: Rules) -> None:
        self.catalogue, self.goal, self.wanted, self.queries, self.rules = catalogue, goal, wanted, queries, rules
        self.place, self.steps, self.wrong = Place(), 0, 0

    async def reset(self) -> Observation:
        """Return the instruction and the search page."""
        return self._shown("")

    async def step(self, actions: JointAction) -> Step:
        """Apply one action; a purchase or the last step ends the visit."""
        action = actions.of(self.rules.actor) if self.rules.actor else actions.answer
        verb, words = read(text_said(action))
        self.steps += 1
        if verb == "click" and words == BUY and words in self._page().clickable:
            earned = self._worth()
            return Step(
                Observation(""), earned, terminated=True, success=earned == 1.0, info=self._told(earned)
            )  # fmt: skip
        note = self._moved(verb, words)
        self.wrong += bool(note)
        over = self.steps >= self.rules.max_steps
        return Step(
            Observation("") if over else self._shown(note), 0.0, terminated=over, success=False,
            info=self._told(self._worth()),
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _moved(self, verb: str, words: str) -> str:
        """Move to the location that an action leads to, and return "" or an error text."""
        if verb == "search":
            if not words:
                return "Nothing to search for: write search[words]."
            self.place = Place("results", tuple(self.catalogue.find(words, self.rules.most)))
            return ""
        if verb != "click":
            return NO_ACTION
        if words not in self._page().clickable:
            return f"There is no [{words[:40]}] here."
        self.place = self._clicked(words)
        return ""

    def _clicked(self, words: str) -> Place:
        place = self.place
        if words == BACK:
            return Place()
        if place.kind == "results":
            if words in (NEXT, PREVIOUS):
                return replace(place, page=place.page + (1 if words == NEXT else -1))
            first = (place.page - 1) * self.rules.results
            product = place.found[first + int(words) - 1] if self.rules.by_row else self.catalogue[int(words)]
            return replace(place, kind="product", product=product, chosen={})
        if words == PREVIOUS:
            return replace(place, kind="results" if place.kind == "product" else "product")
        if words in (DESCRIPTION, FEATURES):
            return replace(place, kind="part", part=words)
        assert place.product, "options stand on the page of a product"
        kind = next(kind for kind, values in place.product.options.items() if words in values)
        return replace(place, chosen={**place.chosen, kind: words})

    def _page(self) -> Page:
        place, size = self.place, self.rules.results
        if place.product and place.kind in ("product", "part"):
            return product_page(place.product, place.chosen) if place.kind == "product" else part_page(
                place.product, place.part
            )  # fmt: skip
        if place.kind == "results":
            first = (place.page - 1) * size
            pages = -(-len(place.found) // size)
            return results_page(place.found[first : first + size], place.page, pages, self.rules.by_row)
        return search_page()

    def _shown(self, note: str) -> Observation:
        page = self._page()
        told = self.wanted if self.rules.repeats or not self.steps else ""
        everybody = not self.rules.readers
        options = {}
        if self.rules.choices:
            searches = self.queries if self.place.kind == "search" else ()
            may = (*(f"search[{query}]" for query in searches), *(f"click[{button}]" for button in page.clickable))
            options = {self.rules.actor: may}
        return Observation(
            "\n".join(part for part in (told if everybody else "", note, page.text) if part),
            views={} if everybody or not told else dict.fromkeys(self.rules.readers, told),
            options=options,
        )

    def _worth(self) -> float:
        """Return the reward of buying now; 0 outside a product page."""
        if self.place.kind != "product" or not self.place.product:
            return 0.0
        return worth(self.goal, self.catalogue[self.goal.target], self.place.product, self.place.chosen)

    def _told(self, progress: float) -> dict[str, object]:
        return {"progress": progress, "measures": {"invalid_actions": self.wrong / self.steps}}
