"""The judge of programs: what comes of a program is seen from outside, and compared there."""

from __future__ import annotations

import ast
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from marft.agents.sandbox.runner import isolation_problem
from marft_envs.code import problems
from marft_envs.code.assert_tests import split_check
from marft_envs.code.comparison import OutputReader
from marft_envs.code.execution import FunctionCall, Limits, Outcome, StdinInput, run_programs
from marft_envs.code.grading import ProblemJudge, make_mutants
from marft_envs.code.plain_values import decode, encode, safe_repr, tuples_to_lists, values_equal
from marft_envs.code.problems import (
    AssertTests,
    Case,
    Problem,
    extract_program,
    format_report,
    outcome_passes,
    outputs_match,
)
from tests.cheats import FAIR, HONEST, PROBLEM, cheats, some_cheats
from tests.nights import BY_NIGHT, NIGHT

SHORT = Limits(seconds=1, all_seconds=2, output_kb=64)
isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
values = st.recursive(
    hashable | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hashable, inner, max_size=3) | st.tuples(inner),
    max_leaves=8,
)


def typed(value: object) -> object:
    """A value with the types of all that is in it: 1 and True and 1.0 are equal, and not the same."""
    if isinstance(value, list | tuple):
        return type(value).__name__, [typed(item) for item in value]
    if isinstance(value, dict):
        return [(typed(key), typed(item)) for key, item in value.items()]
    return type(value).__name__, value


@given(values)
@examples(max_examples=40)
def test_every_plain_value_crosses_the_wall_and_stays_what_it_is(value: object) -> None:
    assert typed(decode(encode(value))) == typed(value)


@given(
    st.text(max_size=40)
    | st.recursive(st.integers() | st.text(), lambda i: st.dictionaries(st.text(), i) | st.lists(i)).map(repr)
)
@examples(max_examples=40)
def test_whatever_else_comes_over_the_wall_is_refused_in_words(text: str) -> None:
    with suppress(ValueError):
        decode(text)


COLLIDING = [{"i": f"{number * (2**61 - 1):x}"} for number in range(2**14)]  # all of them have the hash 0


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (json.dumps({"s": COLLIDING}), "more than 16 keys of one hash"),
        (json.dumps({"z": COLLIDING}), "more than 16 keys of one hash"),
        (json.dumps({"d": [[key, 1] for key in COLLIDING]}), "more than 16 keys of one hash"),
        (json.dumps([{"s": [{"t": [key, "a"]} for key in COLLIDING]}]), "more than 16 keys of one hash"),
        ("1" * 10**6, "too many digits"),
        ("0." + "1" * 10**6, "too many digits"),
        (json.dumps({"f": "1" * 10**6}), "no number"),
        ("[" * 10**5, "no value: RecursionError"),
    ],
    ids=["set", "frozenset", "dict", "tuples", "integer", "real", "float", "deep"],
)  # fmt: skip
def test_no_text_takes_more_than_linear_time_to_decode(text: str, why: str) -> None:
    began = time.process_time()
    with pytest.raises(ValueError, match=why):
        decode(text)
    assert time.process_time() - began < 4


def test_values_whose_hashes_collide_are_compared_as_a_set_in_linear_time() -> None:
    case = Case(FunctionCall("f"), ([1, 2],), as_set=True)
    began = time.process_time()
    assert not outcome_passes(case, Outcome("returned", [number * (2**61 - 1) for number in range(2**15)]), 0.0)
    assert [outcome_passes(case, Outcome("returned", value), 0.0) for value in ([2, 1, 1], [1], [1, 2, 3], 5, [[1], 2])] == [
        True, False, False, False, False,
    ]  # fmt: skip
    assert time.process_time() - began < 4


@isolated
@pytest.mark.slow
def test_a_program_finds_no_input_but_its_own() -> None:
    spy = (
        "import gc, sys\n"
        "def look(depth):\n"
        "    frames = [sys._getframe(n) for n in range(1, depth)]\n"
        "    return str([f.f_locals for f in frames]) + str([f.f_globals for f in frames])\n"
        "def f(x):\n"
        "    depth = 1\n"
        "    while True:\n"
        "        try: sys._getframe(depth)\n"
        "        except ValueError: break\n"
        "        depth += 1\n"
        "    seen = look(depth - 1) + str([o for o in gc.get_objects() if isinstance(o, (dict, list))])\n"
        "    return ['in' + 'put-' + n in seen for n in 'abc']"
    )
    found = run_programs([spy], [FunctionCall("f", (f"input-{name}",)) for name in "abc"], SHORT)[0]
    assert [decode(out.value) for out in found] == [[name == here for name in "abc"] for here in "abc"]


class Sly(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


def test_what_derives_from_a_plain_value_crosses_without_its_own_equality() -> None:
    assert type(decode(encode(Sly(3)))) is int
    assert not values_equal(decode(encode([Sly(3)])), [4])
    for strange in (object(), range(3), {1: object()}):
        with pytest.raises(TypeError, match="no plain value"):
            encode(strange)


def test_numbers_may_be_off_by_a_tolerance_where_one_of_them_is_a_float() -> None:
    assert values_equal([1.0, {"a": 2.0}], [1.0 + 1e-9, {"a": 2}], 1e-6)
    assert not values_equal(10, 11, 0.5)
    assert not values_equal([1.0], [1.0, 2.0], 0.5)
    assert not values_equal((1, 2), [1, 2], 0.5)
    assert not values_equal(1e308, 10**400, 0.1)
    assert tuples_to_lists({"a": ((1,),)}) == {"a": [[1]]}


@pytest.mark.parametrize(
    ("right", "printed", "alike"),
    [
        ("1\n2\n", "1\n2", True), ("1 2", "1  2", True), ("a b", "a  b", False), ("1", "1.0", True), ("YES", "yes", False),
        ("1\n\n2", "1\n2", False), ("nan", "NaN", True), ("inf", "1e999999", False), ("1", "", False), ("0.1", "0.1000001", False),
        ("1\n2", "1", False), ("1", "1\n2", False), ("1 2", "1", False),
    ],
)  # fmt: skip
def test_printed_texts_are_compared_line_by_line_and_numbers_as_numbers(right: str, printed: str, alike: bool) -> None:
    assert outputs_match(right, printed) is alike


def test_any_of_several_right_values_is_right_and_nothing_that_failed_is() -> None:
    case = Case(FunctionCall("f"), ([5], 5), as_json=True)
    assert outcome_passes(case, Outcome("returned", 5), 0)
    assert outcome_passes(case, Outcome("returned", (5,)), 0)
    assert not outcome_passes(case, Outcome("returned", 6), 0)
    assert not outcome_passes(case, Outcome("raised", 5), 0)


@isolated
def test_each_input_meets_the_program_alone_and_what_fails_loses_itself() -> None:
    program = (
        "seen = []\ndef f(x):\n    seen.append(x)\n    if x == 0: raise KeyError('no')\n    return seen, 10**25 * x"
    )
    found = run_programs([program, "def f(:"], [FunctionCall("f", (x,)) for x in (1, 0, 2)], SHORT)
    assert [(out.status, decode(out.value) if out.is_ok else out.value) for out in found[0]] == [
        ("returned", ([1], 10**25)), ("raised", ""), ("returned", ([2], 2 * 10**25))
    ]  # fmt: skip
    assert "KeyError" in found[0][1].error
    assert "line 4" in found[0][1].error
    assert {out.status for out in found[1]} == {"raised"}
    assert "SyntaxError" in found[1][0].error


@isolated
def test_programs_that_read_and_print_end_as_python_ends_them() -> None:
    program = (
        "import atexit, sys, threading\natexit.register(print, 'bye')\n"
        "def main(): print(input()[::-1], sys.argv[1], open('note').read())\n"
        "threading.Thread(target=main).start()\nif __name__ == '__main__': print('hi')"
    )
    found = run_programs(
        [program], [StdinInput("añ\n", ("word",), {"note": "N"}), StdinInput("", ("word",), {"note": "N"})], SHORT
    )[0]
    assert sorted(found[0].value.split("\n")) == ["", "bye", "hi", "ña word N"]
    ended = run_programs([f"print(1)\n{end}" for end in ("exit()", "quit()", "exit(3)")], [StdinInput("")], SHORT)
    assert [(row[0].status, row[0].value) for row in ended] == [("returned", "1\n")] * 2 + [("raised", "")]


@isolated
def test_the_class_solution_is_asked_where_there_is_no_such_function() -> None:
    found = run_programs(
        ["class Solution:\n def g(self, x): return x"], [FunctionCall("g", (4,)), FunctionCall("h")], SHORT
    )[0]
    assert decode(found[0].value) == 4


@BY_NIGHT
@pytest.mark.slow
@isolated
def test_time_output_and_memory_have_limits_for_each_input() -> None:
    program = (
        "import time\ndef f(x):\n    if x == 0: return 'fine'\n    if x == 1: return bytearray(1 << 31)\n"
        "    if x == 2: return 'x' * 100_000\n    while True: pass"
    )
    found = run_programs([program], [FunctionCall("f", (x,)) for x in (1, 2, 0, 3)], SHORT)[0]
    assert [out.status for out in found] == ["raised", "too_much_output", "returned", "timed_out"]
    asleep = run_programs(["import time\ntime.sleep(9)"], [FunctionCall("f")] * 3, SHORT)[0]
    assert [out.status for out in asleep] == ["timed_out", "not_run", "not_run"]  # no time is left for them
    slow = Limits(seconds=1, all_seconds=20)
    assert [out.status for out in run_programs(["while True: pass"], [FunctionCall("f")] * 4, slow)[0]][2:] == [
        "not_run"
    ] * 2


@pytest.mark.slow
@isolated
def test_no_cheat_earns_more_than_its_honest_part() -> None:
    """A few by day, and all of over 600 in the night."""
    chosen = list(cheats()) if NIGHT else some_cheats(20)
    bench = ProblemJudge(PROBLEM, Limits(seconds=1, all_seconds=1.5, output_kb=16), 0.0)
    with ThreadPoolExecutor(2) as pool:
        shares = list(pool.map(lambda cheat: bench.judge(cheat.program, []).pass_rate, chosen))
    assert {cheat.name: share for cheat, share in zip(chosen, shares, strict=True) if share > FAIR} == {}
    assert len(list(cheats())) > 500


@isolated
def test_honest_programs_earn_what_they_do() -> None:
    """The check above can fail: what is right is paid for."""
    bench = ProblemJudge(PROBLEM, SHORT, 0.0)
    assert bench.judge("def f(x): return 7 * x + 1", []).pass_rate == 1.0
    verdict = bench.judge(HONEST, [Case(FunctionCall("f", (9,)), (64,)), Case(FunctionCall("f", (1,)), (8,))])
    assert (verdict.pass_rate, len(verdict.hidden)) == (FAIR, 8)  # what is shown is not counted
    assert [right for _, right in verdict.shown] == [False, True]
    assert not verdict.passes_shown


CHECK = """
def check(candidate):
    import random
    limit = 1e-6
    assert candidate([1, 2]) == 3, "why"
    assert abs(candidate([1.5]) - 1.5) < limit
    for _ in range(3):
        x = [random.randint(0, 9) for _ in range(4)]
        assert candidate(helper(x)) == sum(x)
    assert candidate([candidate([1, 1]), 5]) == 7
"""
REFERENCE = "def helper(x): return x\ndef total(x):\n    s = 0\n    for i in x: s += i\n    return s\n"


@BY_NIGHT
@pytest.mark.slow
@isolated
def test_tests_that_are_code_see_values_alone_and_programs_never_see_the_tests() -> None:
    tests = tuple(split_check(CHECK))
    assert len(tests) == 4
    bench = ProblemJudge(
        Problem("", "total", asserts=AssertTests(REFERENCE, ("total",), tests), reference=REFERENCE), SHORT, 0.0
    )
    assert bench.judge("def total(x): return sum(x)", []).hidden == (True,) * 4
    assert bench.judge("def total(x): return 3", []).hidden == (True, False, False, False)
    sly = "class E:\n    def __eq__(s, o): return True\n    def __sub__(s, o): return 0\ndef total(x): return E()"
    assert bench.judge(sly, []).pass_rate == 0
    spied = "any(''.join(['candidate([1.', '5])']) in str(o) for o in gc.get_objects())"
    spy = f"import gc\ndef total(x): return 3 if {spied} else sum(x)"
    assert bench.judge(spy, []).pass_rate == 1


@isolated
def test_what_an_agent_tests_is_worth_what_it_lets_through_and_what_it_catches() -> None:
    problem = Problem(
        "",
        "f",
        cases=(Case(FunctionCall("f", (2,)), (4,)),),
        reference="def f(x): return x * 2",
        wrong_programs=("def f(x): return x + 2", "def f(x): return 0"),
    )
    bench = ProblemJudge(problem, SHORT, 0.0)
    assert bench.score_tests(problems.extract_tests("f(3) == 6", "f", ())) == 1.0
    assert bench.score_tests(problems.extract_tests("f(2) == 4", "f", ())) == 0.5  # one of the wrong ones does that too
    assert (
        bench.score_tests(problems.extract_tests("f(3) == 6\nf(3) == 7\nf(4) == 9", "f", ())) == 0.5
    )  # of two, one is wrong
    assert (
        bench.score_tests(problems.extract_tests("f(2) == 4\nf(4) == 9", "f", ())) == 0.25
    )  # a wrong test catches nothing
    assert bench.score_tests([]) == 0.0
    assert ProblemJudge(Problem("", "f"), SHORT, 0.0).score_tests([]) is None


def test_programs_are_found_in_what_agents_write() -> None:
    assert extract_program("```\na\n```\ntext\n```python\nb\n```\n```text\nc\n```") == "b\n"
    assert extract_program(" def f(x): return 1 ") == "def f(x): return 1"
    assert extract_program("```python\nnot closed") == "not closed"


def test_tests_are_found_in_what_agents_write_and_nonsense_is_passed_over() -> None:
    text = (
        "assert f(1, y=[2]) == (3,)\ng(1) == 2\nf(x) == 1\nf(1) < 2\nf(1) == open('x')\nf("
        + "(" * 500
        + "\nf(1, y=[2]) == 4"
    )
    (case,) = problems.extract_tests(text, "f", ())
    assert (case.input, case.expected) == (FunctionCall("f", (1,), {"y": [2]}), ((3,),))
    pair = problems.extract_tests("Input:\n3\n4\nOutput:\n7\n\nInput: 1\nOutput: 1", "", ())
    assert [(one.input, one.expected[0].strip()) for one in pair] == [
        (StdinInput("3\n4\n"), "7"),
        (StdinInput("1\n"), "1"),
    ]


@given(st.text(max_size=200), st.sampled_from(["f", ""]))
def test_whatever_an_agent_writes_can_be_read(text: str, entry: str) -> None:
    extract_program(text)
    assert len(problems.extract_tests(text, entry, ())) <= 8


def test_no_answer_is_so_odd_that_an_attempt_fails_for_it() -> None:
    """A program that could make its attempt fail would be dropped, and never pay for being wrong."""
    deep: object = 0
    for _ in range(5000):
        deep = [deep]
    case = Case(FunctionCall("f", (10**5000,)), (10**5000,), as_json=True)
    for value in (10**5000, deep, float("nan"), "\ud800"):
        outcome_passes(case, Outcome("returned", value), 1e-6)
        assert safe_repr(value)
        (compared,) = OutputReader(9).compare_outputs(
            [case], [Outcome("returned", encode(0 if value is deep else value))], 1e-6
        )
        assert format_report(((case, *compared),)).startswith("f(a value too long to show) gives ")
    for text in ("[" * 10**5, "nonsense", '{"f": "1"}', '{"t": 1}', "\x00"):
        ((outcome, right),) = OutputReader(9).compare_outputs([case], [Outcome("returned", text)], 1e-6)
        assert (outcome.status, right, outcome.error[:12]) == ("raised", False, "it returned ")
    for printed in ("sNaN", "1e999999999999999999999", "-1e999999 2", "9" * 5000, "1_000", "\ud800"):
        assert not outputs_match("1", printed, 0.1)
        assert not outputs_match(printed, "2", 0.1)


def test_mutants_differ_from_the_program_and_from_each_other() -> None:
    program = (
        "def f(x):\n    if x < 3 and x != 1:\n        return x + 2\n    return [i for i in range(x) if i % 2 == 0]"
    )
    found = make_mutants(program)
    assert len(set(found)) == len(found) > 5
    assert ast.unparse(ast.parse(program)) not in found
    assert all(compile(text, "mutant", "exec") for text in found)
