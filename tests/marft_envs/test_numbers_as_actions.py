"""Whole numbers that agents choose by, read in what they write."""

from __future__ import annotations

import pytest

from marft.envs.choices import extract_choice as labelled
from marft.envs.choices import parse_choices
from marft_envs.gyms.texts import parse_choice
from marft_envs.memory.session import select_by_number
from marft_envs.sudoku.rules import parse_answer
from marft_envs.textarena.games import match_option

PARTS = [
    "I choose -1", "I choose \u22121", "2 - 1", "0.5", "1.0", ".1", "1,5", "1,000", "1 000", "1'000", "1/2", "2/1", "1%", "1 %",
    "1e3", "1:30", "0-1", "2^1", "2*1", "3:1", "minus 1", "Negative 1", "~1", "x1", "1st", "10", "v1.2", "+-1", "1\u00bd", "",
    "1 million", "1 1/2", "1\u00d72", "3 \u00d7 1", "\u221a1", "0 or 1", "not 1", "I won't choose 1", r"\boxed{0 or 1}",
]  # fmt: skip
ALONE = [
    "1", "1.", "(1)", "[1]", "**1**", "I choose 1", "action: 1", "action:1", "action=1", "- 1", "#1", "I take 2, then 1!", "1, not -3",
    "\\boxed{1}", "1\n", "0.5 is what I expect of 1",
    "1, not 0", "1 rather than 0", r"\boxed{1} because 0 loses", "<answer>1</answer> (0 loses)", "The answer is 1. With 0 I lose.",
]  # fmt: skip


@pytest.mark.parametrize("text", PARTS)
def test_a_number_that_is_part_of_another_one_chooses_nothing(text: str) -> None:
    assert parse_choice(text, ["0", "1", "2"]) == ""


@pytest.mark.parametrize("text", ALONE)
def test_a_number_that_stands_alone_is_chosen(text: str) -> None:
    assert parse_choice(text, ["0", "1", "2"]) == "1"


@pytest.mark.parametrize(
    ("text", "option"),
    [("I choose -1", "-1"), ("from -1 to 1", "1"), ("do 0 1.", "0 1"), ("0 -1", "-1"), ("level 2", "level 2"), ("level 2.5", "")],
)  # fmt: skip
def test_options_may_be_negative_or_end_in_a_number(text: str, option: str) -> None:
    assert parse_choice(text, ["-1", "1", "0 1", "level 2"]) == option


@pytest.mark.parametrize("text", ["0 -1", "0 1.5", "-0 1", "10 1", "0 1/2"])
def test_a_row_of_numbers_is_no_part_of_others(text: str) -> None:
    assert parse_choice(text, ["0 1", "1 1", "1 0"]) == ""


@pytest.mark.parametrize(
    ("text", "notes"),
    [("2, then 1", "ba"), ("1,2", "ab"), ("-1", ""), ("0.5 or 1.5", ""), ("1/2", ""), ("notes 1 and 2.", "ab"), ("1-2", ""), ("2,000", ""), ("1,001", ""), ("3,002, 1", "a")],
)  # fmt: skip
def test_notes_are_picked_by_whole_numbers(text: str, notes: str) -> None:
    assert "".join(select_by_number(text, ["a", "b"])) == notes


@pytest.mark.parametrize(
    "text",
    ["1,2 = -4", "1,2 = - 4", "-1,2 = 4", "1,2 = 4.5", "1,2 = 0.4", "1,2 = .4", "1.2 = 4", "1.2.4", "1-2=4", "1+2+4"],
)
def test_a_cell_is_filled_with_whole_numbers(text: str) -> None:
    assert parse_answer("1,2 = 4", 4) == [((0, 1), 4)]
    assert parse_answer(text, 4) is None


@pytest.mark.parametrize("text", ["1.5", "The answer is -1", "0.5", "-1.", "(1.5)", "(-1)"])
def test_a_label_is_no_part_of_a_number(text: str) -> None:
    choices = parse_choices({"label": ["0", "1", "5"], "text": ["red", "green", "blue"]})
    assert labelled("1. green", choices) == "1"
    assert labelled(text, choices) == ""


def test_a_move_of_a_game_keeps_its_point() -> None:
    assert [match_option(text, ("5", "6")) for text in (" [5].", ".5", "-5")] == ["5", "", ""]
