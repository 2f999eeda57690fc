"""The world of programs: drawn problems, published layouts, and how an attempt goes."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pickle
import zlib
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.agents.sandbox.runner import isolation_problem
from marft.common.types import JointAction, Step, Task
from marft.envs.scripted_policy import PolicyInput
from marft_envs.code.environment import Code, CodeSession
from marft_envs.code.execution import JudgeError, Outcome, StdinInput
from marft_envs.code.formats import unpack_tests
from marft_envs.code.generator import (
    PHRASES,
    build_problem,
    evaluate,
    generate_problem,
    parse_steps,
    to_code,
    to_words,
    wrong_expressions,
)
from marft_envs.code.grading import Judgment, ProblemJudge
from tests.episodes import make_action
from tests.nights import some

isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
ROW = {"question": "Add.", "entry": "f", "tests": [{"input": [1, n], "output": 1 + n} for n in range(4)]}


def rows(folder: Path, *found: dict[str, object], name: str = "problems.jsonl", **keys: object) -> Code:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in found), encoding="utf-8")
    return Code(path=str(path), **keys)


def everything(world: Code) -> list[Task]:
    return [task for split in ("train", "validation", "test") for task in world.tasks(split)]  # type: ignore[arg-type]


async def played(world: Code, task: Task, skill: float, seed: int = 0) -> list[Step]:
    """An attempt by the script, agents seeing the last step's texts."""
    script, attempt, random, steps, said = world.script(skill), world.start(task, 0), Random(seed), [], ""
    assert script is not None
    shown = await attempt.reset()
    while not steps or not steps[-1].terminated:
        acted = {}
        for role in shown.turn or ("solver",):
            chat = [{"role": "user", "content": f"{shown.for_role(role)}\n{said}"}]
            acted[role] = make_action(
                role, step=len(steps), text=str(script(PolicyInput(task, role, len(steps), chat, random)))
            )
        answer = acted.get("coder") or acted.get("solver")
        said = "\n".join(action.text for action in acted.values())
        steps.append(await attempt.step(JointAction(answer, tuple(acted.values()))))
        shown = steps[-1].observation
    return steps


@given(st.integers(0, 2**32))
@examples(max_examples=25, deadline=None)
def test_drawn_problems_say_what_their_tests_ask_and_their_tests_tell_right_from_wrong(seed: int) -> None:
    drawing = generate_problem(Random(seed), ("number", "text", "list"), 3, 6, 1)
    problem = build_problem(drawing.data)
    assert json.loads(json.dumps(drawing.data)) == drawing.data
    assert drawing.prompt == problem.statement
    words = problem.statement.splitlines()[0].split(": ", 1)[1].rstrip(".")
    steps = parse_steps(words)
    assert steps is not None
    assert to_words(steps) == words
    code = to_code(steps)
    assert problem.reference == f"def f(x): return {code}"
    inputs = [case.input.arguments[0] for case in problem.cases]  # type: ignore[union-attr]
    assert [evaluate(code, x) for x in inputs] == [case.expected[0] for case in problem.cases]
    assert len(problem.cases) >= 6
    assert not {repr(case.input) for case in problem.examples} & {repr(case.input) for case in problem.cases}
    for wrong in problem.wrong_programs:
        body = wrong.removeprefix("def f(x): return ")
        assert any(evaluate(body, x) != evaluate(code, x) for x in inputs)


def test_functions_that_do_the_same_are_one_task() -> None:
    worlds = [generate_problem(Random(seed), ("number",), 2, 4, 1) for seed in range(400)]
    found: dict[str, set[str]] = {}
    for drawing in worlds:
        found.setdefault(drawing.content, set()).add(drawing.prompt)
    assert any(len(prompts) > 1 for prompts in found.values())


def test_every_phrase_is_read_back_and_has_mistakes() -> None:
    for phrase in PHRASES:
        words = phrase.words.format(n=phrase.low, c="a")
        steps = parse_steps(words)
        assert steps is not None
        assert to_words(steps) == words
        assert to_code(steps) not in wrong_expressions(steps)
    assert parse_steps("plus 3, then fly") is None


@isolated
def test_the_script_solves_what_is_drawn_and_one_without_skill_does_not() -> None:
    world = Code(train_tasks=6, held_out_tasks=1, rounds=2, use_tester=True, use_reflector=True, tests=4)
    for task in world.tasks("train")[:2]:
        (last,) = asyncio.run(played(world, task, 1.0))
        assert (last.reward, last.success, last.info["progress"]) == (1.0, True, 1.0)
        assert 0 < last.agent_rewards["tester"] <= 0.5
    lost = asyncio.run(played(world, world.tasks("train")[0], 0.0, seed=1))
    assert (lost[-1].success, lost[-1].reward) == (False, 0.0)
    assert len(lost) == 3 == world.max_episode_steps
    assert len(world.start(world.tasks("train")[0], 0).judge.problem.cases) >= 4


class Told(ProblemJudge):
    """A judge that has been told what to find: a program is right where its text is."""

    def judge(self, program: str, observation: object) -> Judgment:
        right = program == "right"
        return Judgment(tuple((Outcome("returned", 0), right) for _ in observation), (right, True))  # type: ignore[attr-defined]


def attempt(**rules: object) -> CodeSession:
    world = Code(train_tasks=1, held_out_tasks=1)
    bench = world.start(world.tasks("train")[0], 0).judge
    told = Told(bench.problem, bench.limits, 0.0)
    return CodeSession(told, Code.model_validate({"rounds": 2, **rules}))  # type: ignore[arg-type]


def said(text: str, role: str = "coder") -> JointAction:
    action = make_action(role, text=text)
    return JointAction(action if role != "reflector" else None, (action,))


def test_a_wrong_program_is_shown_with_what_came_of_it_and_may_be_written_anew() -> None:
    async def run() -> None:
        trial = attempt(use_reflector=True)
        shown = await trial.reset()
        assert shown.turn == ("coder",)
        first = await trial.step(said("wrong"))
        assert (first.reward, first.terminated, first.info["progress"]) == (0.0, False, 0.5)
        assert "wrong" in first.observation.text
        assert "gives 0, not" in first.observation.text
        assert first.observation.turn == ("reflector",)
        second = await trial.step(said("Look again.", "reflector"))
        assert second.observation.turn == ("coder",)
        last = await trial.step(said("right"))
        assert (last.reward, last.success, last.terminated) == (1.0, True, True)

    asyncio.run(run())


def test_what_looks_right_ends_and_the_last_round_does_and_a_fraction_may_be_paid() -> None:
    async def run() -> None:
        assert (await attempt(rounds=5).step(said("right"))).terminated
        last = await attempt(rounds=1).step(said("wrong"))
        assert (last.terminated, last.success, last.reward) == (True, False, 0.0)
        assert (await attempt(rounds=1, reward="fraction").step(said("wrong"))).reward == 0.5
        nobody = await attempt(rounds=1).step(JointAction())
        assert nobody.success is False

    asyncio.run(run())


def test_roles_that_the_recipe_promises_have_to_be_there() -> None:
    world = Code(use_tester=True, use_reflector=True, rounds=2)
    assert len(list(world.problems(["coder", "tester"]))) == 1
    assert not list(world.problems(["coder", "tester", "reflector"]))
    assert not list(Code().problems(["solver"]))
    with pytest.raises(ValidationError, match="rounds of at least 2"):
        Code(use_reflector=True)


HUMANEVAL = {
    "task_id": "HumanEval/1", "entry_point": "twice", "canonical_solution": "    return helper(x) * 2\n",
    "prompt": "import math\n\ndef helper(x):\n    return x\n\ndef twice(x):\n    \"\"\" >>> twice(2)\n    4\n    \"\"\"\n",
    "test": "METADATA = {}\n\ndef check(candidate):\n    assert candidate(2) == 4\n    assert candidate([1]) == [1, 1], 'lists'\n",
}  # fmt: skip
MBPP = {
    "task_id": 7, "text": "Write a function to add.", "code": "def add(a, b):\r\n  return a + b", "test_setup_code": "",
    "test_list": ["assert add(1, 2) == 3", "assert add(1, 1) == 2"], "challenge_test_list": ["assert add('a', 'b') == 'ab'"],
}  # fmt: skip
APPS_CALL = {
    "problem_id": 3, "question": "Add.", "starter_code": "def add(a, b):\n", "solutions": json.dumps(["def add(a, b): return a + b"]),
    "input_output": json.dumps({"fn_name": "add", "inputs": [[1, 2], ["a", "b"]], "outputs": [[3], "ab"]}),
}  # fmt: skip
APPS_STDIN = {
    "problem_id": 4,
    "question": "Sum up.",
    "input_output": json.dumps({"inputs": ["1 2\n", ["1", "2"]], "outputs": ["3\n", ["3"]]}),
}
TESTS = [{"input": "[1]\n2", "output": "[3]", "testtype": "functional"}]
LIVE = {
    "question_id": "q1", "question_content": "Add to each.", "starter_code": "class Solution:\n    def add(self, l, n): ...",
    "metadata": json.dumps({"func_name": "add"}), "public_test_cases": json.dumps(TESTS),
    "private_test_cases": base64.b64encode(zlib.compress(pickle.dumps(json.dumps(TESTS * 2)))).decode(),
}  # fmt: skip
CHECKER = "import sys\na, b, c = (open(p).read().split() for p in sys.argv[1:])\nprint(int(sorted(b) == sorted(c)))"
CODEFORCES = {
    "id": "1/A", "title": "Sort", "description": "Print in any order.", "input_format": "Numbers.", "output_format": "The same.",
    "examples": [{"input": "1 2", "output": "1 2"}], "official_tests": [{"input": i, "output": i} for i in ("1 2", "5 4", "7 8")],
    "time_limit": 1.0, "memory_limit": 256.0, "interaction_format": None, "input_mode": "stdio", "generated_checker": CHECKER,
}  # fmt: skip
PUBLISHED = [
    (HUMANEVAL, "HumanEval/1", "    return x + x\n", "def twice(x): return 4"),
    (HUMANEVAL, "HumanEval/1", "def twice(x): return helper(x) + x", "def twice(x): return None"),
    (MBPP, "mbpp/7", "def add(a, b): return a + b", "def add(a, b): return 3"),
    (APPS_CALL, "apps/3", "def add(a, b): return a + b", "def add(a, b): return 3"),
    (APPS_STDIN, "apps/4", "import sys\nprint(sum(map(int, sys.stdin.read().split())))", "print(4)"),
    (LIVE, "q1", "class Solution:\n    def add(self, l, n): return tuple(i + n for i in l)", "def add(l, n): return 3"),
    (CODEFORCES, "1/A", "print(*input().split()[::-1])", "print(1)"),
    (ROW, "problems/0", "def f(a, b): return b + a", "def f(a, b): return 1"),
]  # fmt: skip


@pytest.mark.slow
@isolated
@pytest.mark.parametrize(("row", "name", "right", "wrong"), some(PUBLISHED, of=2))
def test_published_rows_are_read_and_graded(
    row: dict[str, object], name: str, right: str, wrong: str, tmp_path: Path
) -> None:
    world = rows(tmp_path, row)
    (task,) = everything(world)
    assert task.id == name
    bench = world.start(task, 0).judge
    assert bench.problem.test_count
    assert bench.judge(right, bench.problem.examples).pass_rate == 1.0
    assert bench.judge(right, bench.problem.examples).passes_shown
    assert bench.judge(wrong, []).pass_rate < 1.0


def test_what_is_shown_is_not_counted_and_hidden_tests_are_not_in_the_task(tmp_path: Path) -> None:
    (task,) = everything(rows(tmp_path, MBPP, examples=1))
    assert "add(1, 2) == 3" in task.prompt
    assert "add(1, 1)" not in task.prompt
    assert "ab" not in json.dumps(dict(task.data))
    world = rows(tmp_path, MBPP, examples=1)
    assert world.start(everything(world)[0], 0).judge.problem.test_count == 2
    problem = rows(tmp_path, CODEFORCES).start(everything(rows(tmp_path, CODEFORCES))[0], 0).judge.problem
    assert [case.input for case in problem.examples] == [StdinInput("1 2")]
    assert [case.input for case in problem.cases] == [StdinInput("5 4"), StdinInput("7 8")]
    assert (problem.seconds, problem.memory_mb) == (1.0, 256)


def test_held_out_problems_meet_all_their_tests_and_have_time_for_them(tmp_path: Path) -> None:
    many = [{"input": [n, 1], "output": n + 1} for n in range(101)]
    found = [{**ROW, "question": f"Add {n}.", "tests": many} for n in range(40)]
    world = rows(tmp_path, *found, max_tests=50, timeout_seconds=10.0)
    for split, tests, seconds in (("train", 50, 10), ("validation", 100, 20), ("test", 100, 20)):
        benches = [world.start(task, 0).judge for task in world.tasks(split)]  # type: ignore[arg-type]
        assert benches
        assert {(len(bench.problem.cases), bench.limits.all_seconds) for bench in benches} == {(tests, seconds)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({**CODEFORCES, "interaction_format": "Ask."}, "is interactive"), ({**CODEFORCES, "input_mode": "file"}, "reads and writes by 'file'"),
        ({**CODEFORCES, "official_tests": []}, "has no test that is not shown"), ({**CODEFORCES, "time_limit": -1.0}, "no limit"),
        ({**APPS_CALL, "input_output": ""}, "is not JSON"), ({**APPS_CALL, "input_output": "[]"}, "no table"),
        ({**HUMANEVAL, "test": "def check(candidate): pass"}, "asserts nothing"), ({**HUMANEVAL, "entry_point": "other"}, "does not define"),
        ({**MBPP, "test_list": ["assert other(1)"], "challenge_test_list": []}, "call no function"), ({**ROW, "tests": [{}]}, "no list of tests"),
        ({**LIVE, "private_test_cases": "!"}, "neither JSON nor"), ({**LIVE, "public_test_cases": "[{}]"}, "no tests with"),
        ({"a": 1}, "of no layout that is known"), ({**ROW, "question": " "}, "asks nothing"),
    ],
)  # fmt: skip
def test_rows_that_cannot_be_graded_are_refused_with_place_and_remedy_or_left_out(
    change: dict[str, object], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        everything(rows(tmp_path, change))
    assert "problems.jsonl, line 1" in str(caught.value)
    if "layout that" not in words:
        assert 'ungradable = "skip"' in str(caught.value)
        assert everything(rows(tmp_path, change, ungradable="skip")) == []


def test_nothing_is_ever_unpickled(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "boom"),)

    def packed(value: object) -> str:
        return base64.b64encode(zlib.compress(pickle.dumps(value))).decode()

    for harmful in (Bomb(), [json.dumps(TESTS), Bomb()], ["text"], {"a": 1}):
        with pytest.raises(ValueError, match=r"reading it would run it.*json\.dumps"):
            unpack_tests(packed(harmful))
    assert not (tmp_path / "boom").exists()
    assert [unpack_tests(packed(json.dumps(TESTS))), unpack_tests(json.dumps(TESTS))] == [TESTS, TESTS]
    for protocol in range(2, 6):
        assert unpack_tests(base64.b64encode(zlib.compress(pickle.dumps("[1]", protocol))).decode()) == [1]
    for odd in ("", "nonsense", packed("no JSON"), base64.b64encode(zlib.compress(b"x")).decode()):
        with pytest.raises(ValueError):  # noqa: PT011  in whatever words
            unpack_tests(odd)


def test_splits_of_tables_share_no_problem(tmp_path: Path) -> None:
    found = [{**ROW, "question": f"Add {n}.", "id": f"p{n}"} for n in range(60)]
    world = rows(tmp_path, *found, *found[:5])
    names = [task.id for task in everything(world)]
    assert len(names) == len(set(names)) == 60
    assert all(world.tasks(split) for split in ("train", "validation", "test"))  # type: ignore[arg-type]
    test = tmp_path / "test.jsonl"
    test.write_text("".join(json.dumps(row) + "\n" for row in found[:7]))
    own = Code(path=world.path, test_path=str(test), limit=20)
    assert [task.prompt.splitlines()[0] for task in own.tasks("test")] == [f"Add {n}." for n in range(7)]
    assert not {task.prompt for task in own.tasks("test")} & {task.prompt for task in own.tasks("train")}
    assert len(own.tasks("train")) == 20


def test_what_is_drawn_may_be_tested_on_a_file_and_shares_nothing_with_it(tmp_path: Path) -> None:
    drawn_alone = Code(train_tasks=20, held_out_tasks=5, examples=0)
    known = drawn_alone.tasks("train")[0].prompt
    file = tmp_path / "problems.jsonl"
    file.write_text("".join(json.dumps({**ROW, "question": said}) + "\n" for said in ("Add.", known.upper())))
    world = Code(train_tasks=20, held_out_tasks=5, test_path=str(file), examples=0)
    test = world.tasks("test")
    assert [task.id for task in test] == ["problems/0", "problems/1"]
    assert len(world.start(test[0], 0).judge.problem.cases) == 4
    assert [len(world.tasks(split)) for split in ("train", "validation")] == [20, 5]  # type: ignore[arg-type]
    assert known not in {task.prompt for task in world.tasks("train")}
    assert world.tasks("train")[0].id == drawn_alone.tasks("train")[1].id
    assert world.start(world.tasks("train")[0], 0).judge.problem.entry == "f"


@isolated
def test_a_problem_whose_own_solution_fails_its_tests_is_not_graded(tmp_path: Path) -> None:
    near = {"test_list": ["assert add(1, 1) == 2", "assert abs(add(1, 1) - 2) < 1"], "challenge_test_list": []}
    world = rows(tmp_path, {**MBPP, **near, "code": "def add(a, b): return 0"})
    with pytest.raises(JudgeError, match="own right program does not pass the test 'assert abs"):
        world.start(everything(world)[0], 0).judge.judge("def add(a, b): return 0", [])
