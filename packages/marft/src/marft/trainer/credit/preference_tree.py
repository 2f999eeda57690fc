"""Preference pairs between candidates for a single action, sampled from the same state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from marft.config.interfaces.credit import Credit, CreditInputs, CreditOutput
from marft.rollout.fork_plans import CandidateTree, step_score
from marft.trainer.credit.sides import (
    Pairing,
    PairSide,
    PairWeighting,
    build_pairs,
    compute_action_weights,
    trained_keys,
)
from marft.trainer.credit.tree import is_candidate, state_key, state_name


class PreferenceTree(Credit):
    """Pairs of better and worse candidates from a state, for objective ``dpo``.

    A candidate earns the reward of its step, as in credit ``tree``. Both candidates share all earlier messages, so the
    log-ratio of a pair contains only the two candidates.
    """

    makes_pairs: ClassVar[bool] = True
    absolute_weights: ClassVar[bool] = True

    candidates: Annotated[int, Field(ge=2, le=10_000)] = Field(
        default=4, description="candidates sampled from each state"
    )
    continue_from: Literal["best", "first"] = Field(
        default="best", description="candidate from which the episode continues"
    )
    pairs: Pairing = Field(
        default="extremes",
        description=(
            '"extremes": best against worst; "ranked": also second best against second worst, and so on; "all": '
            "every pair with different rewards"
        ),
    )
    weights: PairWeighting = Field(
        default="equal", description='"gap": weight of a pair is its difference in reward, net of KL costs'
    )

    @property
    def fork_plan(self) -> CandidateTree:
        """Fork mode that grows candidate trees."""
        return CandidateTree(self.candidates, self.continue_from)

    def assign(self, inputs: CreditInputs) -> CreditOutput:
        """Return pairs of candidates from the same state."""
        rows = [(episode, action) for episode in inputs.episodes for action in episode.actions]
        names = [""] * len(rows)
        sides = []
        for k, (episode, action) in enumerate(rows):
            if not is_candidate(episode, action):
                continue
            key = state_key(episode, action)
            names[k] = state_name(key)
            keys = trained_keys(inputs, [action])
            sides.append(PairSide(key, action.agent, step_score(episode, action), inputs.action_kl_cost(k), keys))
        pairs, metrics = build_pairs(sides, self.pairs, self.weights)
        advantages, paired = compute_action_weights(pairs, inputs.actions)
        trained = [bool(name) and is_paired for name, is_paired in zip(names, paired, strict=True)]
        return CreditOutput(
            inputs.broadcast(advantages), trained=trained, groups=names, comparisons=pairs, metrics=metrics
        )
