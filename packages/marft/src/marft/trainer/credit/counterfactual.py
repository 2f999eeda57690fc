"""Counterfactual baseline in the style of COMA (Foerster et al. 2018), without a critic.

The baseline estimates the team's return with a different action at this point, and newly sampled actions afterwards.
"""

from __future__ import annotations

import numpy as np
from pydantic import Field

from marft.common.types import Fork
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.config.settings import SmallCount
from marft.rollout.fork_plans import CounterfactualForks
from marft.trainer.credit.returns import team_returns


class Counterfactual(Credit):
    """``R − mean R`` over resamples of one action, with newly sampled later actions.

    An action without a scored resample gets advantage 0 and counts in the metric ``singleton_groups``.

    All resamples come from the same state. With ``train_on_resamples`` each resample is trained too, compared with the
    other resamples and the original action. No sampled action is then wasted.
    """

    resamples: SmallCount = Field(default=2, description="resamples of each action")
    train_on_resamples: bool = Field(default=True, description="train on the resamples too")

    @property
    def fork_plan(self) -> CounterfactualForks:
        """Fork mode that resamples every action from its original state."""
        return CounterfactualForks(self.resamples)

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare an action's return with the returns of the other samples from its state."""
        returns = team_returns(inputs)
        fork_returns: dict[Fork, dict[int, float]] = {}  # return by episode number, for each fork
        for number, episode in enumerate(inputs.episodes):
            forks = [episode.fork] if episode.fork else [Fork(episode.name, action.id) for action in episode.actions]
            for fork in forks:
                fork_returns.setdefault(fork, {})[number] = float(returns[number])
        # frozen agents have no resamples
        forked = {fork.at.split("/")[1] for fork, samples in fork_returns.items() if len(samples) > 1}
        advantages, trained, groups, single_count = [], [], list[str](), 0
        for number, episode in enumerate(inputs.episodes):
            for action in episode.actions:
                fork = episode.fork or Fork(episode.name, action.id)
                is_trained = episode.fork is None or (self.train_on_resamples and action.id == fork.at)
                others = fork_returns[fork].items() if is_trained else ()
                other_returns = [value for other_number, value in others if other_number != number]
                single_count += is_trained and not other_returns and action.agent in forked
                advantages.append(returns[number] - float(np.mean(other_returns)) if other_returns else 0.0)
                trained.append(is_trained)
                groups.append(f"{fork.origin} {fork.at}" if is_trained else "")
        metrics = {"singleton_groups": float(single_count)}
        return CreditOutput(inputs.broadcast(np.array(advantages)), trained=trained, groups=groups, metrics=metrics)
