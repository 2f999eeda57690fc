"""Formulas as they are put into the signs of LaTeX, and what tells two of them apart before any mathematics."""

from __future__ import annotations

import pytest

from marft.rewards.math_notation import (
    MAX_DEPTH,
    bracket_kind,
    expects_interval,
    expects_pair,
    expects_percent,
    has_different_notation,
    is_interval,
    is_open_interval,
    is_too_large,
    normalize_formula,
    same_no_solution,
    split_elements,
    strip_implied_base,
    strip_percent,
    strip_words,
)


@pytest.mark.parametrize(("answer", "plain"), [
    ("$5", "5"), ("$1$ and $2$", "1 and 2"), ("a $1$", "a $1$"), ("**__5__**", "5"), ("**5** or **6**", "**5** or **6**"), ("`5`.", "5"), (r"\[5\]", "5"),
    ("3e8", r"3\times 10^{8}"), ("1.5E-3", r"1.5\times 10^{-3}"), ("x3e8", "x3e8"), (r"12.3\dot4", r"\frac{1111}{90}"), (r"0.\overline{142857}", r"\frac{142857}{999999}"),
    (r"0.16\bar{6}", r"\frac{150}{900}"), ("⅔", r"\frac{2}{3}"), ("⅞", r"\frac{7}{8}"), ("]0,1[", "(0,1)"), ("[0,1[", "[0,1)"), ("]0,1]", "(0,1]"), ("[0,1]", "[0,1]"),
    ("(0,1)", "(0,1)"), ("1 000 000", "1000000"), ("1.000.000", "1000000"), (r"1\,000", "1000"), (r"x \in (0,1)", "(0,1)"), (r"1 \vee 2", "1 , 2"),
    ("√(2x) + √3", r"\sqrt{2x} + \sqrt{3}"), ("2sqrt(3)", r"2\sqrt{3}"), (r"\text{90 minutes}", r"90\text{ minutes}"), ("1\n 2", "1 2"), ("½π", r"\frac{1}{2}\pi"),
])  # fmt: skip
def test_answers_are_put_in_the_signs_of_latex(answer: str, plain: str) -> None:
    assert normalize_formula(answer).strip() == plain


@pytest.mark.parametrize(("formula", "endless"), [
    ("(" * MAX_DEPTH + "1" + ")" * MAX_DEPTH, False), ("(" * (MAX_DEPTH + 1) + "1" + ")" * (MAX_DEPTH + 1), True), ("(1)" * (MAX_DEPTH + 1), False), ("{" * (MAX_DEPTH + 1), True),
    ("[" * (MAX_DEPTH + 1), True), ("2^{9999}", False), ("2^{10000}", True), ("2^{-10000}", True), ("2^10000", True), ("9999!", False), ("10000!", True), ("2^{9^{4}}", False),
    ("2^{10^{4}}", True), ("2^{2^{2^{2}}}", False), ("2^{2^{2^{2^{2}}}}", True), ("2^{3^2}", False), ("2^{9^5}", True), ("2^{1^{12}}", False), ("2^{1^{13}}", True),
    ("2^{01^{7}}", True), ("2^{01^{6}}", False), ("2 ^ {10 000}", True), ("1.10000!", False),
])  # fmt: skip
def test_formulas_that_nobody_works_out_are_endless(formula: str, endless: bool) -> None:
    assert is_too_large(f"${formula}$") is endless


@pytest.mark.parametrize(("expected", "stated", "same"), [
    (r"\text{no solution}", r"\emptyset", True), (r"\text{undefined}", r"\text{DNE}", True), (r"\text{undefined}", r"\text{none}", False), ("0", r"\{\}", False),
    ("1", "1", None), (r"\text{impossible}", r"\text{None.}", True), (r"\text{none}", "x", False), (r"\{1\}", r"\text{none}", False), (r"\{ \}", r"\varnothing", True),
    (r"\text{no real solutions}", r"\text{there is no such } x", True), (r"\text{no}", r"\text{no}", None), (r"\text{no solution}", r"\text{1 solution}", False),
])  # fmt: skip
def test_answers_that_there_is_none_are_compared_by_what_they_say(
    expected: str, stated: str, same: bool | None
) -> None:
    assert same_no_solution(f"${expected}$", f"${stated}$") is same


@pytest.mark.parametrize(("expected", "stated", "apart"), [
    ("1,2", "(1,2)", True), ("1,2", r"\{1,2\}", None), ("1,2", "2,1", None), ("(1,2)", r"\{1,2\}", True), (r"\{1,2\}", "(1,2)", True), ("(1,2)", "(1,2)", None),
    (r"\{1,2\}", r"\{2,1\}", None), ("(1)", "1", None), ("1", "(1)", None), ("(1,2),(3,4)", "(1,2),(3,4)", None), ("5", "> 5", True), ("> 5", "> 5", None), ("> 5", "5", None), ("3,3", "3", True), ("3", "3,3", True), ("3,3", "3,3", None),
    ("101_2", "101_3", True), ("101_2", "101_{2}", False), ("18", "18_2", True), ("x", "18_2", None), ("101_2", "101", None), ("-1_2", "1_2", True),
    (r"5\text{ million}", "5000000", False), ("5000000", r"5\text{ million}", False), (r"5\text{ million}", r"5\text{ thousand}", True),
    (r"5\text{ km}", r"5\text{ km}", None), (r"5\text{ km}", r"5000\text{ m}", False), (r"5\text{ km}", r"5\text{ kg}", True), (r"5\text{ km}", "5", None), ("5", r"5\text{ km}", None),
    (r"5\text{ km}", r"5000.005\text{ m}", False), (r"5\text{ km}", r"5000.005000001\text{ m}", True), (r"5\text{ m }^2", r"50000\text{ cm}^2", False),
    (r"5\text{ km}, 3\text{ km}", r"5000\text{ m}", True), (r"5\text{ km}", r"5000\text{ m}, 3\text{ m}", True), (r"-5\text{ km}", r"-5000\text{ m}", False), (r"5\text{ km}", r"-5000\text{ m}", True),
    (r"5\text{ m}", r"5\text{ s}", True), (r"5\text{ apples}", r"5\text{ km}", None), ("5 km", "5 m", True), ("5 km^2", "5 km", True), (r"5\text{ m}^2", r"50000\text{ cm}^{2}", False),
])  # fmt: skip
def test_answers_differ_in_brackets_repetitions_relations_bases_and_units(
    expected: str, stated: str, apart: bool | None
) -> None:
    assert has_different_notation(f"${expected}$", f"${stated}$") is apart


def test_brackets_tell_pairs_intervals_and_sets() -> None:
    formulas = ("$(1,2)$", r"$\{1\}$", "$(1,2]$", "$1$", "$$", "$($", r"$\left(1,2\right)$")
    assert [bracket_kind(formula) for formula in formulas] == ["(", "{", "", "", "", "", "("]
    opened = ("(1,2)", "(2,1)", "(1,1)", "(-1.5,2)", "(1..2,3)", "(1,2,3)", "[1,2]", "(.,1)")
    assert [is_open_interval(f"${formula}$") for formula in opened] == [True, False, False, True] + [False] * 4
    surely = ("[1,2)", "(1,2]", r"(5,\infty)", "(1,2)", "[1]", "x,[1]", r"\infty,1", "[1,2]")
    assert [is_interval(f"${formula}$") for formula in surely] == [True, True, True, False, False, False, False, True]
    assert split_elements("$1, (2,3), [4,{5,6}], 7,890$") == ["1", "(2,3)", "[4,{5,6}]", "7890"]


def test_what_a_question_asks_for_is_read_from_its_words() -> None:
    assert [
        expects_pair(asked) for asked in ("Find the point.", "Which ordered  pair?", "Find (x, y).", "How many?")
    ] == [True] * 3 + [False]
    assert [expects_interval(asked) for asked in ("What is the domain?", "Give the INTERVAL.", "How many?")] == [
        True,
        True,
        False,
    ]
    assert [expects_percent(asked) for asked in ("What percent is it?", "What is 20 percent of 8?")] == [
        True,
        False,
    ]


def test_words_percent_signs_and_bases_are_left_out_where_they_are_no_mathematics() -> None:
    kept = ("$18 million$", "$2 pi$", "$2 one-half$", "$2 Half$", "$x apples$", "$18$")
    assert [strip_words(formula) for formula in kept] == list(kept)
    assert [strip_words(f"${counted}$") for counted in ("18 square-feet", "-3 cats", "3/4 cup", r"\frac{3}{4} cup")] == [
        "$18$", "$-3$", "$3/4$", r"$\frac{3}{4}$",
    ]  # fmt: skip
    assert strip_percent(r"$7\text{ percent}$") == ("$7$", True)
    assert strip_percent("$7$") == ("$7$", False)
    assert strip_implied_base("$-18_{2}$", "$18$", "In BASE 2?") == "$-18$"
    assert strip_implied_base("$18_2$", "$18_2$", "In base 2?") == "$18_2$"
    assert strip_implied_base("$18$", "$18$", "In base 2?") == "$18$"
