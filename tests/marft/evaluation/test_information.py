"""Mutual information of what is hidden and what is said: near 0 where nothing is told, all of it where everything is."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.environment_calls import RefusedError, read_step_info
from marft.agents.game import Attempt
from marft.agents.play import play
from marft.common.types import Episode, Observation, StepInfo, Task, Transition
from marft.evaluation.episode_metrics import (
    InformationEstimate,
    episode_metrics,
    estimate_information,
    information_metrics,
)
from tests.fakes import FakeEngine, Script, ends, game
from tests.nights import some

PAIRS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=40)


def slow(pairs: list[tuple[int, int]]) -> float:
    """The formula, as loops."""

    def entropy(values: list[Any]) -> float:
        counts = Counter(values)
        return -math.fsum(c / len(values) * math.log2(c / len(values)) for c in counts.values())

    return entropy([a for a, _ in pairs]) + entropy([b for _, b in pairs]) - entropy(pairs)


@given(PAIRS)
def test_it_is_the_formula(pairs: list[tuple[int, int]]) -> None:
    found = estimate_information(pairs, shuffles=0)
    counts = Counter(a for a, _ in pairs)
    most = -math.fsum(c / len(pairs) * math.log2(c / len(pairs)) for c in counts.values())
    assert found.mutual_information == pytest.approx(slow(pairs), abs=1e-12)
    assert found.entropy == pytest.approx(most + (len(counts) - 1) / (2 * len(pairs) * math.log(2)), abs=1e-12)


@pytest.mark.parametrize("synonyms", [1, 3])
@pytest.mark.parametrize("number", some([24, 32, 64, 256], of=2))
@pytest.mark.parametrize(("noise", "bits"), [(0.0, 3.0), (0.3, 1.43), (1.0, 0.0)])
def test_few_pairs_tell_as_much_as_many(number: int, synonyms: int, noise: float, bits: float) -> None:
    random, found = Random(number), []
    for _ in range(60):
        parts = [random.randrange(8) for _ in range(number)]
        heard = [random.randrange(8) if random.random() < noise else part for part in parts]
        said = [(part, random.randrange(synonyms)) for part in heard]
        found.append(estimate_information(list(zip(parts, said, strict=True))).excess)
    assert float(np.mean(found)) == pytest.approx(bits, abs=0.25)


@given(PAIRS)
def test_names_do_not_matter(pairs: list[tuple[int, int]]) -> None:
    renamed = [(f"part {a}", f"word {3 - b}") for a, b in pairs]
    assert estimate_information(renamed, shuffles=3).excess == pytest.approx(
        estimate_information(pairs, shuffles=3).excess, abs=1e-9
    )


def test_all_is_told_where_the_message_is_the_part() -> None:
    found = estimate_information([(n % 8, f"it is {n % 8}") for n in range(800)])
    assert found.entropy == pytest.approx(3.0, abs=0.01)
    assert found.excess == pytest.approx(3.0, abs=0.05)


def test_nothing_is_told_by_words_that_are_all_different() -> None:
    assert estimate_information([(n % 8, f"message {n}") for n in range(200)]).excess == pytest.approx(0.0, abs=1e-9)


def test_nothing_is_told_by_a_constant() -> None:
    assert estimate_information([(n % 8, "ready") for n in range(200)]).excess == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("number", [32, 128, 512])
def test_chance_is_taken_off(number: int) -> None:
    random = Random(number)
    found = [
        estimate_information([(random.randrange(6), random.randrange(12)) for _ in range(number)]).excess
        for _ in range(30)
    ]
    assert abs(float(np.mean(found))) < 0.05


def test_a_noisy_channel_tells_what_theory_says() -> None:
    random = Random(0)
    parts = [random.randrange(4) for _ in range(20_000)]
    heard = [part if random.random() < 0.7 else random.randrange(4) for part in parts]
    right = 0.7 + 0.3 / 4
    wrong = (1 - right) / 3
    capacity = 2 + right * math.log2(right) + 3 * wrong * math.log2(wrong)
    assert estimate_information(list(zip(parts, heard, strict=True))).excess == pytest.approx(capacity, abs=0.02)


@pytest.mark.parametrize(("deviation", "told"), [(0.3, 3.0), (1 / 3, 1.0), (0.34, 1.0), (0.26, 3.0)])
def test_the_excess_is_no_share_where_the_largest_is_within_three_deviations_of_chance(
    deviation: float, told: float
) -> None:
    assert InformationEstimate(2.0, 1.0, deviation, 2.0, 3.0).excess == pytest.approx(told)
    assert InformationEstimate(1e-5, 0.0, 0.0, 2e-5, 1.0).excess == pytest.approx(0.5)


def test_without_shuffles_nothing_is_chance() -> None:
    found = estimate_information([(0, 0), (1, 0), (2, 0), (0, 1)], shuffles=0)
    assert (found.shuffled_mean, found.shuffled_std) == (0.0, 0.0)
    assert found.mutual_information == pytest.approx(slow([(0, 0), (1, 0), (2, 0), (0, 1)]), abs=1e-12)


def test_what_an_agent_knew_is_compared_with_its_own_messages() -> None:
    """Agent a repeats what it knew; b, who acts after it, always says the same."""

    async def one(known: str) -> Episode:
        steps = [ends(1.0, info={"hidden": {"a": known}}, success=True)]
        engine = FakeEngine(lambda key, prompt: known if key.agent == "a" else "no word of it")
        return await play(game(Script(steps), "a", "b", engine=engine), Attempt(Task(f"t{known}", "?"), "s"))

    episodes = [asyncio.run(one(known)) for known in ("red", "blue") * 8]
    assert information_metrics(episodes, ("a",))["agents/a/message_information"] == pytest.approx(1.0, abs=0.1)


def test_what_an_agent_knew_in_a_step_in_which_it_said_nothing_is_left_out() -> None:
    played = told("red", "blue", "red", "blue")
    silent = Transition(Observation("o"), 0.0, declared=StepInfo(hidden={"a": "green", "b": "red"}))
    longer = [replace(episode, transitions=(*episode.transitions, silent)) for episode in played]
    assert information_metrics(longer, ("a", "b")) == information_metrics(played, ("a", "b"))


def test_chance_is_what_twenty_shuffles_have_on_average() -> None:
    pairs = [(n % 5, n % 7 // 2) for n in range(30)]
    assert (
        estimate_information(pairs)
        == estimate_information(pairs, shuffles=20, seed=0)
        != estimate_information(pairs, shuffles=21)
    )


def test_no_pairs_have_no_information() -> None:
    with pytest.raises(ValueError, match="no pairs"):
        estimate_information([])


def told(*hidden: str, says: str = "hm") -> list[Episode]:
    """Episodes in which agent a alone knew something, and said the same each time."""

    async def one(known: str) -> Episode:
        steps = [ends(1.0, info={"hidden": {"a": known}}, success=True)]
        return await play(game(Script(steps), "a", "b"), Attempt(Task(f"t{known}", says), "s"))

    return [asyncio.run(one(known)) for known in hidden]


def test_agents_of_whom_something_hidden_is_declared_have_the_metric() -> None:
    metrics = episode_metrics(told("red", "blue", "red", "blue"), ("a", "b"), lambda _: 0)
    assert metrics["agents/a/hidden_entropy"] == pytest.approx(1.0 + 1 / (8 * math.log(2)))
    assert "agents/a/message_information" in metrics
    assert "agents/b/message_information" not in metrics


@pytest.mark.parametrize("hidden", [7, {"a": 7}, {7: "a"}, {"a": "\ud83d"}, ["a"]])
def test_what_is_hidden_is_texts_by_role(hidden: object) -> None:
    with pytest.raises(RefusedError, match=r"declared hidden = .*; must be a mapping from roles to texts"):
        read_step_info({"hidden": hidden}, {})


def test_what_is_hidden_is_declared_of_a_step_alone() -> None:
    assert read_step_info({"hidden": {"a": "red"}}, {}) == StepInfo(hidden={"a": "red"})
    assert read_step_info({}, {"hidden": {"a": "red"}}) == StepInfo()  # a table may have such a column
