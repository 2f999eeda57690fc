"""Session for one visit to the shop."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step
from marft_envs.shop.catalog import Product, ProductCatalog
from marft_envs.shop.goals import Goal, purchase_reward
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
class ShopRules:
    """Rules of a visit.

    Args:
        actor: role whose action counts; "" for the answering agent.
        product_for: roles that see the wanted product; () for all.
        repeats: True to repeat the wanted product in every observation instead of only the first.
        choices: True if the actor chooses between options.
        results_per_page: products on a page of results.
        max_results: maximum products in a search result.
        by_row: True if products are clicked by row instead of by number.
        max_steps: maximum steps in a visit.
    """

    actor: str
    product_for: tuple[str, ...]
    repeats: bool
    choices: bool
    results_per_page: int
    max_results: int
    by_row: bool
    max_steps: int


@dataclass(frozen=True)
class ShopLocation:
    """Current location in the shop."""

    kind: Literal["search", "results", "product", "part"] = "search"
    results: tuple[Product, ...] = ()
    page: int = 1
    product: Product | None = None
    part: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)


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


class ShopSession:
    """One attempt to buy the wanted product.

    Args:
        catalog: the catalog.
        goal: the goal.
        wanted: text of the instruction.
        queries: queries offered to the actor; empty unless it chooses between options.
        rules: rules of the visit.
    """

    def __init__(
        self, catalog: ProductCatalog, goal: Goal, wanted: str, queries: Sequence[str], rules: ShopRules
    ) -> None:
        self.catalog, self.goal, self.wanted, self.queries, self.rules = catalog, goal, wanted, queries, rules
        self.location, self.steps, self.invalid_actions = ShopLocation(), 0, 0

    async def reset(self) -> Observation:
        """Return the instruction and the search page."""
        return self._build_observation("")

    async def step(self, actions: JointAction) -> Step:
        """Apply one action; a purchase or the last step ends the visit."""
        action = actions.for_role(self.rules.actor) if self.rules.actor else actions.answer
        verb, words = parse_action(graded_text(action))
        self.steps += 1
        if verb == "click" and words == BUY and words in self._current_page().clickable:
            reward = self._purchase_reward()
            return Step(Observation(""), reward, terminated=True, success=reward == 1.0, info=self._step_info(reward))
        note = self._move(verb, words)
        self.invalid_actions += bool(note)
        over = self.steps >= self.rules.max_steps
        return Step(
            Observation("") if over else self._build_observation(note),
            0.0,
            terminated=over,
            success=False,
            info=self._step_info(self._purchase_reward()),
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _move(self, verb: str, words: str) -> str:
        """Move to the location that an action leads to, and return "" or an error text."""
        if verb == "search":
            if not words:
                return "Nothing to search for: write search[words]."
            self.location = ShopLocation("results", tuple(self.catalog.search(words, self.rules.max_results)))
            return ""
        if verb != "click":
            return NO_ACTION
        if words not in self._current_page().clickable:
            return f"There is no [{words[:40]}] here."
        self.location = self._click(words)
        return ""

    def _click(self, words: str) -> ShopLocation:
        location = self.location
        if words == BACK:
            return ShopLocation()
        if location.kind == "results":
            if words in (NEXT, PREVIOUS):
                return replace(location, page=location.page + (1 if words == NEXT else -1))
            first = (location.page - 1) * self.rules.results_per_page
            product = location.results[first + int(words) - 1] if self.rules.by_row else self.catalog[int(words)]
            return replace(location, kind="product", product=product, chosen={})
        if words == PREVIOUS:
            return replace(location, kind="results" if location.kind == "product" else "product")
        if words in (DESCRIPTION, FEATURES):
            return replace(location, kind="part", part=words)
        assert location.product, "options stand on the page of a product"
        kind = next(kind for kind, values in location.product.options.items() if words in values)
        return replace(location, chosen={**location.chosen, kind: words})

    def _current_page(self) -> Page:
        location, size = self.location, self.rules.results_per_page
        if location.product and location.kind in ("product", "part"):
            return (
                product_page(location.product, location.chosen)
                if location.kind == "product"
                else part_page(location.product, location.part)
            )
        if location.kind == "results":
            first = (location.page - 1) * size
            pages = -(-len(location.results) // size)
            return results_page(location.results[first : first + size], location.page, pages, self.rules.by_row)
        return search_page()

    def _build_observation(self, note: str) -> Observation:
        page = self._current_page()
        instruction = self.wanted if self.rules.repeats or not self.steps else ""
        all_see = not self.rules.product_for
        options = {}
        if self.rules.choices:
            searches = self.queries if self.location.kind == "search" else ()
            actions = (*(f"search[{query}]" for query in searches), *(f"click[{button}]" for button in page.clickable))
            options = {self.rules.actor: actions}
        return Observation(
            "\n".join(part for part in (instruction if all_see else "", note, page.text) if part),
            views={} if all_see or not instruction else dict.fromkeys(self.rules.product_for, instruction),
            options=options,
        )

    def _purchase_reward(self) -> float:
        """Return the reward of buying now; 0 outside a product page."""
        if self.location.kind != "product" or not self.location.product:
            return 0.0
        return purchase_reward(self.goal, self.catalog[self.goal.target], self.location.product, self.location.chosen)

    def _step_info(self, progress: float) -> dict[str, object]:
        return {"progress": progress, "measures": {"invalid_actions": self.invalid_actions / self.steps}}
