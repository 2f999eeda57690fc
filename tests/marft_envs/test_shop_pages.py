"""The shop: where pages lead, what a team is told that it shall buy, and what catalogues and goals are drawn like."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from marft_envs.shop.catalog import Product, ProductKind, generate_catalog
from marft_envs.shop.environment import Shop
from marft_envs.shop.goals import PRICE_LIMITS, Goal, draw_goal, format_instruction, type_score
from marft_envs.shop.pages import parse_action
from tests.marft_envs.test_shop import PLAIN, shop
from tests.visits import by_texts

LONG: dict[str, Any] = {**PLAIN, "max_steps": 30}


def pages(world: Shop, *texts: str) -> list[str]:
    """What is shown before each of these actions, and after the last."""
    return [shown.text for shown in by_texts(world, world.tasks("train")[0], texts, "solver").observations][
        : len(texts) + 1
    ]


class TestPages:
    def test_a_new_search_begins_at_the_first_page(self) -> None:
        shown = pages(shop(**LONG), "search[wool]", "click[next >]", "search[silk]")
        assert "Page 2 of" in shown[2]
        assert "Page 1 of" in shown[3]

    def test_who_comes_back_from_a_product_is_where_it_was_found(self) -> None:
        shown = pages(shop(**LONG), "search[wool]", "click[next >]", "click[2]", "click[< prev]")
        assert "Page 2 of" in shown[2]
        assert shown[4] == shown[2]

    @pytest.mark.parametrize("row", ["1", "2", "3"])
    def test_a_row_of_a_later_page_is_the_product_that_stands_there(self, row: str) -> None:
        listed, opened = pages(shop(**LONG), "search[wool]", "click[next >]", f"click[{row}]")[2:]
        name, price = re.findall(rf"^\[{row}\] (.+) (\$\d+)$", listed, re.MULTILINE)[0]
        assert re.search(rf"^{name} \d+ {re.escape(price)}$", opened, re.MULTILINE)

    def test_what_was_chosen_stays_chosen_while_features_are_read(self) -> None:
        texts = ("search[wool]", "click[1]", "click[small]", "click[features]", "click[< prev]")
        shown = pages(shop(**LONG), *texts)
        assert "chosen: small" in shown[3]
        assert shown[5] == shown[3]

    def test_queries_are_offered_where_one_searches_alone(self) -> None:
        world = shop(**LONG, actions="choices", actor="solver")
        shown = by_texts(world, world.tasks("train")[0], ["search[wool]", "click[1]", "click[features]"], "solver")
        searches = [any(one.startswith("search") for one in each.options["solver"]) for each in shown.observations[:4]]
        assert searches == [True, False, False, False]

    def test_queries_to_choose_from_are_as_short_and_as_long_for_others_as_for_the_goal(self) -> None:
        world = shop(**PLAIN, actions="choices", actor="solver")
        for task in world.tasks("train")[:20]:
            options = by_texts(world, task, [], "solver").observations[0].options["solver"]
            queries = [parse_action(one).words.split() for one in options]
            nouns = {query[-1] for query in queries}
            assert Goal.from_dict(task.data["goal"]).noun in nouns
            assert {(noun,) for noun in nouns} == {tuple(query) for query in queries if len(query) == 1}
            assert {len(query) for query in queries} == {1, 3}

    def test_a_purchase_that_is_almost_right_solves_nothing(self) -> None:
        world = shop(products=200, attributes=6, options=2, train_tasks=5, held_out_tasks=1)
        task = world.tasks("train")[0]
        goal = Goal.from_dict(task.data["goal"])
        title, one = world.catalog[goal.target].title, next(iter(goal.options.values()))
        done = by_texts(
            world, task, [f"search[{title}]", f"click[{goal.target}]", f"click[{one}]", "click[buy now]"], "solver"
        )
        assert (done.reward, done.last.success, done.last.terminated) == (pytest.approx(8 / 9), False, True)


class TestWhatIsWanted:
    @pytest.mark.parametrize(("style", "words"), [
        ("plain", "Wanted: soft wool scarf, small, red, under $40."),
        ("full", "I am looking for a soft, wool scarf with color: red, and size: small, and price lower than 40.00 dollars."),
    ])  # fmt: skip
    def test_the_team_is_told_all_that_a_purchase_is_graded_by(self, style: Any, words: str) -> None:
        options = {"size": "small", "color": "red"} if style == "plain" else {"color": "red", "size": "small"}
        assert format_instruction(Goal(1, "scarf", ("soft", "wool"), options, 40.0), style) == words

    def test_a_bound_is_the_larger_one_of_two_among_the_four_above_the_price(self) -> None:
        catalogue, above = generate_catalog(50, 1, "full"), []
        for seed in range(400):
            goal = draw_goal(catalogue, 1, 1, Random(seed))
            above.append([one for one in PRICE_LIMITS if one > catalogue[goal.target].price].index(goal.price_upper))
        # of the six pairs of four, none has the lowest as its larger one, one the second, two the third, three the last
        assert [above.count(place) / 400 for place in range(4)] == pytest.approx([0, 1 / 6, 2 / 6, 3 / 6], abs=0.08)

    def test_there_is_something_to_choose_of_every_kind(self) -> None:
        assert all(
            len(set(v)) == len(v) >= 2 for p in generate_catalog(300, 0, "full").products for v in p.options.values()
        )

    def test_products_of_one_maker_have_that_much_in_common(self) -> None:
        products = generate_catalog(800, 0, "full").products
        for one in products[:20]:
            for other in products:
                apart = not {*one.kind} & {*other.kind} and one.attributes[0] != other.attributes[0]
                if apart:
                    assert type_score(one, other) == float(maker(one) == maker(other))

    def test_of_a_department_alone_and_no_words_there_is_nothing_in_common(self) -> None:
        def product(noun: str, group: str, *nouns: str) -> Product:
            return Product(1, ProductKind(noun, group, "home"), "", frozenset(nouns), (), (), "", 1.0, {})

        target = product("pan", "kitchen", "norda", "steel", "pan", "a", "b")
        assert type_score(target, product("lamp", "furniture", "velio", "oak", "lamp")) == 0.0
        assert type_score(target, product("lamp", "furniture", "norda", "oak", "lamp")) == 0.5  # a fifth, and not more
        assert type_score(target, product("mug", "kitchen", "norda", "oak", "mug")) == 1.0


def maker(product: Product) -> str:
    return product.name.split()[0]
