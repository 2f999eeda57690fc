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

from marft.common.types import Action, Episode
from marft.config.parts import CreditPart
from marft.config.settings import CountOrNone
from marft.rewards.groups import EQUAL, compare, members  # fmt: skip
from marft.rewards.shaping import (
    local_rewards,  # fmt: skip
    succeeded,
)
from marft.trainer.credit.returns import agent_costs, earned_returns, group_names, team_costs  # fmt: skip
from marft.trainer.credit.sides import trained_of
from marft.trainer.interfaces import CreditInputs, Credits


class Best(CreditPart):
    """Advantage 1 for actions in selected attempts; other actions stay untrained.

    With objective ``reinforce`` at token level, the loss is each role's negative log-likelihood of its turns in the
    team's best episodes.
    """

    absolute: ClassVar[bool] = True

    # attempts to keep: "successes" solved the task; "best" earned the highest reward in a group with unequal rewards
    kept: Literal["successes", "best"] = "successes"
    # with kept = "best", the reward: everything earned, or for each agent the team reward plus its own reward
    judged_by: Literal["team", "own"] = "team"
    per_task: CountOrNone = 0  # maximum kept attempts per task, highest reward first; 0 keeps all
    distinct: bool = True  # keep only one of several attempts with identical messages
    whole: bool = True  # drop attempts with an action cut off at max_new_tokens

    @property
    def by_agent(self) -> bool:
        """True if attempts are selected for each agent separately."""
        return self.kept == "best" and self.judged_by == "own"

    def assign(self, inputs: CreditInputs) -> Credits:
        """Return advantage 1 for the actions to repeat."""
        attempts = self._attempts(inputs)
        _, metrics = compare(np.array([one.earned for one in attempts]), [one.group for one in attempts])
        fate = Counter[str]()
        kept: set[int] = set()
        for group in members([one.group for one in attempts]):
            for index, what in zip(group, self._judge([attempts[i] for i in group]), strict=True):
                fate[what] += 1
                kept.update(map(id, attempts[index].actions) if what == "kept" else ())
        trained = [id(action) in kept for action in inputs.actions]
        told = {f"imitation/{what}": float(fate[what]) for what in ("kept", "repeated", "cut", "spare")}
        by_agent = self.by_agent
        groups = group_names(inputs, lambda e, action: [e.task.id, action.agent] if by_agent else [e.task.id])
        advantages = inputs.spread(np.array(trained, np.float64))
        return Credits(advantages, trained=trained, groups=groups, metrics=metrics | told)

    def _attempts(self, inputs: CreditInputs) -> list[_Attempt]:
        if not self.by_agent:
            return [
                _Attempt(e.task.id, e, float(r), float(cost), _mine(inputs, e.actions))
                for e, r, cost in zip(inputs.episodes, earned_returns(inputs), team_costs(inputs), strict=True)
            ]
        return [
            _Attempt(
                (e.task.id, agent),
                e,
                e.total_reward + local_rewards(e).get(agent, 0.0),
                cost,
                _mine(inputs, [a for a in e.actions if a.agent == agent]),
            )
            for e, costs in zip(inputs.episodes, agent_costs(inputs), strict=True)
            for agent, cost in costs.items()
        ]

    def _judge(self, group: Sequence[_Attempt]) -> list[str]:
        """Return each attempt's outcome: kept, repeated, cut, spare or worse."""
        most, least = max(one.earned for one in group), min(one.earned for one in group)
        fates = ["worse"] * len(group)
        said: set[tuple[bytes, ...]] = set()
        count = 0
        for index in sorted(range(len(group)), key=lambda index: (-group[index].earned, group[index].cost)):
            one = group[index]
            best = most - least >= EQUAL and most - one.earned < EQUAL
            if not (best if self.kept == "best" else succeeded(one.episode)) or not one.actions:
                continue
            if self.whole and any(action.finish == "length" for action in one.actions):
                fates[index] = "cut"
            elif self.distinct and one.words in said:
                fates[index] = "repeated"
            elif self.per_task and count == self.per_task:
                fates[index] = "spare"
            else:
                fates[index], count = "kept", count + 1
                said.add(one.words)
        return fates


@dataclass(frozen=True, slots=True, eq=False)
class _Attempt:
    """Attempt at a task, or an agent's part in an attempt."""

    group: Hashable
    episode: Episode
    earned: float
    cost: float  # KL cost, which breaks ties between equal rewards
    actions: Sequence[Action]  # trained actions

    @property
    def words(self) -> tuple[bytes, ...]:
        """Key of the attempt's content: agents, prompts and sampled tokens."""
        return tuple(
            part for a in self.actions for part in (a.agent.encode(), a.prompt.tobytes(), a.tokens.tobytes())
        )  # fmt: skip


def _mine(inputs: CreditInputs, actions: Sequence[Action]) -> list[Action]:
    keys = set(trained_of(inputs, actions))
    return [action for action in actions if action.key in keys]
