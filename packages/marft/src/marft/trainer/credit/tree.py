"""AT-GRPO (Stronger-MAS: Zhao et al. 2025): several candidates for one action, sampled from the same state.

Group key: task, state, agent, step and call; the state is everything said before, whether the agent saw it or not. A
candidate earns what the step paid: the team's reward and the agent's own; where a step pays only when everybody has
acted, one completion of the step scores the candidate. Only candidates are trained: an action that was carried over
from the state, or that only completed a step, is not. The paper's ablations keep one half of the
key: candidates of an agent at all its turns are compared, or those of all agents at a turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from marft.common.types import Action, Episode
from marft.config.parts import CreditPart
from marft.rewards.groups import compare
from marft.rollout.forking.tree import Candidates, step_score
from marft.trainer.interfaces import CreditInputs, Credits


class Tree(CreditPart):
    """``(r − mean) / (std + ε)`` over the candidates of a state; the best of them is carried on, or the first."""

    candidates: Annotated[int, Field(ge=2, le=10_000)] = 4  # sampled from one state
    carry: Literal["best", "first"] = "best"  # the candidate that the episode goes on with
    scale: bool = True  # divide by the deviation
    # whose candidates are compared: those of one state; of one agent at all its turns; or of all agents at one turn
    compared: Literal["state", "agent", "turn"] = "state"

    @property
    def forking(self) -> Candidates:
        """Candidates are sampled from the states that the policies come to."""
        return Candidates(self.candidates, self.carry)

    def assign(self, inputs: CreditInputs) -> Credits:
        """A candidate's score, against the other candidates at its branch."""
        rows = [(episode, action) for episode in inputs.episodes for action in episode.actions]
        chosen = [k for k, (episode, action) in enumerate(rows) if is_candidate(episode, action)]
        keys = [_KEYS[self.compared](*rows[k]) for k in chosen]
        costs = np.array([inputs.cost_of(k) for k in chosen])
        scores = np.array([step_score(*rows[k]) for k in chosen]) - costs
        advantages = np.zeros(len(rows))
        advantages[chosen], metrics = compare(scores, keys, scale=self.scale, costs=costs)
        trained = np.zeros(len(rows), bool)
        trained[chosen] = True
        groups = [""] * len(rows)
        for k, key in zip(chosen, keys, strict=True):
            groups[k] = state_name(key)
        return Credits(inputs.spread(advantages), trained=trained.tolist(), groups=groups, metrics=metrics)


def is_candidate(episode: Episode, action: Action) -> bool:
    """Whether the action is the one at which its episode was forked. In an episode that is no fork every action is
    one, among the actions that happen to share its state."""
    return episode.fork is None or action.id == episode.fork.at


def state_of(episode: Episode, action: Action) -> tuple[str, str, bytes, tuple[tuple[str, bytes], ...]]:
    """What the action was sampled from: its prompt with what its turn began with, and all actions before it."""
    begun = action.tokens[: int(np.argmax(action.own))]
    before = tuple((other.id, other.tokens.tobytes()) for other in episode.actions if other.index < action.index)
    return episode.task.id, action.id, np.concatenate([action.prompt, begun]).tobytes(), before


def state_name(key: tuple[object, ...]) -> str:
    """What a group of candidates is called: its task, who acts or when, and a digest of the rest."""
    return f"{key[0]} {key[1]} {hashlib.sha256(repr(key).encode()).hexdigest()[:8]}"


_KEYS: Mapping[str, Callable[[Episode, Action], tuple[object, ...]]] = {
    "state": state_of,
    "agent": lambda episode, action: (episode.task.id, action.agent),
    "turn": lambda episode, action: (episode.task.id, action.step),
}
