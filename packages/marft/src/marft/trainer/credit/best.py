"""Rejection-sampling fine-tuning (RFT: Yuan et al. 2023): train the team to repeat selected attempts.

Alternating one training step with one rollout step gives expert iteration (ReST-EM: Singh et al. 2024; STaR: Zelikman
et al. 2022).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from marft.common.types import Action, Episode
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.config.settings import NonNegativeCount
from marft.rewards.groups import EQUAL_TOLERANCE, group_indices, normalize_by_group
from marft.rewards.shaping import is_success, local_rewards
from marft.trainer.credit.returns import agent_costs, group_names, team_costs, team_rewards
from marft.trainer.credit.sides import select_trained


class Best(Credit):
    """Advantage 1 for actions in selected attempts; other actions stay untrained.

    With objective ``reinforce`` at token level, the loss is each role's negative log-likelihood of its turns in the
    team's best episodes.
    """

    absolute_weights: ClassVar[bool] = True

    select: Literal["successes", "best"] = Field(
        default="successes",
        description=(
            'attempts to keep: "successes" solved the task; "best" earned the highest reward in a group with '
            "unequal rewards"
        ),
    )
    judged_by: Literal["team", "own"] = Field(
        default="team",
        description=(
            'reward for select = "best": everything earned, or for each agent the team reward plus its own reward'
        ),
    )
    max_per_task: NonNegativeCount = Field(
        default=0, description="maximum kept attempts per task, highest reward first; 0: no limit"
    )
    distinct: bool = Field(default=True, description="keep only one of several attempts with identical messages")
    drop_truncated: bool = Field(default=True, description="drop attempts with an action cut off at max_new_tokens")

    @property
    def per_agent(self) -> bool:
        """True if attempts are selected for each agent separately."""
        return self.select == "best" and self.judged_by == "own"

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return advantage 1 for the actions to repeat."""
        attempts = self._attempts(inputs)
        _, metrics = normalize_by_group(
            np.array([attempt.reward for attempt in attempts]), [attempt.group for attempt in attempts]
        )
        outcome_counts = Counter[str]()
        selected: set[int] = set()
        for group in group_indices([attempt.group for attempt in attempts]):
            for index, outcome in zip(group, self._select([attempts[i] for i in group]), strict=True):
                outcome_counts[outcome] += 1
                selected.update(map(id, attempts[index].actions) if outcome == "selected" else ())
        trained = [id(action) in selected for action in inputs.actions]
        outcome_metrics = {
            f"imitation/{outcome}": float(outcome_counts[outcome])
            for outcome in ("selected", "duplicates", "truncated", "surplus")
        }
        by_agent = self.per_agent
        groups = group_names(inputs, lambda e, action: [e.task.id, action.agent] if by_agent else [e.task.id])
        advantages = inputs.broadcast(np.array(trained, np.float64))
        return CreditOutput(advantages, trained=trained, groups=groups, metrics=metrics | outcome_metrics)

    def _attempts(self, inputs: CreditInputs) -> list[_Attempt]:
        if not self.per_agent:
            return [
                _Attempt(e.task.id, e, float(r), float(cost), select_trained(inputs, e.actions))
                for e, r, cost in zip(inputs.episodes, team_rewards(inputs), team_costs(inputs), strict=True)
            ]
        return [
            _Attempt(
                (e.task.id, agent),
                e,
                e.total_reward + local_rewards(e).get(agent, 0.0),
                cost,
                select_trained(inputs, [a for a in e.actions if a.agent == agent]),
            )
            for e, costs in zip(inputs.episodes, agent_costs(inputs), strict=True)
            for agent, cost in costs.items()
        ]

    def _select(self, group: Sequence[_Attempt]) -> list[str]:
        """Return each attempt's outcome: selected, duplicates, truncated, surplus or worse."""
        highest, least = max(attempt.reward for attempt in group), min(attempt.reward for attempt in group)
        outcomes = ["worse"] * len(group)
        seen: set[tuple[bytes, ...]] = set()
        count = 0
        for index in sorted(range(len(group)), key=lambda index: (-group[index].reward, group[index].cost)):
            attempt = group[index]
            best = highest - least >= EQUAL_TOLERANCE and highest - attempt.reward < EQUAL_TOLERANCE
            if not (best if self.select == "best" else is_success(attempt.episode)) or not attempt.actions:
                continue
            if self.drop_truncated and any(action.finish == "length" for action in attempt.actions):
                outcomes[index] = "truncated"
            elif self.distinct and attempt.content_key in seen:
                outcomes[index] = "duplicates"
            elif self.max_per_task and count == self.max_per_task:
                outcomes[index] = "surplus"
            else:
                outcomes[index], count = "selected", count + 1
                seen.add(attempt.content_key)
        return outcomes


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """Attempt at a task, or an agent's part in an attempt."""

    group: Hashable
    episode: Episode
    reward: float
    cost: float  # KL cost, which breaks ties between equal rewards
    actions: Sequence[Action]  # trained actions

    @property
    def content_key(self) -> tuple[bytes, ...]:
        """Key of the attempt's content: agents, prompts and sampled tokens."""
        return tuple(part for a in self.actions for part in (a.agent.encode(), a.prompt.tobytes(), a.tokens.tobytes()))
