"""MAGRPO (Liu et al. 2025): every agent of a team is judged by the joint return, relative to the group of a task.

``aligned`` pairs the g-th sample of every agent, as it was played. ``cross`` scores every tuple of the agents' samples:
a sample's return is the mean over the tuples that hold it, and the baseline is the agent's own mean. It needs a game of
one step in which nobody sees anybody.
"""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from marft.learning.credit.estimator import Estimator
from marft.learning.credit.groups import compare, team_costs, team_returns, to_actions
from marft.learning.interfaces import Credits, Evidence


class MAGRPO(Estimator):
    """``R − mean`` of the joint return over the task's episodes; ``scale = true`` divides by the deviation."""

    compares: ClassVar[Literal["task", ""]] = "task"

    joint_mode: Literal["aligned", "cross"] = "aligned"
    scale: bool = False

    @property
    def forks(self) -> Literal["cross", ""]:  # type: ignore[override]
        return "cross" if self.joint_mode == "cross" else ""

    def assign(self, evidence: Evidence) -> Credits:
        """See :class:`marft.learning.interfaces.Credit`."""
        if self.joint_mode == "cross":
            return self._cross(evidence)
        keys = [episode.task.id for episode in evidence.episodes]
        advantages, metrics = compare(team_returns(evidence), keys, scale=self.scale, costs=team_costs(evidence))
        return Credits(to_actions(evidence, advantages), metrics=metrics)

    def _cross(self, evidence: Evidence) -> Credits:
        """Mean return of every sample over the tuples that hold it, by the sample's own key."""
        returns = team_returns(evidence)
        held: dict[tuple[object, ...], list[float]] = {}
        for episode, earned in zip(evidence.episodes, returns, strict=True):
            for action in episode.actions:
                held.setdefault(action.key, []).append(float(earned))
        keys = list(dict.fromkeys(action.key for e in evidence.episodes if e.fork is None for action in e.actions))
        means = np.array([np.mean(held[key]) for key in keys])
        advantages, metrics = compare(means, [(key.task, key.agent, key.call) for key in keys], scale=self.scale)
        found = dict(zip(keys, advantages, strict=True))
        rows = [(episode, action) for episode in evidence.episodes for action in episode.actions]
        return Credits(
            evidence.spread(np.array([found.get(action.key, 0.0) for _, action in rows])),
            trained=[episode.fork is None for episode, _ in rows],
            metrics=metrics,
        )
