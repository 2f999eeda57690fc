"""Programming problems, generated or from a published dataset: the environment, its sessions and its scripted policy.

Agents write programs and tests, run them and revise them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.agents.sandbox.runner import SandboxSettings, require_isolation
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Split
from marft.config.settings import Fraction, NonNegative, NonNegativeCount, Positive
from marft.envs.scripted_policy import PolicyInput
from marft.envs.table_rows import TablePath
from marft_envs.code.execution import Limits
from marft_envs.code.generator import (
    ENTRY_NAME,
    EXAMPLE_WORDS,
    KIND_NAMES,
    ChainStep,
    Kind,
    build_problem,
    evaluate,
    generate_problem,
    make_program,
    parse_steps,
    to_code,
    wrong_expressions,
)
from marft_envs.code.grading import Judgment, ProblemJudge
from marft_envs.code.loading import Layout, LoadedProblems, ReadOptions, load_problems
from marft_envs.code.problems import Case, extract_program, extract_tests, format_report
from marft_envs.generated import GeneratedEnvironment, GeneratedTask

CODER, TESTER, REFLECTOR = "coder", "tester", "reflector"


class CodeSession:
    """Rounds of writing; with a reflector, each later round follows its comment.

    A program runs on the shown cases and on the tester's cases. The team sees only these results. The episode ends when
    all of them are right, or after the last round. Then the hidden tests determine the reward of the last program.
    """

    def __init__(self, judge: ProblemJudge, settings: Code) -> None:
        self.judge, self.settings = judge, settings
        self.program, self.report = "", ""
        self.proposed_tests: list[Case] = []
        self.round, self.awaits_comment = 0, False

    async def reset(self) -> Observation:
        """Return the problem statement."""
        return self._build_observation()

    async def step(self, actions: JointAction) -> Step:
        """Judge the new program and tests, or continue after the reflector's comment."""
        if self.awaits_comment:
            self.awaits_comment = False
            return Step(self._build_observation(), 0.0)
        if actions.answer is not None:
            self.program = extract_program(graded_text(actions.answer))
        tests = actions.for_role(TESTER) if self.settings.use_tester else None
        if tests is not None:
            problem = self.judge.problem
            names = problem.asserts.names if problem.asserts else ()
            self.proposed_tests = extract_tests(graded_text(tests), problem.entry, names)
        self.round += 1
        visible_cases = [*self.judge.problem.examples, *self.proposed_tests]
        verdict = await asyncio.to_thread(self.judge.judge, self.program, visible_cases)
        cases = zip(visible_cases, verdict.shown, strict=True)
        self.report = format_report(tuple((case, outcome, right) for case, (outcome, right) in cases))
        over = verdict.passes_shown or self.round == self.settings.rounds
        if over:
            return await self._final_step(verdict)
        self.awaits_comment = self.settings.use_reflector
        return Step(self._build_observation(), 0.0, info={"progress": verdict.pass_rate})

    async def _final_step(self, verdict: Judgment) -> Step:
        solved = all(verdict.hidden)
        agent_rewards: Mapping[str, float] = {}
        if self.settings.use_tester:
            test_score = await asyncio.to_thread(self.judge.score_tests, self.proposed_tests)
            agent_rewards = {} if test_score is None else {TESTER: self.settings.tester_reward * test_score}
        reward = verdict.pass_rate if self.settings.reward == "fraction" else float(solved)
        return Step(
            Observation(""),
            reward,
            terminated=True,
            agent_rewards=agent_rewards,
            success=solved,
            info={"progress": verdict.pass_rate},
        )

    async def close(self) -> None:
        """No-op: a program that is still running ends by its limits."""

    def _build_observation(self) -> Observation:
        problem = self.judge.problem
        parts = [problem.statement]
        if self.round:
            parts += ["Your program:", self.program or "(none)", self.report]
        return Observation("\n".join(parts), turn=self._roles_in_turn())

    def _roles_in_turn(self) -> tuple[str, ...]:
        """Return the roles in turn; empty if the recipe has neither tester nor reflector."""
        if self.awaits_comment:
            return (REFLECTOR,)
        writers = (CODER, TESTER) if self.settings.use_tester else (CODER,)
        return writers if self.settings.controls_turns else ()


PROMPT_PATTERN = re.compile(r"Write f\(x\), where x is ([a-z ]+): (.+)\.")
HINT_PATTERN = re.compile(r"Return (.+)\.$", re.MULTILINE)
PROGRAM_PATTERN = re.compile(r"^def f\(x\): return .*$", re.MULTILINE)
TEST_COUNT = 2  # number of tests written by the tester
KIND_OF = {name: kind for kind, name in KIND_NAMES.items()}


@dataclass(frozen=True, slots=True)
class CodeScript:
    """Scripted coder, tester and reflector. With ``skill`` 1 it is always right; else it makes typical mistakes."""

    skill: float = 1.0

    def __call__(self, cue: PolicyInput) -> str:
        text = "\n".join(str(message["content"]) for message in cue.messages)
        match = PROMPT_PATTERN.search(text)
        steps = parse_steps(match[2]) if match else None
        if match is None or steps is None:
            return "I do not see what to write."
        is_good = cue.random.random() < self.skill
        if cue.role == TESTER:
            return self._write_tests(cue, KIND_OF[match[1]], steps, is_good)
        if cue.role == REFLECTOR:
            return f"Return {to_code(steps)}." if is_good else "Look at the tests again."
        hint, last = HINT_PATTERN.search(cue.last_message), PROGRAM_PATTERN.search(cue.last_message)
        if hint and is_good:
            return make_program(hint[1])
        if last and not is_good:  # a weak model repeats its previous program
            return last[0]
        return make_program(to_code(steps) if is_good else cue.random.choice(wrong_expressions(steps)))

    def _write_tests(self, cue: PolicyInput, kind: Kind, steps: list[ChainStep], is_good: bool) -> str:
        code = to_code(steps) if is_good else cue.random.choice(wrong_expressions(steps))
        tests_by_input: dict[str, str] = {}
        while len(tests_by_input) < TEST_COUNT:
            x = _draw_small_input(cue, kind)
            tests_by_input[repr(x)] = f"{ENTRY_NAME}({x!r}) == {evaluate(code, x)!r}"
        return "\n".join(tests_by_input.values())


def _draw_small_input(cue: PolicyInput, kind: Kind) -> object:
    """Draw an input that is easy to compute."""
    if kind == "number":
        return cue.random.randint(0, 2)
    if kind == "text":
        return cue.random.choice(EXAMPLE_WORDS)
    return [cue.random.randint(0, 9) for _ in range(cue.random.randint(1, 3))]


MAX_CACHED_JUDGES = 10_000  # maximum cached problems


class Code(GeneratedEnvironment):
    """Programming problems with hidden tests. Programs run in a jail without the right answers.

    Without ``path``, the problems are generated: small functions on numbers, texts and lists. With ``path``, they are
    rows of a published dataset. With only ``test_path``, the test split alone is from a dataset. The team writes a
    program and, with ``use_tester``, its own tests. It sees the results of the visible tests. With ``use_reflector``,
    an agent comments on these results. Then the team writes the next program.
    """

    stream: ClassVar[str] = "Code"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: TablePath = Field(
        default="", description="table of problems, or Hugging Face dataset id; default: generated problems"
    )
    test_path: TablePath = Field(
        default="", description="table of the test split, also with generated problems; default: a tenth of the tasks"
    )
    subset: str = Field(default="", description="dataset configuration on the Hugging Face Hub")
    split: str = Field(default="train", description="split to read from a dataset with several splits")
    test_split: str = Field(default="test", description="split to read from the dataset at test_path")
    layout: Layout = Field(default="auto", description="column layout of the table; auto detects it")
    ungradable: Literal["error", "skip"] = Field(
        default="error", description="interactive rows, and rows without tests: raise an error, or skip"
    )
    max_tests: NonNegativeCount = Field(
        default=50,
        description=(
            "maximum hidden tests per training problem, from the first; 0: no limit. Validation and test problems "
            "always run every test."
        ),
    )
    limit: NonNegativeCount = Field(default=0, description="maximum tasks per split, for dataset rows; 0: no limit")
    kinds: Annotated[tuple[Kind, ...], Strict(False), Field(min_length=1)] = Field(
        default=(
            "number",
            "text",
            "list",
        ),
        description="kinds of input of generated functions",
    )
    max_function_steps: Annotated[int, Field(ge=1, le=6)] = Field(
        default=3, description="maximum steps of a generated function"
    )
    tests: Annotated[int, Field(ge=1, le=100)] = Field(
        default=8, description="minimum hidden tests of a generated function"
    )
    examples: NonNegativeCount = Field(
        default=1, description="number of shown tests, which do not count, if the dataset defines none"
    )
    rounds: Annotated[int, Field(ge=1, le=100)] = Field(default=1, description="maximum programs per episode")
    use_tester: bool = Field(default=False, description="let an agent named tester write tests")
    use_reflector: bool = Field(
        default=False, description="let an agent named reflector comment on the results before the next program"
    )
    reward: Literal["all", "fraction"] = Field(
        default="all", description="all: 1 if every hidden test passes, else 0; fraction: share of passed hidden tests"
    )
    tester_reward: Fraction = Field(
        default=0.5, description="maximum reward of the tester, for tests that separate right from wrong programs"
    )
    tolerance: NonNegative = Field(default=0.0, description="tolerance for returned floats and printed numbers")
    cpu_seconds: Positive = Field(default=2.0, description="CPU seconds per test, unless the problem sets a limit")
    timeout_seconds: Positive = Field(
        default=20.0,
        description="wall-clock seconds per program with up to 50 tests, and proportionally more beyond 50",
    )
    memory_mb: Annotated[int, Field(ge=64, le=65536)] = Field(
        default=512, description="memory limit in MiB, unless the problem sets a limit"
    )
    output_kb: Annotated[int, Field(ge=1, le=65536)] = Field(
        default=256, description="maximum printed or returned output per test, in KiB"
    )
    isolation: Literal["required", "none"] = Field(
        default="required",
        description=(
            "required: run programs in Linux namespaces; none: only resource limits, for machines without namespaces"
        ),
    )

    _judges: dict[str, ProblemJudge] = PrivateAttr(default_factory=dict)  # judges by task id

    @model_validator(mode="after")
    def _check_settings(self) -> Code:
        if self.rounds == 1 and self.use_reflector:
            raise PydanticCustomError("code", "a reflector needs rounds of at least 2: it reads what came of the first")
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each missing role."""
        wanted = [role for role, needed in ((TESTER, self.use_tester), (REFLECTOR, self.use_reflector)) if needed]
        for role in [*([CODER] if wanted else []), *wanted]:
            if role not in roles:
                yield f"environment: no agent is called {role!r}, which {' and '.join(wanted)} = true need"

    @property
    def max_episode_steps(self) -> int:
        """Return the maximum steps per episode: one per program, plus one per comment between programs."""
        return 2 * self.rounds - 1 if self.use_reflector else self.rounds

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the tasks for a split. The data of a dataset task names its row.

        Raises:
            ValueError: a table cannot be read, or a row cannot be used. The message says which, and the remedy.
        """
        return self._dataset.tasks[split] if self.path else super().tasks(split)

    def external_test_tasks(self) -> Sequence[Task]:
        """Return the rows at ``test_path`` if the training problems are generated; else no tasks."""
        return self._dataset.tasks["test"] if self.test_path and not self.path else ()

    @property
    def controls_turns(self) -> bool:  # type: ignore[override]
        """Return True with a tester or reflector: the environment then controls turns."""
        return self.use_tester or self.use_reflector

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a small function."""
        return generate_problem(random, self.kinds, self.max_function_steps, self.tests, self.examples)

    def start(self, task: Task, seed: int) -> CodeSession:  # noqa: ARG002  nothing here is random
        """Create a session."""
        return CodeSession(self._get_judge(task), self)

    def script(self, skill: float = 1.0) -> CodeScript | None:
        """Return the scripted policy for generated problems; None for dataset rows."""
        return None if self.path else CodeScript(skill)

    def _get_judge(self, task: Task) -> ProblemJudge:
        if task.id not in self._judges:
            if len(self._judges) >= MAX_CACHED_JUDGES:
                self._judges.clear()
            problem = build_problem(task.data) if "steps" in task.data else self._dataset.problems[task.id]
            self._judges[task.id] = ProblemJudge(problem, self._limits, self.tolerance)
        return self._judges[task.id]

    @cached_property
    def _limits(self) -> Limits:
        return Limits(self.cpu_seconds, self.timeout_seconds, self.memory_mb, self.output_kb, self.isolation)

    @cached_property
    def _dataset(self) -> LoadedProblems:
        require_isolation(SandboxSettings(isolation=self.isolation))
        wanted = ReadOptions(self.layout, self.ungradable == "skip", self.examples, self.max_tests, self.limit)
        tables = {"train": (self.path, self.split), "test": (self.test_path, self.test_split)}
        return load_problems({split: table for split, table in tables.items() if table[0]}, self.subset, wanted)
