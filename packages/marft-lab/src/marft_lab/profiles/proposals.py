"""Types of requests to proposers and their proposals."""

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
    """Attempt for a proposer: the task, and the messages by role.

    Messages include tool results, observations and the outcome (:mod:`marft_lab.profiles.transcripts`).
    """

    task: str
    said: tuple[tuple[str, str], ...]

    @staticmethod
    def of(episode: Episode) -> Told:
        """Return an episode as an attempt for a proposer."""
        return Told(episode.task.prompt, transcript(episode))


class Ask(Protocol):
    """Function that asks a policy of the recipe."""

    def __call__(self, policy: str, question: str, sampling: Sampling, /) -> str:
        """Return the reply; "" after a failure.

        Every request has its own random stream.
        """
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """Request to a proposer.

    Args:
        role: role of the agent.
        current: current version of the instructions.
        versions: all current, earlier and tried versions, best first. The current version is first. The others are
            ordered by the lower end of the interval of their measured success (:class:`marft.common.lineage.Worth`).
        failed: failed attempts at training tasks with actions of the agent.
        solved: successful attempts at training tasks with actions of the agent.
        count: maximum number of proposals.
        rng: random generator of the round and the agent.
        ask: function that asks a policy.
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
    """Proposed instructions, with the parent versions and the kind of change."""

    instructions: str
    parents: tuple[int, ...]
    how: str


class Proposer(Protocol):
    """Interface for the proposer in ``[profiles]``."""

    def propose(self, asked: Asked) -> Sequence[Proposal]:
        """Return up to ``asked.count`` proposals.

        The caller drops empty, overlong and known proposals.
        """
        ...


def ranked(versions: Sequence[Version], current: Version) -> list[Version]:
    """Return versions, best first: the current version, then by the lower end of the interval of measured success.

    Ties go to the newest version. The success of a version was measured with the weights at its time. OUR READING: the
    lower end ranks early-dropped versions behind others.
    """
    others = [version for version in versions if version.number != current.number]
    return [current, *sorted(others, key=lambda v: (-(v.worth.low if v.worth else 0.0), -v.number))]
