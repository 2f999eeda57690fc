"""A shop with thousands of products: search, browse, choose, buy."""

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
from marft.envs.scripts import Script
from marft.envs.splits import part_of
from marft_envs.drawn import Drawing, Drawn
from marft_envs.shop.catalogue import Catalogue, Style, catalogue_of
from marft_envs.shop.goals import Goal, draw_goal, instruction
from marft_envs.shop.script import Shopper
from marft_envs.shop.session import Rules, ShopSession

MOST_PRODUCTS = 50_000
OTHER_QUERIES = 3  # for other goals, among those to choose from


class Shop(Drawn):
    """Products are made up from a seed; a task names what of one matters, in words. A purchase earns WebShop's reward:
    its share of matching attributes, options and price, times how much of a kind it is; 1 solves the task.

    Splits share the catalogue and no goal: a product with its options and bound is wanted in one part alone.
    """

    stream: ClassVar[str] = "Shop"
    catalogue_seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of the products
    products: Annotated[int, Field(ge=10, le=MOST_PRODUCTS)] = 5000  # in the catalogue
    style: Style = "full"  # "plain": short names that say all, products clicked by their row: for tiny models
    attributes: Annotated[int, Field(ge=1, le=6)] = 2  # that are wanted; "plain" has two
    options: Annotated[int, Field(ge=0, le=2)] = 2  # that are wanted; "plain" has one
    results: Annotated[int, Field(ge=1, le=50)] = 10  # products on a page of results
    found: Annotated[int, Field(ge=1, le=1000)] = 50  # products of a search, at most
    max_steps: Annotated[int, Field(ge=3, le=1000)] = 30  # a visit ends with this one, bought or not
    apart: bool = False  # no product of a held-out goal is the one of a training goal
    # "choices": the actor chooses from what can be clicked and some queries
    actions: Literal["text", "choices"] = "text"
    actor: str = ""  # role whose action counts; "": the agent that answers
    readers: Names = ()  # roles that are shown what is wanted; []: all
    repeats: bool = True  # what is wanted stands in every observation, and not in the first alone

    @model_validator(mode="after")
    def _check_actor(self) -> Shop:
        if self.actions == "choices" and not self.actor:
            raise PydanticCustomError("actor", 'actions = "choices" needs actor: the role that chooses')
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Roles that the team lacks."""
        for key, named in {"actor": (self.actor,) if self.actor else (), "readers": self.readers}.items():
            for role in named:
                if role not in roles:
                    yield f"environment.{key}: no agent is called {role!r}{did_you_mean(role, roles)}"

    @property
    def offers_options(self) -> bool:  # type: ignore[override]
        """Where the actor chooses."""
        return self.actions == "choices"

    @property
    def catalogue(self) -> Catalogue:
        """The products, made when they are first asked for."""
        return catalogue_of(self.products, self.catalogue_seed, self.style)

    def draw(self, random: Random) -> Drawing:
        """A goal: a product's name, the options and the bound make it the one that it is."""
        goal = draw_goal(self.catalogue, self.attributes, self.options, random)
        name = self.catalogue[goal.target].name
        options = ", ".join(f"{kind} {value}" for kind, value in goal.options.items())
        content = f"{name}; {options}; {goal.price_upper:g}"
        if self.apart:
            content = next(one for one in _numbered(content) if part_of(one) == part_of(name))
        # a search for the whole title, the product, its options, and the purchase
        data = {"goal": goal.data(), "fewest_steps": 3 + len(goal.options)}
        return Drawing(content, instruction(goal, self.style), data)

    def start(self, task: Task, seed: int) -> ShopSession:
        """A visit; ``seed`` is that of the queries to choose from."""
        goal = Goal.of(task.data["goal"])
        rules = Rules(
            actor=self.actor, readers=self.readers, repeats=self.repeats, choices=self.actions == "choices",
            results=self.results, most=self.found, max_steps=self.max_steps, by_row=self.style == "plain",
        )  # fmt: skip
        queries = self._queries(goal, Random(derive_seed(seed, "queries"))) if rules.choices else ()
        return ShopSession(self.catalogue, goal, task.prompt, queries, rules)

    def script(self, skill: float = 1.0) -> Script:
        """Plays ``searcher``, ``buyer`` and ``solver``."""
        return Shopper(skill, self.style)

    def _queries(self, goal: Goal, random: Random) -> tuple[str, ...]:
        """Searches for the goal, and for others, in an order that tells nothing."""
        goals = [draw_goal(self.catalogue, self.attributes, self.options, random) for _ in range(OTHER_QUERIES)]
        queries = {one.noun for one in goals} | {goal.noun}
        queries |= {" ".join((*one.attributes, one.noun)) for one in (goal, *goals)}
        return tuple(sorted(queries))


def _numbered(content: str) -> Iterator[str]:
    """The same goal in words that are in one part after another."""
    return (f"{content}; {number}" for number in count())
