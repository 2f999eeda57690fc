"""What a proposer is told, and what it gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marft.common.lineage import Version
from marft.common.types import Episode, Sampling
from marft_lab.profiles.transcripts import transcript


@dataclass(frozen=True, slots=True)
class Told:
    """An attempt that a proposer reads: the task, and who said what, by role, with tools' answers, what the environment
    showed, and what came of it (:mod:`marft_lab.profiles.transcripts`)."""

    task: str
    said: tuple[tuple[str, str], ...]

    @staticmethod
    def of(episode: Episode) -> Told:
        return Told(episode.task.prompt, transcript(episode))


class Ask(Protocol):
    """Asks a policy of the recipe."""

    def __call__(self, policy: str, question: str, sampling: Sampling, /) -> str:
        """What it says; "" where it cannot be asked. Every question has a random stream of its own."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """What a proposer is told.

    Args:
        role: of the agent that is to be told something else.
        current: what it is told.
        versions: all that it was told before or that was tried, the current one among them, best first: by the lower
            end of the interval of what each was worth (:class:`marft.common.lineage.Worth`), the current one before
            all.
        failed: attempts at training tasks that the agent acted in.
        count: how many proposals are wanted, at most.
        rng: of the round and the agent.
    """

    role: str
    current: Version
    versions: Sequence[Version]
    failed: Sequence[Told]
    solved: Sequence[Told]
    count: int
    rng: np.random.Generator
    ask: Ask


@dataclass(frozen=True, slots=True)
class Proposal:
    """New instructions, the versions that they were made of, and how."""

    instructions: str
    parents: tuple[int, ...]
    how: str


class Proposer(Protocol):
    """What ``[profiles] proposer`` names."""

    def propose(self, asked: Asked) -> Sequence[Proposal]:
        """Up to ``asked.count`` proposals; what is empty, too long or known already is dropped by whoever asks."""
        ...


def ranked(versions: Sequence[Version], current: Version) -> list[Version]:
    """Versions, best first: the current one, then by the lower end of the interval of what they were worth, the newest
    of equals first. What a version was worth was measured with the weights of its time, and the lower end keeps those
    behind that were dropped early: our reading."""
    others = [version for version in versions if version.number != current.number]
    return [current, *sorted(others, key=lambda v: (-(v.worth.low if v.worth else 0.0), -v.number))]
