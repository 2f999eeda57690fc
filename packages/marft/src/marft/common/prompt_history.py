"""History of the agents' prompt versions: text, origin and measured quality.

Version 0 of an agent comes from the recipe. A lineage only grows, and each agent has one current version.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid")  # reject unknown keys in stored files


@dataclass(frozen=True, slots=True)
class PromptScore:
    """Quality of a prompt version on held-out tasks, with 95 % intervals.

    Args:
        tasks: number of tasks.
        success: fraction of tasks solved.
        low: lower end of the interval of ``success``.
        high: upper end of the interval of ``success``.
        gain: difference in success to the current version, on the same tasks with the same seeds.
        gain_low: lower end of the interval of ``gain``.
        gain_high: upper end of the interval of ``gain``.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    tasks: int
    success: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True, slots=True)
class PromptVersion:
    """Version of an agent's instructions.

    >>> PromptVersion("actor", 1, "Add up.", parents=(0,), how="mutation", by="edits", step=20).name
    'actor v1'

    Args:
        role: role of the agent.
        number: version number, counted from 0.
        instructions: text of the version.
        parents: earlier versions of the same agent that this version derives from.
        how: method: ``"recipe"``, ``"mutation"``, ``"crossover"``, ``"gradient"``, or a name chosen by the proposer.
        by: proposer, with the policy that it prompted and the version of that policy: ``"gradient: critic@40"``.
        step: number of training steps done before.
        accepted: the version became the current one.
        worth: measured quality; None for the recipe's version, which was not compared with another.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    role: str
    number: int
    instructions: str
    parents: tuple[int, ...] = ()
    how: str = "recipe"
    by: str = ""
    step: int = 0
    accepted: bool = True
    worth: PromptScore | None = None

    @property
    def name(self) -> str:
        """Display name: role and version number."""
        return f"{self.role} v{self.number}"


@dataclass(frozen=True, slots=True)
class PromptHistory:
    """All prompt versions in order of trial, the current version per agent, and the total cost.

    Args:
        versions: all versions, in order of trial.
        current: number of the current version, by role.
        rounds: number of finished rounds.
        tokens: tokens used by candidates' episodes and by proposers, prompt tokens included.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    versions: tuple[PromptVersion, ...]
    current: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 0
    tokens: int = 0

    @staticmethod
    def start(instructions: Mapping[str, str]) -> PromptHistory:
        """Return the initial lineage for a recipe.

        Args:
            instructions: recipe text by role, for each role with learned instructions.
        """
        first = tuple(PromptVersion(role, 0, text) for role, text in instructions.items())
        return PromptHistory(first, dict.fromkeys(instructions, 0))

    def for_role(self, role: str) -> tuple[PromptVersion, ...]:
        """Return an agent's versions, oldest first."""
        return tuple(version for version in self.versions if version.role == role)

    def current_version(self, role: str) -> PromptVersion:
        """Return an agent's current version."""
        return next(v for v in self.versions if v.role == role and v.number == self.current[role])

    def current_versions(self) -> tuple[PromptVersion, ...]:
        """Return the current version for each agent."""
        return tuple(map(self.current_version, self.current))

    def ancestors(self, role: str) -> tuple[PromptVersion, ...]:
        """Return an agent's current version and its ancestors by first parents, oldest first."""
        by_number, versions = {version.number: version for version in self.for_role(role)}, [self.current_version(role)]
        while versions[-1].parents:
            versions.append(by_number[versions[-1].parents[0]])
        return tuple(reversed(versions))

    def add_versions(self, versions: Sequence[PromptVersion]) -> PromptHistory:
        """Return the lineage extended by newly tried versions.

        Accepted versions become current. If several versions of an agent are accepted, the last one is current.
        """
        current = {**self.current, **{version.role: version.number for version in versions if version.accepted}}
        return replace(self, versions=(*self.versions, *versions), current=current)

    def roll_back(self, earlier: PromptHistory | None) -> PromptHistory:
        """Return the lineage after a rollback to an earlier state.

        Versions tried since then stay in the history, and the earlier versions become current again.

        Args:
            earlier: lineage at that time; None if no version had been tried.
        """
        return replace(self, current=earlier.current if earlier else dict.fromkeys(self.current, 0))

    def problems(self) -> list[str]:
        """Return descriptions for all inconsistencies.

        Checks: version numbers are in order, parents precede their children, and each current version exists.
        """
        messages, counts = list[str](), dict[str, int]()
        for version in self.versions:
            expected = counts.get(version.role, 0)
            if version.number != expected or any(not 0 <= parent < expected for parent in version.parents):
                messages.append(f"{version.name} is out of order, or has a parent that came later")
            counts[version.role] = expected + 1
        if self.current.keys() != counts.keys():
            messages.append("its agents are not those of its versions")
        messages += [
            f"{role} v{n} is no version" for role, n in self.current.items() if not 0 <= n < counts.get(role, 0)
        ]
        return messages
