"""A counterfactual baseline in the manner of COMA (Foerster et al. 2018), without a critic: what would the team have
earned had this agent acted otherwise here, and everybody after it gone on from there?"""

from __future__ import annotations

import numpy as np

from marft.common.types import Fork
from marft.config.parts import CreditPart
from marft.config.settings import Few
from marft.rollout.forking.counterfactual import Counterfactuals
from marft.trainer.credit.returns import team_returns
from marft.trainer.interfaces import CreditInputs, Credits


class Counterfactual(CreditPart):
    """``R − mean R`` of re-samples of this one action, everything after it sampled anew. An action none of whose
    re-samples could be scored gets 0 and is counted.

    The re-samples are draws from the same state, so with ``symmetric`` each of them is trained as well, against the
    others and the action that was played: nothing that was sampled there is thrown away.
    """

    resamples: Few = 2  # of each action
    symmetric: bool = True  # the re-samples are trained as well

    @property
    def forking(self) -> Counterfactuals:
        """Every action is sampled anew from where it was."""
        return Counterfactuals(self.resamples)

    def assign(self, inputs: CreditInputs) -> Credits:
        """What an action earned, against what others in its place did."""
        returns = team_returns(inputs)
        drawn: dict[Fork, dict[int, float]] = {}  # at each fork, the return of each episode that drew an action there
        for number, episode in enumerate(inputs.episodes):
            here = [episode.fork] if episode.fork else [Fork(episode.name, action.id) for action in episode.actions]
            for fork in here:
                drawn.setdefault(fork, {})[number] = float(returns[number])
        forked = {fork.at.split("/")[1] for fork in drawn if len(drawn[fork]) > 1}  # nobody plays frozen agents anew
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
