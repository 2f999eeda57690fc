"""Splits of a few questions."""

from __future__ import annotations

from marft.envs.splits import dealt


def test_a_few_groups_are_dealt_in_an_order_of_their_own() -> None:
    groups = [f"group {n:02}" for n in range(11)]
    splits = dealt(groups)
    sizes = [list(splits.values()).count(split) for split in ("train", "validation", "test")]
    assert sizes == [5, 3, 3]
    assert dealt(reversed(groups)) == splits
    assert [group for group in groups if splits[group] == "test"] != groups[:3]
