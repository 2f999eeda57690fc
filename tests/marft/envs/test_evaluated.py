"""What scorers evaluate of an answer: it never runs, ends in time, and right answers stay right."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import sympy

from marft.envs.reasoning_gym import ReasoningGym
from marft.envs.safe_eval import MAX_LENGTH, check_expression, eval_literal, is_zero, parse_fraction
from tests.nights import NIGHT, some

EVALUATE = (
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "number_sorting", "polynomial_multiplication",
    "puzzle24", "simple_integration", "spiral_matrix", "string_insertion",
)  # fmt: skip


@pytest.mark.parametrize("name", some(EVALUATE))
def test_an_answer_is_never_run(name: str, tmp_path: Path) -> None:
    environment = ReasoningGym(dataset=name, train_tasks=2, held_out_tasks=1)
    task, file = environment.tasks("train")[0], tmp_path / "ran"
    for call in (
        f"open({str(file)!r}, 'w')",
        f"[open({str(file)!r}, 'w')]",
        f"().__class__ or open({str(file)!r}, 'w')",
    ):
        assert environment._grade(task, f"<answer>{call}</answer>").reward == 0.0
        assert not file.exists()


@pytest.mark.parametrize("name", some([*EVALUATE, "coin_flip", "game_of_life_halting"]))
def test_right_answers_stay_right(name: str) -> None:
    environment = ReasoningGym(dataset=name, train_tasks=25 if NIGHT else 4, held_out_tasks=1)
    for task in environment.tasks("train"):
        answer = task.data["entry"]["answer"]
        told_again = "Integral" in answer  # as the package has it where it finds no other words: that solves nothing
        assert environment._grade(task, rf"\boxed{{{answer}}}").success == (not told_again)


@pytest.mark.parametrize("name", ["countdown", "simple_integration", "polynomial_multiplication", "coin_flip"])
def test_an_answer_without_end_is_wrong_in_time(name: str) -> None:
    environment = ReasoningGym(dataset=name, train_tasks=2, held_out_tasks=1)
    task = environment.tasks("train")[0]
    for text in ("9**9**9**9", "((9**99)**99)**99", "exp(exp(exp(99)))", "99999999!", "1e999999999", "1" * 10_000):
        began = time.process_time()
        assert environment._grade(task, f"<answer>{text}</answer>").reward == 0.0
        assert time.process_time() - began < 5.0


@pytest.mark.parametrize("name", ["prime_factorization", "boxnet", "game_of_life", "game_of_life_halting"])
def test_an_answer_that_no_scorer_can_read_is_wrong(name: str) -> None:
    environment = ReasoningGym(dataset=name, train_tasks=2, held_out_tasks=1)
    task = environment.tasks("train")[0]
    for text in ("I do not know.", '{"a": 1}', "[1, 2]", "\0"):
        grade = environment._grade(task, f"<answer>{text}</answer>")
        assert (grade.reward, grade.success) == (0.0, False)


def test_a_scorer_that_reads_nothing_at_all_is_a_fault() -> None:
    environment = ReasoningGym(dataset="chain_sum", train_tasks=2, held_out_tasks=1)
    generator = environment._generators["chain_sum"]
    with pytest.raises(KeyError):
        generator.score("5", {})


def test_arithmetic_is_read_and_nothing_else() -> None:
    for text in (
        " 3*x**2/2 + C",
        "-(x + 1)**(1/2)",
        "x*exp(-3*x)",
        "log(abs(x))",
        "sin(exp(x))",
        "2**(2*x + 1)",
        "pi/3",
    ):
        check_expression(text)
    for text in (
        "x.real", "x[0]", "f'x'", "lambda: x", "foo(x)", "sin", "N(x)", "exp(x, y=1)", "x if x else y", "x == 2", "'x'",
        "3j", "True", "2**(9**9)", "x**exp(9)", "2**1000", "x**1000", "1e-99999", "N",
        "9**200*9**200", "sin(cos(tan(x)))", "1.e9_999", "x" + "+x" * (MAX_LENGTH // 2), "(" * 300, "",
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"arithmetic|worked out|not small"):
            check_expression(text)


def test_values_and_fractions_are_those_that_are_written_out() -> None:
    assert eval_literal("[['a'], [1]]") == [["a"], [1]]
    for text in ("[f(1)]", "[" * 10_000, "{[]: 1}", "\0"):
        with pytest.raises(ValueError, match="no value that is written out"):
            eval_literal(text)
    assert [float(parse_fraction(text)) for text in ("1/4", "-2.5", "1e-3")] == [0.25, -2.5, 0.001]
    for text in ("1e999999999", "1e400", "1e1_000_000_000", "x", "1" * 10_000):
        with pytest.raises(ValueError, match=r"too large|Invalid literal"):
            parse_fraction(text)


@pytest.mark.parametrize(
    ("answer", "integrand", "right"),
    [
        ("x**2 + C", "2*x", True),
        ("sin(x)**2", "2*sin(x)*cos(x)", True),
        ("-cos(2*x)/2", "2*sin(x)*cos(x)", True),
        ("log(3*x)", "1/x", True),
        ("x**2 + x/10000", "2*x", False),
        ("x*sqrt(x**2)/2", "x", False),  # which it is where x is positive
        ("log(abs(x))", "1/x", False),  # of which sympy knows no derivative
        ("C*x", "0*x", False),
        ("C*x", "x", False),  # which it is where C is x
        ("exp(9**100*x**2)", "2*x", False),  # beyond what a number here can be
        ("exp(9**100*x**2) - exp(9**99*x**2)", "2*x", False),
        ("C", "x/10**12", False),  # however little it is
        ("*".join(f"(sin({n}*x) + {n})" for n in range(1, 120)), "x", False),
        ("+".join(f"sin({n}*x)*exp(sin(x)*{n})/(x**{n % 8} + {n})" for n in range(1, 40)), "x", False),
    ],
)
def test_an_integral_is_right_whose_derivative_is_the_integrand_and_none_takes_long(
    answer: str, integrand: str, right: bool
) -> None:
    environment = ReasoningGym(dataset="simple_integration", train_tasks=2, held_out_tasks=1)
    score = environment._generators["simple_integration"].score
    began = time.process_time()
    assert score(answer, {"metadata": {"variable": "x", "integrand": integrand}}) == right
    assert time.process_time() - began < 20.0


def test_what_has_no_finite_value_is_not_0() -> None:
    x = sympy.Symbol("x")
    for expression in (sympy.nan, sympy.oo, sympy.exp(10**6 * x**2), sympy.exp(10**6 * x**2) - sympy.exp(10**7 * x**2)):
        assert not is_zero(expression)
