"""Types of requests to proposers and their proposals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from marft.common.prompt_history import PromptVersion
from marft.common.types import Episode, SamplingParams
from marft_lab.prompt_optimization.transcripts import build_transcript


@dataclass(frozen=True, slots=True)
class AttemptTranscript:
    """Attempt for a proposer: the task, and the messages by role.

    Messages include tool results, observations and the outcome (:mod:`marft_lab.prompt_optimization.transcripts`).
    """

    task: str
    messages: tuple[tuple[str, str], ...]

    @staticmethod
    def from_episode(episode: Episode) -> AttemptTranscript:
        """Return an episode as an attempt for a proposer."""
        return AttemptTranscript(episode.task.prompt, build_transcript(episode))


class AskPolicy(Protocol):
    """Function that asks a policy of the recipe."""

    def __call__(self, policy: str, question: str, sampling: SamplingParams, /) -> str:
        """Return the reply; "" after a failure.

        Every request has its own random stream.
        """
        ...


@dataclass(frozen=True, slots=True)
class ProposalRequest:
    """Request to a proposer.

    Args:
        role: role of the agent.
        current: current version of the instructions.
        versions: all current, earlier and tried versions, best first. The current version is first. The others are
            ordered by the lower end of the interval of their measured success
            (:class:`marft.common.prompt_history.PromptScore`).
        failed: failed attempts at training tasks with actions of the agent.
        solved: successful attempts at training tasks with actions of the agent.
        count: maximum number of proposals.
        rng: random generator of the round and the agent.
        ask: function that asks a policy.
    """

    role: str
    current: PromptVersion
    versions: Sequence[PromptVersion]
    failed: Sequence[AttemptTranscript]
    solved: Sequence[AttemptTranscript]
    count: int
    rng: np.random.Generator
    ask: AskPolicy


@dataclass(frozen=True, slots=True)
class Proposal:
    """Proposed instructions, with the parent versions and the kind of change."""

    instructions: str
    parents: tuple[int, ...]
    kind: str


class Proposer(Protocol):
    """Interface for the proposer in ``[prompt_optimization]``."""

    def propose(self, request: ProposalRequest) -> Sequence[Proposal]:
        """Return up to ``request.count`` proposals.

        The caller drops empty, overlong and known proposals.
        """
        ...


def rank_versions(versions: Sequence[PromptVersion], current: PromptVersion) -> list[PromptVersion]:
    """Return versions, best first: the current version, then by the lower end of the interval of measured success.

    Ties go to the newest version. The success of a version was measured with the weights at its time. OUR READING: the
    lower end ranks early-dropped versions behind others.
    """
    others = [version for version in versions if version.number != current.number]
    return [current, *sorted(others, key=lambda v: (-(v.worth.low if v.worth else 0.0), -v.number))]
