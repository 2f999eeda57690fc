"""Types of requests to proposers and their proposals."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from marft.common.prompt_history import PromptVersion
from marft.common.types import SamplingParams
from marft.config.plugins import Plugin
from marft_lab.prompt_optimization.prompts import AttemptTranscript

# request to a policy with its own random stream: policy, question and sampling; the reply is "" after a failure
AskPolicy = Callable[[str, str, SamplingParams], str]


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


class Proposer(Plugin, ABC, kind="proposers", label="a proposer"):
    """Base class for prompt proposers, which write new instructions for an agent."""

    @abstractmethod
    def propose(self, request: ProposalRequest) -> Sequence[Proposal]:
        """Return up to ``request.count`` proposals.

        A pure function of the request and of the replies of the policies that it prompts. The caller drops empty,
        overlong and known proposals.
        """

    @property
    def prompted_policies(self) -> Sequence[str]:
        """Policies in the recipe that the proposer prompts; () if none."""
        return ()


def rank_versions(versions: Sequence[PromptVersion], current: PromptVersion) -> list[PromptVersion]:
    """Return versions, best first: the current version, then by the lower end of the interval of measured success.

    Ties go to the newest version. The success of a version was measured with the weights at its time. OUR READING: the
    lower end ranks early-dropped versions behind others.
    """
    others = [version for version in versions if version.number != current.number]
    return [current, *sorted(others, key=lambda v: (-(v.worth.low if v.worth else 0.0), -v.number))]
