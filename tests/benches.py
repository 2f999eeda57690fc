"""Benches whose player gives episodes that are made beforehand: parts of ``marft worth`` without games."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from marft.common.types import Episode, Observation, Task, Transition
from marft.config import RunSettings
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.variants import TeamVariant, VariantPlayer
from tests.episodes import make_action
from tests.helpers import settings


@cache
def run_of(*roles: str, answering: str = "", frozen: str = "", other_model: str = "") -> RunSettings:
    """A recipe whose agents have a policy each, of one model but for one of another; the last agent answers.

    Args:
        answering: other agents that answer.
        frozen: policies that are not trained.
    """
    agents = [
        {"role": role, "policy": role, "answers": role == roles[-1] or role in answering.split()} for role in roles
    ]
    policies = {
        role: {
            "model": "other" if role == other_model else "base", "train": "frozen" if role in frozen.split() else "lora"
        }
        for role in roles
    }  # fmt: skip
    models = {name: {"path": "tiny"} for name in ("base", *(["other"] if other_model else []))}
    return settings(agents=agents, policies=policies, models=models)


def attempt(
    task: str = "t", *, sample: int = 0, reward: float = 0.0, success: bool | None = None, said: Sequence[str] = ("x",),
    roles: Sequence[str] = ("a",), cost: int = 5, **changes: Any,
) -> Episode:  # fmt: skip
    """One attempt in which each agent says something, one after another.

    Args:
        cost: tokens that each action reads and writes, two of which are written.
    """
    actions = tuple(
        make_action(role, index=index, text=text, task=task, sample=sample, prompt=(5,) * (cost - 2))
        for index, (role, text) in enumerate(zip(roles, said, strict=True))
    )
    fields = {
        "actions": actions, "status": "terminated", "success": success,
        "transitions": (Transition(Observation("?"), reward),), **changes,
    }  # fmt: skip
    return Episode(Task(task, "?"), "test/worth", sample, **fields)


@dataclass
class Plays:
    """A player that is told what comes of an arm."""

    tasks: Sequence[Task]
    of: Callable[[TeamVariant], Sequence[Episode]]
    played: list[TeamVariant] = field(default_factory=list)

    def play(self, arm: TeamVariant) -> list[Episode]:
        self.played.append(arm)
        return list(self.of(arm))


@dataclass
class Told:
    """A bench, and what it was told."""

    judge: ComparisonContext
    player: Plays
    notes: list[tuple[str, str]]
    expected: dict[str, int]


def told(
    run: RunSettings, of: Callable[[TeamVariant], Sequence[Episode]], tasks: Sequence[str] = ("t",), *,
    samples: int = 1,
    weights: Mapping[str, str] | None = None, crossed: Sequence[str] = (), options: ComparisonOptions | None = None,
    player: Plays | None = None,
) -> Told:  # fmt: skip
    """A bench on which ``of`` says what is played, the team's arm included, whose weights are those of ``last``."""
    notes: list[tuple[str, str]] = []
    expected: dict[str, int] = {}
    player = player or Plays([Task(task, "?") for task in tasks], of)
    arm = TeamVariant(weights or dict.fromkeys(run.trained_policies, "last"), samples=samples)
    bench = ComparisonContext(
        run, options or ComparisonOptions(samples=samples), cast("VariantPlayer", player), arm, crossed,
        lambda part, text: notes.append((part, text)), expected.__setitem__,
    )  # fmt: skip
    return Told(bench, player, notes, expected)
