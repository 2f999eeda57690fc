"""Textual gradients: a policy criticizes instructions based on attempts, and then rewrites the instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from marft.config.agents import SamplingSettings
from marft.config.parts import ProposerPart
from marft.config.settings import CountOrNone, Few
from marft_lab.profiles.asking import MATERIAL, REPLY, attempts, instructions_in, mark_beside, texts_in, within
from marft_lab.profiles.proposals import Asked, Proposal, Told

CRITICISE = """\
You improve what one member of a team, {role}, is told. {material}

{current}

Attempts of the team that failed:

{failed}

Attempts that succeeded:

{solved}

Which faults of {role}'s instructions made attempts fail, and what of them served those that succeeded? Answer in a \
few sentences."""
REWRITE = """\
You improve what one member of a team, {role}, is told. {material}

{current}

What somebody who read attempts of the team says of these instructions:

{criticism}

What was tried before, and the share of tasks that the team solved with it:

{before}

What should {role} be told, so that attempts like these succeed? {reply}"""


class Gradient(ProposerPart):
    """Textual gradients as in TextGrad (Yuksekgonul et al. 2024) and ProTeGi (Pryzant et al. 2023).

    A policy reads failed and successful attempts and criticizes an agent's instructions (the gradient). Then the policy
    rewrites the instructions (the step). As in OPRO (Yang et al. 2024), the prompt shows earlier versions with their
    measured success. The prompts are our own. Each proposal has its own attempts and criticism.
    """

    policy: str  # policy to ask: one of the team, another local model, or a model behind an endpoint
    failed: Annotated[int, Field(ge=1, le=64)] = 3  # failed attempts per proposal
    solved: Annotated[int, Field(ge=0, le=64)] = 1  # successful attempts per proposal
    before: CountOrNone = 4  # number of best versions in the prompt
    parents: Few = 1  # number of best versions to rewrite in turn
    sampling: SamplingSettings = SamplingSettings(temperature=0.7)  # sampling settings of the policy

    @property
    def asks(self) -> tuple[str, ...]:
        """Policies needed by the proposer."""
        return (self.policy,)

    def propose(self, asked: Asked) -> list[Proposal]:
        """Return up to ``asked.count`` proposals; empty without failed attempts."""
        if not asked.failed:
            return []
        parents = asked.versions[: self.parents]
        found = []
        for number in range(asked.count):
            parent = parents[number % len(parents)]
            failed, solved = _some(asked, asked.failed, self.failed), _some(asked, asked.solved, self.solved)
            shown = [version for version in asked.versions if version.worth][: self.before]
            mark = mark_beside(texts_in([*failed, *solved], [parent, *shown]))
            about = {
                "role": asked.role,
                "material": MATERIAL.format(mark=mark),
                "current": within("instructions", parent.instructions, mark),
            }
            question = CRITICISE.format(**about, failed=attempts(failed, mark), solved=attempts(solved, mark) or "none")
            criticism = asked.ask(self.policy, question, self.sampling.resolve()).strip()
            if not criticism:
                continue
            before = "\n".join(
                within(f"solved {version.worth.success:.0%}", version.instructions, mark)
                for version in shown
                if version.worth
            )
            question = REWRITE.format(
                **about, criticism=within("criticism", criticism, mark), before=before or "nothing", reply=REPLY
            )
            text = instructions_in(asked.ask(self.policy, question, self.sampling.resolve()))
            found.append(Proposal(text, (parent.number,), "gradient"))
        return found


def _some(asked: Asked, told: Sequence[Told], count: int) -> list[Told]:
    """Return ``count`` random attempts, in order."""
    chosen = asked.rng.permutation(len(told))[:count]
    return [told[int(place)] for place in sorted(chosen)]
