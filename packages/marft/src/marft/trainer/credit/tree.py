"""AT-GRPO: several candidates for each action, sampled from the same state (Stronger-MAS: Zhao et al. 2025).

The group key contains task, state, agent, step and call. The state contains all earlier messages, including messages
that the agent did not see. A candidate earns the reward of its step: the team's reward plus the agent's own reward. If
a step pays only after all agents have acted, one completion of the step scores the candidate.

Only candidates are trained. Actions carried over from the state, and actions that only complete a step, are not
trained. The paper's ablations use half of the key: they compare all candidates of an agent, or all candidates at a
turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from marft.common.types import Action, Episode
from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.rewards.groups import normalize_by_group
from marft.rollout.fork_plans import CandidateTree, step_score


class Tree(Credit):
    """``(r − mean) / (std + ε)`` over the candidates from a state.

    The episode continues from the best candidate, or from the first.
    """

    candidates: Annotated[int, Field(ge=2, le=10_000)] = Field(
        default=4, description="candidates sampled from each state"
    )
    continue_from: Literal["best", "first"] = Field(
        default="best", description="candidate from which the episode continues"
    )
    scale_rewards: bool = Field(default=True, description="divide by the group's standard deviation")
    group_by: Literal["state", "agent", "turn"] = Field(
        default="state",
        description="group of compared candidates: one state; one agent at all its turns; or all agents at one turn",
    )

    @property
    def fork_plan(self) -> CandidateTree:
        """Fork mode that grows candidate trees."""
        return CandidateTree(self.candidates, self.continue_from)

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Compare a candidate's score with the other candidates of its group."""
        rows = [(episode, action) for episode in inputs.episodes for action in episode.actions]
        chosen = [k for k, (episode, action) in enumerate(rows) if is_candidate(episode, action)]
        keys = [_KEYS[self.group_by](*rows[k]) for k in chosen]
        costs = np.array([inputs.action_kl_cost(k) for k in chosen])
        scores = np.array([step_score(*rows[k]) for k in chosen]) - costs
        advantages = np.zeros(len(rows))
        advantages[chosen], metrics = normalize_by_group(scores, keys, scale=self.scale_rewards, costs=costs)
        trained = np.zeros(len(rows), bool)
        trained[chosen] = True
        groups = [""] * len(rows)
        for k, key in zip(chosen, keys, strict=True):
            groups[k] = state_name(key)
        return CreditOutput(inputs.broadcast(advantages), trained=trained.tolist(), groups=groups, metrics=metrics)


def is_candidate(episode: Episode, action: Action) -> bool:
    """Return True if the episode was forked at the action.

    In an episode without a fork every action is a candidate, compared with actions that happen to share its state.
    """
    return episode.fork is None or action.id == episode.fork.at


def state_key(episode: Episode, action: Action) -> tuple[str, str, bytes, tuple[tuple[str, bytes], ...]]:
    """Return a key for the state before an action: its prompt with the fixed turn start, and the earlier actions."""
    prefix = action.tokens[: int(np.argmax(action.own_mask))]
    before = tuple(
        (earlier.id, earlier.tokens.tobytes()) for earlier in episode.actions if earlier.index < action.index
    )
    return episode.task.id, action.id, np.concatenate([action.prompt, prefix]).tobytes(), before


def state_name(key: tuple[object, ...]) -> str:
    """Return a candidate group's name: task, agent or step, and a digest for the full key."""
    return f"{key[0]} {key[1]} {hashlib.sha256(repr(key).encode()).hexdigest()[:8]}"


_KEYS: Mapping[str, Callable[[Episode, Action], tuple[object, ...]]] = {
    "state": state_key,
    "agent": lambda episode, action: (episode.task.id, action.agent),
    "turn": lambda episode, action: (episode.task.id, action.step),
}
