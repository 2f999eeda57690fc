"""Multi-agent generalized advantage estimation, over actions or tokens (MARFT Algorithm 3; Schulman et al. 2016).

``δ_k = r_k + γ_k V(s_k') − V(s_k)``, ``Â_k = δ_k + γ_k λ_k Â_k'``, return ``= Â_k + V(s_k)``, where k' is the next
decision in the chain. γ and λ are ``*_agent`` within an environment step and ``*_step`` across steps. At token level,
``*_token`` applies between the tokens of an action. An action's last token leads to the first token of the next action.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput, Floats, split_rows
from marft.config.settings import Fraction, NonNegative
from marft.trainer.credit.links import Links, backward_sum, build_links


class GAE(Credit):
    """Advantages from a critic.

    ``successor = "joint"`` uses one chain over all agents (the paper). ``"agent"`` uses one chain per agent (IPPO,
    MAPPO). ``"graph"`` follows the actual dependencies between messages. ``lambda_critic`` applies to the critic's
    targets.
    """

    needs_critic: ClassVar[bool] = True

    successor: Literal["joint", "agent", "graph"] = Field(
        default="joint",
        description="chain of decisions; joint: over the team; agent: per agent; graph: along message dependencies",
    )
    gamma_token: Fraction = Field(default=1.0, description="discount between tokens of an action")
    gamma_agent: Fraction = Field(default=1.0, description="discount between actions of an environment step")
    gamma_step: Fraction = Field(default=0.99, description="discount between environment steps")
    lambda_token: Fraction = Field(
        default=1.0, description="λ between tokens of an action; lower values add bias and reduce variance"
    )
    adaptive_lambda: NonNegative = Field(
        default=0.0, description="α in λ_token = 1 − 1/(α l) for an action of l tokens (VAPO: 0.05); 0: off"
    )
    lambda_agent: Fraction = Field(default=0.95, description="λ between actions of an environment step")
    lambda_step: Fraction = Field(default=0.95, description="λ between environment steps")
    lambda_critic: Fraction = Field(default=1.0, description="λ of the critic's targets; 1: full returns")

    @property
    def per_agent(self) -> bool:
        """True if each agent has its own chain."""
        return self.successor == "agent"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return advantages and returns for every decision; see :class:`marft.config.interfaces.credit.Credit`."""
        episodes, values = inputs.episodes, inputs.values
        assert values is not None, "GAE reads a critic's values"
        links = build_links(episodes, self.successor, self.gamma_step)
        is_same_step = links.steps == 0
        gamma = np.where(is_same_step, self.gamma_agent, self.gamma_step ** np.maximum(links.steps, 1))
        decay = np.where(is_same_step, self.lambda_agent, self.lambda_step)
        assert len(values.actions) == len(inputs.actions)
        sizes = np.array([len(value) for value in values.actions], np.int64)
        inside = np.full(len(sizes), self.lambda_token)
        if self.adaptive_lambda:
            inside = (1.0 - 1.0 / (self.adaptive_lambda * sizes)).clip(0.0, 1.0)
        rewards, successor, gamma, decay = _expand_to_units(links, sizes, gamma, decay, self.gamma_token, inside)
        units = int(sizes.sum())
        if inputs.costs:
            rewards[:units] -= np.concatenate(inputs.costs)
        value = np.concatenate([*values.actions, [values.final_value(episode, agent) for episode, agent in links.ends]])
        delta = rewards + gamma * value[successor] - value
        delta[units:] = 0.0  # terminal rows only provide their value

        def estimate(decay: Floats | float) -> Floats:
            return backward_sum(delta, gamma * decay, successor)[:units]

        return CreditOutput(
            advantages=split_rows(estimate(decay), sizes),
            returns=split_rows(estimate(self.lambda_critic) + value[:units], sizes),
            monte_carlo=split_rows(estimate(1.0) + value[:units], sizes),
        )


def _expand_to_units(
    links: Links, sizes: np.ndarray, gamma: Floats, decay: Floats, gamma_token: float, lambda_token: Floats
) -> tuple[Floats, np.ndarray, Floats, Floats]:
    """Expand link table rows from actions to units.

    A unit leads to the next unit of its action. The last unit leads to the first unit of the action's successor, and
    carries the reward. With one unit per action the rows stay unchanged.
    """
    terminals = len(links.successor) - len(sizes)
    sizes = np.concatenate([sizes, np.ones(terminals, np.int64)])
    first = np.cumsum(sizes) - sizes
    last = first + sizes - 1
    total = int(sizes.sum())
    successor = np.arange(1, total + 1)
    successor[last] = first[links.successor]
    spread = []
    lambdas = np.concatenate([lambda_token, np.ones(terminals)]).repeat(sizes)
    for rows, inside in ((links.rewards, 0.0), (gamma, gamma_token), (decay, lambdas)):
        units = np.zeros(total) + inside
        units[last] = rows
        spread.append(units)
    return spread[0], successor, spread[1], spread[2]
