"""Guard settings: monitored quantities during training, and the reaction to a collapse."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from marft.config.paths import AbsolutePath
from marft.config.patterns import Pattern
from marft.config.settings import NonEmptyString, NonNegative, NonNegativeCount, Settings, SmallCount


class HeldOutTextSettings(Settings):
    """Held-out text outside the task, as a measure for general capability."""

    path: AbsolutePath = ""  # plain-text file; "": no measurement
    every: SmallCount = 10  # steps between measurements
    tokens: Annotated[int, Field(ge=2, le=1_000_000)] = 1024  # number of tokens to score, from the start of the text


class GuardSettings(Settings):
    """Threshold for each guard; 0 disables the guard."""

    window: Annotated[int, Field(ge=3, le=10_000)] = 5  # number of latest steps that a guard evaluates together
    # rollback: roll back to the last stable checkpoint with lower learning rates; warn: only report
    on_collapse: Literal["warn", "rollback"] = "warn"
    max_rollbacks: SmallCount = 2  # maximum rollbacks of a run
    # factor on the policies' learning rates at each rollback; smaller if the KL of each step was above guards.kl
    rollback_lr_factor: Annotated[float, Field(gt=0, lt=1)] = 0.1
    held_out_text: HeldOutTextSettings = HeldOutTextSettings()  # text for the guard `capability`
    formats: dict[NonEmptyString, Pattern] = {}  # regular expressions that actions must match, by role
    probes: NonNegativeCount = 4  # actions of each answering agent that are scored under other inputs; 0: none
    kl: NonNegative = 0.1  # collapse: KL of each step per agent, in nats per token
    # collapse: drop of accuracy (else reward) below its best window, in standard deviations
    reward_drop: NonNegative = 0.8
    entropy_spike: NonNegative = 3.0  # collapse: entropy, as a multiple of the agent's first entropy
    entropy_collapse: NonNegative = 0.02  # collapse: entropy without gain, as a fraction of the agent's first entropy
    gradient: NonNegative = 10.0  # collapse: gradient norm, as a multiple of the policy's previous maximum
    # gaming: change of action length without gain in solved tasks, as a factor of the agent's first length
    length: NonNegative = 2.0
    # gaming: rise of a reward term without gain in solved tasks, in standard deviations of the reward
    term: NonNegative = 0.5
    # gaming: drop of validation below its best while the reward rises, in standard deviations
    validation_drop: NonNegative = 0.5
    repetition: NonNegative = 0.2  # gaming: rise in an agent's share of repeated 4-grams without gain in solved tasks
    # gaming: share of characters, or of actions, whose format differs from the start of training
    format: NonNegative = 0.25
    # collusion: dependence of an answering agent's text on its inputs, as a fraction of its first value
    dependence: NonNegative = 0.2
    work: NonNegative = 0.2  # collusion: share of the team's tokens that moves to an agent outside all reward terms
    # collusion: loss in readability of messages while more tasks are solved, in nats per token
    private_code: NonNegative = 0.5
    # drift: loss in log-likelihood of an agent's text under the untuned base, in nats per token
    readability: NonNegative = 1.0
    language: NonNegative = 0.2  # drift: share of letters that move to scripts outside the task
    # drift: rise of a policy's loss on the held-out text, as a fraction of its first loss
    capability: NonNegative = 0.1
