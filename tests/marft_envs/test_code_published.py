"""Published collections of problems, graded as their own judges grade them."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import pytest

from marft.agents.sandbox.runner import isolation_problem
from marft.envs.table_rows import Row
from marft_envs.code.execution import FunctionCall, Limits, Outcome, run_programs
from marft_envs.code.formats import FORMATS
from marft_envs.code.grading import ProblemJudge
from marft_envs.code.problems import Problem
from marft_envs.code.problems import outcome_passes as was_right

SHORT = Limits(seconds=2, all_seconds=8, output_kb=64)
isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")


def problem(layout: str, row: dict[str, Any], shown: int = 1) -> Problem:
    return FORMATS[layout](Row("rows, line 1", row), shown).problem


def live(entry: str, given: str, right: str, starter: str = "") -> Problem:
    test = {"input": given, "output": right, "testtype": "functional" if entry else "stdin"}
    return problem("livecodebench", {
        "question_content": "Do.", "starter_code": starter, "metadata": json.dumps({"func_name": entry} if entry else {}),
        "public_test_cases": "[]", "private_test_cases": json.dumps([test]),
    })  # fmt: skip


def apps(entry: str, given: Any, right: Any) -> Problem:
    tests = {"inputs": [given], "outputs": [right]} | ({"fn_name": entry} if entry else {})
    return problem("apps", {"question": "Do.", "input_output": json.dumps(tests)})


def passes(asked: Problem, program: str) -> bool:
    return all(ProblemJudge(asked, SHORT, 0.0).judge(program, []).hidden)


class TestNamesThatThereAre:
    @isolated
    @pytest.mark.parametrize("layout", ["livecodebench", "apps"])
    def test_a_program_that_goes_on_from_its_starter_needs_no_imports(self, layout: str) -> None:
        starter = "class Solution:\n    def total(self, nums: List[int]) -> int:\n        "
        asked = live("total", "[1, 2]", "3") if layout == "livecodebench" else apps("total", [[1, 2]], 3)
        assert passes(asked, starter + "return sum(Counter(nums).elements()) + floor(sqrt(0)) + len(deque())")
        deep = "def down(n): return n and 1 + down(n - 1)\n" + starter + "return down(20_000) - 20_000 + sum(nums)"
        assert passes(asked, deep)
        assert passes(live("", "1 2", "3"), "print(sum(map(int, stdin.readline().split())))")

    @isolated
    def test_what_is_there_already_is_nobodys_answer(self) -> None:
        asked = live("factorial", "3", "6", "class Solution:\n    def factorial(self, n: int) -> int:")
        assert not passes(asked, "pass")
        assert passes(
            asked, "class Solution:\n    def factorial(self, n: int) -> int:\n        return math.factorial(n)"
        )
        assert passes(apps("gcd", [4, 6], 2), "from math import gcd")

    @isolated
    def test_lines_are_those_of_the_program_and_so_are_imports_of_the_future(self) -> None:
        bench = ProblemJudge(live("f", "1", "1"), SHORT, 0.0)
        ((outcome, _),) = bench.run_cases(
            "from __future__ import annotations\ndef f(x: Unknown):\n    return 1 / 0", bench.problem.cases
        )
        assert outcome.error == "ZeroDivisionError: division by zero (line 3)"
        later = "from __future__ import annotations\nimport no_such_module_at_all if False else math\n"
        broken = run_programs(["def f(x): return x"], [FunctionCall("f", (1,))], SHORT, later)[0][0]
        assert (broken.status, broken.error[:11]) == ("raised", "SyntaxError")
        kept = run_programs(
            ["def f(x: Unknown): return x"], [FunctionCall("f", (1,))], SHORT, "from __future__ import annotations"
        )
        assert kept[0][0].value == "1"


JUDGED = """
import numpy as np
from math import inf

def is_floats(x) -> bool:
    return isinstance(x, float) or isinstance(x, (list, tuple)) and all(isinstance(i, float) for i in x)

def assertion(out, exp, atol):
    exact_match = out == exp
    if atol == 0 and is_floats(exp):
        atol = 1e-6
    if not exact_match and atol != 0:
        assert np.allclose(out, exp, rtol=1e-07, atol=atol)
    else:
        assert exact_match, f"out: {out}, exp: {exp}"
"""
AS_SETS = JUDGED.replace("    if atol", "    out = set(out)\n    exp = set(exp)\n    if atol")
LOOP = "for i, (inp, exp) in enumerate(zip(inputs, results)):\n    assertion(%s(*inp), exp, 0)\n"


def mbpp_plus(inputs: str, results: str, judged: str = JUDGED) -> dict[str, Any]:
    return {
        "task_id": 2, "code": "def f(x):\n    return x", "prompt": "Write f.", "source_file": "…", "test_imports": [],
        "test_list": ["assert f(1) == 1", "assert f(2) == 2"], "test": f"{judged}\ninputs = {inputs}\nresults = {results}\n{LOOP % 'f'}",
    }  # fmt: skip


def humaneval_plus(inputs: str, results: str, loop: str = LOOP % "candidate") -> dict[str, Any]:
    check = f"inputs = {inputs}\nresults = {results}\n{loop}".replace("\n", "\n    ")
    return {
        "task_id": "HumanEval/0", "entry_point": "f", "canonical_solution": "    return x\n", "prompt": "def f(x):\n",
        "test": f"{JUDGED}\ndef check(candidate):\n    {check}\n",
    }  # fmt: skip


class TestEvalPlus:
    def test_its_tests_are_the_ones_that_count_and_what_is_shown_is_not_among_them(self) -> None:
        asked = problem("mbpp", mbpp_plus("[[1], [3], [-inf]]", "[1, (3,), -inf]"))
        assert [case.input for case in asked.examples] == [FunctionCall("f", (1,))]
        assert [(case.input, case.expected) for case in asked.cases] == [
            (FunctionCall("f", (3,)), ((3,),)), (FunctionCall("f", (-inf,)), (-inf,))
        ]  # fmt: skip
        asked = problem("humaneval", humaneval_plus("[[1], [3]]", "[1, 3]"))
        assert [case.input for case in asked.cases] == [FunctionCall("f", (1,)), FunctionCall("f", (3,))]
        assert not asked.asserts

    @pytest.mark.parametrize(
        ("right", "value", "is_right"),
        [
            ("[1.5]", [1.5 + 9e-7], True), ("[1.5]", [1.5 + 2e-6], False), ("1e6", 1e6 + 0.09, True), ("1e6", 1e6 + 0.2, False),
            ("[1.5, 'a']", [1.5 + 9e-7, "a"], False), ("(1, 2)", [1, 2], False), ("[]", [], True), ("3", 3.0, True),
        ],
    )  # fmt: skip
    def test_floats_may_be_off_as_there(self, right: str, value: object, is_right: bool) -> None:
        (case,) = problem("humaneval", humaneval_plus("[[1]]", f"[{right}]")).cases
        assert was_right(case, Outcome("returned", value), 0.0) is is_right

    def test_some_compare_sets(self) -> None:
        (case,) = problem("mbpp", mbpp_plus("[[7]]", "[(4, 5)]", AS_SETS)).cases
        values = ([5, 4, 4], {4, 5}, (4,), [[4], 5], 4)
        assert [was_right(case, Outcome("returned", value), 0.0) for value in values] == [
            True,
            True,
            False,
            False,
            False,
        ]

    @pytest.mark.parametrize(
        "row",
        [
            mbpp_plus("[[7]]", "[True]", "def assertion(out, exp, atol):\n    exact_match = exp == (out is not None)\n"),
            mbpp_plus("[[7]]", "[unknown]"), mbpp_plus("[[7]]", "[1, 2]"), mbpp_plus("[7]", "[1]"),
            humaneval_plus("[[7]]", "[1]", "for i, inp in enumerate(inputs):\n    assertion(candidate(*inp), ref_func(*inp), 0)"),
        ],
    )  # fmt: skip
    def test_rows_that_are_judged_otherwise_are_refused(self, row: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="more than inputs, results and whether they are equal"):
            problem("mbpp" if "test_list" in row else "humaneval", row)

    def test_other_tests_beside_those_of_mbpp_are_refused(self) -> None:
        with pytest.raises(ValueError, match="has tests beside test_list"):
            problem("mbpp", {**mbpp_plus("[]", "[]"), "test": "assert f(3) == 3"})
        assert problem("mbpp", {**mbpp_plus("[]", "[]"), "test": ""}).test_count == 1
