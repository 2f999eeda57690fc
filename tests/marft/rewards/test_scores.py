"""From what a judge replies to a score: a reply that is not plain has none, above all no better one."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.errors import EpisodeFailedError
from marft.rewards.judge import parse_score


@pytest.mark.parametrize(
    ("reply", "options", "score"),
    [
        ("Clear.\n7/10", {}, 0.7), ("8 out of 10.", {}, 0.8), ("3 of 4 steps are right\n\n6.5\n", {}, 0.65), ("**10**", {}, 1.0),
        ("9/10.0", {}, 0.9), ("3/**10**", {}, 0.3), ("3 of 10", {}, 0.3), (".5", {}, 0.05), ("# `4`", {}, 0.4), ("```\n4\n```", {}, 0.4),
        ("3/10", {"scale": (10.0, 0.0)}, 0.7), ("2 OUT OF 10", {}, 0.2), ("+2", {}, 0.2), ("- 2", {}, None),
        ("I give 7/10", {}, None), ("Score: 3 out of 10.0", {}, None), ("2 out of a possible 10", {}, None), ("7,5", {}, None),
        ("Score: 3/10 points, 10 being best", {}, None), ("3/5", {}, None), ("1_0", {}, None), ("1**0", {}, None), ("٣", {}, None),
        ("from 0 to 100: 100", {}, None), ("", {}, None), ("no", {}, None), ("9" * 400, {}, None), ("*" * 100_000 + "x", {}, None),
        ('{"s": ' + "9" * 400 + "}", {"json_field": "s"}, None),
        ("score=3, 9 lines", {"pattern": r"score=(\d+)"}, 0.3), ("score=x", {"pattern": r"score=(\w+)"}, None),
        ("4", {"scale": (1.0, 5.0)}, 0.75), ("2", {"scale": (5.0, 1.0)}, 0.75),
        ('```json\n{"s": 2}\n```', {"json_field": "s"}, 0.2), ('{"s": true}', {"json_field": "s"}, None),
        ("0", {}, 0.0), ("10", {}, 1.0), ("no score", {"pattern": r"score=(\d+)"}, None), ('{"s": 2}, so', {"json_field": "s"}, 0.2),
        ('{"s": 2.5}', {"json_field": "s"}, 0.25), ('It is {"s": 1}, {"s": 2}', {"json_field": "s"}, None), ("no object", {"json_field": "s"}, None),
        ('{"s": NaN}', {"json_field": "s"}, None), ("[1]", {"json_field": "s"}, None), ('{"s": "2"}', {"json_field": "s"}, None),
    ],
)  # fmt: skip
def test_scores_are_read(reply: str, options: dict[str, Any], score: float | None) -> None:
    read = parse_score(reply, **{"scale": (0.0, 10.0), **options})
    assert read == (pytest.approx(score) if score is not None else None)


@given(st.text() | st.text('0123456789.-/ e{}":'), st.sampled_from(["", "score"]))
def test_whatever_is_replied_is_a_score_or_none(reply: str, field: str) -> None:
    score = parse_score(reply, (0.0, 10.0), json_field=field)
    assert score is None or 0.0 <= score <= 1.0


@pytest.mark.slow
def test_a_pattern_that_searches_for_ever_is_no_score_and_no_end() -> None:
    with pytest.raises(EpisodeFailedError, match="searched a text for over 2 s") as caught:
        parse_score("a" * 60 + "!", (0.0, 10.0), pattern="(a|a)+$")
    assert caught.value.status == "timed_out"
