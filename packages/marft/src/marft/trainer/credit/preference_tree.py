"""Preference pairs between candidates for a single action, sampled from the same state."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from marft.config.parts import CreditPart
from marft.rollout.forking.tree import Candidates, step_score
from marft.trainer.credit.sides import Pairing, Side, Weighing, comparisons, signs
from marft.trainer.credit.tree import is_candidate, state_name, state_of
from marft.trainer.interfaces import CreditInputs, Credits


class PreferenceTree(CreditPart):
    """Pairs of better and worse candidates from a state, for objective ``dpo``.

    A candidate earns the reward of its step, as in credit ``tree``. Both candidates share all earlier messages, so the
    log-ratio of a pair contains only the two candidates.
    """

    makes_pairs: ClassVar[bool] = True
    absolute: ClassVar[bool] = True

    candidates: Annotated[int, Field(ge=2, le=10_000)] = 4  # candidates sampled from each state
    carry: Literal["best", "first"] = "best"  # candidate that the episode continues from
    # "extremes": best against worst; "ranked": also second best against second worst, and so on; "all": every pair with
    # different rewards
    pairs: Pairing = "extremes"
    weights: Weighing = "equal"  # "gap": weight of a pair is its difference in reward, net of KL costs

    @property
    def forking(self) -> Candidates:
        """Fork mode that grows candidate trees."""
        return Candidates(self.candidates, self.carry)

    def assign(self, inputs: CreditInputs) -> Credits:
        """Return pairs of candidates from the same state."""
        rows = [(episode, action) for episode in inputs.episodes for action in episode.actions]
        names = [""] * len(rows)
        sides = []
        for k, (episode, action) in enumerate(rows):
            if not is_candidate(episode, action):
                continue
            key = state_of(episode, action)
            names[k] = state_name(key)
            mine = (action.key,) if inputs.trains(action) and not action.settled else ()
            sides.append(Side(key, action.agent, step_score(episode, action), inputs.cost_of(k), mine))
        found, metrics = comparisons(sides, self.pairs, self.weights)
        advantages, paired = signs(found, inputs.actions)
        trained = [bool(name) and mine for name, mine in zip(names, paired, strict=True)]
        return Credits(
            inputs.spread(advantages), trained=trained, groups=names, comparisons=found, metrics=metrics
        )  # fmt: skip
