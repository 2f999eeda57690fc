"""Where agents' instructions come from: every version that was tried, who made it of what, and what it was worth.

Version 0 of an agent is the recipe's. A lineage only grows; of each agent one version is current.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from pydantic import ConfigDict

STRICT = ConfigDict(extra="forbid")  # of what is read: no keys that nobody knows


@dataclass(frozen=True, slots=True)
class Worth:
    """What a version was worth on held-out tasks when it was tried: the share solved, and what it gained over the
    current version on the same tasks under the same seeds, each with the ends of its 95 % interval."""

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    tasks: int
    success: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float


@dataclass(frozen=True, slots=True)
class Version:
    """One text that an agent was told, or was to be.

    >>> Version("actor", 1, "Add up.", parents=(0,), how="mutation", by="edits", step=20).name
    'actor v1'

    Args:
        parents: versions of the same agent that it was made of.
        how: it was made: ``"recipe"``, ``"mutation"``, ``"crossover"``, ``"gradient"``, or a proposer's own word.
        by: the proposer, and the policy that it asked with the version of its weights: ``"gradient: critic@40"``.
        step: training steps that were done.
        accepted: whether it became the current one.
        worth: None of the recipe's own, which was not tried against any.
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
    worth: Worth | None = None

    @property
    def name(self) -> str:
        return f"{self.role} v{self.number}"


@dataclass(frozen=True, slots=True)
class Lineage:
    """All versions in the order in which they were tried, the current one of each agent, and what it all took.

    Args:
        rounds: that are over.
        tokens: that candidates' episodes and proposers have taken, those of prompts included.
    """

    __pydantic_config__: ClassVar[ConfigDict] = STRICT

    versions: tuple[Version, ...]
    current: Mapping[str, int] = field(default_factory=dict)
    rounds: int = 0
    tokens: int = 0

    @staticmethod
    def begun(instructions: Mapping[str, str]) -> Lineage:
        """The lineage of a recipe.

        Args:
            instructions: by the roles whose instructions may change.
        """
        first = tuple(Version(role, 0, text) for role, text in instructions.items())
        return Lineage(first, dict.fromkeys(instructions, 0))

    def of(self, role: str) -> tuple[Version, ...]:
        """An agent's versions, oldest first."""
        return tuple(version for version in self.versions if version.role == role)

    def now(self, role: str) -> Version:
        """An agent's current version."""
        return next(v for v in self.versions if v.role == role and v.number == self.current[role])

    def told(self) -> tuple[Version, ...]:
        """What agents are told now."""
        return tuple(map(self.now, self.current))

    def ancestry(self, role: str) -> tuple[Version, ...]:
        """The current version of an agent and what it came from by first parents, oldest first."""
        by_number, found = {version.number: version for version in self.of(role)}, [self.now(role)]
        while found[-1].parents:
            found.append(by_number[found[-1].parents[0]])
        return tuple(reversed(found))

    def tried(self, versions: Sequence[Version]) -> Lineage:
        """The lineage after versions were tried, of which those that are accepted are current from now on, the last of
        an agent for good."""
        current = {**self.current, **{version.role: version.number for version in versions if version.accepted}}
        return replace(self, versions=(*self.versions, *versions), current=current)

    def back_to(self, before: Lineage | None) -> Lineage:
        """The lineage of a run that has gone back to where ``before`` was its own, None where nothing had been tried:
        what was tried since is known, and what was current then is again."""
        return replace(self, current=before.current if before else dict.fromkeys(self.current, 0))

    def problems(self) -> list[str]:
        """What is wrong with it: numbers that are not in order, parents that come later, a current one that is none."""
        found, counts = list[str](), dict[str, int]()
        for version in self.versions:
            expected = counts.get(version.role, 0)
            if version.number != expected or any(not 0 <= parent < expected for parent in version.parents):
                found.append(f"{version.name} is out of order, or has a parent that came later")
            counts[version.role] = expected + 1
        if self.current.keys() != counts.keys():
            found.append("its agents are not those of its versions")
        found += [f"{role} v{n} is no version" for role, n in self.current.items() if not 0 <= n < counts.get(role, 0)]
        return found
