"""Programming problems: of a published data set, or drawn."""

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
from marft.config.settings import CountOrNone, Fraction, NotNegative, Positive
from marft.envs.rows import TablePath
from marft_envs.code.drawing import drawn, problem_of
from marft_envs.code.grading import Bench
from marft_envs.code.judging import Limits
from marft_envs.code.loading import Layout, Loaded, Wanted, load
from marft_envs.code.phrases import Kind
from marft_envs.code.script import Programmer
from marft_envs.code.session import CODER, REFLECTOR, TESTER, Attempt, Rules
from marft_envs.drawn import Drawing, Drawn

MOST_BENCHES = 10_000  # problems that are kept at hand


class Code(Drawn):
    """Programming problems whose tests nobody is shown. Programs run in a jail that holds no right answer.

    Without ``path`` they are drawn: small functions of numbers, texts and lists. With it they are rows of a
    published data set; with ``test_path`` alone those of the test are. A team writes a program, may write tests of its
    own (``tester``), is told what came of those that it can see, may have that looked at (``reflector``), and writes
    again.
    """

    stream: ClassVar[str] = "Code"
    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    path: TablePath = ""  # a table of problems, or an id on the hub; "": they are drawn
    test_path: TablePath = ""  # a table for the test split, also of what is drawn; "": a tenth
    subset: str = ""  # of a data set of the hub
    part: str = "train"  # what is read, of a data set that has several parts
    test_part: str = "test"  # the same, of the one at test_path
    layout: Layout = "auto"  # of the table's columns
    ungradable: Literal["refuse", "leave_out"] = "refuse"  # rows that cannot be graded: interactive, without tests
    # hidden tests of a problem to train on, from the first on; 0: all. Of what is held out all are run
    most_tests: CountOrNone = 50
    limit: CountOrNone = 0  # tasks of each split, where they are rows; 0: all
    kinds: Annotated[tuple[Kind, ...], Strict(False), Field(min_length=1)] = (
        "number",
        "text",
        "list",
    )  # that are drawn
    most_steps: Annotated[int, Field(ge=1, le=6)] = 3  # of a function that is drawn
    tests: Annotated[int, Field(ge=1, le=100)] = 8  # hidden ones of a function that is drawn, at least
    examples: CountOrNone = 1  # tests that are shown, and not counted, where the data does not say itself
    rounds: Annotated[int, Field(ge=1, le=100)] = 1  # programs that may be written
    tester: bool = False  # an agent of this name writes tests
    reflector: bool = False  # an agent of this name reads what came of a program before the next one is written
    reward: Literal["all", "fraction"] = "all"  # 1 for all hidden tests, or the share of them that pass
    tester_reward: Fraction = 0.5  # to the tester, for tests that right programs pass and wrong ones do not
    tolerance: NotNegative = 0.0  # of floats that are returned, and of numbers that are printed
    seconds: Positive = 2.0  # of processor time for each test, where the problem sets no limit itself
    all_seconds: Positive = 20.0  # on the clock for up to 50 tests of a program; for more, as much more
    memory_mb: Annotated[int, Field(ge=64, le=65536)] = 512  # where the problem sets no limit itself
    output_kb: Annotated[int, Field(ge=1, le=65536)] = 256  # that is printed or returned, for each test
    isolation: Literal["required", "none"] = "required"  # none: limits alone, where there are no namespaces

    _benches: dict[str, Bench] = PrivateAttr(default_factory=dict)  # by task

    @model_validator(mode="after")
    def _fit_together(self) -> Code:
        if self.rounds == 1 and self.reflector:
            raise PydanticCustomError("code", "a reflector needs rounds of at least 2: it reads what came of the first")
        return self

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Roles that it needs."""
        wanted = [role for role, there in ((TESTER, self.tester), (REFLECTOR, self.reflector)) if there]
        for role in [*([CODER] if wanted else []), *wanted]:
            if role not in roles:
                yield f"environment: no agent is called {role!r}, which {' and '.join(wanted)} = true need"

    @property
    def episode_limit(self) -> int:
        """A step for each program, and one for each look at it but the last."""
        return 2 * self.rounds - 1 if self.reflector else self.rounds

    def tasks(self, split: Split) -> Sequence[Task]:
        """Tasks of a split. The data of a task that is a row says where its problem is from.

        Raises:
            ValueError: a table cannot be read, or a row used; the message says which and what to do.
        """
        return self._rows.tasks[split] if self.path else super().tasks(split)

    def tested_on(self) -> Sequence[Task]:
        """The rows of ``test_path``, where the others are drawn."""
        return self._rows.tasks["test"] if self.test_path and not self.path else ()

    @property
    def says_whose_turn(self) -> bool:  # type: ignore[override]
        """Coder and tester, then the reflector."""
        return self.tester or self.reflector

    def draw(self, random: Random) -> Drawing:
        """A small function."""
        return drawn(random, self.kinds, self.most_steps, self.tests, self.examples)

    def start(self, task: Task, seed: int) -> Attempt:  # noqa: ARG002  nothing here is random
        """An attempt at a problem."""
        rules = Rules(self.rounds, self.tester, self.reflector, self.reward == "fraction", self.tester_reward)
        return Attempt(self._bench(task), rules)

    def script(self, skill: float = 1.0) -> Programmer | None:
        """Plays what is drawn; rows of a table, nobody does."""
        return None if self.path else Programmer(skill)

    def _bench(self, task: Task) -> Bench:
        if task.id not in self._benches:
            if len(self._benches) >= MOST_BENCHES:
                self._benches.clear()
            problem = problem_of(task.data) if "steps" in task.data else self._rows.problems[task.id]
            self._benches[task.id] = Bench(problem, self._limits, self.tolerance)
        return self._benches[task.id]

    @cached_property
    def _limits(self) -> Limits:
        return Limits(self.seconds, self.all_seconds, self.memory_mb, self.output_kb, self.isolation)

    @cached_property
    def _rows(self) -> Loaded:
        require_isolation(SandboxSettings(isolation=self.isolation))
        wanted = Wanted(self.layout, self.ungradable == "leave_out", self.examples, self.most_tests, self.limit)
        tables = {"train": (self.path, self.part), "test": (self.test_path, self.test_part)}
        return load({split: table for split, table in tables.items() if table[0]}, self.subset, wanted)
