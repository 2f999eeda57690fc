"""Textual gradients: a policy criticizes instructions based on attempts, and then rewrites the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from marft.config.agents import SamplingSettings
from marft.config.settings import NonNegativeCount, SmallCount
from marft_lab.prompt_optimization.prompts import (
    QUOTE_NOTICE,
    REPLY_FORMAT,
    AttemptTranscript,
    collect_texts,
    format_attempts,
    parse_instructions,
    unique_marker,
    wrap_in_tags,
)
from marft_lab.prompt_optimization.proposals import Proposal, ProposalRequest, Proposer

CRITIQUE_PROMPT = """\
You improve what one member of a team, {role}, is told. {material}

{current}

Attempts of the team that failed:

{failed}

Attempts that succeeded:

{solved}

Which faults of {role}'s instructions made attempts fail, and what of them served those that succeeded? Answer in a \
few sentences."""
REWRITE_PROMPT = """\
You improve what one member of a team, {role}, is told. {material}

{current}

What somebody who read attempts of the team says of these instructions:

{criticism}

What was tried before, and the share of tasks that the team solved with it:

{before}

What should {role} be told, so that attempts like these succeed? {reply}"""


class TextGradientProposer(Proposer):
    """Textual gradients as in TextGrad (Yuksekgonul et al. 2024) and ProTeGi (Pryzant et al. 2023).

    A policy reads failed and successful attempts and criticizes an agent's instructions (the gradient). Then the policy
    rewrites the instructions (the step). As in OPRO (Yang et al. 2024), the prompt shows earlier versions with their
    measured success. The prompts are our own. Each proposal has its own attempts and criticism.
    """

    policy: str = Field(description="policy to ask: from the team, another local model, or a model behind an endpoint")
    failed_attempts: Annotated[int, Field(ge=1, le=64)] = Field(default=3, description="failed attempts per proposal")
    solved_attempts: Annotated[int, Field(ge=0, le=64)] = Field(
        default=1, description="successful attempts per proposal"
    )
    num_shown_versions: NonNegativeCount = Field(default=4, description="number of best versions in the prompt")
    parents: SmallCount = Field(default=1, description="number of best versions to rewrite in turn")
    sampling: SamplingSettings = Field(
        default=SamplingSettings(temperature=0.7), description="sampling settings of the policy"
    )

    @property
    def prompted_policies(self) -> tuple[str, ...]:
        """Policies needed by the proposer."""
        return (self.policy,)

    def propose(self, request: ProposalRequest) -> list[Proposal]:
        """Return up to ``request.count`` proposals; empty without failed attempts."""
        if not request.failed:
            return []
        parents = request.versions[: self.parents]
        proposals = []
        for number in range(request.count):
            parent = parents[number % len(parents)]
            failed = _sample_attempts(request, request.failed, self.failed_attempts)
            solved = _sample_attempts(request, request.solved, self.solved_attempts)
            measured = [version for version in request.versions if version.worth][: self.num_shown_versions]
            mark = unique_marker(collect_texts([*failed, *solved], [parent, *measured]))
            common_fields = {
                "role": request.role,
                "material": QUOTE_NOTICE.format(mark=mark),
                "current": wrap_in_tags("instructions", parent.instructions, mark),
            }
            question = CRITIQUE_PROMPT.format(
                **common_fields, failed=format_attempts(failed, mark), solved=format_attempts(solved, mark) or "none"
            )
            criticism = request.ask(self.policy, question, self.sampling.to_sampling_params()).strip()
            if not criticism:
                continue
            before = "\n".join(
                wrap_in_tags(f"solved {version.worth.success:.0%}", version.instructions, mark)
                for version in measured
                if version.worth
            )
            question = REWRITE_PROMPT.format(
                **common_fields,
                criticism=wrap_in_tags("criticism", criticism, mark),
                before=before or "nothing",
                reply=REPLY_FORMAT,
            )
            text = parse_instructions(request.ask(self.policy, question, self.sampling.to_sampling_params()))
            proposals.append(Proposal(text, (parent.number,), "gradient"))
        return proposals


def _sample_attempts(
    request: ProposalRequest, transcripts: Sequence[AttemptTranscript], count: int
) -> list[AttemptTranscript]:
    """Return ``count`` random attempts, in order."""
    chosen = request.rng.permutation(len(transcripts))[:count]
    return [transcripts[int(index)] for index in sorted(chosen)]
