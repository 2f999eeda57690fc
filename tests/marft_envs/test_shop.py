"""The shop: what is bought is worth what WebShop says, search finds what words say, and nothing held out is trained on."""

from __future__ import annotations

import asyncio
import math
import re
import time
from collections.abc import Mapping
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marft.common.types import Observation, Task
from marft.config.load import load_recipe
from marft_envs.shop.catalog import Product, generate_catalog
from marft_envs.shop.environment import Shop, ShopSession, parse_action
from marft_envs.shop.goals import Goal, draw_goal, purchase_reward
from marft_envs.shop.search import BM25_B, BM25_K1, SearchIndex, tokenize
from tests.nights import MANY, NIGHT, some
from tests.visits import by_script, by_texts, joint

PLAIN: dict[str, Any] = {
    "style": "plain", "products": 600, "options": 1, "results_per_page": 3, "max_steps": 10, "train_tasks": 60, "held_out_tasks": 30
}  # fmt: skip
FULL: dict[str, Any] = {"products": 800, "train_tasks": 60, "held_out_tasks": 20}


def shop(**keys: Any) -> Shop:
    found = Shop(**keys)
    found._name = "shop"
    return found


ANY = shop(**PLAIN)


def reference_worth(goal: Goal, target: Product, bought: Product, chosen: Mapping[str, str]) -> float:
    """WebShop's formula, word by word (web_agent_site/engine/goal.py), where words match whole."""
    matched = 0
    for attribute in goal.attributes:
        found = False
        for own in bought.attributes:
            if set(own.split()) <= set(attribute.split()) or set(attribute.split()) <= set(own.split()):
                found = True
        for place in (bought.title, " ".join(bought.features), bought.description):
            if attribute in place.lower():
                found = True
        matched += found
    for kind, value in goal.options.items():
        if chosen.get(kind) == value:
            matched += 1
    matched += bought.price <= goal.price_upper
    total = matched / (len(goal.attributes) + len(goal.options) + 1)
    in_both = [noun for noun in target.nouns if noun in bought.nouns]
    title = len(in_both) / len(target.nouns)
    levels = [level for level in bought.kind if level in target.kind]
    r_type = 1.0 if bought.kind.noun == target.kind.noun or len(levels) >= 2 or title > 0.2 else 0.5
    if title < 0.1:
        r_type = 0.1
    if title == 0.0:
        r_type = 0.0
    return total * r_type


class TestWorth:
    @given(seed=st.integers(0, 10**9), style=st.sampled_from(("plain", "full")))
    def test_it_is_webshops_reward(self, seed: int, style: Any) -> None:
        random, catalogue = Random(seed), generate_catalog(200, 1, style)
        goal = draw_goal(catalogue, random.randint(1, 4), random.randint(0, 2), random)
        bought, target = random.choice(catalogue.products), catalogue[goal.target]
        for product in (bought, target):
            chosen = {kind: random.choice(values) for kind, values in product.options.items() if random.random() < 0.7}
            value = purchase_reward(goal, target, product, chosen)
            assert value == pytest.approx(reference_worth(goal, target, product, chosen))
            assert 0.0 <= value <= 1.0
        assert purchase_reward(goal, target, target, goal.options) == 1.0

    def test_each_part_counts_alike(self) -> None:
        catalogue = generate_catalog(200, 1, "full")
        goal = draw_goal(catalogue, 2, 2, Random(0))
        target = catalogue[goal.target]
        assert purchase_reward(goal, target, target, {}) == pytest.approx(
            3 / 5
        )  # two attributes and the price, of five
        first = dict(islice(goal.options.items(), 1))
        assert purchase_reward(goal, target, target, first) == pytest.approx(4 / 5)

    def test_a_bound_is_above_the_price_by_at_most_forty_dollars(self) -> None:
        catalogue = generate_catalog(200, 1, "full")
        for seed in range(100):
            goal = draw_goal(catalogue, 1, 1, Random(seed))
            assert 0 < goal.price_upper - catalogue[goal.target].price <= 40.0


class TestSearch:
    @given(st.lists(st.text("ab c", max_size=12), min_size=1, max_size=12), st.text("ab cd", max_size=8))
    def test_scores_are_bm25(self, texts: list[str], query: str) -> None:
        mean = sum(len(tokenize(text)) for text in texts) / len(texts)
        scores = []
        for place, text in enumerate(texts):
            score = 0.0
            for word in tokenize(query):
                holding = sum(word in tokenize(other) for other in texts)
                often = tokenize(text).count(word)
                idf = math.log(1 + (len(texts) - holding + 0.5) / (holding + 0.5))
                length = len(tokenize(text)) / mean if mean else 0.0
                score += idf * often / (often + BM25_K1 * (1 - BM25_B + BM25_B * length)) if often else 0.0
            scores.append((-round(score, 9), place))
        right = [place for score, place in sorted(scores) if score < 0]
        assert SearchIndex(texts).search(query, 5) == right[:5]

    def test_a_product_is_found_first_by_its_title(self) -> None:
        for style in ("plain", "full"):
            catalogue = generate_catalog(800, 0, style)  # type: ignore[arg-type]
            assert all(catalogue.search(product.title, 1) == [product] for product in catalogue.products[::7])

    def test_a_query_takes_less_than_ten_milliseconds(self) -> None:
        catalogue = generate_catalog(5000, 0, "full")
        took = []
        for product in catalogue.products[:9]:
            began = time.perf_counter()
            catalogue.search(product.text, 50)
            took.append(time.perf_counter() - began)
        assert sorted(took)[4] < 0.01

    def test_a_catalogue_is_the_same_again_and_made_once(self) -> None:
        assert generate_catalog(50, 3, "full") is generate_catalog(50, 3, "full")
        again = generate_catalog.__wrapped__(50, 3, "full")
        assert again.products == generate_catalog(50, 3, "full").products
        assert again.products != generate_catalog(50, 4, "full").products


class TestSplits:
    def key(self, world: Shop, task: Task) -> tuple[str, str]:
        goal = Goal.from_dict(task.data["goal"])
        return world.catalog[goal.target].name, str((sorted(goal.options.items()), goal.price_upper))

    def test_no_goal_is_in_two_parts_whatever_the_seed(self) -> None:
        worlds = [shop(**{**FULL, "seed": seed}) for seed in (0, 1)]
        held_out = {self.key(w, t) for w in worlds for split in ("validation", "test") for t in w.tasks(split)}  # type: ignore[arg-type]
        trained = {self.key(w, t) for w in worlds for t in w.tasks("train")}
        shown = {self.key(w, t) for w in worlds for t in islice(w.demonstrations(), 60)}
        assert len(held_out) + len(trained) + len(shown) == len(held_out | trained | shown)

    def test_products_can_be_kept_apart(self) -> None:
        def shared(apart: bool) -> set[str]:
            world = shop(**{**PLAIN, "train_tasks": 150, "held_out_tasks": 40, "disjoint_products": apart})
            held_out, trained = (
                {self.key(world, task)[0] for split in splits for task in world.tasks(split)}  # type: ignore[attr-defined]
                for splits in (("validation", "test"), ("train",))
            )
            return held_out & trained

        assert shared(apart=False)
        assert not shared(apart=True)


class TestVisits:
    @pytest.mark.parametrize("keys", [
        {"actor": "buyer", "product_for": ("searcher",)},
        {"actor": "buyer", "product_for": ("searcher",), "actions": "choices"},
        {"actor": "buyer"},
    ])  # fmt: skip
    def test_a_team_that_plays_well_buys_what_is_wanted(self, keys: dict[str, Any]) -> None:
        world = shop(**PLAIN, **keys)
        visits = [by_script(world, task, ["searcher", "buyer"]) for task in world.tasks("test")]
        assert sum(bool(one.last.success) for one in visits) >= 29
        assert all(one.reward == 1.0 for one in visits if one.last.success)

    def test_one_that_remembers_finds_attributes_that_stand_on_other_pages(self) -> None:
        world = shop(**FULL)
        alone = [by_script(world, task, ["solver"], memory=True) for task in world.tasks("test")]
        assert sum(bool(one.last.success) for one in alone) >= 19
        pages = {line for one in alone for shown in one.observations for line in shown.text.splitlines()}
        assert any(line.endswith(": features") for line in pages)

    def test_a_weak_team_solves_some(self) -> None:
        world = shop(**PLAIN, actor="buyer", product_for=("searcher",))
        solved = [by_script(world, task, ["searcher", "buyer"], 0.7).last.success for task in world.tasks("train")]
        assert 0.1 < sum(map(bool, solved)) / len(solved) < 0.7

    def test_the_fewest_steps_solve_it_and_none_fewer(self) -> None:
        world = shop(
            **{**PLAIN, "products": 10, "train_tasks": 1, "held_out_tasks": 1, "actions": "choices", "actor": "solver"}
        )
        for task in world.tasks("train"):
            goal = Goal.from_dict(task.data["goal"])
            title = world.catalog[goal.target].title
            clicks = ["1", *goal.options.values(), "buy now"]
            straight = by_texts(world, task, [f"search[{title}]", *(f"click[{one}]" for one in clicks)], "solver")
            assert straight.last.success
            assert len(straight.steps) == task.data["fewest_steps"] == 4
            assert not any(success for success in outcomes(world, task, 3))

    def test_what_is_in_brackets_can_be_clicked_and_nothing_else(self) -> None:
        world = shop(**PLAIN, actions="choices", actor="solver")
        for number, task in enumerate(world.tasks("train")[:15]):
            random = Random(number)

            def anything(session: ShopSession, shown: Observation, random: Random = random) -> str:
                options = [option for option in shown.options["solver"] if option != "click[buy now]"]
                clicks = {
                    parse_action(option).words for option in shown.options["solver"] if option.startswith("click")
                }
                assert clicks == set(re.findall(r"\[(.+?)\]", shown.text))
                return random.choice(options)

            walk(world, task, anything)

    @given(
        st.lists(
            st.text(max_size=30)
            | st.sampled_from(("click[next >]", "search[]", "click[2]", "search[wool]", "click[small]"))
        )
    )
    @settings(max_examples=MANY if NIGHT else 40)
    def test_no_text_breaks_a_visit(self, texts: list[str]) -> None:
        done = by_texts(ANY, ANY.tasks("train")[0], texts, "solver")
        assert len(done.steps) <= 10
        assert 0.0 <= done.reward <= 1.0
        assert all(0.0 <= step.info["progress"] <= 1.0 for step in done.steps)

    def test_what_was_wrong_is_said_and_costs_a_step(self) -> None:
        world = shop(**PLAIN)
        done = by_texts(
            world, world.tasks("train")[0], ["I look around.", "click[buy now]", "search[ ]", "SEARCH[Wool]"], "solver"
        )
        second, third, fourth, fifth = (shown.text for shown in done.observations[1:5])
        assert "No action was found" in second
        assert "There is no [buy now] here." in third
        assert "Nothing to search for" in fourth
        assert "Page 1 of" in fifth
        assert (len(done.steps), done.last.success, done.reward) == (10, False, 0.0)
        assert done.steps[3].info["measures"] == {"invalid_actions": 3 / 4}

    def test_a_team_that_says_nothing_or_lacks_its_buyer_is_told_so(self) -> None:
        world = shop(**PLAIN, actor="buyer")
        session = world.start(world.tasks("train")[0], 0)
        step = asyncio.run(session.step(joint({"searcher": "click[buy now]"})))
        assert "No action was found" in step.observation.text

    def test_options_are_forgotten_when_another_product_is_opened(self) -> None:
        world = shop(**PLAIN)
        texts = ["search[wool]", "click[FIRST]", "click[small]", "click[< prev]", "click[FIRST]"]
        task = world.tasks("train")[0]
        shown = by_texts(world, task, texts[:1], "solver").observations[1].text
        first = re.findall(r"\[(\d+)\]", shown)[0]
        done = by_texts(world, task, [text.replace("FIRST", first) for text in texts], "solver")
        assert "chosen: small" in done.observations[3].text
        assert "chosen" not in done.observations[5].text

    def test_pages_of_results_are_gone_through_both_ways(self) -> None:
        texts = ["search[wool]", *["click[next >]"] * 3, "click[< prev]", "click[next >]"]
        world = shop(**{**PLAIN, "max_results": 12, "max_steps": 20, "product_for": ("searcher",)})
        shown = [one.text for one in by_texts(world, world.tasks("train")[0], texts, "solver").observations[1:7]]
        assert [page.partition(".")[0] for page in shown] == [f"Page {n} of 4" for n in (1, 2, 3, 4, 3, 4)]
        assert ["[next >]" in page for page in shown] == [True, True, True, False, True, False]
        assert ["[< prev]" in page for page in shown] == [False, True, True, True, True, True]
        assert (shown[2], shown[3]) == (shown[4], shown[5])
        rows = [row for page in shown[:4] for row in page.splitlines()[1:-1]]
        assert len(rows) == len(set(rows)) == 12

    def test_progress_is_what_buying_now_would_earn(self) -> None:
        world = shop(**PLAIN, actor="buyer")
        for task in some(world.tasks("test")):
            done = by_script(world, task, ["searcher", "buyer"], 0.8)
            bought = "buy now" in done.said[-1]["buyer"]
            if bought and len(done.steps) > 1:
                assert done.steps[-2].info["progress"] == done.reward
            assert done.last.success == (done.reward == 1.0)


class TestWhoSeesWhat:
    def test_readers_alone_are_told_what_is_wanted(self) -> None:
        world = shop(**PLAIN, actor="buyer", product_for=("searcher",))
        for shown in by_script(world, world.tasks("test")[0], ["searcher", "buyer"]).observations:
            assert "Wanted" in shown.for_role("searcher")
            assert "Wanted" not in shown.for_role("buyer")

    def test_without_repeats_it_is_said_once(self) -> None:
        for readers in ((), ("solver",)):
            world = shop(**PLAIN, repeat_product=False, product_for=readers)
            shown = by_texts(world, world.tasks("test")[0], [], "solver").observations
            assert ["Wanted" in one.for_role("solver") for one in shown] == [True] + [False] * 9

    def test_queries_to_choose_from_do_not_tell_the_goal(self) -> None:
        world = shop(**PLAIN, actor="buyer", product_for=("searcher",), actions="choices")
        task = world.tasks("test")[0]
        goal = Goal.from_dict(task.data["goal"])
        options = by_script(world, task, ["searcher", "buyer"]).observations[0].options["buyer"]
        assert f"search[{' '.join((*goal.attributes, goal.noun))}]" in options
        assert len({parse_action(option).words.split()[-1] for option in options}) > 1
        assert list(options) == sorted(options)

    def test_roles_that_the_team_lacks_are_named(self) -> None:
        problems = list(shop(actor="byer", product_for=("reader",)).problems(["searcher", "buyer"]))
        assert problems[0] == "environment.actor: no agent is called 'byer'; did you mean 'buyer'?"
        assert "environment.product_for" in problems[1]
        with pytest.raises(ValueError, match="needs actor"):
            shop(actions="choices")

    @pytest.mark.parametrize("name", ["shop", "shop_single"])
    def test_the_recipes_are_read(self, name: str) -> None:
        assert isinstance(load_recipe(name).environment, Shop)


def walk(world: Shop, task: Task, says: Any, most: int = 12) -> None:
    async def attempt() -> None:
        session = world.start(task, 0)
        shown = await session.reset()
        for _ in range(most):
            step = await session.step(joint({"solver": says(session, shown)}))
            shown = step.observation
            if step.terminated:
                return

    asyncio.run(attempt())


def outcomes(world: Shop, task: Task, depth: int) -> list[bool]:
    """Whether each sequence of so many actions solves it, searches for any product's title among them."""
    found = []

    async def follow(path: tuple[str, ...]) -> Observation | None:
        session = world.start(task, 0)
        shown = await session.reset()
        for text in path:
            step = await session.step(joint({"solver": text}))
            if step.terminated:
                found.append(bool(step.success))
                return None
            shown = step.observation
        return shown

    paths: list[tuple[str, ...]] = [(f"search[{product.title}]",) for product in world.catalog.products]
    for _ in range(depth - 1):
        longer = []
        for path in paths:
            shown = asyncio.run(follow(path))
            longer += [(*path, option) for option in shown.options["solver"]] if shown else []
        paths = [path for path in longer if not path[-1].startswith("search")]
    for path in paths:
        asyncio.run(follow(path))
    return found
