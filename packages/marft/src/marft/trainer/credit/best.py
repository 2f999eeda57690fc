"""Which attempts a team learns to repeat: rejection-sampling fine-tuning (RFT: Yuan et al. 2023), as expert iteration
with one step of learning between one step of play and the next (ReST-EM: Singh et al. 2024; STaR: Zelikman et al.
2022)."""

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
    """1 for the actions of attempts that are kept, and nothing else is trained: with objective ``reinforce`` at token
    level that is each role's likelihood of its turns in the team's own best episodes."""

    absolute: ClassVar[bool] = True

    # which attempts: those that solved the task; or those that earned the most in a group that earned unequally
    kept: Literal["successes", "best"] = "successes"
    # of kept = "best", by what: all that was earned, or for each agent what the team earned and the agent itself
    judged_by: Literal["team", "own"] = "team"
    per_task: CountOrNone = 0  # attempts at a task that are kept, at most, those that earned the most first; 0: all
    distinct: bool = True  # of attempts at a task in which the same was said one is kept
    whole: bool = True  # an attempt in which a text was cut off at its longest is not kept

    @property
    def by_agent(self) -> bool:
        """Whether an agent repeats what was best for itself."""
        return self.kept == "best" and self.judged_by == "own"

    def assign(self, inputs: CreditInputs) -> Credits:
        """1 for what is to be repeated."""
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
        """What becomes of each attempt of a group."""
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
    """An attempt at a task, or an agent's part of one."""

    group: Hashable
    episode: Episode
    earned: float
    cost: float  # what is taken off for its KL, which tells apart what earned the same
    actions: Sequence[Action]  # that are trained

    @property
    def words(self) -> tuple[bytes, ...]:
        """What was said, by whom, to which prompts."""
        return tuple(
            part for a in self.actions for part in (a.agent.encode(), a.prompt.tobytes(), a.tokens.tobytes())
        )  # fmt: skip


def _mine(inputs: CreditInputs, actions: Sequence[Action]) -> list[Action]:
    keys = set(trained_of(inputs, actions))
    return [action for action in actions if action.key in keys]
