"""Order environment: products of three-digit numbers, one per line, to solve with a tool.

The recipe ``playbook`` trains on this environment. A step shows one line. After a correct answer, the next line
follows; after a wrong one, the same line again. An order ends when all lines are correct, or after twice as many
steps as it has lines. The steps declare the values that metrics need.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

from pydantic import Field

from marft.agents.answers import extract_answer, graded_text
from marft.common.seeds import derive_seed
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Environment, Split
from marft.config.settings import Count
from marft.envs.splits import assign_split

LINE = "Solve the following multiplication: {} * {}. Give only the result as your final answer."
Lines = tuple[tuple[int, int], ...]


def multiply(a: int, b: int) -> int:
    """Multiply."""
    return a * b


class Orders(Environment):
    """Orders with products of three-digit numbers; a task's ``digits`` is the length of its largest product."""

    lines: Count = Field(default=2, description="lines per order")
    train_tasks: Count = 2000
    held_out_tasks: Count = Field(default=500, description="orders in validation, and in test")

    def tasks(self, split: Split) -> list[Task]:
        """Return the orders in a split; no line occurs in two splits."""
        lines = _sample_lines(split)
        number = self.train_tasks if split == "train" else self.held_out_tasks
        orders = (tuple(islice(lines, self.lines)) for _ in range(number))
        return [self._task(f"{split}/{index}", order) for index, order in enumerate(orders)]

    def _task(self, name: str, order: Lines) -> Task:
        digits = max(len(str(a * b)) for a, b in order)
        prompt = "; ".join(f"{a} * {b}" for a, b in order)
        return Task(
            name, f"Work out this order: {prompt}.", {"lines": order, "digits": digits, "fewest_steps": self.lines}
        )

    def start(self, task: Task, seed: int) -> OrderSession:  # noqa: ARG002  no randomness
        """Return a new session."""
        return OrderSession(task.data["lines"])


class OrderSession:
    """One attempt at an order."""

    def __init__(self, lines: Lines) -> None:
        self.lines, self.solved_lines, self.steps = lines, 0, 0

    async def reset(self) -> Observation:
        """Return the first line."""
        return self._observation()

    async def step(self, actions: JointAction) -> Step:
        """Check the team's answer to the current line."""
        a, b = self.lines[self.solved_lines]
        answer = extract_answer(graded_text(actions.answer))
        is_correct = answer.replace(",", "").strip() == str(a * b)
        self.steps += 1
        self.solved_lines += is_correct
        solved = self.solved_lines == len(self.lines)
        return Step(
            Observation("") if solved else self._observation(),
            float(is_correct) / len(self.lines),
            terminated=solved or self.steps == 2 * len(self.lines),
            success=solved,
            info={"progress": self.solved_lines / len(self.lines), "right_tools": ["multiply"]},
        )

    async def close(self) -> None:
        """Do nothing."""

    def _observation(self) -> Observation:
        return Observation(LINE.format(*self.lines[self.solved_lines]))


def _sample_lines(split: Split) -> Iterator[tuple[int, int]]:
    """Yield lines for a split, assigned by their text, without end."""
    random = Random(derive_seed(0, "orders", split))
    while True:
        a, b = random.randint(100, 999), random.randint(100, 999)
        if assign_split(LINE.format(a, b)) == split:
            yield a, b
