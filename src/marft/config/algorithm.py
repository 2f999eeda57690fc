"""``[algorithm]``: a preset's name and whatever a recipe changes of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.algorithms import PRESETS
from marft.config.plugins import CreditPlugin, ObjectivePlugin, SchedulePlugin
from marft.config.settings import Settings, did_you_mean

Aggregation = Literal["auto", "action-mean", "action-mean-of-sums", "token-mean"]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]


class OptimizerSettings(Settings):
    """AdamW and its learning-rate schedule. Adapters and optimizer state are float32 whatever the base's dtype."""

    learning_rate: Positive = 3e-5
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    final_fraction: Fraction = 0.0  # of the learning rate, where linear and cosine end
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999
    epsilon: Positive = 1e-8
    weight_decay: NotNegative = 0.0
    max_gradient_norm: Positive = 1.0


class CriticSettings(Settings):
    """V_φ: an MLP head on the frozen base's hidden states (formulas: Huber and value clip have their own widths)."""

    hidden: Count = 64
    learning_rate: Positive = 1e-3
    epsilon: Positive = 1e-8
    max_gradient_norm: Positive = 1.0
    loss: Literal["huber", "squared"] = "huber"
    huber_delta: Positive = 1.0
    value_clip: NotNegative = 0.2  # 0 is off
    coefficient: Positive = 1.0
    epochs: Count = 1
    minibatches: Count = 1
    warmup_steps: Annotated[int, Field(ge=0)] = 0  # steps that fit the critic alone, to Monte-Carlo returns


class AlgorithmSettings(Settings):
    """One algorithm: credit + objective + schedule, and how they step."""

    name: str = "marft"
    level: Literal["action", "token"] = "action"
    normalisation: Literal["none", "tokens", "words"] = "tokens"  # Z of the action's log-probability
    aggregation: Aggregation = "auto"
    denominator: Literal["policy", "pooled"] = "policy"
    normalise_advantages: bool = True
    epochs: Count = 1
    minibatches: Count = 1
    kl_stop: NotNegative = 0.0  # 0 is off
    entropy: NotNegative = 0.0
    old_log_probs: Literal["engine", "learner"] = "engine"
    credit: CreditPlugin
    objective: ObjectivePlugin
    schedule: SchedulePlugin
    optimizer: OptimizerSettings = OptimizerSettings()
    critic: CriticSettings = CriticSettings()

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_preset(cls, table: Any) -> Any:
        if not isinstance(table, dict):
            return table
        name = table.get("name", "marft")
        if name not in PRESETS:
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

    @property
    def resolved_aggregation(self) -> Literal["action-mean", "action-mean-of-sums", "token-mean"]:
        if self.aggregation == "auto":
            return "action-mean" if self.level == "action" else "token-mean"
        return self.aggregation


def merge(defaults: Any, table: Any) -> dict[str, Any]:
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
