"""Instructions that are learned, in turn with weights (``[profiles]``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, cast

from pydantic import Field

from marft.config.parts import ProposerPlugin
from marft.config.pools import pools_of
from marft.config.settings import Count, CountOrNone, Fraction, Names, did_you_mean
from marft.trainer.seams import PromptOptimizer, TrainingSection

if TYPE_CHECKING:
    from marft.config.run import RunSettings
    from marft.rollout.playing import Rollouts
    from marft_lab.profiles.tuning import Instructs


class ProfileSettings(TrainingSection):
    """Every so many training steps new instructions are proposed to one agent after the other, played on held-out tasks
    beside those that it has, and kept where they are better."""

    key: ClassVar[str] = "profiles"

    agents: Names = ()  # whose instructions change; []: everybody's
    every: Count = 10  # training steps from one round to the next
    last: CountOrNone = 0  # training steps after which there are no more rounds; 0: there are to the end
    proposer: ProposerPlugin  # where new instructions come from
    candidates: Annotated[int, Field(ge=1, le=256)] = 4  # proposals to an agent in a round
    split: Literal["validation", "train"] = "validation"  # whose tasks decide; never the test split's
    # on which the best of the candidates is judged, new ones a round; it is chosen on half as many others
    tasks: Annotated[int, Field(ge=4, le=100_000)] = 64
    mode: Literal["greedy", "sampled"] = "sampled"  # how agents sample there
    # the candidate is kept where its gain's interval is above 0, or where its gain is, and the interval is above
    # -tolerance
    accept: Literal["better", "no worse"] = "better"
    tolerance: Fraction = 0.05  # for accept = "no worse"
    longest: Count = 4000  # characters of instructions; a longer proposal is dropped
    tokens: CountOrNone = 0  # that all rounds may take, those of prompts included; 0: no limit

    def roles(self, run: RunSettings) -> list[str]:
        """Whose instructions change, in the recipe's order."""
        return [agent.role for agent in run.agents if not self.agents or agent.role in self.agents]

    def due(self, step: int) -> bool:
        """Whether there is a round after so many training steps."""
        return step % self.every == 0 and not (self.last and step > self.last)

    def prompt_optimizer(self, rollouts: Rollouts, note: Callable[[str], None]) -> PromptOptimizer:
        from marft_lab.profiles.optimizer import ProfileOptimizer

        return ProfileOptimizer.open(cast("Instructs", rollouts), self, note)

    def consulted_policies(self) -> Iterable[str]:
        return set(self.proposer.asks)

    def problems(self, run: RunSettings) -> Iterable[str]:
        roles = [agent.role for agent in run.agents]
        for role in self.agents:
            if role not in roles:
                yield f"profiles.agents: no agent is called {role!r}{did_you_mean(role, roles)}"
        for name in sorted(self.consulted_policies()):
            if name not in run.policies:
                yield f"profiles.proposer: no policy is called {name!r}{did_you_mean(name, run.policies)}"
            elif run.policies[name].train != "frozen" and not any(agent.policy == name for agent in run.agents):
                yield (
                    f"profiles.proposer: policy {name!r} learns, and no agent acts with it, so there is nothing that "
                    "it could learn from; set its train = 'frozen', or make it an agent"
                )
        if run.rollout.max_policy_lag:
            yield (
                "profiles: a round changes what agents are told in episodes that are not begun yet, and "
                "rollout.max_policy_lag begins some ahead of it; set it to 0"
            )
        if pools_of(run):
            yield "profiles: past versions of a policy (pool) are not kept with what they were told; remove either"
        if run.team.own_words:
            yield f"profiles: organization {run.team.name!r} asks agents in messages of its own; remove it"
