"""What an answer to a row of a table is worth, by each way of grading."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from marft.config import parse_recipe
from marft.envs.graders import NumericGrader
from marft.envs.table import Table
from marft.rewards.text_match import (
    MAX_NUMBER_LENGTH,
    contains,
    edit_distance,
    extract_number,
    is_close,
    normalize_words,
    parse_numbers,
    parse_scaled_numbers,
    token_f1,
)
from tests.helpers import recipe
from tests.marft.envs.test_environments import answer
from tests.marft.envs.test_table import FORMATS, all_to_train, complaint

COLOURS = {"choices": ["red", "dark blue", "A"]}
ARC = {"choices": {"text": ["red", "blue"], "label": ["1", "2"]}}
IN_COLUMNS = {"A": "red", "B": "blue", "C": "3"}
CHOICE = {"name": "choice", "choices": "choices"}


def reward(tmp_path: Path, grading: Any, right: Any, text: str, **cells: Any) -> tuple[float, bool | None]:
    path = FORMATS["JSON lines"](tmp_path / "rows", [{"question": "?", "answer": right, **cells}])
    environment = all_to_train(path, grading=grading)
    step = answer(environment, environment.tasks("train")[0], text)
    return step.reward, step.success


RIGHT: list[tuple[Any, Any, str, dict[str, Any]]] = [
    (None, "Paris", " Paris\n", {}), (None, "Paris", "I think \\boxed{Paris}", {}), ("exact", 7, "The answer is 7.", {}),
    ("exact", "New York", "<answer>New\nYork</answer>", {}), ("exact", ["a", "b"], "b", {}), ("exact", True, "true", {}),
    ("exact", "J. R. Smith", "The answer is J. R. Smith", {}), ("exact", "5", "**Answer:** 5", {}), ("exact", "x\r\ny", "x y", {}),
    ({"name": "exact", "ignore_case": True}, "PARIS", "paris", {}),
    ("contains", "new york", "It is New\nYork, I think.", {}), ("contains", ["x", "12"], "12%", {}), ("contains", "$5", "It costs $5.", {}),
    ("numeric", "1,234.5", "so 1234.50 in all", {}), ("numeric", 3, "first 7, then 3", {}), ("numeric", "3", "\\boxed{3 apples}", {}),
    ("numeric", 0.5, "1/2", {}), ("numeric", "-3", "The answer is −3, not 4.", {}), ("numeric", "3 + 4 = 7\n#### 7", "7", {}),
    ("numeric", [1, 2], "2", {}), ("numeric", "$18.90", "\\boxed{\\$18.9}", {}), ("numeric", 1e-7, "1e-7", {}),
    ({"name": "numeric", "tolerance": 0.1}, 0.3, "0.4", {}), ({"name": "numeric", "relative_tolerance": 0.01}, 1000, "1010", {}),
    ({"name": "numeric", "relative_tolerance": 0.01}, -1000, "-1010", {}),
    ("math", "1/2", "\\boxed{0.5}", {}), ("math", ["3", "\\frac{1}{2}"], "The answer is 0.5.", {}),
    ("choice", "B", "The answer is (b).", {}), ("choice", "B", "B", {}), ("choice", 1, "\\boxed{B}", {}), ("choice", "b", "**Answer: B**", {}),
    (CHOICE, "dark blue", "B) dark blue", COLOURS), (CHOICE, 1, "Dark  Blue", COLOURS), (CHOICE, "B", "The answer is dark blue.", COLOURS),
    (CHOICE, "A", "A", COLOURS), (CHOICE, "A", "red", COLOURS), ({**CHOICE, "first_number": 1}, "2", "B", COLOURS),
    (CHOICE, "2", "2", ARC), (CHOICE, "2", "blue", ARC), (CHOICE, "blue", "Both fit, but (2) is better.", ARC),
    (CHOICE, "B", "B", {"choices": '["red", "blue"]'}), ({"name": "choice", "choices": ["A", "B", "C"]}, "C", "3", IN_COLUMNS),
    (CHOICE, True, "B", {"choices": ["false", "true"]}),
    ("f1", "the Eiffel Tower", "Eiffel tower!", {}), ("f1", {"text": ["x", "Eiffel Tower"]}, "the eiffel tower", {}),
]  # fmt: skip
WRONG: list[tuple[Any, Any, str, dict[str, Any]]] = [
    ("exact", "Paris", "paris", {}), ("exact", "5", "5 or 6", {}), ("exact", "5", "", {}), ("exact", "5", "\\boxed{6} 5", {}),
    ({"name": "contains", "ignore_case": False}, "New York", "new york", {}),
    ("contains", "12", "112 and 120", {}), ("contains", "12", "", {}), ("contains", ".*", "anything", {}),
    ("numeric", 3, "3, then 7", {}), ("numeric", 3, "\\boxed{3 or 4}", {}), ("numeric", 3, "none", {}), ("numeric", 3, "", {}),
    ("numeric", "3", "version 1.2.3", {}), ("numeric", 0, "1/0", {}), ("numeric", 3, "9" * 5000, {}), ("numeric", 3, "1e" + "9" * 50, {}),
    ({"name": "numeric", "tolerance": 0.1}, 0.3, "0.41", {}), ("math", "5", "", {}), ("math", "5", "\\boxed{6}", {}),
    ("choice", "B", "A good plan", {}), ("choice", "B", "(A) or (B)", {}), ("choice", "B", "", {}), ("choice", "B", "BB", {}),
    (CHOICE, "A", "C", COLOURS), (CHOICE, "A", "blue", COLOURS), ("choice", "A", "Either (A) or (B)", {}),
    (CHOICE, "A", "red", {"choices": ["red", "RED", "blue"]}),
]  # fmt: skip


def timely(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The rows; a process is started for those on mathematics."""
    return [pytest.param(*row, marks=pytest.mark.slow if row[0] == "math" else ()) for row in rows]


@pytest.mark.parametrize(("grading", "right", "text", "cells"), timely(RIGHT))
def test_right_answers_are_accepted(grading: Any, right: Any, text: str, cells: dict[str, Any], tmp_path: Path) -> None:
    assert reward(tmp_path, grading, right, text, **cells) == (1.0, True)


@pytest.mark.parametrize(("grading", "right", "text", "cells"), timely(WRONG))
def test_wrong_answers_are_rejected(grading: Any, right: Any, text: str, cells: dict[str, Any], tmp_path: Path) -> None:
    assert reward(tmp_path, grading, right, text, **cells) == (0.0, False)


@pytest.mark.parametrize(
    ("grading", "right", "cells", "told"),
    [
        (
            "numeric",
            "many",
            {},
            "line 1: column 'answer' holds 'many', which is not one number; put it right, or grade",
        ),
        ("numeric", "1 or 2", {}, "which is not one number"),
        ("numeric", True, {}, "which is not one number"),
        ("choice", "what?", {}, "holds 'what?', which is none of the choices"),
        ("choice", ["A", "B"], {}, "holds a list, and one choice is right"),
        (CHOICE, "green", COLOURS, "holds 'green', which is none of the choices"),
        (CHOICE, 3, COLOURS, "holds '3', which is none of the choices"),
        (CHOICE, -1, COLOURS, "holds '-1', which is none of the choices"),
        (CHOICE, "A", {"choices": ["red", " ", "blue"]}, "cannot be graded: choice B is empty"),
        (CHOICE, "C", {"choices": ["red", "blue", "red "]}, "choices A and C are the same, and one of them is right"),
        (CHOICE, "A", {"choise": []}, "there is no column 'choices'; did you mean 'choise'?"),
        (CHOICE, "A", {"choices": "red"}, "column 'choices' holds no list of choices"),
        (CHOICE, "A", {"choices": {"text": ["red"], "label": []}}, "has 1 choices and not as many names"),
    ],
)
def test_a_row_that_cannot_be_graded_is_named_before_anything_is_played(
    grading: Any, right: Any, cells: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = FORMATS["JSON lines"](tmp_path / "rows", [{"question": "?", "answer": right, **cells}])
    assert told in complaint(path=str(path), grading=grading)


class TestF1:
    def test_the_reward_is_the_score_and_success_is_from_the_threshold_on(self, tmp_path: Path) -> None:
        text = "Eiffel tower in Paris"
        assert reward(tmp_path, "f1", "the Eiffel Tower", text) == (2 / 3, False)
        assert reward(tmp_path, {"name": "f1", "threshold": 0.6}, "the Eiffel Tower", text) == (2 / 3, True)

    @pytest.mark.slow
    @given(st.text(string.ascii_letters + " .,!'", max_size=20), st.text(string.ascii_letters + " .,!'", max_size=20))
    def test_it_is_the_harmonic_mean_of_precision_and_recall(self, right: str, said: str) -> None:
        assert token_f1(right, said) == pytest.approx(slow_f1(right, said), abs=1e-12)

    @given(st.lists(st.sampled_from("abcdefg"), max_size=8), st.lists(st.sampled_from("abcdefg"), max_size=8))
    def test_words_that_come_again_count_as_often_as_both_have_them(self, right: list[str], said: list[str]) -> None:
        one, other = " ".join(f"{word}x" for word in right), " ".join(f"{word}x" for word in said)
        assert token_f1(one, other) == pytest.approx(slow_f1(one, other), abs=1e-12)


def slow_f1(right: str, said: str) -> float:
    """Word by word, as SQuAD's own script does it."""

    def words(text: str) -> list[str]:
        kept = "".join(character for character in text.lower() if character not in string.punctuation)
        return [word for word in kept.split() if word not in ("a", "an", "the")]

    expected, given_words, shared = words(right), words(said), 0
    if not expected or not given_words:
        return 1.0 if expected == given_words else 0.0
    left = list(expected)
    for word in given_words:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(given_words), shared / len(expected)
    return 2 * precision * recall / (precision + recall)


def test_words_keep_their_accents_and_lack_articles_case_and_punctuation() -> None:
    assert normalize_words("The café, an “A”!") == ["café"]
    assert normalize_words("−3.5 + $2.") == ["-3.5", "2"]
    assert token_f1("café", "cafe") == 0.0
    assert (token_f1("the", "a!"), token_f1("the", "cat"), token_f1("cat", "the")) == (1.0, 0.0, 0.0)


def test_edits_of_words_with_letters_in_another_order() -> None:
    for one, other, count in (("baab", "aba", 3), ("cbba", "bcb", 3), ("", "ab", 2), ("ab", "", 2), ("", "", 0)):
        assert edit_distance(one, other) == count


@pytest.mark.parametrize(("text", "part", "held"), [
    ("anything", "", False), ("", "", False), ("renew york", "new york", False), ("New Yorker", "New York", False), ("snake_case", "case", False),
    ("snake_case", "snake", False), ("_case_", "case", True), ("case_", "case", True), ("in C++", "C", False), ("in C++", "C++", True), ("C+b", "C", True),
    ("PARIS", "paris", True), ("“Paris”", "Paris", True), ("cafe\u0301", "cafe", False), ("巴黎abc", "abc", True), ("abc巴黎", "abc", True), ("서울에서", "서울", True),
    ("가서울", "서울", False), ("서울_x", "서울", False), ("서울+", "서울", False), ("bcb巴", "b", False), ("aa巴", "a巴", False), ("ab 巴ab", "ab", True),
    ("xabab巴", "abab", False), ("ababab", "abab", False), ("xaba aba", "aba", True),
])  # fmt: skip
def test_words_are_held_where_they_begin_and_end_as_words_do(text: str, part: str, held: bool) -> None:
    assert contains(text, part) is held


@pytest.mark.parametrize(("text", "number", "held"), [
    ("agent 007", "7", False), ("agent 007", "007", True), ("-07", "-7", False), ("in 1998年", "1998", True), ("42kg", "42", False), ("42 kg", "42", True),
    ("5 million", "5", False), ("10 minus 3", "3", False), ("10 minus 3", "10", True), ("minus 42", "42", False), ("minus 42", "-42", True), ("x negative  3", "3", False),
    ("42_000", "42", False), ("42_", "42", True), ("42.0", "42", True), ("42, 43", "43", True), ("4.2e1", "42", True), ("42개", "42", True), ("1,234", "1234", True),
    ("1/2", "0.5", True), ("42%", "42", True), ("−42", "-42", True), ("It costs 5.", "$5", False), ("It costs $5.", "$5", True), ("12 pears", "12 apples", False),
])  # fmt: skip
def test_a_number_is_held_by_its_value_and_not_as_a_part_of_a_name_or_of_another_number(
    text: str, number: str, held: bool
) -> None:
    assert contains(text, number) is held


NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-", "+", "−"]), st.integers(0, 10**12).map(str), st.from_regex(r"(\.[0-9]{1,6})?", fullmatch=True),
    st.from_regex(r"(e-?[0-9])?", fullmatch=True),
)  # fmt: skip


class TestNumbers:
    @given(NUMBERS)
    def test_a_number_is_read_as_it_is_written(self, written: str) -> None:
        (read,) = parse_numbers(f"It is {written} in all.")
        assert Fraction(read) == Fraction(written.replace("−", "-"))

    @given(st.lists(st.integers(-(10**9), 10**9), max_size=6))
    def test_thousands_may_have_commas(self, numbers: list[int]) -> None:
        assert parse_numbers("; ".join(f"{number:,}" for number in numbers)) == [Decimal(number) for number in numbers]

    @given(st.integers(-(10**9), 10**9), st.integers(1, 10**6))
    def test_fractions_are_divided(self, above: int, below: int) -> None:
        (read,) = parse_numbers(f"{above}/{below}")
        assert abs(Fraction(read) - Fraction(above, below)) < Fraction(1, 10**300)

    @given(
        st.decimals(-(10**6), 10**6, places=4), st.decimals(-(10**6), 10**6, places=4),
        st.integers(0, 2 * 10**6).map(lambda n: n / 100), st.integers(0, 200).map(lambda n: n / 100),
    )  # fmt: skip
    def test_tolerances_are_exact(self, right: Decimal, said: Decimal, tolerance: float, relative: float) -> None:
        def exactly(number: float) -> Fraction:
            return Fraction(str(number))

        most = max(exactly(tolerance), exactly(relative) * abs(Fraction(right)))
        assert is_close(right, said, tolerance, relative) == (abs(Fraction(right) - Fraction(said)) <= most)

    @pytest.mark.parametrize(("text", "numbers"), [
        ("1.234,5e3", ["1234500"]), ("1.234.567,25", ["1234567.25"]), ("2,5", ["2.5"]), ("1 234,5", ["1234.5"]), ("12,34,567", ["1234567"]),
        ("10^{3}", ["1000"]), ("2^{-2}", ["0.25"]), ("2**5", ["32"]), ("3²", ["9"]), ("10⁻²", ["0.01"]), ("2 × 10⁻³", ["0.002"]),
        ("√2 and 5", ["5"]), (r"\sqrt{2}, 5", ["5"]), (r"\sqrt[3]{2}, 5", ["5"]), ("2π or 5", ["5"]), ("±2 or 5", ["5"]), ("x_2 = 5", ["5"]),
        ("−$5", ["-5"]), ("$-5", ["-5"]), ("−$−5", ["5"]), ("-2 1/2", ["-2.5"]), ("1e9999999^{-2} or 5", ["5"]), ("1" * MAX_NUMBER_LENGTH, ["1" * MAX_NUMBER_LENGTH]),
        ("1" * (MAX_NUMBER_LENGTH + 1), []), ("100^{200}", ["1e400"]), ("100^{201}", []), ("0.01^{200}", ["1e-400"]), ("0.01^{201}", []), ("1000^{200}", []),
        ("1^{400}", ["1"]), ("1^{401}", []), ("1^{-400}", ["1"]), ("1^{-401}", []),
    ])  # fmt: skip
    def test_numbers_of_many_forms_are_read_and_what_is_beyond_measure_or_part_of_another_number_is_not(
        self, text: str, numbers: list[str]
    ) -> None:
        assert parse_numbers(text) == [Decimal(number) for number in numbers]

    @pytest.mark.parametrize(("text", "number"), [
        ("1, then 5 or 6", None), ("1 or 2, then 5", "5"), ("**12 apples** of 30", "12"), ("**Step 2** gives 30", "30"), ("**12 of 30** apples, 40 pears", "40"),
        ("**5 million** of 8 billion", "5000000"), ("It is 3万", "30000"), ("It is 4k", "4000"), (r"\boxed{3.14159 ≈ 3.14}", "3.14"), (r"\boxed{x = 5}", "5"),
        (r"\boxed{4 = 5}", None), (r"\boxed{3 + 4 = 7}", "7"), ("The answer is 2 + 3.", None), ("The answer is 5+3=8", "8"), ("The answer is 5 apples and 3+4=7", "5"), ("The answer is x", None),
        ("The answer is 2.718 ≈ 2.72", "2.72"), ("The answer is 2 + 3 = 4 + 1", None), ("The answer is 3.14159 ≈ 3.1416 ≈ 3.14", "3.14"), ("The answer is 5 or 6", None),
        ("The answer is not 9 but 8", "8"), ("The answer is not 9", None), ("It is 7, not 9", "7"), ("", None),
    ])  # fmt: skip
    def test_the_number_of_a_text_is_the_one_that_it_states(self, text: str, number: str | None) -> None:
        assert extract_number(text) == (None if number is None else Decimal(number))

    def test_words_behind_numbers_scale_them(self) -> None:
        text = (
            "2 dozen, 3 hundred, 4 thousand, 5 million, 6bn, 6 billion, 7 trillion, 8k, 9M, 千 1千 2百 3億 4亿 5万 6萬"
        )
        scaled = [
            24,
            300,
            4_000,
            5 * 10**6,
            6 * 10**9,
            6 * 10**9,
            7 * 10**12,
            8_000,
            9 * 10**6,
            1_000,
            200,
            3 * 10**8,
            4 * 10**8,
            50_000,
            60_000,
        ]
        assert parse_scaled_numbers(text) == scaled

    @given(st.text(max_size=200))
    def test_no_text_is_too_odd(self, text: str) -> None:
        assert all(number.is_finite() for number in parse_numbers(text))
        assert not NumericGrader().grade(10**30, {}, re.sub("[0-9]", "", text)).success

    @given(st.floats(allow_nan=False, allow_infinity=False))
    def test_every_float_is_close_to_itself(self, number: float) -> None:
        assume(abs(number) < 1e300)
        (read,) = parse_numbers(repr(number))
        assert math.isclose(float(read), number)
        assert NumericGrader(tolerance=0.0).grade(number, {}, repr(number)).success


def half(row: Mapping[str, Any], text: str) -> float:
    return 0.5


def solved(row: Mapping[str, Any], text: str) -> bool:
    return text == row["answer"]


def computed(row: Mapping[str, Any], text: str) -> np.bool_:
    return np.True_


def both(row: Mapping[str, Any], text: str) -> tuple[float, bool]:
    return 0.75, True


def three(row: Mapping[str, Any], text: str) -> tuple[int, int, int]:
    return 1, 2, 3


def silent(row: Mapping[str, Any], text: str) -> None:
    """No ``return``."""


def wordy(row: Mapping[str, Any], text: str) -> str:
    return "good"


def vague(row: Mapping[str, Any], text: str) -> tuple[float, str]:
    return 1.0, "yes"


def broken(row: Mapping[str, Any], text: str) -> float:
    return float(row["nothing"])


class TestFunctions:
    @pytest.mark.parametrize(
        ("name", "earned"),
        [("half", (0.5, None)), ("solved", (1.0, True)), ("computed", (1.0, True)), ("both", (0.75, True))],
    )
    def test_it_gives_a_reward_or_a_verdict_or_both(self, name: str, earned: Any, tmp_path: Path) -> None:
        assert reward(tmp_path, f"tests.marft.rewards.test_gradings:{name}", "x", "x") == earned

    @pytest.mark.parametrize(
        ("call", "told"),
        [
            ("tests.marft.rewards.test_gradings:nothing", "cannot import"),
            (
                "tests.marft.rewards.test_gradings:RIGHT",
                "is no function of a row and a text; write: def RIGHT(row, text)",
            ),
            ("tests.marft.rewards.test_gradings:reward", "is no function of a row and a text"),
        ],
    )
    def test_what_cannot_grade_is_refused_when_the_recipe_is_read(self, call: str, told: str) -> None:
        with pytest.raises(ValueError, match="recipe:") as caught:
            parse_recipe(recipe(environment={"name": "table", "path": "a.csv", "grading": call}))
        assert told in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "told"),
        [
            ("three", r"test_gradings\.py:\d+ gave 3 values"),
            ("broken", "nothing"),
            ("silent", r"test_gradings\.py:\d+ gave None; must be finite, and a number"),
            ("wordy", r"test_gradings\.py:\d+ gave 'good'; must be finite, and a number"),
            ("vague", r"test_gradings\.py:\d+ said success = 'yes'; must be True or False"),
        ],
    )
    def test_one_that_fails_raises_and_never_grades_0(self, name: str, told: str, tmp_path: Path) -> None:
        with pytest.raises((TypeError, KeyError), match=told):
            reward(tmp_path, f"tests.marft.rewards.test_gradings:{name}", "x", "x")


def test_a_grading_reads_back_as_it_was(tmp_path: Path) -> None:
    for grading in ("exact", {"name": "f1", "threshold": 0.5}, "tests.marft.rewards.test_gradings:half", CHOICE):
        made = Table.model_validate({"path": "a.csv", "grading": grading})
        assert Table.model_validate({k: v for k, v in made.model_dump(mode="json").items() if k != "name"}) == made
