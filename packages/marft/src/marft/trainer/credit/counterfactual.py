"""Counterfactual baseline in the style of COMA (Foerster et al. 2018), without a critic.

The baseline estimates the team's return with a different action at this point, and newly sampled actions afterwards.
"""

from __future__ import annotations

import numpy as np

from marft.common.types import Fork
from marft.config.parts import CreditPart
from marft.config.settings import Few
from marft.rollout.forking.counterfactual import Counterfactuals
from marft.trainer.credit.returns import team_returns
from marft.trainer.interfaces import CreditInputs, Credits


class Counterfactual(CreditPart):
    """``R − mean R`` over resamples of one action, with newly sampled later actions.

    An action without a scored resample gets advantage 0 and counts in the metric ``groups_of_one``.

    All resamples come from the same state. With ``symmetric`` each resample is trained too, compared with the other
    resamples and the original action. No sampled action is then wasted.
    """

    resamples: Few = 2  # resamples of each action
    symmetric: bool = True  # train on the resamples too

    @property
    def forking(self) -> Counterfactuals:
        """Fork mode that resamples every action from its original state."""
        return Counterfactuals(self.resamples)

    def assign(self, inputs: CreditInputs) -> Credits:
        """Compare an action's return with the returns of the other samples from its state."""
        returns = team_returns(inputs)
        drawn: dict[Fork, dict[int, float]] = {}  # return by episode number, for each fork
        for number, episode in enumerate(inputs.episodes):
            here = [episode.fork] if episode.fork else [Fork(episode.name, action.id) for action in episode.actions]
            for fork in here:
                drawn.setdefault(fork, {})[number] = float(returns[number])
        forked = {fork.at.split("/")[1] for fork in drawn if len(drawn[fork]) > 1}  # frozen agents have no resamples
        advantages, trained, groups, lone = [], [], list[str](), 0
        for number, episode in enumerate(inputs.episodes):
            for action in episode.actions:
                fork = episode.fork or Fork(episode.name, action.id)
                mine = episode.fork is None or (self.symmetric and action.id == fork.at)
                others = [earned for other, earned in drawn[fork].items() if other != number] if mine else []
                lone += mine and not others and action.agent in forked
                advantages.append(returns[number] - float(np.mean(others)) if others else 0.0)
                trained.append(mine)
                groups.append(f"{fork.origin} {fork.at}" if mine else "")
        metrics = {"groups_of_one": float(lone)}
        return Credits(inputs.spread(np.array(advantages)), trained=trained, groups=groups, metrics=metrics)
