"""Which of the candidates that were sampled from one state are preferred to which: pairs of single actions."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from marft.config.parts import CreditPart
from marft.rollout.forking.tree import Candidates, step_score
from marft.trainer.credit.sides import Pairing, Side, Weighing, comparisons, signs
from marft.trainer.credit.tree import is_candidate, state_name, state_of
from marft.trainer.interfaces import CreditInputs, Credits


class PreferenceTree(CreditPart):
    """Better against worse candidates of a state, for objective ``dpo``; a candidate earns what credit ``tree`` says.
    The two share everything said before, so nothing else is in their log-ratio."""

    makes_pairs: ClassVar[bool] = True
    absolute: ClassVar[bool] = True

    candidates: Annotated[int, Field(ge=2, le=10_000)] = 4  # sampled from one state
    carry: Literal["best", "first"] = "best"  # the candidate that the episode goes on with
    # best against worst; best against worst, second against last but one, …; or all that differ
    pairs: Pairing = "extremes"
    weights: Weighing = "equal"  # gap: a pair weighs by how much its sides differ in what they earned

    @property
    def forking(self) -> Candidates:
        """Candidates are sampled from the states that the policies come to."""
        return Candidates(self.candidates, self.carry)

    def assign(self, inputs: CreditInputs) -> Credits:
        """Pairs of candidates at the same branch."""
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
