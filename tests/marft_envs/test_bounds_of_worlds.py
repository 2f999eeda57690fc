"""Keys of worlds at their bounds: tasks are drawn in time, or it is said why there are none."""

from __future__ import annotations

import time
from random import Random
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from pydantic import ValidationError

from marft_envs.code.environment import Code
from marft_envs.gyms.texts import ActionSpace, enumerate_actions, format_value
from marft_envs.instructions.environment import Instructions
from marft_envs.relay.environment import Relay
from marft_envs.rooms.environment import Rooms
from marft_envs.tool_use.toolbox import EpisodeTables

SECONDS = 20.0  # that any of these takes at most, on a busy machine; some had no end


def test_a_world_without_more_tasks_says_so_in_time() -> None:
    began = time.perf_counter()
    world = Rooms(rooms=2, narrow=0.0, others=0)
    assert {split: len(world.tasks(split)) for split in ("train", "validation", "test")} == {  # type: ignore[arg-type]
        "train": 2, "validation": 0, "test": 0,
    }  # fmt: skip
    assert time.perf_counter() - began < SECONDS


def test_a_hundred_tests_of_numbers_have_a_hundred_numbers() -> None:
    world = Code(kinds=("number",), tests=100, train_tasks=1, held_out_tasks=1)
    cases = world.start(world.tasks("train")[0], 0).judge.problem.cases
    assert len({case.input.arguments[0] for case in cases}) == len(cases) >= 100  # type: ignore[union-attr]


def test_instructions_that_contradict_each_other_are_named() -> None:
    kinds = ("change_case:english_lowercase", "detectable_format:multiple_sections")
    with pytest.raises(ValueError, match=r"nobody can follow 2 of the kinds .*lowercase.* or for longer texts"):
        Instructions(kinds=kinds, min_instructions=2).generate_task(Random(0))


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"alphabet": ("a", "A"), "max_words": 0}, "differ in more than case"),
        ({"alphabet": ("a b", "c"), "max_words": 0}, "single words"),
        ({"alphabet": ("?", "c"), "max_words": 0}, r"and not \?"),
        ({"max_chars": 4}, "it may take 5 to tell what has to be told, and 4 come through"),
        (
            {"topology": "line", "speakers": ("a", "b"), "size": 2, "max_words": 0, "max_chars": 17},
            "may take 18 to tell",
        ),
    ],
)
def test_a_channel_that_what_is_needed_never_comes_through_is_refused(keys: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        Relay(**keys)


def test_an_amount_with_more_digits_than_are_written_is_another_value() -> None:
    tables = EpisodeTables({"users": {"ann": {"paid": 0}}})
    for paid in (10**5000, -(10**5000), 1e300):
        tables.edit("users", "ann")["paid"] = paid
        assert tables.changes()["users/ann/paid"].startswith(('"0x', '"-0x', "1000000"))


class MultiBinary:
    """A space with as many actions as no number is written with."""

    shape = (20_000,)


def test_actions_beyond_counting_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="it has countless actions, and at most 8,192 are enumerated"):
        enumerate_actions(MultiBinary())


def test_of_many_actions_a_mask_leaves_few() -> None:
    acts, mask = enumerate_actions(Discrete(4672)), np.zeros(4672, np.int8)
    mask[[7, 4671]] = 1
    assert acts.allowed_actions(mask) == ("7", "4671")
    assert len(acts.allowed_actions(np.arange(4672) < 256)) == 256
    with pytest.raises(ValueError, match="257 actions are possible at once, and at most 256 are listed"):
        acts.allowed_actions(np.arange(4672) < 257)


@pytest.mark.parametrize("mask", [5, [[1, 1], [1]], "ab", {}])
def test_a_mask_that_is_none_is_told(mask: object) -> None:
    with pytest.raises(ValueError, match="does not fit an action space of 2"):
        ActionSpace({"a": 0, "b": 1}, {"a": (0,), "b": (1,)}).allowed_actions(mask)


def test_nothing_is_told_with_a_sign() -> None:
    assert format_value(np.array([-0.0, 0.0, -1.0])) == "0, 0, -1"
