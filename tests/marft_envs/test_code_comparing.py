"""What programs return and print is read in processes that can be killed; the process that trains handles texts."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from marft.common.processes.process_pool import NotStartedError, ProcessExitedError, ProcessPool, RequestTimeoutError
from marft_envs.code import assert_tests, comparison, execution, plain_values, problems
from marft_envs.code.assert_tests import run_asserts
from marft_envs.code.comparison import OutputReader
from marft_envs.code.execution import FunctionCall, JudgeError, Limits, Outcome, StdinInput
from marft_envs.code.grading import ProblemJudge
from marft_envs.code.problems import AssertTests, Case, Problem
from tests.marft.agents.test_processes import descendants
from tests.marft_envs.test_code_judging import SHORT, isolated
from tests.nights import BY_NIGHT

DOUBLE = Problem("", "f", cases=tuple(Case(FunctionCall("f", (x,)), (2 * x,)) for x in range(3)))
CASE = Case(FunctionCall("f", (1,)), (2,))
SAID = Outcome("returned", "2")


@pytest.fixture
def reads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process can neither decode a value nor compare one; what it encodes for others it does."""

    def refuse(*arguments: object, **_: object) -> None:
        raise AssertionError(f"in the process that trains: {str(arguments)[:100]}")

    for module in (plain_values, execution, assert_tests, comparison):
        monkeypatch.setattr(module, "decode", refuse, raising=False)
    for name in ("outcome_passes", "values_equal", "tuples_to_lists", "outputs_match"):
        monkeypatch.setattr(problems, name, refuse)


def nested(size: int) -> str:
    """The text of a list of empty lists."""
    return f"[{'[],' * (size // 3)}[]]"


@pytest.mark.slow
@isolated
@pytest.mark.usefixtures("reads_nothing")
class TestInTheProcessThatTrains:
    def test_nothing_that_a_function_returned_is_decoded(self) -> None:
        verdict = ProblemJudge(DOUBLE, SHORT, 0.0).judge("def f(x): return 2 * x if x < 2 else [x]", [CASE])
        assert verdict.hidden == (True, True, False)
        assert verdict.shown == ((SAID, True),)

    def test_nothing_that_was_printed_is_compared(self) -> None:
        cases = tuple(Case(StdinInput(f"{x}\n"), (f"{2 * x}.0",)) for x in range(3))
        verdict = ProblemJudge(Problem("", cases=cases), SHORT, 0.0).judge(
            "x = int(input())\nprint(min(x * 2, 3))", cases[:1]
        )
        assert verdict.hidden == (True, True, False)
        assert verdict.shown == ((Outcome("returned", "'0'"), True),)

    def test_nothing_that_a_checker_is_told_is_read(self) -> None:
        checker = "import sys\nprint(int(len(open(sys.argv[3]).read()) < 100_000))"
        cases = tuple(Case(StdinInput(f"{x}\n"), ("",)) for x in (9, 200_000, 8))
        asked = Problem("", cases=cases, checker=checker)
        limits = Limits(seconds=1, all_seconds=5)
        assert ProblemJudge(asked, limits, 0.0).judge("print('é' * int(input()))", []).hidden == (True, False, True)

    def test_nothing_that_tests_are_told_is_decoded(self) -> None:
        tests = ("assert f(f(3)) == [[3]]", "assert sorted(f(0)) == [0]", "try:\n    f(-1)\nexcept ValueError: pass")
        before = "def f(x):\n    if x == -1: raise ValueError\n    return [x]"
        bench = ProblemJudge(Problem("", "f", asserts=AssertTests(before, ("f",), tests)), Limits(), 0.0)
        assert bench.judge(before, []).hidden == (True, True, True)
        assert bench.judge("def f(x): return [x] if x != 3 else 7", []).hidden == (False, True, True)

    def test_what_agents_tests_are_worth_is_found_elsewhere(self) -> None:
        asked = Problem("", "f", reference="def f(x): return x * 2", wrong_programs=("def f(x): return 0",))
        assert ProblemJudge(asked, SHORT, 0.0).score_tests([CASE]) == 1.0


MILLIONS = """
import os
def f(x):
    if x < 2: return 2 * x
    text = memoryview(b'=[' + b'[],' * (1 << 22) + b'[]]')
    for number in range(3, 32):
        written = 0
        try:
            while written < len(text): written += os.write(number, text[written:])
        except OSError: pass
    os._exit(0)
"""


@pytest.mark.slow
@isolated
def test_a_program_that_returns_millions_of_lists_is_wrong_in_time_and_the_next_is_judged_as_before() -> None:
    bench = ProblemJudge(DOUBLE, Limits(seconds=5, all_seconds=3, output_kb=20_000), 0.0)
    began = time.monotonic()
    with longest_hold() as holds:
        compared = bench.run_cases(MILLIONS, DOUBLE.cases)
    assert [right for _, right in compared] == [True, True, False]
    assert compared[2][0].error in ("it returned what takes too long to read", "")  # a fast machine reads it in time
    assert time.monotonic() - began < 60
    assert max(holds) < 2
    assert bench.judge("def f(x): return 2 * x", []).hidden == (True, True, True)


@contextmanager
def longest_hold() -> Iterator[list[float]]:
    """Seconds for which this thread was not let go on."""
    holds, ends = [0.0], threading.Event()

    def tick() -> None:
        last = time.perf_counter()
        while not ends.wait(0.001):
            now = time.perf_counter()
            holds.append(now - last)
            last = now

    ticking = threading.Thread(target=tick)
    ticking.start()
    yield holds
    ends.set()
    ticking.join()


@pytest.mark.slow
class TestTextsThatAreTooMuch:
    def test_of_time_are_wrong_and_the_reason_is_told(self) -> None:
        ((outcome, right),) = OutputReader(0.2).compare_outputs([CASE], [Outcome("returned", nested(2**22))], 0.0)
        assert (outcome, right) == (Outcome("raised", None, "it returned what takes too long to read"), False)
        assert OutputReader(9).compare_outputs([CASE], [SAID], 0.0) == [(SAID, True)]

    @BY_NIGHT
    def test_of_memory_are_wrong_and_the_reason_is_told(self) -> None:
        text = f"[{'[[]],' * 2**22}[]]"
        ((outcome, right),) = OutputReader(99).compare_outputs([CASE], [Outcome("returned", text)], 0.0)
        assert not right
        assert outcome.error.startswith("it returned what takes too ")
        assert OutputReader(9).compare_outputs([CASE], [SAID], 0.0) == [(SAID, True)]

    def test_together_take_what_one_program_may(self) -> None:
        found = [SAID, *[Outcome("returned", nested(2**21))] * 40, SAID]
        began = time.monotonic()
        compared = OutputReader(1.5).compare_outputs([CASE] * 42, found, 0.0)
        assert time.monotonic() - began < 30
        assert compared[0] == (SAID, True)
        assert compared[-1][0].error == "it returned what takes too long to read, with what came before it"

    def test_printed_are_wrong_too(self) -> None:
        case = Case(StdinInput(""), ("1 " * 100,))
        ((outcome, right),) = OutputReader(0.05).compare_outputs([case], [Outcome("returned", "1.0 " * 2**21)], 0.0)
        assert (outcome.status, right) == ("raised", False)
        assert outcome.error.startswith("it printed what takes too long")


@pytest.mark.slow
def test_what_is_shown_of_a_long_value_is_short() -> None:
    case = Case(StdinInput(""), ("1",))
    for about, text in ((CASE, json.dumps("a" * 10**5)), (case, "a" * 10**5)):
        ((outcome, right),) = OutputReader(9).compare_outputs([about], [Outcome("returned", text)], 0.0)
        assert not right
        assert len(outcome.value) < 300


@pytest.mark.slow
class TestProcesses:
    def test_one_that_others_kill_is_replaced_and_costs_nobody_an_answer(self, monkeypatch: pytest.MonkeyPatch) -> None:
        helpers = ProcessPool("marft_envs.code.comparison_process", 1)
        monkeypatch.setattr(comparison, "_helpers", lambda: helpers)
        before = children()
        OutputReader(9).compare_outputs([CASE], [SAID], 0.0)
        (process,) = children() - before
        os.kill(process, signal.SIGSTOP)
        threading.Timer(0.2, os.kill, (process, signal.SIGKILL)).start()  # in the middle of the next request
        assert OutputReader(9).compare_outputs([CASE], [SAID], 0.0) == [(SAID, True)]
        (other,) = children() - before
        os.kill(other, signal.SIGKILL)
        assert OutputReader(9).compare_outputs([CASE], [SAID], 0.0) == [(SAID, True)]
        helpers.close()
        assert children() == before

    def test_without_any_nothing_is_judged(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(comparison, "_helpers", lambda: ProcessPool("marft.no_such_module", 1))
        with pytest.raises(JudgeError, match=r"no process compares results: marft\.no_such_module did not start"):
            OutputReader(9).compare_outputs([CASE], [SAID], 0.0)

    def test_errors_say_what_happened(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        program = (
            "import os, time\nfrom marft.common.processes.process_pool import serve\n"
            "serve(lambda request: eval(request))"
        )
        (tmp_path / "evaluates.py").write_text(program)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        helpers = ProcessPool("evaluates", 1)
        assert helpers.request("1 + 1", 9) == 2
        with pytest.raises(RequestTimeoutError, match=r"took over 0\.2 s"):
            helpers.request("time.sleep(9)", 0.2)
        with pytest.raises(ProcessExitedError, match="exit status 3"):
            helpers.request("os._exit(3)", 9)
        assert helpers.request("2 + 2", 9) == 4
        helpers.close()
        with pytest.raises(NotStartedError):
            ProcessPool("no_such_module_at_all", 1).request(0, 9)


def children() -> set[int]:
    """Processes of this one that live."""
    return set(descendants(os.getpid()))


@pytest.mark.slow
@isolated
class TestTestsThatAreCode:
    TESTS = ("assert f(1) == 1", "try:\n    f(2)\n    assert False\nexcept ValueError: pass", "assert f(f(3)) == 3")

    def held(self, program: str) -> list[bool]:
        asserts = AssertTests("", ("f",), self.TESTS)
        calls = tuple(plain_values.encode(["f", [x], {}]) for x in (1, 2, 3))
        return run_asserts(asserts, program, calls, SHORT)

    def test_what_cannot_be_read_fails_its_own_test_and_is_no_expected_error(self) -> None:
        """As if the program had raised an error of another kind."""
        forged = """
import os
def f(x):
    if x == 3: return x
    for number in range(3, 32):
        try: os.write(number, {1: b'=1', 2: b'=%s'}[x])
        except OSError: pass
    os._exit(0)
"""
        for text in ("nonsense", '{"f": "1"}', "[" * 9999):
            assert self.held(forged % text) == [True, False, True]
        assert self.held("def f(x):\n    if x == 2: raise ValueError\n    return x") == [True, True, True]

    def test_calls_that_follow_from_what_was_returned_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert self.held("def f(x): return x if isinstance(x, int) else 3") == [True, False, True]
        long = "def f(x): return ['a' * 50_000] if x == 3 else 3 if isinstance(x, list) else x"
        assert self.held(long) == [True, False, True]
        monkeypatch.setattr(assert_tests, "MAX_NEW_TEXT", 10_000)
        assert self.held(long) == [True, False, False]

    def test_what_is_recorded_is_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(assert_tests, "MAX_RECORDED", 100)
        assert self.held("def f(x): return 'a' * 1000 if x == 1 else x") == [False, False, True]
