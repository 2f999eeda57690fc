"""Shop with thousands of products: search, browse, choose, buy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.seeds import derive_seed
from marft.common.types import Task
from marft.config.settings import Names, did_you_mean
from marft.envs.scripted_policy import ScriptedPolicy
from marft.envs.splits import assign_data_split
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.shop.catalog import ProductCatalog, Style, generate_catalog
from marft_envs.shop.goals import Goal, draw_goal, format_instruction
from marft_envs.shop.script import ShopScript
from marft_envs.shop.session import ShopRules, ShopSession

MAX_PRODUCTS = 50_000
OTHER_QUERIES = 3  # number of other goals whose queries are offered as distractors


class Shop(GeneratedEnvironment):
    """Products generated from a seed; a task describes the wanted product in words.

    A purchase earns WebShop's reward: the share of matching attributes, options and price, times a factor for the
    kind of product. A reward of 1 is success.

    Splits share the catalog but no goal. A combination of product, options and price limit appears in one split
    only.
    """

    stream: ClassVar[str] = "Shop"
    catalog_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # seed of the catalog
    products: Annotated[int, Field(ge=10, le=MAX_PRODUCTS)] = 5000  # number of products in the catalog
    # kind of product names; plain: short names with all attributes, and products clicked by row, for tiny models
    style: Style = "full"
    attributes: Annotated[int, Field(ge=1, le=6)] = 2  # number of wanted attributes; "plain" has two
    options: Annotated[int, Field(ge=0, le=2)] = 2  # number of wanted options; "plain" has one
    results_per_page: Annotated[int, Field(ge=1, le=50)] = 10  # products on a page of results
    max_results: Annotated[int, Field(ge=1, le=1000)] = 50  # maximum products in a search result
    max_steps: Annotated[int, Field(ge=3, le=1000)] = 30  # maximum steps in a visit, with or without a purchase
    disjoint_products: bool = False  # use disjoint products for training goals and held-out goals
    # form of actions; choices: the actor chooses from the clickable buttons and some queries
    actions: Literal["text", "choices"] = "text"
    actor: str = ""  # role whose action counts; "": the answering agent
    product_for: Names = ()  # roles that see the wanted product; []: all roles
    repeats: bool = True  # repeat the wanted product in every observation instead of only the first

    @model_validator(mode="after")
    def _check_actor(self) -> Shop:
        if self.actions == "choices" and not self.actor:
            raise PydanticCustomError("actor", 'actions = "choices" needs actor: the role that chooses')
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each unknown role."""
        for key, named in {"actor": (self.actor,) if self.actor else (), "product_for": self.product_for}.items():
            for role in named:
                if role not in roles:
                    yield f"environment.{key}: no agent is called {role!r}{did_you_mean(role, roles)}"

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """True if the actor chooses between options."""
        return self.actions == "choices"

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
        goal = Goal.from_dict(task.data["goal"])
        rules = ShopRules(
            actor=self.actor,
            product_for=self.product_for,
            repeats=self.repeats,
            choices=self.actions == "choices",
            results_per_page=self.results_per_page,
            max_results=self.max_results,
            max_steps=self.max_steps,
            by_row=self.style == "plain",
        )
        queries = self._offered_queries(goal, Random(derive_seed(seed, "queries"))) if rules.choices else ()
        return ShopSession(self.catalog, goal, task.prompt, queries, rules)

    def script(self, skill: float = 1.0) -> ScriptedPolicy:
        """Return a scripted policy for ``searcher``, ``buyer`` and ``solver``."""
        return ShopScript(skill, self.style)

    def _offered_queries(self, goal: Goal, random: Random) -> tuple[str, ...]:
        """Return sorted queries for the goal and for distractor goals; the order reveals nothing."""
        goals = [draw_goal(self.catalog, self.attributes, self.options, random) for _ in range(OTHER_QUERIES)]
        queries = {other_goal.noun for other_goal in goals} | {goal.noun}
        queries |= {" ".join((*other_goal.attributes, other_goal.noun)) for other_goal in (goal, *goals)}
        return tuple(sorted(queries))


def _content_variants(content: str) -> Iterator[str]:
    """Yield variants of a content text, for different splits."""
    return (f"{content}; {number}" for number in count())
