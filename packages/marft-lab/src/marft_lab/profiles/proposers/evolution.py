"""Evolution with a model: a policy mutates one version, or combines two versions."""

from __future__ import annotations

from marft.common.lineage import Version
from marft.config.agents import SamplingSettings
from marft.config.parts import ProposerPart
from marft.config.settings import Few, Fraction
from marft_lab.profiles.asking import MATERIAL, REPLY, instructions_in, mark_beside, within
from marft_lab.profiles.proposals import Asked, Proposal

MUTATE = """\
{role} is one member of a team. {material}

{first}

Write other instructions for {role} that mean what these do: say it in other words, leave out what does not matter, or \
make clear what is vague. {reply}"""
CROSS = """\
{role} is one member of a team. {material}

{first}

{second}

Write instructions for {role} that take the best of both, and then change something in them that could be better. \
{reply}"""


class Evolution(ProposerPart):
    """EvoPrompt's genetic algorithm (Guo et al. 2024), with our own prompts.

    A policy rewrites one version or combines two versions, and the best versions survive. The proposer reads no
    attempts. Parents are drawn from the best versions with weights by rank.
    """

    policy: str  # policy to ask: one of the team, another local model, or a model behind an endpoint
    parents: Few = 4  # number of best versions to use as parents
    crossover: Fraction = 0.5  # fraction of proposals with two parents, if at least two versions exist
    sampling: SamplingSettings = SamplingSettings()  # sampling settings of the policy

    @property
    def asks(self) -> tuple[str, ...]:
        """Policies needed by the proposer."""
        return (self.policy,)

    def propose(self, asked: Asked) -> list[Proposal]:
        """Return ``asked.count`` proposals."""
        return [self._bred(asked) for _ in range(asked.count)]

    def _bred(self, asked: Asked) -> Proposal:
        best = asked.versions[: self.parents]
        crosses = asked.rng.random() < self.crossover and len(best) > 1
        chosen = [best[place] for place in _by_rank(asked, len(best), 2 if crosses else 1)]
        mark = mark_beside(version.instructions for version in chosen)
        shown = {name: _shown(version, mark) for name, version in zip(("first", "second"), chosen, strict=False)}
        words = CROSS if crosses else MUTATE
        question = words.format(role=asked.role, material=MATERIAL.format(mark=mark), reply=REPLY, **shown)
        text = instructions_in(asked.ask(self.policy, question, self.sampling.resolve()))
        parents = tuple(version.number for version in chosen)
        return Proposal(text, parents, "crossover" if crosses else "mutation")


def _by_rank(asked: Asked, size: int, count: int) -> list[int]:
    """Return distinct ranks, drawn with weights from ``size`` down to 1."""
    weights = [float(size - place) for place in range(size)]
    drawn = asked.rng.choice(size, count, replace=False, p=[weight / sum(weights) for weight in weights])
    return [int(place) for place in drawn]


def _shown(version: Version, mark: str) -> str:
    return within("instructions", version.instructions, mark)
