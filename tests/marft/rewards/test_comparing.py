"""Numbers and words in texts: how large, how long, how precise, and which signs are the same."""

from __future__ import annotations

from decimal import Decimal

import pytest

from marft.rewards.text_match import contains, extract_number, parse_numbers, parse_scaled_numbers


@pytest.mark.parametrize(("scale", "times"), [
    ("hundred", "100"), ("百", "100"), ("dozen", "12"), ("thousand", "1000"), ("千", "1000"), ("k", "1000"), ("万", "10000"), ("萬", "10000"),
    ("million", "1000000"), ("M", "1000000"), ("億", "100000000"), ("亿", "100000000"), ("billion", "1000000000"), ("bn", "1000000000"),
    ("trillion", "1000000000000"),
])  # fmt: skip
def test_a_word_behind_a_number_says_how_many_times_it_counts(scale: str, times: str) -> None:
    assert parse_scaled_numbers(f"1{scale}, then 2{scale}") == [Decimal(times), 2 * Decimal(times)]
    assert extract_number(f"The answer is 1.5{scale}") == Decimal("1.5") * Decimal(times)
    assert parse_numbers(f"3{scale}") == [3]


def test_numbers_of_up_to_four_hundred_digits_are_read() -> None:
    assert parse_numbers("9" * 400) == [10**400 - 1]
    assert parse_numbers("9" * 401) == []
    assert parse_numbers("2^400, 2^401") == [2**400]


def test_numbers_are_exact_and_a_share_without_end_has_eight_hundred_digits() -> None:
    assert parse_numbers(f"{'9' * 399} 1/2") == [Decimal("9" * 399 + ".5")]
    assert parse_numbers("1/3") == [Decimal("0." + "3" * 800)]


def test_what_is_divided_by_nothing_or_beyond_all_measure_is_no_number() -> None:
    assert parse_numbers("1/0, 0/0, 1e9999999999999999999, 7") == [7]


def test_a_sign_in_front_makes_another_number_from_twenty_characters_away_at_most() -> None:
    for sign in ("√", "±", r"\sqrt"):
        assert parse_numbers(f"{sign}{' ' * (20 - len(sign))}5") == []
        assert parse_numbers(f"{sign}{' ' * (21 - len(sign))}5") == [5]
    assert parse_numbers("√2 and √3, then 5") == [5]


def test_the_number_in_a_box_is_the_only_one_or_what_equal_sides_come_to() -> None:
    said = {
        "x = 5": 5,
        "5": 5,
        "5 = 5.0": 5,
        "2 + 3 = 5": 5,
        "4 = 5": None,
        "5 or 6": None,
        "x": None,
        "": None,
        "4 ≈ 5": 5,
    }
    assert {inside: extract_number(rf"\boxed{{{inside}}}") for inside in said} == said


def test_full_width_signs_are_the_same_as_those_of_ascii() -> None:
    wide, plain = ("".join(chr(first + place) for place in range(94)) for first in (0xFF01, 0x21))
    assert (wide[0], wide[-1], plain[0], plain[-1]) == ("！", "～", "!", "~")
    assert contains(wide, plain)
    assert contains(plain, wide)
    assert not contains("｟", "\x7f")
    assert contains("a “well-known” city’s", '"well‑known" city\'s')


def test_the_case_of_letters_does_not_count_unless_it_is_asked_for() -> None:
    assert contains("In PARIS.", "Paris")
    assert not contains("In PARIS.", "Paris", ignore_case=False)


def test_a_chain_of_equations_in_a_box_states_its_last_number_where_its_numbers_are_one() -> None:
    stated = {
        text: extract_number(rf"\boxed{{{text}}}")
        for text in ("x = 5", "x = 5 thousand", "2 + 3 = 5", "5 = 10", "5, 6")
    }
    assert stated == {"x = 5": 5, "x = 5 thousand": 5000, "2 + 3 = 5": 5, "5 = 10": None, "5, 6": None}
