"""Splits of a few questions, and of those that have something in common."""

from __future__ import annotations

from marft.envs.splits import split_small_set
from marft_envs.toolsandbox.environment import group_related


def test_a_few_groups_are_dealt_in_an_order_of_their_own() -> None:
    groups = [f"group {n:02}" for n in range(11)]
    splits = split_small_set(groups)
    sizes = [list(splits.values()).count(split) for split in ("train", "validation", "test")]
    assert sizes == [5, 3, 3]
    assert split_small_set(reversed(groups)) == splits
    assert [group for group in groups if splits[group] == "test"] != groups[:3]


def test_groups_are_joined_through_others() -> None:
    assert group_related([["a"], ["b"], ["a", "b"], ["c"]]) == ["a", "a", "a", "c"]
    chain = [[f"{n:03}", f"{n + 1:03}"] for n in range(200)]
    assert set(group_related(chain[::-1])) == set(group_related(chain)) == {"000"}
