"""``[algorithm]``: a preset's name and whatever a recipe changes of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Normalisation
from marft.config.algorithms import PRESETS
from marft.config.parts import CreditPlugin, ObjectivePlugin, SchedulePlugin, TeammateWeightPlugin
from marft.config.settings import (
    LARGEST,
    CountOrNone,
    Felt,
    Few,
    Fraction,
    NotNegative,
    Positive,
    Ratio,
    Settings,
    Weight,
    did_you_mean,
)

Aggregation = Literal["auto", "action-mean", "action-mean-of-sums", "token-mean", "constant-length"]
LearningRate = Annotated[float, Field(ge=1e-12, le=1)]  # with less, weights do not move
Limit = Annotated[NotNegative, Felt]
Epsilon = Annotated[float, Field(gt=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings):
    """AdamW and its learning-rate schedule. Adapters and optimizer state are float32 whatever the base's dtype."""

    learning_rate: LearningRate = 3e-5  # of policies that have none of their own
    schedule: Literal["constant", "linear", "cosine"] = "constant"  # how the learning rate goes down
    warmup_steps: CountOrNone = 0  # training steps in which it rises to its height
    final_fraction: Fraction = 0.0  # of the learning rate, where linear and cosine end
    beta1: Beta = 0.9  # decay of the mean gradient
    beta2: Beta = 0.999  # decay of the mean squared gradient
    epsilon: Epsilon = 1e-8  # added to the root of the mean square
    weight_decay: Annotated[float, Field(ge=0, le=10)] = 0.0  # pull towards 0, times the learning rate
    max_gradient_norm: Annotated[Positive, Felt] = 1.0  # of each policy; longer gradients are shortened to it


class RewardSettings(Settings):
    """What the rewards become before credit is assigned: ``team`` · team reward + ``own`` · the agent's own."""

    team: Weight = 1.0  # weight of the team's reward
    own: Weight = 1.0  # weight of the agent's own
    shaping: Literal["none", "margin", "quality"] = "none"  # of agents' own rewards, against their earlier ones
    shaping_weight: Weight = 0.5  # of what shaping adds
    overlong_buffer: CountOrNone = 0  # tokens before max_new_tokens that cost up to 1; 0 is off

    @model_validator(mode="after")
    def _check_weights(self) -> RewardSettings:
        if self.team == 0 and self.own == 0:
            raise PydanticCustomError("reward", "team and own are both 0, so nothing would be rewarded")
        if self.shaping != "none" and self.shaping_weight == 0:
            raise PydanticCustomError("reward", "shaping_weight = 0 shapes nothing; set shaping = 'none'")
        return self


class KLSettings(Settings):
    """KL to the untuned base (adapters off), in the loss or taken off the reward of each decision.

    k1 = −d, k2 = d²/2, k3 = e^d − 1 − d (Schulman 2020) with d = log π_base − log π, clamped to ±20. In the loss k1 has
    no gradient in expectation, so it belongs to the reward. k2 has the gradient of KL(π ‖ base) on-policy,
    ``k3-corrected`` (k3 weighed with the new/old ratio) off-policy too; k3 as GRPO has it has that of KL(base ‖ π).
    """

    coefficient: Weight = 0.0  # weight of the KL; 0 is off
    place: Literal["loss", "reward"] = "loss"  # in the loss, or off the reward of each decision
    # how it is estimated; in the reward k1
    estimator: Literal["k1", "k2", "k3", "k3-corrected"] = "k3-corrected"

    @model_validator(mode="before")
    @classmethod
    def _what_the_place_asks_for(cls, table: object) -> object:
        if isinstance(table, dict) and table.get("place") == "reward":
            return {"estimator": "k1", **table}
        return table

    @model_validator(mode="after")
    def _check_place(self) -> KLSettings:
        if self.place == "loss" and self.estimator == "k1":
            raise PydanticCustomError(
                "kl",
                "k1 in the loss has no gradient in expectation; use 'k3-corrected', or place = 'reward'",
            )
        if self.place == "reward" and self.estimator != "k1":
            raise PydanticCustomError("kl", "in the reward only k1 gives the KL's gradient; set estimator = 'k1'")
        return self


class SamplerCorrectionSettings(Settings):
    """Weighs the loss with π_old/μ, μ what the engine sampled with, where the learner's numbers differ from it.

    ``level``: each token its own weight, or one for the action: the product, or the geometric mean. The weight is cut
    at ``cap``; outside ``[low, high]`` it is 0 (IcePop's mask; ``high = 0`` is off).
    """

    # what gets a weight; none: no correction. Engines apart: token at token level, else geometric
    level: Literal["none", "token", "action", "geometric"] = "none"
    cap: Annotated[float, Field(ge=1, le=LARGEST)] = 2.0  # the largest weight
    low: Ratio = 0.0  # weights below it become 0; needs high
    high: Ratio = 0.0  # weights above it become 0; 0 is off

    @model_validator(mode="after")
    def _check_band(self) -> SamplerCorrectionSettings:
        if self.high and self.low >= self.high:
            raise PydanticCustomError("band", "low is not below high, so every weight would be 0")
        if self.high and not self.low <= 1 <= self.high:
            raise PydanticCustomError(
                "band", "1 is not between low and high: where engine and learner agree, the weight is 1"
            )
        if self.low and not self.high:
            raise PydanticCustomError("band", "low does nothing without high; set high as well, for example 5.0")
        if self.high and self.cap < self.low:
            raise PydanticCustomError("band", "cap is below low, so every weight would be the same")
        return self


class TeammateTextSettings(Settings):
    """Text that somebody else wrote inside an agent's own turn, a teammate or a helper, which the agent did not sample.
    ``−coefficient · w · A · log π``, the weight w without gradient.

    Averaged over the policy's tokens of that kind. With coefficient 0 such text is read and not trained.
    """

    coefficient: Weight = 0.0  # weight of the term; 0 is off
    weight: TeammateWeightPlugin  # w of each token, from how likely it was to the agent and to its author

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: object) -> object:
        return {"weight": {"name": "truncated"}, **table} if isinstance(table, dict) else table


class CriticSettings(Settings):
    """V_φ: an MLP head on the frozen base's hidden states (formulas: Huber and value clip have their own widths)."""

    # independent: what the agent did not see is left out
    kind: Literal["centralised", "independent", "none"] = "centralised"
    body: Literal["frozen", "lora"] = "frozen"  # lora: the base with an adapter of the critic's own
    heads: Literal["team", "agent"] = "team"  # one value head for all agents of a base, or one for each
    lora_rank: Annotated[int, Field(ge=1, le=65_536)] = 8  # of body = "lora"
    lora_learning_rate: LearningRate = 1e-4  # of body = "lora"
    hidden: Annotated[int, Field(ge=1, le=65_536)] = 64  # width of the head's layers
    learning_rate: LearningRate = 1e-3  # of the head
    epsilon: Epsilon = 1e-8  # of its Adam
    max_gradient_norm: Annotated[Positive, Felt] = 1.0  # longer gradients are shortened to it
    loss: Literal["huber", "squared"] = "huber"  # of the values
    huber_delta: Annotated[Positive, Felt] = 1.0  # error from which the Huber loss is linear
    value_clip: Limit = 0.2  # how far a value may move; 0 is off
    normalise_values: bool = False  # targets are taken over their running mean and deviation (MAPPO)
    value_decay: Annotated[float, Field(ge=0, lt=1)] = 0.99999  # of those statistics, a batch
    coefficient: Annotated[float, Field(gt=0, le=100)] = 1.0  # weight of the loss
    epochs: Few = 1  # over a step's episodes
    minibatches: Few = 1  # of an epoch
    warmup_steps: CountOrNone = 0  # steps that fit the critic alone, to Monte-Carlo returns


class AlgorithmSettings(Settings):
    """One algorithm: credit + objective + schedule, and how they step."""

    name: str = "marft"  # a preset
    level: Literal["action", "token"] = "action"  # what one decision is: a whole action, or a token
    normalisation: Normalisation = "tokens"  # Z that an action's log-probability is divided by
    aggregation: Aggregation = "auto"  # how terms are averaged; auto: action-mean, or token-mean at token level
    constant_length: CountOrNone = 0  # tokens, for aggregation = "constant-length"; 0: max_new_tokens
    denominator: Literal["policy", "pooled"] = "policy"  # terms are counted for each policy, or for all together
    normalise_advantages: bool = True  # to mean 0 and deviation 1
    # advantages of a step in which every episode earned the same: as any others (assigned), or 0 (zero)
    equal_rewards: Literal["assigned", "zero"] = "assigned"
    epochs: Few = 1  # over a step's episodes
    minibatches: Few = 1  # of an epoch
    kl_stop: Limit = 0.0  # nats a token, before an update, from which a phase makes no more; 0 is off
    team_kl: Limit = 0.0  # nats an environment step that all policies together may move in a step; 0 is no limit
    entropy: Weight = 0.0  # weight of the entropy bonus; 0 is off
    nll: Weight = 0.0  # weight of the negative log-likelihood of actions of successful episodes (VAPO)
    # times that tasks are drawn again for all-equal groups (DAPO)
    dynamic_sampling: Annotated[int, Field(ge=0, le=1000)] = 0
    reward: RewardSettings = RewardSettings()  # what rewards become before credit
    kl: KLSettings = KLSettings()  # KL to the untuned base
    # weights for what the engine rounds otherwise
    sampler_correction: SamplerCorrectionSettings = SamplerCorrectionSettings()
    # learning from what others wrote in an agent's turn
    teammate_text: TeammateTextSettings = Field(default_factory=lambda: TeammateTextSettings.model_validate({}))
    credit: CreditPlugin  # what each decision was worth
    objective: ObjectivePlugin  # the loss of a decision
    schedule: SchedulePlugin  # which policies step, in which order
    optimizer: OptimizerSettings = OptimizerSettings()  # of the policies
    critic: CriticSettings = CriticSettings()  # of credits that read values

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_preset(cls, table: object) -> object:
        if not isinstance(table, dict):
            return table
        table = under_the_preset_named(table)
        name = table.get("name", "marft")
        if not isinstance(name, str) or name not in PRESETS:
            hint = did_you_mean(str(name), PRESETS)
            raise PydanticCustomError(
                "preset", "no algorithm is called {name}{hint}", {"name": repr(name), "hint": hint}
            )
        return {"name": name, **merge(PRESETS[name], table)}

    @model_validator(mode="after")
    def _check_aggregation(self) -> AlgorithmSettings:
        if self.level == "action" and self.aggregation not in ("auto", "action-mean"):
            raise PydanticCustomError(
                "aggregation",
                "aggregation {aggregation} counts tokens, but level = 'action' has one term an action; "
                "use 'action-mean' or level = 'token'",
                {"aggregation": repr(self.aggregation)},
            )
        return self

    @model_validator(mode="after")
    def _check_combination(self) -> AlgorithmSettings:
        problems = list(_impossible(self))
        if problems:
            raise PydanticCustomError("combination", "{problems}", {"problems": "\n".join(problems)})
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def complete_from(self) -> str:
        """The mark of a table that was written out whole: the preset that filled it in."""
        return self.name

    @property
    def resolved_aggregation(self) -> Literal["action-mean", "action-mean-of-sums", "token-mean", "constant-length"]:
        if self.aggregation == "auto":
            return "action-mean" if self.level == "action" else "token-mean"
        return self.aggregation


def _impossible(algorithm: AlgorithmSettings) -> Iterable[str]:
    """Combinations that cannot work, each with its remedy."""
    credit, kind = algorithm.credit, algorithm.critic.kind
    if credit.needs_critic and kind == "none":
        yield (
            f"credit {credit.name!r} reads a critic's values, but critic.kind = 'none'; "
            "use critic.kind = 'centralised', or a credit without a critic such as 'grpo'"
        )
    if not credit.needs_critic and kind != "none":
        yield (
            f"credit {credit.name!r} reads no values, so a critic would be trained for nothing; "
            "set critic.kind = 'none', or use credit 'gae'"
        )
    if algorithm.sampler_correction.level == "token" and algorithm.level == "action":
        yield ("sampler_correction.level = 'token' needs level = 'token'; at action level use 'action' or 'geometric'")
    if credit.ranks_own and algorithm.reward.overlong_buffer:
        yield (
            f"reward.overlong_buffer: credit {credit.name!r} goes by how own rewards rank attempts, and would take the "
            "price of length for one; set it to 0"
        )
    correction = algorithm.schedule.correction
    if correction == "preceding" and not credit.reads_traces:
        yield (
            f"schedule {algorithm.schedule.name!r} traces advantages through the policies updated before, which credit "
            f"{credit.name!r} does not know of; use credit 'step-gae', or schedule 'sequential'"
        )
    if correction and credit.forking:
        yield (
            f"schedule {algorithm.schedule.name!r} weighs actions with what was done beside them in the same episode, "
            f"but credit {credit.name!r} judges each in an episode of its own; use schedule 'simultaneous'"
        )
    if correction == "preceding" and not algorithm.objective.clip_width:
        yield (
            f"schedule {algorithm.schedule.name!r} clips joint ratios, which objective {algorithm.objective.name!r} "
            "does not; use objective 'ppo'"
        )
    yield from _incomparable(algorithm)


def _incomparable(algorithm: AlgorithmSettings) -> Iterable[str]:
    """What does not go with comparisons, or with advantages that are weights."""
    credit, objective = algorithm.credit, algorithm.objective
    if objective.reads_pairs and algorithm.teammate_text.coefficient:
        yield (
            f"teammate_text: objective {objective.name!r} compares what agents wrote themselves, and has no advantage "
            "of anybody else's words; set teammate_text.coefficient = 0"
        )
    if credit.makes_pairs and not objective.reads_pairs:
        yield (
            f"credit {credit.name!r} makes comparisons, which objective {objective.name!r} does not read; use "
            "objective 'dpo', or a credit of single attempts such as 'grpo'"
        )
    if objective.reads_pairs and not credit.makes_pairs:
        yield (
            f"objective {objective.name!r} is a loss of comparisons, which credit {credit.name!r} does not make; use "
            "credit 'preference', or objective 'ppo'"
        )
    if credit.absolute and algorithm.normalise_advantages:
        yield (
            f"credit {credit.name!r} says what is learned, and over their deviation its numbers would say something "
            "else; set normalise_advantages = false"
        )
    if not objective.reads_pairs:
        return
    if algorithm.level == "token":
        yield f"objective {objective.name!r} compares whole actions; use level = 'action'"
    if algorithm.schedule.correction:
        yield (
            f"schedule {algorithm.schedule.name!r} weighs actions with how far others have moved, and a comparison's "
            "loss takes that in already; use schedule 'simultaneous' or 'agent-by-agent'"
        )
    if algorithm.sampler_correction.level != "none":
        yield (
            f"sampler_correction weighs single actions by who sampled them, and objective {objective.name!r} compares "
            "attempts whoever sampled them; remove it"
        )


def under_the_preset_named(table: Mapping[str, object]) -> dict[str, object]:
    """A table that was written out whole (``complete_from``), as one that says only what it changes of its preset.

    So a preset named over it applies, as it would over the recipe that it was made from. A table that names the preset
    which filled it in stays whole, whatever has become of that preset since.
    """
    rest = {key: value for key, value in table.items() if key != "complete_from"}
    before = table.get("complete_from", rest.get("name"))
    if before == rest.get("name"):
        return rest
    if not isinstance(before, str) or before not in PRESETS:
        raise ValueError(f"algorithm.complete_from: no algorithm is called {before!r}; remove it, or name a preset")
    filled_in = AlgorithmSettings.model_validate({"name": before}).model_dump(mode="json", exclude_none=True)
    return {**_changes(filled_in, rest), **{key: rest[key] for key in ("name",) if key in rest}}


def _changes(filled_in: Mapping[str, object], table: Mapping[str, object]) -> dict[str, object]:
    """What of ``table`` is not as it was filled in; a part of another name is a change as a whole."""
    changed: dict[str, object] = {}
    for key, value in table.items():
        default = filled_in.get(key)
        if value == default and type(value) is type(default):
            continue
        if isinstance(value, dict) and isinstance(default, dict) and value.get("name") == default.get("name"):
            value = _changes(default, value)
        changed[key] = value
    return changed


def merge(defaults: Any, table: Any) -> dict[str, object]:
    """``table`` over ``defaults``, table by table; a table that names another plugin replaces the default whole."""
    merged = dict(defaults)
    for key, value in table.items():
        default = merged.get(key)
        if (
            isinstance(default, dict)
            and isinstance(value, dict)
            and value.get("name", default.get("name")) == default.get("name")
        ):
            value = merge(default, value)
        merged[key] = value
    return merged
