"""Guard settings: monitored quantities during training, and the reaction to a collapse."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from marft.config.paths import AbsolutePath
from marft.config.patterns import Pattern
from marft.config.settings import NonEmptyString, NonNegative, NonNegativeCount, Settings, SmallCount


class HeldOutTextSettings(Settings):
    """Held-out text outside the task, as a measure for general capability."""

    path: AbsolutePath = Field(default="", description='plain-text file; "": no measurement')
    every: SmallCount = Field(default=10, description="steps between measurements")
    tokens: Annotated[int, Field(ge=2, le=1_000_000)] = Field(
        default=1024, description="number of tokens to score, from the start of the text"
    )


class GuardSettings(Settings):
    """Threshold for each guard; 0 disables the guard."""

    window: Annotated[int, Field(ge=3, le=10_000)] = Field(
        default=5, description="number of latest steps per evaluation"
    )
    on_collapse: Literal["warn", "rollback"] = Field(
        default="warn",
        description="rollback: return to the last stable checkpoint, with lower learning rates; warn: only report",
    )
    max_rollbacks: SmallCount = Field(default=2, description="maximum rollbacks of a run")
    rollback_lr_factor: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1,
        description=(
            "factor on the policies' learning rates at each rollback; smaller if the KL of each step was above "
            "guards.kl"
        ),
    )
    held_out_text: HeldOutTextSettings = Field(
        default=HeldOutTextSettings(), description="text for the guard `capability`"
    )
    formats: dict[NonEmptyString, Pattern] = Field(default={}, description="regular expression for actions, by role")
    probes: NonNegativeCount = Field(
        default=4,
        description=(
            "actions of each agent that a step scores again to measure the KL of its update (at least 256 tokens), the "
            "KL to the untuned base, and an answering agent's dependence on its inputs; 0: none of these"
        ),
    )
    kl: NonNegative = Field(default=0.1, description="collapse: KL of each step per agent, in nats per token")
    reward_drop: NonNegative = Field(
        default=0.8,
        description="collapse: drop of accuracy (else reward) below its best window, in standard deviations",
    )
    entropy_spike: NonNegative = Field(
        default=3.0, description="collapse: entropy, as a multiple of the agent's first entropy"
    )
    entropy_collapse: NonNegative = Field(
        default=0.02, description="collapse: entropy without gain, as a fraction of the agent's first entropy"
    )
    gradient: NonNegative = Field(
        default=10.0, description="collapse: gradient norm, as a multiple of the policy's previous maximum"
    )
    length: NonNegative = Field(
        default=2.0,
        description=(
            "gaming: change of action length without gain in solved tasks, as a factor of the agent's first length"
        ),
    )
    term: NonNegative = Field(
        default=0.5,
        description="gaming: rise of a reward term without gain in solved tasks, in standard deviations of the reward",
    )
    validation_drop: NonNegative = Field(
        default=0.5,
        description="gaming: drop of validation below its best while the reward rises, in standard deviations",
    )
    repetition: NonNegative = Field(
        default=0.2, description="gaming: rise in an agent's share of repeated 4-grams without gain in solved tasks"
    )
    format: NonNegative = Field(
        default=0.25,
        description="gaming: share of characters or actions with another format than at the start of training",
    )
    dependence: NonNegative = Field(
        default=0.2,
        description=(
            "collusion: dependence of an answering agent's text on its inputs, as a fraction of its first value"
        ),
    )
    work: NonNegative = Field(
        default=0.2,
        description="collusion: share of the team's tokens that moves to an agent outside every reward term",
    )
    private_code: NonNegative = Field(
        default=0.5,
        description="collusion: loss in readability of messages while more tasks are solved, in nats per token",
    )
    readability: NonNegative = Field(
        default=1.0,
        description="drift: loss in log-likelihood of an agent's text under the untuned base, in nats per token",
    )
    language: NonNegative = Field(
        default=0.2, description="drift: share of letters that move to scripts outside the task"
    )
    capability: NonNegative = Field(
        default=0.1, description="drift: rise of a policy's loss on the held-out text, as a fraction of its first loss"
    )
