"""Whether a text states the right answer in mathematics: which of its formulas does, and what that equals."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from marft.rewards.math_answers import MAX_LENGTH, matches_gold


@pytest.mark.parametrize(("gold", "said"), [
    (r"5\text{ m}", r"500\text{ cm}"), (r"864\mbox{ inches}^2", r"864\text{ square inches}"), (r"12\text{ feet}", "12"),
    (r"90\text{ min}", r"1.5\text{ hours}"), (r"\sqrt{2}\text{ cm}", r"\sqrt{2}\text{ cm}"), ("5 km", "5000 m"),
    ("1010_2", "1010_{2}"), ("1010_2", "1010"), (r"\text{A5}_{11}", "A5_{11}"), ("-1,3,3", "3,-1,3"), (r"\{1,2\}", r"\{2,1,1\}"),
    ("1,234", "1234"), ("1", "2x+z=1"), (r"(1,2),(3,\infty)", r"(1,2),(3,\infty)"), ("?", "?"), ("5", "? = 5"), (r"\{1,2\}", r"A = \{1,2\}"), ("5", "5 = 5"),
    (r"\begin{pmatrix}1/2\\1\end{pmatrix}", r"\begin{pmatrix}0.5\\1\end{pmatrix}"), ("x-y", "x-y"), (r"10,\!080", "10080"), ("[1,2]", r"1 \le x \le 2"), (r"(5,\infty)", "x > 5"), (r"1 \le x \le 2", "[1,2]"),
])  # fmt: skip
def test_equal_answers_are_accepted(gold: str, said: str) -> None:
    assert matches_gold(gold, rf"\boxed{{{said}}}")


@pytest.mark.parametrize(("gold", "said"), [
    (r"5\text{ m}", r"5\text{ cm}"), (r"864\mbox{ inches}^2", r"864\text{ inches}"), (r"\sqrt{2}\text{ cm}", r"\sqrt{2}\text{ m}"),
    (r"5\text{ m}", r"5\text{ kg}"), ("5 cm", "5 m"), ("1", "1^{10000}"), (r"\text{no solution}", ""), ("2x+z=1", "1"), (r"2x+z=7\%", "7"), (r"2x+z=7\%", "0.07"),
    (r"\frac{1}{3}", "0.333333"), (r"\begin{pmatrix}1/3\\1\end{pmatrix}", r"\begin{pmatrix}0.333333\\1\end{pmatrix}"), ("1010_2", "1010_3"), ("1010_2", "10_{10}"), ("-1,3,3", "-1,3"), ("3", "3,3"),
    ("[1,2]", "1 < x < 2"), (r"(5,\infty)", r"x \ge 5"), ("(2,1)", "1 < x < 2"), ("5", "x=6"), (r"\text{A}", r"\text{B}"),
])  # fmt: skip
def test_other_units_bases_lists_and_ends_are_other_answers(gold: str, said: str) -> None:
    assert not matches_gold(gold, rf"\boxed{{{said}}}")


@pytest.mark.parametrize(("gold", "said", "tolerances", "near"), [
    ("3", "3.101", (0.1,), True), ("3", "3.102", (0.1,), False), ("3", "2.899", (0.1,), True), ("1,2", "2.05,1.05", (0.1,), True), ("1,2", "1.05,2.5", (0.1, 0.6), True), ("1,2", "2.5,1.05", (0.1, 0.6), True),
    ("1,2", "1.05,2.5", (0.6, 0.1), False), ("1,1.05", "1.02, 9", (0.1,), False), ("1,2", "1.05", (0.1,), False), ("1", "1.05,2", (0.1,), False),
    (r"\pm 2", "2.05,-2.05", (0.1,), True), (r"\pm 2", "2.05,2.05", (0.1,), False), ("2.05,-2.05", r"\pm 2", (0.1,), True), ("x, 2", "x, 2.05", (0.1,), True),
    ("y, 2", "x, 2.05", (0.1,), False), ("x=2", "x=2.05", (0.1,), True), ("2", "2i", (9.0,), False), ("2", r"\sqrt{-4}", (9.0,), False), ("0", "101", (100.0,), True), ("0", "101.1", (100.0,), False), ("x, 2", "2y+z=x, 2.05", (0.1,), True),
    ("2y+z=x, 2", "x, 2.05", (0.1,), False), ("3", "3.05", (), False), ("3", "3", (0.0,), True),
])  # fmt: skip
def test_numbers_may_be_as_far_from_the_right_ones_as_their_tolerances(
    gold: str, said: str, tolerances: tuple[float, ...], near: bool
) -> None:
    assert matches_gold(gold, rf"\boxed{{{said}}}", tolerances) is near


@pytest.mark.parametrize(("gold", "said", "right"), [
    ("3.33", "10/3 = 3.33", True), ("3", "3.1 = 3", False), ("1000.4", "1000 = 1000.4", True), ("1001", "1000 = 1001", False), ("100001", "100000 = 100001", False), ("-3.33", "-10/3 = -3.33", True), ("5", "2 + 3 = 5", True), ("5", "2 + 3 = 6 = 5", False),
    ("5", "x = 2 + 3 = 5", True), ("3", "2.99 = 3", True), ("3", "2.98 = 3", False), ("-3", "-2.99 = -3", True), ("x=5", "x = 5", True), ("3", "3 = 2.99", False), ("0", "0 = 0", True), ("2+3=5", "2+3=5", True), ("x=5", "2+3=5", False),
    ("200", "199.0 = 200", True), ("-199", "-200.0 = -199", True), ("-200", "-199.0 = -200", True), ("199", "200.01 = 199", False),
])  # fmt: skip
def test_a_chain_of_equations_comes_to_its_last_side_where_none_is_plainly_wrong(
    gold: str, said: str, right: bool
) -> None:
    assert matches_gold(gold, rf"\boxed{{{said}}}") is right


@pytest.mark.parametrize(("gold", "text", "right"), [
    ("1,2", "The roots are $1$ and $2$.", True), ("1,2,3", "$1$, $2$ and $3$", True), ("1,2", "$1$,$2$", True), ("2", "$1$, $y$ $2$", True), ("1,2", "From $0$ we get $1$ and $2$", True), ("0,1,2", "From $0$ we get $1$ and $2$", False),
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
    (" red ", "The answer is Red.", True), ("1/2", "So it is **1/2** of the 3 parts.", True), ("x", "It is not 5\nx", True), ("5", "5 is not right", False), (r"\emptyset", "", False),
    (" Tuesday ", "The answer is Tuesday, because it rains.", True), (" red ", "It is **red**, as step 3 says.", True), ("5", "Is it **5**? No, $6$", False), ("5", "The answer is 5, because 2 + 3 = 5.", True),
    ("[1,2)", r"The answer is $1 \le x < 2$.", True), (r"\{1,2\}", r"The answer is $1 < x < 2$.", False), ("1,2", r"The answer is $1 < x < 2$.", False),
    ("x<1", "The answer is $y<1$.", False), ("x<1", "The answer is $1>x$.", True), (r"(-\infty,1)", "The answer is $y<1$.", True), ("x<1 or x>3", "The answer is $x<1$ or $y>3$.", False),
    ("x<-2 or x>2", "The answer is $x^2 > 4$.", True), ("x<1 or x>3", "The answer is $x < 1$ or, $x > 3$.", True), ("x<1 or x>3", "The answer is x<1 or , x>3", True),
    ("5", "The answer is 5 because 6 is too large.", True), ("6", "The answer is 5 because 6 is too large.", False),
    ("6", "The answer is not 5, but 6.", True), ("6", "The answer is Not 5, But 6.", True), ("5", "The answer is not 5, but 6.", False), ("6", "The answer is not $5$ but $6$, because 5 is odd.", True), ("5", "The answer is not 5, but who knows.", False), ("5", "The answer is not 5.", False),
    ("5", "The answer is 5, since 6 is too large.", True), ("6", "The answer is 5, since 6 is too large.", False), ("5", "The answer is $5$, not $6$.", True),
    ("6", "The answer is not $5$, but $6$.", True), ("5", "The answer is not $5$, but $6$.", False), ("1,2", "The answer is $1$, $2$, as $3$ is none.", True),
    ("5", "The answer is\n\n5", True), ("5", "The answer is 5. \n", True),
])  # fmt: skip
def test_the_answer_of_a_text_is_the_one_that_it_states(gold: str, text: str, right: bool) -> None:
    assert matches_gold(gold, text) is right


@pytest.mark.parametrize(("gold", "said", "question", "right"), [
    ("(2,1)", "2,1", "Give the interval.", True), ("(1,2)", "1,2", "Give the interval.", False), ("(1,2)", "1<x<2", "Give the interval.", True), ("(1,2)", "1,2", "Which point?", True), ("(1,2)", "1<x<2", "Which point?", False),
    ("18", "18_2", "Write it in base 2.", True), ("18", "18_2", "How many?", False), ("7", r"7\%", "What percent is it?", True), (r"7\%", "0.07", "What percent is it?", True), ("7", r"7\%", "How many?", False),
])  # fmt: skip
def test_what_was_asked_decides_what_an_answer_means(gold: str, said: str, question: str, right: bool) -> None:
    assert matches_gold(gold, rf"\boxed{{{said}}}", question=question) is right


@pytest.mark.parametrize(("gold", "said", "right"), [
    ("x<1 or x>2", "x>2, x<1", True), ("x<1 or x>2", "or x<1 or x>2", True), ("x<1 or x>2", "x<1 or 5", False), ("x<1 or x>2", "0<x<1 or x>2", False),
    ("x+y<1", "x+y<1", True), ("x+y<1", "x+y<2", False), (r"[1,2]\cup[3,4]", r"[3,4]\cup[1,2]", True), (r"[1,2]\cup[3,4]", r"[1,2]\cup[3,5]", False),
    ("1<x<2 or x>3", r"(1,2)\cup(3,\infty)", True), (r"\{1,2\}\cup\{3\}", r"\{1,2,3\}", True),
])  # fmt: skip
def test_inequalities_and_unions_of_intervals_are_compared_as_sets(gold: str, said: str, right: bool) -> None:
    assert matches_gold(gold, rf"\boxed{{{said}}}") is right


def test_an_answer_that_is_too_long_is_none_and_a_long_text_is_read_from_its_end() -> None:
    assert not matches_gold("5", rf"\boxed{{{'0' * MAX_LENGTH}5}}")
    assert matches_gold("5", "we add. " * MAX_LENGTH + "so it is 5")


def test_answers_are_compared_on_any_thread() -> None:
    with ThreadPoolExecutor(1) as threads:
        assert threads.submit(matches_gold, "5", r"\boxed{5}").result()
