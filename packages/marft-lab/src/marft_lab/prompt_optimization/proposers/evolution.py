"""Evolution with a model: a policy mutates one version, or combines two versions."""

from __future__ import annotations

from pydantic import Field

from marft.config.agents import SamplingSettings
from marft.config.settings import Fraction, SmallCount
from marft_lab.prompt_optimization.prompts import (
    QUOTE_NOTICE,
    REPLY_FORMAT,
    parse_instructions,
    unique_marker,
    wrap_in_tags,
)
from marft_lab.prompt_optimization.proposals import Proposal, ProposalRequest, Proposer

MUTATION_PROMPT = """\
{role} is one member of a team. {material}

{first}

Write other instructions for {role} that mean what these do: say it in other words, leave out what does not matter, or \
make clear what is vague. {reply}"""
CROSSOVER_PROMPT = """\
{role} is one member of a team. {material}

{first}

{second}

Write instructions for {role} that take the best of both, and then change something in them that could be better. \
{reply}"""


class EvolutionProposer(Proposer):
    """EvoPrompt's genetic algorithm (Guo et al. 2024), with our own prompts.

    A policy rewrites one version or combines two versions, and the best versions survive. The proposer reads no
    attempts. Parents are drawn from the best versions with weights by rank.
    """

    policy: str = Field(description="policy to ask: from the team, another local model, or a model behind an endpoint")
    parents: SmallCount = Field(default=4, description="number of best versions to use as parents")
    crossover: Fraction = Field(
        default=0.5, description="fraction of proposals with two parents, if at least two versions exist"
    )
    sampling: SamplingSettings = Field(default=SamplingSettings(), description="sampling settings of the policy")

    @property
    def prompted_policies(self) -> tuple[str, ...]:
        """Policies needed by the proposer."""
        return (self.policy,)

    def propose(self, request: ProposalRequest) -> list[Proposal]:
        """Return ``request.count`` proposals."""
        return [self._generate(request) for _ in range(request.count)]

    def _generate(self, request: ProposalRequest) -> Proposal:
        best = request.versions[: self.parents]
        is_crossover = request.rng.random() < self.crossover and len(best) > 1
        chosen = [best[rank] for rank in _sample_ranks(request, len(best), 2 if is_crossover else 1)]
        mark = unique_marker(version.instructions for version in chosen)
        sections = {
            name: wrap_in_tags("instructions", version.instructions, mark)
            for name, version in zip(("first", "second"), chosen, strict=False)
        }
        template = CROSSOVER_PROMPT if is_crossover else MUTATION_PROMPT
        question = template.format(
            role=request.role, material=QUOTE_NOTICE.format(mark=mark), reply=REPLY_FORMAT, **sections
        )
        text = parse_instructions(request.ask(self.policy, question, self.sampling.to_sampling_params()))
        parents = tuple(version.number for version in chosen)
        return Proposal(text, parents, "crossover" if is_crossover else "mutation")


def _sample_ranks(request: ProposalRequest, size: int, count: int) -> list[int]:
    """Return distinct ranks, drawn with weights from ``size`` down to 1."""
    weights = [float(size - rank) for rank in range(size)]
    ranks = request.rng.choice(size, count, replace=False, p=[weight / sum(weights) for weight in weights])
    return [int(rank) for rank in ranks]
