"""Shop with thousands of products: search, browse, choose, buy; and a scripted policy that uses only its pages."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.agents.prompt_messages import split_messages
from marft.common.seeds import derive_seed
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.settings import Names
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy
from marft.envs.splits import assign_data_split
from marft_envs.generated import GeneratedEnvironment, GeneratedTask, describe_unknown_roles
from marft_envs.shop.catalog import PLAIN_PRODUCT_KINDS, Product, ProductCatalog, Style, generate_catalog
from marft_envs.shop.goals import Goal, draw_goal, format_instruction, purchase_reward
from marft_envs.shop.pages import (
    BACK,
    BUY,
    DESCRIPTION,
    FEATURES,
    NEXT,
    PREVIOUS,
    Page,
    parse_action,
    part_page,
    product_page,
    results_page,
    search_page,
)

_ROW = re.compile(r"^\[(\d+)\] (.+) \$([\d.]+)$", re.MULTILINE)
_PRODUCT = re.compile(r"^(.+ (\d+)) \$[\d.]+$", re.MULTILINE)
_PART = re.compile(rf"^(.+ (\d+)): ({FEATURES}|{DESCRIPTION})\n((?:.|\n)*?)\n\[", re.MULTILINE)
_OPTIONS = re.compile(r"^\w+: (\[.+\])(?: chosen: (.+))?$", re.MULTILINE)
_BUTTON = re.compile(r"\[([^\[\]]+)\]")
_SUGGESTIONS = (
    (re.compile(r"^Find (.+)\.$"), "search"),
    (re.compile(r"^Take (\d+)\.$"), "click"),
    (re.compile(r"^Choose (.+)\.$"), "click"),
    (re.compile(r"^Click (.+)\.$"), "click"),
)


@dataclass(frozen=True)
class ShopScript:
    """Scripted policy for ``searcher``, ``buyer`` and ``solver``.

    ``searcher`` sees the wanted product and suggests the next action, ``buyer`` performs it, and ``solver`` does both.

    Args:
        skill: fraction of well-played turns.
        style: kind of product names.
    """

    skill: float
    style: Style

    def __call__(self, cue: PolicyInput) -> str:
        """Return the agent's text."""
        is_good = cue.random.random() < self.skill
        goal = Goal.from_dict(cue.task.data["goal"])
        if cue.role == "buyer":
            return self._follow_message(cue) if is_good else _random_action(cue)
        if cue.role == "searcher":
            return _format_suggestion(*self._best_action(goal, cue)) if is_good else _weak_suggestion(goal, cue.random)
        verb, words = self._best_action(goal, cue)
        return _closest_option(f"{verb}[{words}]", cue) if is_good else _random_action(cue)

    def _best_action(self, goal: Goal, cue: PolicyInput) -> tuple[str, str]:
        """Return the best next action, from the pages seen so far."""
        page = cue.last_message
        earlier_pages = [str(message["content"]) for message in cue.messages if message["role"] == "user"][:-1]
        if _PART.search(page):
            return "click", PREVIOUS
        product = _PRODUCT.search(page)
        if product:
            return "click", self._product_action(goal, page, product[2], product[1], earlier_pages)
        if "\n[" not in page:
            return "search", " ".join((*goal.attributes, goal.noun))
        seen_numbers = {product_match[2] for text in earlier_pages for product_match in _PRODUCT.finditer(text)}
        if self.style == "plain":
            seen_numbers = set()  # products are clicked by row there
        for number, name, price in _ROW.findall(page):
            has_attributes = self.style == "full" or all(attribute in name for attribute in goal.attributes)
            if (
                number not in seen_numbers
                and goal.noun in name.replace(",", "").split()
                and float(price) <= goal.price_upper
                and has_attributes
            ):
                return "click", number
        return "click", NEXT if f"[{NEXT}]" in page else BACK

    def _product_action(self, goal: Goal, page: str, number: str, title: str, earlier_pages: Sequence[str]) -> str:
        seen_parts = {part[3]: part[4] for text in earlier_pages for part in _PART.finditer(text) if part[2] == number}
        known_text = " ".join((title, *seen_parts.values())).lower()
        missing = [attribute for attribute in goal.attributes if attribute not in known_text]
        if missing:
            unseen_parts = [part for part in (FEATURES, DESCRIPTION) if part not in seen_parts]
            return unseen_parts[0] if unseen_parts else PREVIOUS
        rows = _OPTIONS.findall(page)
        offered = {value for row, _ in rows for value in _BUTTON.findall(row)}
        chosen = {chosen_value for _, chosen_value in rows}
        wanted = [value for value in goal.options.values() if value not in chosen]
        if any(value not in offered for value in wanted):
            return PREVIOUS
        return wanted[0] if wanted else BUY

    def _follow_message(self, cue: PolicyInput) -> str:
        """Perform the action in the message; without a usable message, guess."""
        _, messages = split_messages(cue.last_message)
        suggestion = messages[0].text.partition("\n")[0] if messages else ""
        for pattern, verb in _SUGGESTIONS:
            match = pattern.match(suggestion)
            if match:
                return _closest_option(f"{verb}[{match[1].lower()}]", cue)
        return _random_action(cue)


def _format_suggestion(verb: str, words: str) -> str:
    if verb == "search":
        return f"Find {words}."
    if words.isdecimal():
        return f"Take {words}."
    return f"Click {words}." if words in (BACK, BUY, DESCRIPTION, FEATURES, NEXT, PREVIOUS) else f"Choose {words}."


def _weak_suggestion(goal: Goal, random: Random) -> str:
    """Return a weak searcher's text: the kind of product, or nothing useful."""
    return random.choice((f"A {goal.noun}.", "Look around."))


def _random_action(cue: PolicyInput) -> str:
    """Return a random legal action, regardless of messages."""
    if cue.options:
        return cue.random.choice(cue.options)
    buttons = list(_find_buttons(cue.last_message))
    if not buttons:
        return f"search[{cue.random.choice(PLAIN_PRODUCT_KINDS).noun}]"
    return f"click[{cue.random.choice(buttons)}]"


def _find_buttons(page: str) -> Iterator[str]:
    for row in page.split("\n\n")[0].splitlines():
        yield from _BUTTON.findall(row)


def _closest_option(action: str, cue: PolicyInput) -> str:
    """Return the action, or the most similar option."""
    if not cue.options or action in cue.options:
        return action
    words = set(parse_action(action).words.split())
    return max(cue.options, key=lambda option: len(words & set(parse_action(option).words.split())))


MAX_PRODUCTS = 50_000
NO_ACTION = "No action was found: write search[words] or click[button]."
OTHER_QUERIES = 3  # number of other goals whose queries are offered as distractors


class Shop(GeneratedEnvironment):
    """Products generated from a seed; a task describes the wanted product in words.

    A purchase earns WebShop's reward: the share of matching attributes, options and price, times a factor for the
    kind of product. A reward of 1 is success.

    Splits share the catalog but no goal. A combination of product, options and price limit appears in one split
    only.
    """

    stream: ClassVar[str] = "Shop"
    catalog_seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="seed of the catalog")
    products: Annotated[int, Field(ge=10, le=MAX_PRODUCTS)] = Field(
        default=5000, description="number of products in the catalog"
    )
    style: Style = Field(
        default="full",
        description=(
            "kind of product names; plain: short names with all attributes, and products clicked by row, for tiny "
            "models"
        ),
    )
    attributes: Annotated[int, Field(ge=1, le=6)] = Field(
        default=2, description='number of wanted attributes; "plain" has two'
    )
    options: Annotated[int, Field(ge=0, le=2)] = Field(
        default=2, description='number of wanted options; "plain" has one'
    )
    results_per_page: Annotated[int, Field(ge=1, le=50)] = Field(
        default=10, description="products on a page of results"
    )
    max_results: Annotated[int, Field(ge=1, le=1000)] = Field(
        default=50, description="maximum products in a search result"
    )
    max_steps: Annotated[int, Field(ge=3, le=1000)] = Field(
        default=30, description="maximum steps in a visit, with or without a purchase"
    )
    disjoint_products: bool = Field(
        default=False, description="use different products for training goals and held-out goals"
    )
    actions: Literal["text", "choices"] = Field(
        default="text",
        description="form of actions; choices: the actor chooses from the clickable buttons and some queries",
    )
    actor: str = Field(default="", description='role whose action counts; "": the answering agent')
    product_for: Names = Field(default=(), description="roles that see the wanted product; []: every role")
    repeat_product: bool = Field(
        default=True, description="repeat the wanted product in every observation instead of only the first"
    )

    @model_validator(mode="after")
    def _check_actor(self) -> Shop:
        if self.actions == "choices" and not self.actor:
            raise PydanticCustomError("actor", 'actions = "choices" needs actor: the role that chooses')
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each unknown role."""
        named = {"actor": (self.actor,) if self.actor else (), "product_for": self.product_for}
        return describe_unknown_roles(named, roles)

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """True if the actor chooses between options."""
        return self.actions == "choices"

    @property
    def by_row(self) -> bool:
        """True if products are clicked by row instead of by number."""
        return self.style == "plain"

    @property
    def catalog(self) -> ProductCatalog:
        """Product catalog, generated on first use."""
        return generate_catalog(self.products, self.catalog_seed, self.style)

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a goal; the product's name, the options and the price limit are its content, which decides the
        split.
        """
        goal = draw_goal(self.catalog, self.attributes, self.options, random)
        name = self.catalog[goal.target].name
        options = ", ".join(f"{kind} {value}" for kind, value in goal.options.items())
        content = f"{name}; {options}; {goal.price_upper:g}"
        if self.disjoint_products:
            content = next(
                variant
                for variant in _content_variants(content)
                if assign_data_split(variant) == assign_data_split(name)
            )
        # minimum steps: a search for the whole title, the product, its options, and the purchase
        data = {"goal": goal.to_dict(), "fewest_steps": 3 + len(goal.options)}
        return GeneratedTask(content, format_instruction(goal, self.style), data)

    def start(self, task: Task, seed: int) -> ShopSession:
        """Start a visit; ``seed`` decides the offered queries."""
        return ShopSession(self, task, seed)

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        """Return a scripted policy for ``searcher``, ``buyer`` and ``solver``."""
        return ShopScript(skill, self.style)

    def offered_queries(self, goal: Goal, random: Random) -> tuple[str, ...]:
        """Return sorted queries for the goal and for distractor goals; the order reveals nothing."""
        goals = [draw_goal(self.catalog, self.attributes, self.options, random) for _ in range(OTHER_QUERIES)]
        queries = {other_goal.noun for other_goal in goals} | {goal.noun}
        queries |= {" ".join((*other_goal.attributes, other_goal.noun)) for other_goal in (goal, *goals)}
        return tuple(sorted(queries))


def _content_variants(content: str) -> Iterator[str]:
    """Yield variants of a content text, for different splits."""
    return (f"{content}; {number}" for number in count())


@dataclass(frozen=True)
class ShopLocation:
    """Current location in the shop."""

    kind: Literal["search", "results", "product", "part"] = "search"
    results: tuple[Product, ...] = ()
    page: int = 1
    product: Product | None = None
    part: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)


class ShopSession:
    """One attempt to buy the wanted product.

    Args:
        shop: the environment.
        task: task with the wanted product.
        seed: seed of the offered queries.
    """

    def __init__(self, shop: Shop, task: Task, seed: int) -> None:
        self.shop, self.catalog, self.wanted = shop, shop.catalog, task.prompt
        self.goal = Goal.from_dict(task.data["goal"])
        offers_queries = shop.offers_options
        self.queries = shop.offered_queries(self.goal, Random(derive_seed(seed, "queries"))) if offers_queries else ()
        self.location, self.steps, self.invalid_actions = ShopLocation(), 0, 0

    async def reset(self) -> Observation:
        """Return the instruction and the search page."""
        return self._build_observation("")

    async def step(self, actions: JointAction) -> Step:
        """Apply one action; a purchase or the last step ends the visit."""
        action = actions.for_role(self.shop.actor) if self.shop.actor else actions.answer
        verb, words = parse_action(graded_text(action))
        self.steps += 1
        if verb == "click" and words == BUY and words in self._current_page().clickable:
            reward = self._purchase_reward()
            return Step(Observation(""), reward, terminated=True, success=reward == 1.0, info=self._step_info(reward))
        note = self._move(verb, words)
        self.invalid_actions += bool(note)
        over = self.steps >= self.shop.max_steps
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
            self.location = ShopLocation("results", tuple(self.catalog.search(words, self.shop.max_results)))
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
            first = (location.page - 1) * self.shop.results_per_page
            product = location.results[first + int(words) - 1] if self.shop.by_row else self.catalog[int(words)]
            return replace(location, kind="product", product=product, chosen={})
        if words == PREVIOUS:
            return replace(location, kind="results" if location.kind == "product" else "product")
        if words in (DESCRIPTION, FEATURES):
            return replace(location, kind="part", part=words)
        assert location.product, "options stand on the page of a product"
        kind = next(kind for kind, values in location.product.options.items() if words in values)
        return replace(location, chosen={**location.chosen, kind: words})

    def _current_page(self) -> Page:
        location, size = self.location, self.shop.results_per_page
        if location.product and location.kind in ("product", "part"):
            return (
                product_page(location.product, location.chosen)
                if location.kind == "product"
                else part_page(location.product, location.part)
            )
        if location.kind == "results":
            first = (location.page - 1) * size
            pages = -(-len(location.results) // size)
            return results_page(location.results[first : first + size], location.page, pages, self.shop.by_row)
        return search_page()

    def _build_observation(self, note: str) -> Observation:
        page = self._current_page()
        instruction = self.wanted if self.shop.repeat_product or not self.steps else ""
        all_see = not self.shop.product_for
        options = {}
        if self.shop.offers_options:
            searches = self.queries if self.location.kind == "search" else ()
            actions = (*(f"search[{query}]" for query in searches), *(f"click[{button}]" for button in page.clickable))
            options = {self.shop.actor: actions}
        return Observation(
            "\n".join(part for part in (instruction if all_see else "", note, page.text) if part),
            views={} if all_see or not instruction else dict.fromkeys(self.shop.product_for, instruction),
            options=options,
        )

    def _purchase_reward(self) -> float:
        """Return the reward of buying now; 0 outside a product page."""
        if self.location.kind != "product" or not self.location.product:
            return 0.0
        target = self.catalog[self.goal.target]
        return purchase_reward(self.goal, target, self.location.product, self.location.chosen)

    def _step_info(self, progress: float) -> dict[str, object]:
        return {"progress": progress, "measures": {"invalid_actions": self.invalid_actions / self.steps}}
