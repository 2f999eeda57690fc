"""Right answers are accepted, wrong ones rejected, and what is written to do harm ends in time."""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.game.answers import find_answer, last_boxed, stated_answer
from marft.processes.helpers import DiedError, FailedError, NotStartedError, TooSlowError
from marft.rewards import grader as grading
from marft.rewards.grader import Grader, GradingError
from marft.rewards.math_answers import LONGEST, equal
from marft.rewards.math_forms import (
    DEEPEST,
    asks_for_interval,
    asks_for_pair,
    asks_for_percentage,
    brackets,
    elements,
    is_endless,
    is_interval,
    is_open_interval,
    plain_formula,
    same_nothing,
    told_apart,
    without_base,
    without_percent,
    without_words,
)
from tests.conftest import SHARED_DATA
from tests.nights import BY_NIGHT, NIGHT, some

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SAMPLE = Path(__file__).parent / "answers.jsonl"  # of our own writing


@pytest.fixture
def graders(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("graders")


@pytest.fixture(scope="module")
def grader() -> Iterator[Grader]:
    made = Grader(timeout=1.0, processes=1)
    made.equal("5", "5")
    yield made
    made.close()


@pytest.mark.parametrize(("gold", "said"), [
    (r"5\text{ m}", r"500\text{ cm}"), (r"864\mbox{ inches}^2", r"864\text{ square inches}"), (r"12\text{ feet}", "12"),
    (r"90\text{ min}", r"1.5\text{ hours}"), (r"\sqrt{2}\text{ cm}", r"\sqrt{2}\text{ cm}"), ("5 km", "5000 m"),
    ("1010_2", "1010_{2}"), ("1010_2", "1010"), (r"\text{A5}_{11}", "A5_{11}"), ("-1,3,3", "3,-1,3"), (r"\{1,2\}", r"\{2,1,1\}"),
    ("1,234", "1234"), (r"10,\!080", "10080"), ("[1,2]", r"1 \le x \le 2"), (r"(5,\infty)", "x > 5"), (r"1 \le x \le 2", "[1,2]"),
])  # fmt: skip
def test_equal_answers_are_accepted(gold: str, said: str) -> None:
    assert equal(gold, rf"\boxed{{{said}}}")


@pytest.mark.parametrize(("gold", "said"), [
    (r"5\text{ m}", r"5\text{ cm}"), (r"864\mbox{ inches}^2", r"864\text{ inches}"), (r"\sqrt{2}\text{ cm}", r"\sqrt{2}\text{ m}"),
    (r"5\text{ m}", r"5\text{ kg}"), ("5 cm", "5 m"), ("1010_2", "1010_3"), ("1010_2", "10_{10}"), ("-1,3,3", "-1,3"), ("3", "3,3"),
    ("[1,2]", "1 < x < 2"), (r"(5,\infty)", r"x \ge 5"), ("(2,1)", "1 < x < 2"), ("5", "x=6"), (r"\text{A}", r"\text{B}"),
])  # fmt: skip
def test_other_units_bases_lists_and_ends_are_other_answers(gold: str, said: str) -> None:
    assert not equal(gold, rf"\boxed{{{said}}}")


@pytest.mark.parametrize(("answer", "plain"), [
    ("$5", "5"), ("$1$ and $2$", "1 and 2"), ("a $1$", "a $1$"), ("**__5__**", "5"), ("**5** or **6**", "**5** or **6**"), ("`5`.", "5"), (r"\[5\]", "5"),
    ("3e8", r"3\times 10^{8}"), ("1.5E-3", r"1.5\times 10^{-3}"), ("x3e8", "x3e8"), (r"12.3\dot4", r"\frac{1111}{90}"), (r"0.\overline{142857}", r"\frac{142857}{999999}"),
    (r"0.16\bar{6}", r"\frac{150}{900}"), ("⅔", r"\frac{2}{3}"), ("⅞", r"\frac{7}{8}"), ("]0,1[", "(0,1)"), ("[0,1[", "[0,1)"), ("]0,1]", "(0,1]"), ("[0,1]", "[0,1]"),
    ("(0,1)", "(0,1)"), ("1 000 000", "1000000"), ("1.000.000", "1000000"), (r"1\,000", "1000"), (r"x \in (0,1)", "(0,1)"), (r"1 \vee 2", "1 , 2"),
    ("√(2x) + √3", r"\sqrt{2x} + \sqrt{3}"), ("2sqrt(3)", r"2\sqrt{3}"), (r"\text{90 minutes}", r"90\text{ minutes}"), ("1\n 2", "1 2"), ("½π", r"\frac{1}{2}\pi"),
])  # fmt: skip
def test_answers_are_put_in_the_signs_of_latex(answer: str, plain: str) -> None:
    assert plain_formula(answer).strip() == plain


@pytest.mark.parametrize(("formula", "endless"), [
    ("(" * DEEPEST + "1" + ")" * DEEPEST, False), ("(" * (DEEPEST + 1) + "1" + ")" * (DEEPEST + 1), True), ("(1)" * (DEEPEST + 1), False), ("{" * (DEEPEST + 1), True),
    ("[" * (DEEPEST + 1), True), ("2^{9999}", False), ("2^{10000}", True), ("2^{-10000}", True), ("2^10000", True), ("9999!", False), ("10000!", True), ("2^{9^{4}}", False),
    ("2^{10^{4}}", True), ("2^{2^{2^{2}}}", False), ("2^{2^{2^{2^{2}}}}", True), ("2^{3^2}", False), ("2^{9^5}", True), ("2^{1^{12}}", False), ("2^{1^{13}}", True),
    ("2^{01^{7}}", True), ("2^{01^{6}}", False), ("2 ^ {10 000}", True), ("1.10000!", False),
])  # fmt: skip
def test_formulas_that_nobody_works_out_are_endless(formula: str, endless: bool) -> None:
    assert is_endless(f"${formula}$") is endless


@pytest.mark.parametrize(("expected", "stated", "same"), [
    (r"\text{no solution}", r"\emptyset", True), (r"\text{undefined}", r"\text{DNE}", True), (r"\text{undefined}", r"\text{none}", False), ("0", r"\{\}", False),
    ("1", "1", None), (r"\text{impossible}", r"\text{None.}", True), (r"\text{none}", "x", False), (r"\{1\}", r"\text{none}", False), (r"\{ \}", r"\varnothing", True),
    (r"\text{no real solutions}", r"\text{there is no such } x", True), (r"\text{no}", r"\text{no}", None), (r"\text{no solution}", r"\text{1 solution}", False),
])  # fmt: skip
def test_answers_that_there_is_none_are_compared_by_what_they_say(
    expected: str, stated: str, same: bool | None
) -> None:
    assert same_nothing(f"${expected}$", f"${stated}$") is same


@pytest.mark.parametrize(("expected", "stated", "apart"), [
    ("1,2", "(1,2)", True), ("1,2", r"\{1,2\}", None), ("1,2", "2,1", None), ("(1,2)", r"\{1,2\}", True), (r"\{1,2\}", "(1,2)", True), ("(1,2)", "(1,2)", None),
    (r"\{1,2\}", r"\{2,1\}", None), ("(1)", "1", None), ("1", "(1)", None), ("(1,2),(3,4)", "(1,2),(3,4)", None), ("5", "> 5", True), ("> 5", "> 5", None), ("> 5", "5", None), ("3,3", "3", True), ("3", "3,3", True), ("3,3", "3,3", None),
    ("101_2", "101_3", True), ("101_2", "101_{2}", False), ("18", "18_2", True), ("x", "18_2", None), ("101_2", "101", None), ("-1_2", "1_2", True),
    (r"5\text{ million}", "5000000", False), ("5000000", r"5\text{ million}", False), (r"5\text{ million}", r"5\text{ thousand}", True),
    (r"5\text{ km}", r"5\text{ km}", None), (r"5\text{ km}", r"5000\text{ m}", False), (r"5\text{ km}", r"5\text{ kg}", True), (r"5\text{ km}", "5", None), ("5", r"5\text{ km}", None),
    (r"5\text{ km}", r"5000.005\text{ m}", False), (r"5\text{ km}", r"5000.005000001\text{ m}", True), (r"5\text{ m }^2", r"50000\text{ cm}^2", False),
    (r"5\text{ km}, 3\text{ km}", r"5000\text{ m}", True), (r"5\text{ km}", r"5000\text{ m}, 3\text{ m}", True), (r"-5\text{ km}", r"-5000\text{ m}", False), (r"5\text{ km}", r"-5000\text{ m}", True),
    (r"5\text{ apples}", r"5\text{ km}", None), ("5 km", "5 m", True), ("5 km^2", "5 km", True), (r"5\text{ m}^2", r"50000\text{ cm}^{2}", False),
])  # fmt: skip
def test_answers_differ_in_brackets_repetitions_relations_bases_and_units(
    expected: str, stated: str, apart: bool | None
) -> None:
    assert told_apart(f"${expected}$", f"${stated}$") is apart


def test_brackets_tell_pairs_intervals_and_sets() -> None:
    formulas = ("$(1,2)$", r"$\{1\}$", "$(1,2]$", "$1$", "$$", "$($", r"$\left(1,2\right)$")
    assert [brackets(formula) for formula in formulas] == ["(", "{", "", "", "", "", "("]
    opened = ("(1,2)", "(2,1)", "(1,1)", "(-1.5,2)", "(1..2,3)", "(1,2,3)", "[1,2]", "(.,1)")
    assert [is_open_interval(f"${formula}$") for formula in opened] == [True, False, False, True] + [False] * 4
    surely = ("[1,2)", "(1,2]", r"(5,\infty)", "(1,2)", "[1]", "x,[1]", r"\infty,1", "[1,2]")
    assert [is_interval(f"${formula}$") for formula in surely] == [True, True, True, False, False, False, False, True]
    assert elements("$1, (2,3), [4,{5,6}], 7,890$") == ["1", "(2,3)", "[4,{5,6}]", "7890"]


def test_what_a_question_asks_for_is_read_from_its_words() -> None:
    assert [
        asks_for_pair(asked) for asked in ("Find the point.", "Which ordered  pair?", "Find (x, y).", "How many?")
    ] == [True] * 3 + [False]
    assert [asks_for_interval(asked) for asked in ("What is the domain?", "Give the INTERVAL.", "How many?")] == [
        True,
        True,
        False,
    ]
    assert [asks_for_percentage(asked) for asked in ("What percent is it?", "What is 20 percent of 8?")] == [
        True,
        False,
    ]


def test_words_percent_signs_and_bases_are_left_out_where_they_are_no_mathematics() -> None:
    kept = ("$18 million$", "$2 pi$", "$2 one-half$", "$2 Half$", "$x apples$", "$18$")
    assert [without_words(formula) for formula in kept] == list(kept)
    assert [without_words(f"${counted}$") for counted in ("18 square-feet", "-3 cats", "3/4 cup", r"\frac{3}{4} cup")] == [
        "$18$", "$-3$", "$3/4$", r"$\frac{3}{4}$",
    ]  # fmt: skip
    assert without_percent(r"$7\text{ percent}$") == ("$7$", True)
    assert without_percent("$7$") == ("$7$", False)
    assert without_base("$-18_{2}$", "$18$", "In BASE 2?") == "$-18$"
    assert without_base("$18_2$", "$18_2$", "In base 2?") == "$18_2$"
    assert without_base("$18$", "$18$", "In base 2?") == "$18$"


@pytest.mark.parametrize(("gold", "said", "tolerances", "near"), [
    ("3", "3.101", (0.1,), True), ("3", "3.102", (0.1,), False), ("3", "2.899", (0.1,), True), ("1,2", "2.05,1.05", (0.1,), True), ("1,2", "1.05,2.5", (0.1, 0.6), True), ("1,2", "2.5,1.05", (0.1, 0.6), True),
    ("1,2", "1.05,2.5", (0.6, 0.1), False), ("1,1.05", "1.02, 9", (0.1,), False), ("1,2", "1.05", (0.1,), False), ("1", "1.05,2", (0.1,), False),
    (r"\pm 2", "2.05,-2.05", (0.1,), True), (r"\pm 2", "2.05,2.05", (0.1,), False), ("2.05,-2.05", r"\pm 2", (0.1,), True), ("x, 2", "x, 2.05", (0.1,), True),
    ("y, 2", "x, 2.05", (0.1,), False), ("x=2", "x=2.05", (0.1,), True), ("2", "2i", (9.0,), False), ("3", "3.05", (), False), ("3", "3", (0.0,), True),
])  # fmt: skip
def test_numbers_may_be_as_far_from_the_right_ones_as_their_tolerances(
    gold: str, said: str, tolerances: tuple[float, ...], near: bool
) -> None:
    assert equal(gold, rf"\boxed{{{said}}}", tolerances) is near


@pytest.mark.parametrize(("gold", "said", "right"), [
    ("3.33", "10/3 = 3.33", True), ("3", "3.1 = 3", False), ("1000.4", "1000 = 1000.4", True), ("1001", "1000 = 1001", False), ("100001", "100000 = 100001", False), ("-3.33", "-10/3 = -3.33", True), ("5", "2 + 3 = 5", True), ("5", "2 + 3 = 6 = 5", False),
    ("5", "x = 2 + 3 = 5", True), ("3", "2.99 = 3", True), ("3", "2.98 = 3", False), ("-3", "-2.99 = -3", True), ("x=5", "x = 5", True), ("3", "3 = 2.99", False),
])  # fmt: skip
def test_a_chain_of_equations_comes_to_its_last_side_where_none_is_plainly_wrong(
    gold: str, said: str, right: bool
) -> None:
    assert equal(gold, rf"\boxed{{{said}}}") is right


@pytest.mark.parametrize(("gold", "text", "right"), [
    ("1,2", "The roots are $1$ and $2$.", True), ("1,2,3", "$1$, $2$ and $3$", True), ("1,2", "From $0$ we get $1$ and $2$", True), ("0,1,2", "From $0$ we get $1$ and $2$", False),
    ("2", "We add $1$ to get $2$", True), ("5", "It is $5$, not 6", True), ("5", "$4$ is wrong, it is $5$", True), ("x", "$x$ is wrong", False),
    ("5", "So **x = 5** it is", True), ("5", "The answer is $5$. Check: $6$.", True), ("6", "The answer is $5$. Check: $6$.", False), ("5", "The answer is 5 apples", True),
    ("5", "So it is **5** dollars", True), ("5", "**Note** that it is 5", True), ("5", "First 4\n5", True), ("4", "First 4\n5", False), ("5", "5\n\n", True), ("5", "5 or 6", False),
    ("6", "5 or 6", False), ("5", "5 or 6?\nIt is 5", True), ("2,3", "x = 2 and x = 3", True), ("5", r"It costs \$5", True), ("7", r"It costs \$5 and $7$", True), ("5", "$$x = 5$$", True),
    ("5", "The answer is 5.\nOr 6.", True), (r"\pi", r"\boxed{\pi \approx 3.14}", True), ("3.14", r"\boxed{\pi \approx 3.14}", False), ("3.14", r"\boxed{\approx 3.14}", True),
    ("5", r"\boxed{5.}", True), ("5", r"The answer is \(5\)", True), ("5", r"\[4\] \[5\]", True), ("5", "$5$ is not right", False), ("5", "It is not 5", False), ("6", "It is not 5. It is 6", True),
    ("2^{10000}", r"\boxed{2^{10000}}", True), ("5", r"\boxed{2^{10000}}", False), (r"\text{red}", "The answer is Red.", True), (r"\text{red}", "The answer is blue.", False),
    (r"7\%", r"\boxed{7}", True), (r"7\%", r"\boxed{0.07}", True), (r"7\%", r"\boxed{700}", False), ("0.07", r"\boxed{7\%}", True), ("7", r"\boxed{7\%}", False), ("0.5", r"\boxed{\frac12}", True),
    ("(1,2)", r"\boxed{1,2}", True), ("(1,2)", r"\boxed{2,1}", False), ("(1,2)", r"\boxed{1}", False), ("(1,2)", r"\boxed{(1,2)}", True), (r"(1,\infty)", r"\boxed{1,\infty}", False),
    ("[[1,2]]", r"\boxed{[[1,2]]}", True), ("(1,2),(3,4)", r"\boxed{(1,2),(3,4)}", True), ("18_2", r"\boxed{18}", True), ("5", r"<think>\boxed{5}</think> \boxed{6}", False),
])  # fmt: skip
def test_the_answer_of_a_text_is_the_one_that_it_states(gold: str, text: str, right: bool) -> None:
    assert equal(gold, text) is right


@pytest.mark.parametrize(("gold", "said", "question", "right"), [
    ("(2,1)", "2,1", "Give the interval.", True), ("(1,2)", "1,2", "Give the interval.", False), ("(1,2)", "1,2", "Which point?", True), ("(1,2)", "1<x<2", "Which point?", False),
    ("18", "18_2", "Write it in base 2.", True), ("18", "18_2", "How many?", False), ("7", r"7\%", "What percent is it?", True), ("7", r"7\%", "How many?", False),
])  # fmt: skip
def test_what_was_asked_decides_what_an_answer_means(gold: str, said: str, question: str, right: bool) -> None:
    assert equal(gold, rf"\boxed{{{said}}}", question=question) is right


@pytest.mark.parametrize(("gold", "said", "right"), [
    ("x<1 or x>2", "x>2, x<1", True), ("x<1 or x>2", "or x<1 or x>2", True), ("x<1 or x>2", "x<1 or 5", False), ("x<1 or x>2", "0<x<1 or x>2", False),
    ("x+y<1", "x+y<1", True), ("x+y<1", "x+y<2", False), (r"[1,2]\cup[3,4]", r"[3,4]\cup[1,2]", True), (r"[1,2]\cup[3,4]", r"[1,2]\cup[3,5]", False),
    ("1<x<2 or x>3", r"(1,2)\cup(3,\infty)", True), (r"\{1,2\}\cup\{3\}", r"\{1,2,3\}", True),
])  # fmt: skip
def test_inequalities_and_unions_of_intervals_are_compared_as_sets(gold: str, said: str, right: bool) -> None:
    assert equal(gold, rf"\boxed{{{said}}}") is right


def test_every_gold_answer_of_the_sample_is_accepted(graders: ModuleType) -> None:
    golds = graders.golds(SAMPLE)
    assert len(golds) == 46
    for gold in some(golds):
        for form in graders.FORMS:
            assert equal(gold, form.replace("%s", gold)), (gold, form)


def test_wrong_answers_made_of_the_sample_are_rejected(graders: ModuleType) -> None:
    cases = graders.wrong(graders.golds(SAMPLE))
    kinds = {case.kind for case in cases}
    assert {"off by one", "permuted tuple", "interval's end elsewhere", "one left out", "another unit", "sign"} <= kinds
    assert len(cases) > 250
    for case in some(cases, of=12):
        assert not equal(case.gold, case.said), case


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("file", some(["math_train.jsonl", "gsm8k_train.jsonl"]))
def test_answers_to_published_problems_are_graded_right(file: str, graders: ModuleType) -> None:
    """All of them in the night; the whole of it is in benchmarks/results/graders.md."""
    path = SHARED_DATA / file
    if not path.is_file():
        pytest.skip(f"needs the problems at {path}")
    golds = sorted(set(graders.golds(path)))
    for gold in some(golds, of=599):
        assert equal(gold, rf"\boxed{{{gold}}}"), gold
    for case in graders.sampled(graders.wrong(golds), 1000 if NIGHT else 25):
        assert not equal(case.gold, case.said), case


@pytest.mark.slow
def test_what_is_written_to_do_harm_ends_in_time_and_the_next_answer_is_graded_as_ever(
    graders: ModuleType, grader: Grader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    by_day = ("9^9^9^9", "code", r"\input", "braces that open", "a million digits", "half a character")
    for name, said in graders.ATTACKS.items() if NIGHT else [(name, graders.ATTACKS[name]) for name in by_day]:
        began = time.perf_counter()
        with suppress(GradingError):
            assert not grader.equal("5", said), name
        assert time.perf_counter() - began < 5, name
        assert grader.equal("5", r"\boxed{5}"), name
        assert not grader.equal("5", r"\boxed{6}"), name
    assert not list(tmp_path.iterdir()), "code in an answer was run"


class TestProcesses:
    """What a pool of processes is asked, and what becomes of its errors."""

    @pytest.fixture
    def asked(self, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
        asked: list[Any] = []

        class Pool:
            answer: object = 1

            def __init__(self, module: str, processes: int | None) -> None:
                asked.append((module, processes))

            def ask(self, request: object, seconds: float) -> object:
                asked.append((request, seconds))
                if isinstance(self.answer, Exception):
                    raise self.answer
                return self.answer

            def close(self) -> None:
                asked.append("closed")

        monkeypatch.setattr(grading, "Helpers", Pool)
        return asked

    def test_a_pool_is_asked_with_all_that_the_answer_depends_on(self, asked: list[Any]) -> None:
        grader = Grader(2.5, processes=3)
        assert grader.equal("5", "five", (0.1, 0.2), "How many?") is True
        grader.close()
        request = {"gold": "5", "written": "five", "tolerances": [0.1, 0.2], "question": "How many?"}
        assert asked == [("marft.rewards.grader", 3), (request, 2.5), "closed"]

    @pytest.mark.parametrize(("error", "told"), [
        (FailedError("ValueError: x"), "math-verify failed: ValueError: x"), (DiedError(-9), "the grading process died of this answer"),
        (TooSlowError("took over 1 s"), "grading took over 1 s"), (NotStartedError("it did not start"), "grading it did not start"),
    ])  # fmt: skip
    def test_an_answer_that_cannot_be_graded_is_not_wrong(
        self, error: Exception, told: str, asked: list[Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(grading.Helpers, "answer", error, raising=False)
        with pytest.raises(GradingError, match=f"^{re.escape(told)}$"):
            Grader(1.0).equal("5", "5")
        assert asked[0] == ("marft.rewards.grader", None)


def test_an_answer_that_is_too_long_is_none_and_a_long_text_is_read_from_its_end() -> None:
    assert not equal("5", rf"\boxed{{{'0' * LONGEST}5}}")
    assert equal("5", "we add. " * LONGEST + "so it is 5")


@pytest.mark.parametrize("text", ["\\boxed{", "<answer>", "</answer>", "the answer is ", "{", "}", "answer "])
def test_answers_are_found_in_a_million_characters_at_once(text: str) -> None:
    text *= 1_000_000 // len(text)
    began = time.perf_counter()
    find_answer(text)
    stated_answer(text)
    assert time.perf_counter() - began < 3.0


@given(st.lists(st.sampled_from(["\\boxed{", "{", "}", "x"]), max_size=12).map("".join))
def test_the_last_box_that_closes_is_the_one_that_a_search_from_each_would_find(text: str) -> None:
    assert last_boxed(text) == _last_boxed_slowly(text)


def _last_boxed_slowly(text: str) -> str | None:
    for start in reversed([place for place in range(len(text)) if text.startswith("\\boxed{", place)]):
        depth = 0
        for place in range(start + 6, len(text)):
            depth += {"{": 1, "}": -1}.get(text[place], 0)
            if depth == 0:
                return text[start + 7 : place].strip()
    return None
