"""What worlds on grids share: moves are read as they are written, a map is the same from every side, sessions say what
went wrong."""

from __future__ import annotations

import doctest
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.types import Task
from marft.envs.scripted_policy import PolicyInput
from marft_envs.grids import maps
from marft_envs.grids.maps import (
    DIRECTIONS,
    adjacent_cell,
    canonical_text,
    compute_distances,
    first_directions,
    parse_moves,
    symmetries,
)
from marft_envs.grids.script import plays_well
from marft_envs.plan_path import rules
from tests.grids import FEW, relaxed

WAY = st.sampled_from(sorted(DIRECTIONS))
MAPS = st.integers(2, 6).flatmap(
    lambda size: st.lists(st.text("#.", min_size=size, max_size=size), min_size=size, max_size=size)
)


@pytest.mark.parametrize("module", [maps, rules])
def test_examples_are_true(module: object) -> None:
    tried = doctest.testmod(module)  # type: ignore[arg-type]
    assert tried.failed == 0
    assert tried.attempted > 0


@FEW
@given(
    st.lists(WAY, min_size=1, max_size=9),
    st.sampled_from(["words", "letters", "small", "json", "run", "boxed", "answer"]),
)
def test_moves_are_read_however_they_are_written(ways: list[str], form: str) -> None:
    letters = [way[0].upper() for way in ways]
    text = {
        "words": ", ".join(ways),
        "letters": " ".join(letters),
        "small": ", ".join(letters).lower(),
        "json": f"I look left and right first.\n#### {letters}".replace("'", '"'),
        "run": "".join(letters),
        "boxed": f"Not up. \\boxed{{{' '.join(ways)}}}",
        "answer": f"up 3, left 2, so the answer is {', then '.join(ways)}.",
    }[form]
    assert parse_moves(text) == ways


@pytest.mark.parametrize("text", ["", "left 3, up 5", "I would go left", "At 2,3.", "leftright", "####", "[]", "0"])
def test_what_is_no_list_of_moves_alone_is_none(text: str) -> None:
    assert parse_moves(text) is None


@pytest.mark.parametrize(("tempted", "share"), [(True, 0.25), (False, 0.5**0.5)])
def test_a_script_slips_more_often_where_it_is_tempted_to(tempted: bool, share: float) -> None:
    random = Random(0)
    well = [plays_well(PolicyInput(Task("t", "", {}), "plan", 0, (), random), 0.5, tempted) for _ in range(4000)]
    assert sum(well) / 4000 == pytest.approx(share, abs=0.03)


def test_a_text_without_end_is_read_in_part() -> None:
    assert parse_moves("U" * 10**6) == ["up"] * maps.MAX_MOVES


@FEW
@given(MAPS, st.integers(0, 7))
def test_a_map_is_the_same_from_every_side(rows: list[str], side: int) -> None:
    sides = list(symmetries(tuple(rows)))
    assert len(sides) == 8
    assert canonical_text(sides[side]) == canonical_text(rows)
    assert sorted(map(sorted, sides[side])) in (sorted(map(sorted, rows)), sorted(map(sorted, zip(*rows, strict=True))))


def test_maps_that_differ_from_every_side_differ() -> None:
    assert canonical_text(("S.G", "...", "...")) != canonical_text(("SG.", "...", "..."))
    assert canonical_text(("SG.", "...", "...")) != canonical_text((".SG", "...", "..."))


@FEW
@given(MAPS)
def test_distances_are_those_of_relaxing_every_edge(rows: list[str]) -> None:
    free = [(r, c) for r, row in enumerate(rows) for c, here in enumerate(row) if here == "."]
    if not free:
        return
    goal = Random("".join(rows)).choice(free)
    away = compute_distances(set(free), goal)
    assert away == relaxed(rows, goal)
    for here in free:
        ways = first_directions(set(free), here, goal)
        assert bool(ways) == (away.get(here, 0) > 0)
        assert all(away[adjacent_cell(here, way)] == away[here] - 1 for way in ways)
