"""What a run watches of itself while it trains, and what it does about a collapse."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from marft.config.folders import from_recipe
from marft.config.patterns import Pattern
from marft.config.settings import CountOrNone, Few, Filled, NotNegative, Settings


class HeldOutTextSettings(Settings):
    """Text that no task shows: what a policy still knows of it is what it can still do beside the task."""

    path: str = ""  # a file of plain text; "": none, and nothing is measured
    every: Few = 10  # steps from one measurement to the next
    tokens: Annotated[int, Field(ge=2, le=1_000_000)] = 1024  # that are read of it, from its beginning

    @field_validator("path")
    @classmethod
    def _in_the_recipes_folder(cls, path: str, info: ValidationInfo) -> str:
        return from_recipe(path, info.context) if path else ""


class GuardSettings(Settings):
    """The threshold of each guard; 0 switches it off."""

    window: Annotated[int, Field(ge=3, le=10_000)] = 5  # newest steps that a guard judges together
    # return: go back to the last stable checkpoint, with lower learning rates; note: say so, and go on
    on_collapse: Literal["note", "return"] = "note"
    returns: Few = 2  # times that a run goes back, at most
    # what the policies' learning rates are multiplied by each time; by less, where each step's KL was above guards.kl
    rate: Annotated[float, Field(gt=0, lt=1)] = 0.1
    held_out_text: HeldOutTextSettings = HeldOutTextSettings()  # of the guard `capability`
    formats: dict[Filled, Pattern] = {}  # what actions hold, by role
    probes: CountOrNone = 4  # actions of each answering agent that are scored after other inputs; 0: none
    kl: NotNegative = 0.1  # collapse: nats a token that each step moves an agent
    reward_fall: NotNegative = 0.8  # collapse: deviations that accuracy, or else reward, is below its best window
    entropy_surge: NotNegative = 3.0  # collapse: times an agent's first entropy
    entropy_lost: NotNegative = 0.02  # collapse: share left of an agent's first entropy, while nothing is gained
    gradient: NotNegative = 10.0  # collapse: times the largest gradient norm of a policy before
    length: NotNegative = 2.0  # gaming: times, or part of, an agent's first length, while no more is solved
    term: NotNegative = 0.5  # gaming: deviations of the reward that a term pays more, while no more is solved
    held_out_fall: NotNegative = 0.5  # gaming: deviations that validation is below its best, while the reward rises
    repetition: NotNegative = 0.2  # gaming: share of 4-grams that an agent repeats more, while no more is solved
    format: NotNegative = 0.25  # gaming: share of characters, or of actions, that look otherwise than at first
    dependence: NotNegative = 0.2  # collusion: share left of what an answering agent's text owes to its inputs
    work: NotNegative = 0.2  # collusion: share of the team's tokens that moves to an agent that no term looks at
    private_code: NotNegative = 0.5  # collusion: nats a token that messages are less readable, while more is solved
    readability: NotNegative = 1.0  # drift: nats a token that an agent's text is less likely to the untuned base
    language: NotNegative = 0.2  # drift: share of letters that go over to scripts which the task does not use
    capability: NotNegative = 0.1  # drift: share of its first loss on the held-out text that a policy loses more
