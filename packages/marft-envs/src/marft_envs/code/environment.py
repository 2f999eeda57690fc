"""Programming problems, generated or from a published dataset."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr, Strict, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.environment import Split
from marft.agents.sandbox.runner import require_isolation
from marft.agents.sandbox.settings import SandboxSettings
from marft.common.types import Task
from marft.config.settings import Fraction, NonNegative, NonNegativeCount, Positive
from marft.envs.table_rows import TablePath
from marft_envs.code.execution import Limits
from marft_envs.code.generator import build_problem, generate_problem
from marft_envs.code.grading import ProblemJudge
from marft_envs.code.loading import Layout, LoadedProblems, ReadOptions, load_problems
from marft_envs.code.phrases import Kind
from marft_envs.code.script import CodeScript
from marft_envs.code.session import CODER, REFLECTOR, TESTER, CodeRules, CodeSession
from marft_envs.generated import GeneratedEnvironment, GeneratedTask

MAX_CACHED_JUDGES = 10_000  # maximum cached problems


class Code(GeneratedEnvironment):
    """Programming problems with hidden tests. Programs run in a jail without the right answers.

    Without ``path``, the problems are generated: small functions on numbers, texts and lists. With ``path``, they are
    rows of a published dataset. With only ``test_path``, the test split alone is from a dataset. The team writes a
    program and, with ``tester``, its own tests. It sees the results of the visible tests. With ``reflector``, an agent
    comments on these results. Then the team writes the next program.
    """

    stream: ClassVar[str] = "Code"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: TablePath = ""  # table of problems, or Hugging Face dataset id; default: generated problems
    # Table for the test split, also for generated problems. Default: a tenth of the tasks.
    test_path: TablePath = ""
    subset: str = ""  # dataset configuration on the Hugging Face Hub
    split: str = "train"  # split to read from a dataset with several splits
    test_split: str = "test"  # split to read from the dataset at test_path
    layout: Layout = "auto"  # column layout of the table; auto detects it
    # Rows that cannot be graded, because they are interactive or have no tests: error raises an error, skip skips them.
    ungradable: Literal["error", "skip"] = "error"
    # Maximum hidden tests per training problem; the first tests are used. 0: all. Validation and test problems always
    # run all tests.
    max_tests: NonNegativeCount = 50
    limit: NonNegativeCount = 0  # maximum tasks per split, for dataset rows; 0: all
    kinds: Annotated[tuple[Kind, ...], Strict(False), Field(min_length=1)] = (
        "number",
        "text",
        "list",
    )  # kinds of input of generated functions
    max_function_steps: Annotated[int, Field(ge=1, le=6)] = 3  # maximum steps of a generated function
    tests: Annotated[int, Field(ge=1, le=100)] = 8  # minimum hidden tests of a generated function
    examples: NonNegativeCount = 1  # shown tests that do not count, if the dataset defines none
    rounds: Annotated[int, Field(ge=1, le=100)] = 1  # maximum programs per episode
    tester: bool = False  # True: an agent named tester writes tests
    # True: an agent named reflector comments on the results before the next program.
    reflector: bool = False
    # all: 1 if every hidden test passes, else 0. fraction: fraction of passed hidden tests.
    reward: Literal["all", "fraction"] = "all"
    # Maximum reward of the tester, for tests that right programs pass and wrong programs fail.
    tester_reward: Fraction = 0.5
    tolerance: NonNegative = 0.0  # tolerance for returned floats and printed numbers
    cpu_seconds: Positive = 2.0  # CPU seconds per test, unless the problem sets its own limit
    # Wall-clock seconds per program for up to 50 tests. The limit grows in proportion beyond 50 tests.
    timeout_seconds: Positive = 20.0
    # Memory limit in MiB, unless the problem sets its own limit.
    memory_mb: Annotated[int, Field(ge=64, le=65536)] = 512
    # Maximum printed or returned output per test, in KiB.
    output_kb: Annotated[int, Field(ge=1, le=65536)] = 256
    # required: programs run in Linux namespaces. none: only resource limits, for machines without namespaces.
    isolation: Literal["required", "none"] = "required"

    _judges: dict[str, ProblemJudge] = PrivateAttr(default_factory=dict)  # judges by task id

    @model_validator(mode="after")
    def _check_settings(self) -> Code:
        if self.rounds == 1 and self.reflector:
            raise PydanticCustomError("code", "a reflector needs rounds of at least 2: it reads what came of the first")
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each missing role."""
        wanted = [role for role, needed in ((TESTER, self.tester), (REFLECTOR, self.reflector)) if needed]
        for role in [*([CODER] if wanted else []), *wanted]:
            if role not in roles:
                yield f"environment: no agent is called {role!r}, which {' and '.join(wanted)} = true need"

    @property
    def episode_limit(self) -> int:
        """Return the maximum steps per episode: one per program, plus one per comment between programs."""
        return 2 * self.rounds - 1 if self.reflector else self.rounds

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
        return self.tester or self.reflector

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a small function."""
        return generate_problem(random, self.kinds, self.max_function_steps, self.tests, self.examples)

    def start(self, task: Task, seed: int) -> CodeSession:  # noqa: ARG002  nothing here is random
        """Create a session."""
        rules = CodeRules(self.rounds, self.tester, self.reflector, self.reward == "fraction", self.tester_reward)
        return CodeSession(self._get_judge(task), rules)

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
