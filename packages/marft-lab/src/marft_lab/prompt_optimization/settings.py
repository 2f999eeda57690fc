"""Settings for ``[prompt_optimization]``: prompt optimization in turn with training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from marft.config.models import opponent_pools
from marft.config.settings import Count, Fraction, Names, NonNegativeCount, did_you_mean
from marft.trainer.hooks import PromptOptimizer, TrainingSection
from marft_lab.prompt_optimization.proposals import Proposer

if TYPE_CHECKING:
    from marft.config.run import RunSettings
    from marft.rollout.runner import RolloutRunner


class PromptOptimizerSettings(TrainingSection):
    """Prompt optimization between training steps.

    In each round, every agent in turn gets proposals of new instructions. They are played on held-out tasks beside the
    current instructions, and accepted if they are better.
    """

    key: ClassVar[str] = "prompt_optimization"

    agents: Names = Field(default=(), description="roles with optimized instructions; []: every agent")
    every: Count = Field(default=10, description="training steps between rounds")
    last_step: NonNegativeCount = Field(default=0, description="last training step with a round; 0: no limit")
    proposer: Proposer = Field(description="source of new instructions")
    candidates: Annotated[int, Field(ge=1, le=256)] = Field(default=4, description="proposals per agent and round")
    split: Literal["validation", "train"] = Field(
        default="validation", description="split of the tasks for decisions; never the test split"
    )
    tasks: Annotated[int, Field(ge=4, le=100_000)] = Field(
        default=64,
        description=(
            "number of tasks to test the best candidate, drawn anew each round; half as many other tasks select the "
            "candidate"
        ),
    )
    mode: Literal["greedy", "sampled"] = Field(
        default="sampled", description="sampling mode of the agents on these tasks"
    )
    accept: Literal["better", "no_worse"] = Field(
        default="better",
        description=(
            'acceptance rule; "better": interval of the gain above 0; "no_worse": gain above 0, interval above '
            "-tolerance"
        ),
    )
    tolerance: Fraction = Field(default=0.05, description='tolerated loss of success rate for accept = "no_worse"')
    max_chars: Count = Field(
        default=4000, description="maximum characters of instructions; longer proposals are dropped"
    )
    token_budget: NonNegativeCount = Field(
        default=0, description="token budget over the rounds, prompts included; 0: no limit"
    )

    def roles(self, run: RunSettings) -> list[str]:
        """Return the roles with optimized instructions, in the recipe's order."""
        return [agent.role for agent in run.agents if not self.agents or agent.role in self.agents]

    def is_due(self, step: int) -> bool:
        """Return True if a round follows a given training step."""
        return step % self.every == 0 and not (self.last_step and step > self.last_step)

    def prompt_optimizer(self, rollouts: RolloutRunner) -> PromptOptimizer:
        """Return a run's prompt optimizer."""
        from marft.envs.tasks import read_tasks
        from marft_lab.prompt_optimization.search import PromptSearch

        return PromptSearch(rollouts, self, read_tasks(rollouts.run.environment, self.split))

    def extra_policies(self) -> Iterable[str]:
        """Return the policies needed by the proposer."""
        return set(self.proposer.prompted_policies)

    def problems(self, run: RunSettings) -> Iterable[str]:
        """Yield problems of the settings."""
        roles = [agent.role for agent in run.agents]
        for role in self.agents:
            if role not in roles:
                yield f"prompt_optimization.agents: no agent is called {role!r}{did_you_mean(role, roles)}"
        yield from self.policy_problems(run, "prompt_optimization.proposer")
        if run.rollout.max_policy_lag:
            yield (
                "prompt_optimization: a round changes what agents are told in episodes that are not begun yet, and "
                "rollout.max_policy_lag begins some ahead of it; set it to 0"
            )
        if opponent_pools(run):
            yield (
                "prompt_optimization: past versions of a policy (pool) are not kept with what they were told; remove "
                "either"
            )
        if run.team.writes_prompts:
            yield f"prompt_optimization: organization {run.team.name!r} asks agents in messages of its own; remove it"
