"""What an environment shows to one agent alone, whose turn it is, and what may be chosen from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from marft.agents.environment_calls import RefusedError, validate_observation
from marft.common.types import Observation


def test_an_agent_is_shown_what_is_for_everybody_and_then_what_is_for_it_alone() -> None:
    shown = Observation("One card each.", views={"north": "You hold a king."})
    assert shown.for_role("north") == "One card each.\n\nYou hold a king."
    assert shown.for_role("south") == "One card each."
    assert Observation("", views={"north": "A king."}).for_role("north") == "A king."


def test_the_whole_says_who_sees_what() -> None:
    assert (
        Observation("Deal.", views={"north": "king", "south": "ace"}).full_text
        == "Deal.\n\nTo north:\nking\n\nTo south:\nace"
    )
    assert Observation("Deal.").full_text == "Deal."


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"views": ["a"]}, "must be a mapping from roles"),
        ({"views": {1: "a"}}, "must be a mapping from roles"),
        ({"views": {"a": 1}}, "which is no whole text"),
        ({"views": {"a": "\ud800"}}, "which is no whole text"),
        ({"turn": "north"}, "must be a tuple of roles"),
        ({"turn": (1,)}, "must be a tuple of roles"),
        ({"options": {"a": ()}}, "at least one"),
        ({"options": {"a": "left"}}, "must be a tuple of texts"),
        ({"options": {"a": ("left", "left")}}, "must differ"),
        ({"options": {"a": ("left", " ")}}, "none may be empty"),
        ({"options": {"a": ("left", 2)}}, "which is no whole text"),
    ],
)
def test_what_cannot_be_shown_is_refused_in_words(wrong: Mapping[str, Any], why: str) -> None:
    with pytest.raises(RefusedError, match=why):
        validate_observation(Observation("Deal.", **wrong))


def test_what_can_be_shown_is_read_as_it_is() -> None:
    shown = Observation("Deal.", {"north": "king"}, ("north",), {"north": ("raise", "fold")})
    assert validate_observation(shown) == shown
    assert validate_observation(Observation("Deal.", turn=["north"])).turn == ("north",)  # type: ignore[arg-type]
