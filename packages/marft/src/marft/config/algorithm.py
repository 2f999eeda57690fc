"""``[algorithm]``: preset name and overrides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, computed_field, model_validator
from pydantic_core import PydanticCustomError

from marft.common.errors import UserError
from marft.common.types import Normalization
from marft.config.algorithms import PRESETS
from marft.config.interfaces.credit import Credit
from marft.config.interfaces.objective import Objective
from marft.config.interfaces.schedule import UpdateSchedule
from marft.config.interfaces.teammate_weight import TeammateWeight
from marft.config.settings import (
    MAX_COUNT,
    Fraction,
    NonNegative,
    NonNegativeCount,
    NotTiny,
    Positive,
    Ratio,
    Settings,
    SmallCount,
    Weight,
    did_you_mean,
)

Aggregation = Literal["auto", "action-mean", "action-mean-of-sums", "token-mean", "constant-length"]
LearningRateSchedule = Literal["constant", "linear", "cosine"]
LearningRate = Annotated[float, Field(ge=1e-12, le=1)]  # smaller steps do not change weights
Limit = Annotated[NonNegative, NotTiny]
Epsilon = Annotated[float, Field(gt=0, le=1)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSettings(Settings):
    """AdamW with a learning-rate schedule. Adapters and optimizer state are float32, for every base dtype."""

    learning_rate: LearningRate = Field(default=3e-5, description="default learning rate of policies")
    schedule: LearningRateSchedule = Field(default="constant", description="decay of the learning rate")
    warmup_steps: NonNegativeCount = Field(default=0, description="training steps of linear warm-up")
    min_lr_ratio: Fraction = Field(
        default=0.0, description="final learning rate of linear and cosine decay, as a fraction of learning_rate"
    )
    beta1: Beta = Field(default=0.9, description="decay of the first moment")
    beta2: Beta = Field(default=0.999, description="decay of the second moment")
    epsilon: Epsilon = Field(default=1e-8, description="term added to the root of the second moment")
    weight_decay: Annotated[float, Field(ge=0, le=10)] = Field(
        default=0.0, description="decoupled weight decay, multiplied by the learning rate"
    )
    max_gradient_norm: Annotated[Positive, NotTiny] = Field(
        default=1.0, description="gradient clipping: maximum norm per policy"
    )

    @property
    def depends_on_steps(self) -> bool:
        """True if the learning rate of a step depends on the total number of steps."""
        return self.schedule in ("linear", "cosine")


class RewardSettings(Settings):
    """Reward composition before credit assignment.

    The reward is ``team_weight`` · team reward + ``own_weight`` · the agent's own reward.
    """

    team_weight: Weight = Field(default=1.0, description="weight of the team's reward")
    own_weight: Weight = Field(default=1.0, description="weight of the agent's own reward")
    shaping: Literal["none", "margin", "quality"] = Field(
        default="none", description="shaping of agents' own rewards, relative to earlier rewards in the trajectory"
    )
    shaping_weight: Weight = Field(default=0.5, description="weight of the shaping term")
    overlong_buffer: NonNegativeCount = Field(
        default=0,
        description="length of the zone before max_new_tokens with a length penalty of up to 1, in tokens; 0: off",
    )

    @model_validator(mode="after")
    def _check_weights(self) -> RewardSettings:
        if self.team_weight == 0 and self.own_weight == 0:
            raise PydanticCustomError("reward", "team_weight and own_weight are both 0, so nothing would be rewarded")
        if self.shaping != "none" and self.shaping_weight == 0:
            raise PydanticCustomError("reward", "shaping_weight = 0 shapes nothing; set shaping = 'none'")
        return self


class KLSettings(Settings):
    """KL to the untuned base (adapters off), in the loss or subtracted from each decision's reward.

    k1 = −d, k2 = d²/2, k3 = e^d − 1 − d (Schulman 2020) with d = log π_base − log π, clamped to ±20. In the loss, k1
    has no gradient in expectation, so it is allowed only in the reward. k2 has the gradient of KL(π ‖ base) on-policy.
    ``k3-corrected`` (k3 weighted by the new/old ratio) has it off-policy too. Plain k3, as in GRPO, has the gradient of
    KL(base ‖ π).
    """

    coefficient: Weight = Field(default=0.0, description="weight of the KL; 0: off")
    apply_to: Literal["loss", "reward"] = Field(
        default="loss", description="add the KL to the loss, or subtract it from the reward of each decision"
    )
    estimator: Literal["k1", "k2", "k3", "k3-corrected"] = Field(
        default="k3-corrected", description="KL estimator; always k1 in the reward"
    )

    @model_validator(mode="before")
    @classmethod
    def _set_default_estimator(cls, table: object) -> object:
        if isinstance(table, dict) and table.get("apply_to") == "reward":
            return {"estimator": "k1", **table}
        return table

    @model_validator(mode="after")
    def _check_apply_to(self) -> KLSettings:
        if self.apply_to == "loss" and self.estimator == "k1":
            raise PydanticCustomError(
                "kl",
                "k1 in the loss has no gradient in expectation; use 'k3-corrected', or apply_to = 'reward'",
            )
        if self.apply_to == "reward" and self.estimator != "k1":
            raise PydanticCustomError("kl", "in the reward only k1 gives the KL's gradient; set estimator = 'k1'")
        return self


class SamplerCorrectionSettings(Settings):
    """Importance weights π_old/μ on the loss, for differences between learner and engine. μ is the engine's policy.

    ``level`` sets one weight per token, or one per action: the product of its token ratios, or their geometric mean.
    The weight is capped at ``cap``. Outside ``[mask_low, mask_high]`` it is 0 (IcePop's mask; off with
    ``mask_high = 0``).
    """

    level: Literal["none", "token", "action", "geometric"] = Field(
        default="none",
        description=(
            "unit of a weight; none: off. Default with separate engine weights: token at token level, else geometric"
        ),
    )
    cap: Annotated[float, Field(ge=1, le=MAX_COUNT)] = Field(default=2.0, description="maximum weight")
    mask_low: Ratio = Field(default=0.0, description="mask: smaller weights become 0; requires the upper mask")
    mask_high: Ratio = Field(default=0.0, description="mask: larger weights become 0; 0: off")

    @model_validator(mode="after")
    def _check_band(self) -> SamplerCorrectionSettings:
        if self.mask_high and self.mask_low >= self.mask_high:
            raise PydanticCustomError("band", "mask_low is not below mask_high, so every weight would be 0")
        if self.mask_high and not self.mask_low <= 1 <= self.mask_high:
            raise PydanticCustomError(
                "band", "1 is not between mask_low and mask_high: where engine and learner agree, the weight is 1"
            )
        if self.mask_low and not self.mask_high:
            raise PydanticCustomError(
                "band", "mask_low does nothing without mask_high; set mask_high as well, for example 5.0"
            )
        if self.mask_high and self.cap < self.mask_low:
            raise PydanticCustomError("band", "cap is below mask_low, so every weight would be the same")
        return self


class TeammateTextSettings(Settings):
    """Loss on text in an agent's own turn that a teammate or helper wrote: ``−coefficient · w · A · log π``.

    The weight w has no gradient. The term is averaged over the policy's tokens of this kind. With coefficient 0 the
    text is context only and not trained.
    """

    coefficient: Weight = Field(default=0.0, description="weight of the term; 0: off")
    weight: TeammateWeight = Field(
        description="weight w of each token, from its probability under the agent and under its author"
    )

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: object) -> object:
        return {"weight": {"name": "truncated"}, **table} if isinstance(table, dict) else table


class CriticSettings(Settings):
    """V_φ: an MLP head on hidden states of the frozen base (Huber loss and value clip have separate widths)."""

    kind: Literal["centralized", "independent", "none"] = Field(
        default="centralized",
        description="input of the critic; independent: without actions hidden from the agent; none: no critic",
    )
    body: Literal["frozen", "lora"] = Field(
        default="frozen", description="lora: the base with a separate adapter for the critic"
    )
    heads: Literal["team", "agent"] = Field(default="team", description="value heads: one per base, or one per agent")
    lora_rank: Annotated[int, Field(ge=1, le=65_536)] = Field(default=8, description='LoRA rank for body = "lora"')
    lora_learning_rate: LearningRate = Field(default=1e-4, description='learning rate for body = "lora"')
    hidden_size: Annotated[int, Field(ge=1, le=65_536)] = Field(
        default=64, description="width of the head's hidden layers"
    )
    learning_rate: LearningRate = Field(default=1e-3, description="learning rate of the head")
    epsilon: Epsilon = Field(default=1e-8, description="epsilon of the head's Adam")
    max_gradient_norm: Annotated[Positive, NotTiny] = Field(default=1.0, description="gradient clipping: maximum norm")
    loss: Literal["huber", "squared"] = Field(default="huber", description="value loss")
    huber_delta: Annotated[Positive, NotTiny] = Field(
        default=1.0, description="error limit between the quadratic and the linear part of the Huber loss"
    )
    value_clip: Limit = Field(default=0.2, description="maximum change of a value; 0: off")
    normalize_values: bool = Field(
        default=False, description="normalize targets by their running mean and deviation (MAPPO)"
    )
    value_decay: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.99999, description="decay of the running statistics per batch"
    )
    coefficient: Annotated[float, Field(gt=0, le=100)] = Field(default=1.0, description="weight of the value loss")
    epochs: SmallCount = Field(default=1, description="epochs over a step's episodes")
    minibatches: SmallCount = Field(default=1, description="minibatches per epoch")
    warmup_steps: NonNegativeCount = Field(
        default=0, description="training steps that train only the critic, on Monte-Carlo returns"
    )


class AlgorithmSettings(Settings):
    """One algorithm: credit, objective, update schedule and optimizer."""

    name: str = Field(default="marft", description="name of a preset")
    level: Literal["action", "token"] = Field(
        default="action", description="unit of a decision: a whole action, or a token"
    )
    normalization: Normalization = Field(
        default="tokens",
        description="divisor Z of an action's log-probability: 1 (none), or the action's tokens or words",
    )
    aggregation: Aggregation = Field(
        default="auto",
        description="averaging of loss terms; auto: action-mean at action level, token-mean at token level",
    )
    constant_length: NonNegativeCount = Field(
        default=0, description='divisor of aggregation = "constant-length", in tokens; 0: max_new_tokens'
    )
    denominator: Literal["policy", "pooled"] = Field(
        default="policy", description="count loss terms per policy, or pooled over policies"
    )
    normalize_advantages: bool = Field(default=True, description="normalize advantages to mean 0 and deviation 1")
    equal_rewards: Literal["assigned", "zero"] = Field(
        default="assigned", description="advantages of a step with equal rewards in every episode: as assigned, or 0"
    )
    epochs: SmallCount = Field(default=1, description="epochs over a step's episodes")
    minibatches: SmallCount = Field(default=1, description="minibatches per epoch")
    kl_stop: Limit = Field(
        default=0.0, description="KL before an update that ends the phase, in nats per token; 0: off"
    )
    team_kl: Limit = Field(
        default=0.0, description="maximum joint KL of the policies in a step, in nats per environment step; 0: no limit"
    )
    entropy_coefficient: Weight = Field(default=0.0, description="weight of the entropy bonus; 0: off")
    nll_coefficient: Weight = Field(
        default=0.0,
        description="weight of the negative log-likelihood of actions in successful episodes (VAPO); 0: off",
    )
    dynamic_sampling: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="maximum redraws of tasks for groups with equal rewards (DAPO); 0: off"
    )
    reward: RewardSettings = Field(default=RewardSettings(), description="reward composition before credit assignment")
    kl: KLSettings = Field(default=KLSettings(), description="KL to the untuned base")
    sampler_correction: SamplerCorrectionSettings = Field(
        default=SamplerCorrectionSettings(), description="importance weights for differences between engine and learner"
    )
    teammate_text: TeammateTextSettings = Field(
        default_factory=lambda: TeammateTextSettings.model_validate({}),
        description="loss on other authors' text in an agent's turn",
    )
    credit: Credit = Field(description="credit assignment")
    objective: Objective = Field(description="loss of a decision")
    schedule: UpdateSchedule = Field(description="order of policy updates")
    optimizer: OptimizerSettings = Field(default=OptimizerSettings(), description="optimizer of the policies")
    critic: CriticSettings = Field(default=CriticSettings(), description="critic, for credits that need values")

    @model_validator(mode="before")
    @classmethod
    def _merge_preset(cls, table: object) -> object:
        if not isinstance(table, dict):
            return table
        table = reduce_to_changes(table)
        name = table.get("name", "marft")
        if not isinstance(name, str) or name not in PRESETS:
            hint = did_you_mean(str(name), PRESETS)
            raise PydanticCustomError(
                "preset", "no algorithm is called {name}{hint}", {"name": repr(name), "hint": hint}
            )
        return {"name": name, **merge_tables(PRESETS[name], table)}

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
        problems = list(_invalid_combinations(self))
        if problems:
            raise PydanticCustomError("combination", "{problems}", {"problems": "\n".join(problems)})
        return self

    @computed_field  # type: ignore[prop-decorator]
    @property
    def complete_from(self) -> str:
        """Marker in a fully expanded table: name of the preset that provided the defaults."""
        return self.name

    @property
    def resolved_aggregation(self) -> Literal["action-mean", "action-mean-of-sums", "token-mean", "constant-length"]:
        """Aggregation with ``auto`` replaced: action-mean at action level, token-mean at token level."""
        if self.aggregation == "auto":
            return "action-mean" if self.level == "action" else "token-mean"
        return self.aggregation


def _invalid_combinations(algorithm: AlgorithmSettings) -> Iterable[str]:
    """Yield each invalid combination, with a remedy."""
    credit, kind = algorithm.credit, algorithm.critic.kind
    if credit.needs_critic and kind == "none":
        yield (
            f"credit {credit.name!r} reads a critic's values, but critic.kind = 'none'; "
            "use critic.kind = 'centralized', or a credit without a critic such as 'grpo'"
        )
    if not credit.needs_critic and kind != "none":
        yield (
            f"credit {credit.name!r} reads no values, so a critic would be trained for nothing; "
            "set critic.kind = 'none', or use credit 'gae'"
        )
    if algorithm.sampler_correction.level == "token" and algorithm.level == "action":
        yield ("sampler_correction.level = 'token' needs level = 'token'; at action level use 'action' or 'geometric'")
    if credit.ranks_own_rewards and algorithm.reward.overlong_buffer:
        yield (
            f"reward.overlong_buffer: credit {credit.name!r} goes by how own rewards rank attempts, and would take the "
            "price of length for one; set it to 0"
        )
    correction = algorithm.schedule.correction
    if correction == "preceding" and not credit.supports_a2po:
        yield (
            f"schedule {algorithm.schedule.name!r} traces advantages through the policies updated before, which credit "
            f"{credit.name!r} does not know of; use credit 'step-gae', or schedule 'sequential'"
        )
    if correction and credit.fork_plan:
        yield (
            f"schedule {algorithm.schedule.name!r} weighs actions with what was done beside them in the same episode, "
            f"but credit {credit.name!r} judges each in an episode of its own; use schedule 'simultaneous'"
        )
    if correction == "preceding" and not algorithm.objective.clip_width:
        yield (
            f"schedule {algorithm.schedule.name!r} clips joint ratios, which objective {algorithm.objective.name!r} "
            "does not; use objective 'ppo'"
        )
    if not credit.reads_costs and algorithm.kl.coefficient and algorithm.kl.apply_to == "reward":
        yield (
            f"kl.apply_to = 'reward': credit {credit.name!r} has no place for a cost of single actions; use "
            "kl.apply_to = 'loss'"
        )
    yield from _anchor_problems(algorithm)
    yield from _pair_problems(algorithm)


def _anchor_problems(algorithm: AlgorithmSettings) -> Iterable[str]:
    """Yield invalid combinations for objectives that compare a token's probability with that at its sampling."""
    objective = algorithm.objective
    if not objective.anchors_on_sampler:
        return
    if algorithm.level == "action":
        yield f"objective {objective.name!r} compares probabilities of tokens; use level = 'token'"
    if algorithm.sampler_correction.level != "none":
        yield (
            f"sampler_correction weighs tokens by who sampled them, and objective {objective.name!r} takes its ratios "
            "to that policy already; set sampler_correction.level = 'none'"
        )
    if algorithm.schedule.correction:
        yield (
            f"schedule {algorithm.schedule.name!r} multiplies ratios by those of other policies, and objective "
            f"{objective.name!r} has no room for that in its trust region; use schedule 'simultaneous' or "
            "'agent-by-agent'"
        )


def _pair_problems(algorithm: AlgorithmSettings) -> Iterable[str]:
    """Yield invalid combinations for pairwise objectives and for credits with absolute weights."""
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
    if credit.absolute_weights and algorithm.normalize_advantages:
        yield (
            f"credit {credit.name!r} says what is learned, and over their deviation its numbers would say something "
            "else; set normalize_advantages = false"
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


def reduce_to_changes(table: Mapping[str, object]) -> dict[str, object]:
    """Reduce a fully expanded table (``complete_from``) to its changes from the original preset.

    A different preset name then applies as it would to the original recipe. If the table names the preset that provided
    its defaults, it stays complete, even if the preset has changed since.

    Raises:
        UserError: ``complete_from`` names no preset.
    """
    settings = {key: value for key, value in table.items() if key != "complete_from"}
    preset = table.get("complete_from", settings.get("name"))
    if preset == settings.get("name"):
        return settings
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UserError(f"algorithm.complete_from: no algorithm is called {preset!r}; remove it, or name a preset")
    defaults = AlgorithmSettings.model_validate({"name": preset}).model_dump(mode="json", exclude_none=True)
    changed = _changed_entries(defaults, settings)
    return {**changed, "name": settings["name"]} if "name" in settings else changed


def _changed_entries(defaults: Mapping[str, object], table: Mapping[str, object]) -> dict[str, object]:
    """Return the entries in ``table`` that differ from the defaults; a different plugin counts as a whole."""
    changed: dict[str, object] = {}
    for key, value in table.items():
        default = defaults.get(key)
        if value == default and type(value) is type(default):
            continue
        if isinstance(value, dict) and isinstance(default, dict) and value.get("name") == default.get("name"):
            value = _changed_entries(default, value)
        changed[key] = value
    return changed


def merge_tables(defaults: Any, table: Any) -> dict[str, object]:
    """Merge ``table`` into ``defaults`` recursively; a table for another plugin replaces the default table."""
    merged = dict(defaults)
    for key, value in table.items():
        default = merged.get(key)
        if (
            isinstance(default, dict)
            and isinstance(value, dict)
            and value.get("name", default.get("name")) == default.get("name")
        ):
            value = merge_tables(default, value)
        merged[key] = value
    return merged
