"""The scales of the viewer's colours: which values they span, and what a value looks like."""

from __future__ import annotations

import numpy as np
import pytest

from tests.browser.conftest import Seen
from tests.browser.test_modules import run, still  # noqa: F401

pytestmark = pytest.mark.slow
MANY = [*np.linspace(-3.0, 1.0, 101).tolist(), None, float("nan")]


@pytest.mark.parametrize(
    ("kind", "span"),
    [
        ("advantage", [-2.92, 2.92]), ("difference", [-2.92, 2.92]), ("log_prob", [0, -2.92]), ("entropy", [0, 0.92]),
        ("value", [-2.92, 0.92]),
    ],
)  # fmt: skip
def test_a_scale_spans_what_98_of_100_values_reach(still: Seen, kind: str, span: list[float]) -> None:  # noqa: F811
    given = [None if value is None or value != value else value for value in MANY]
    assert run(still, "colour", "m.range(...given)", [kind, given]) == pytest.approx(span)
    assert run(still, "colour", "m.range(...given)", [kind, [None]]) is None
    low, high = run(still, "colour", "m.range(...given)", [kind, [0.0]])
    assert low != high, "values that do not differ have a scale too"


@pytest.mark.parametrize(
    ("kind", "value", "span", "shade"),
    [
        ("advantage", 1.0, [-2, 2], ("--pos", 0.5)), ("advantage", -1.0, [-2, 2], ("--neg", 0.5)),
        ("advantage", -9.0, [-2, 2], ("--neg", 1.0)), ("difference", 2.0, [-2, 2], ("--pos", 1.0)),
        ("log_prob", -1.0, [0, -4], ("--seq", 0.25)), ("log_prob", -9.0, [0, -4], ("--seq", 1.0)),
        ("log_prob", 0.0, [0, -4], ("--seq", 0.0)), ("value", 3.0, [2, 6], ("--seq", 0.25)),
        ("value", 1.0, [2, 6], ("--seq", 0.0)),
    ],
)  # fmt: skip
def test_a_value_is_as_thick_as_its_part_of_the_scale(
    still: Seen,  # noqa: F811
    kind: str,
    value: float,
    span: list[float],
    shade: tuple[str, float],
) -> None:
    colour, part = shade
    found = run(still, "colour", "m.shade(...given)", [kind, value, span])
    assert found == f"rgb(var({colour}) / calc(var(--deep) * {part:.3f}))"


def test_what_is_not_known_has_no_colour(still: Seen) -> None:  # noqa: F811
    assert run(still, "colour", "given.map((one) => m.shade(...one))", [["value", None, [0, 1]], ["value", 1, None]]) == [
        "", "",
    ]  # fmt: skip


def test_a_legend_and_a_shape_have_the_colours_of_what_they_stand_for(still: Seen) -> None:  # noqa: F811
    legend = run(still, "colour", "m.gradient('advantage')", None)
    assert legend.index("--neg") < legend.index("--pos"), "worse stands left"
    assert "--seq" in run(still, "colour", "m.gradient('entropy')", None)
    shapes = run(still, "colour", "given.map((one) => m.tint(...one))", [[1, 4], [-4, 4], [-9, 4], [0, 0]])
    assert [(shape.count("--pos"), shape.count("--neg"), shape.split("%")[0].split(" ")[-1]) for shape in shapes] == [
        (1, 0, "13.8"), (0, 1, "55.0"), (0, 1, "55.0"), (1, 0, "0.0"),
    ]  # fmt: skip


def test_who_is_no_agent_of_the_team_gets_the_next_colour_and_keeps_it(still: Seen) -> None:  # noqa: F811
    code = "(() => { const of = m.palette(['a', 'b']); return ['b', 'x', 'y', 'x', 'a'].map(of); })()"
    assert run(still, "colour", code, None) == [f"var(--c{n})" for n in (1, 2, 3, 2, 0)]
    assert run(still, "colour", "[-1, 7, 8].map(m.series)", None) == [f"var(--c{n})" for n in (7, 7, 0)]
