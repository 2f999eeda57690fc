"""What a run watches of itself while it trains, and what it does about a collapse."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from marft.config.settings import Few, NotNegative, Settings


class GuardSettings(Settings):
    """The threshold of each guard; 0 switches it off."""

    window: Annotated[int, Field(ge=3, le=10_000)] = 5  # newest steps that a guard judges together
    # return: go back to the last stable checkpoint, with lower learning rates; note: say so, and go on
    on_collapse: Literal["note", "return"] = "note"
    returns: Few = 2  # times that a run goes back, at most
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.1  # what the policies' learning rates are multiplied by each time
    kl: NotNegative = 0.1  # collapse: nats a token that each step moves an agent
    reward_fall: NotNegative = 0.8  # collapse: deviations that accuracy, or else reward, is below its best window
    entropy_surge: NotNegative = 3.0  # collapse: times an agent's first entropy
    entropy_lost: NotNegative = 0.02  # collapse: share left of an agent's first entropy, while nothing is gained
    gradient: NotNegative = 10.0  # collapse: times the largest gradient norm of a policy before
    length: NotNegative = 2.0  # gaming: times, or part of, an agent's first length, while no more is solved
    term: NotNegative = 0.5  # gaming: deviations of the reward that a term pays more, while no more is solved
    held_out_fall: NotNegative = 0.5  # gaming: deviations that validation is below its best, while the reward rises
