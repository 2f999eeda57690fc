"""Reward functions and gradings that are async are awaited."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from marft.common.types import Episode
from marft.config import parse_recipe
from marft.envs.graders import FunctionGrader
from marft.rewards.terms import Function
from tests.helpers import recipe
from tests.marft.rewards.test_rewards import compose, composed, episode


async def slowly(episode: Episode) -> float:
    await asyncio.sleep(0)
    return float(len(episode.actions))


async def by_agent(episode: Episode) -> dict[str, float]:
    return {"a": 1.0}


async def weighed(weight: float, episode: Episode) -> float:
    return weight * len(episode.transitions)


async def forever(episode: Episode) -> float:
    await asyncio.sleep(60)
    return await slowly(episode)


async def wrong(episode: Episode) -> str:
    return "much"


class Judge:
    async def __call__(self, episode: Episode) -> float:
        return await slowly(episode)


def returns_one(episode: Episode) -> Any:
    return slowly(episode)


async def graded(row: dict[str, Any], text: str) -> tuple[float, bool]:
    await asyncio.sleep(0)
    return float(text == row["a"]), text == row["a"]


half, judge, grades = partial(weighed, 0.5), Judge(), partial(graded)


@pytest.mark.parametrize(
    ("name", "earned"),
    [
        ("slowly", (6.0, {})), ("by_agent", (0.0, {"a": 1.0})), ("half", (1.5, {})), ("judge", (6.0, {})),
        ("returns_one", (6.0, {})),
    ],
)  # fmt: skip
def test_an_async_reward_function_is_awaited(name: str, earned: tuple[float, dict[str, float]]) -> None:
    assert composed(Function(call=f"tests.marft.envs.test_async_rewards:{name}"))[-1] == earned


def test_one_that_is_given_in_python_is_awaited() -> None:
    async def mine(episode: Episode) -> float:
        return 2.0 * len(episode.transitions)

    for call, reward in ((mine, 6.0), (partial(weighed, 3.0), 9.0), (Judge(), 6.0)):
        (term,) = parse_recipe(recipe(), changes={"rewards": [call]}).rewards
        assert composed(term)[-1][0] == reward  # type: ignore[arg-type]


def test_one_that_takes_too_long_or_gives_no_number_costs_its_episode() -> None:
    late = compose(episode(1.0), (Function(call="tests.marft.envs.test_async_rewards:forever"),), timeout=0.2)
    assert (late.status, late.error) == ("timed_out", "reward term 'Function' took over 0.2 s")
    assert compose(episode(1.0), (Function(call="tests.marft.envs.test_async_rewards:wrong"),)).status == "failed"


@pytest.mark.parametrize("name", ["graded", "grades"])
def test_an_async_grading_is_awaited_also_from_a_running_loop(name: str) -> None:
    grading = FunctionGrader(call=f"tests.marft.envs.test_async_rewards:{name}")

    async def in_a_session() -> Any:
        return grading.grade("", {"a": "5"}, "5")

    assert (grading.grade("", {"a": "5"}, "4").success, asyncio.run(in_a_session()).success) == (False, True)
