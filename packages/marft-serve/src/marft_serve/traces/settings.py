"""Settings for a supervised warm start from traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, Strict

from marft.config.algorithm import LearningRate, LearningRateSchedule, OptimizerSettings
from marft.config.paths import ExpandUser
from marft.config.sections import Section
from marft.config.settings import Count, Fraction, NonEmptyString, NonNegativeCount, SmallCount

if TYPE_CHECKING:
    from marft.config.run import RunSettings


class SftSettings(Section):
    """Settings for imitation learning with ``marft sft``; ``marft score`` uses the keys for parsing."""

    key: ClassVar[str] = "sft"

    traces: Annotated[tuple[Annotated[NonEmptyString, ExpandUser], ...], Strict(False)] = Field(
        default=(), description="files or row folders; overridden by --traces"
    )
    roles: dict[NonEmptyString, NonEmptyString] = Field(
        default={}, description='role for each agent name in the traces; --role "name=role" adds an entry'
    )
    prompts: Literal["auto", "recipe", "trace"] = Field(
        default="auto",
        description=(
            'source of the prompts; "recipe": the recipe\'s team renders the prompts; "trace": recorded messages; '
            '"auto": "trace" for a team in an external program, else "recipe"'
        ),
    )
    thinking: Literal["keep", "drop"] = Field(
        default="keep", description='"keep" trains recorded reasoning, "drop" removes it'
    )
    epochs: SmallCount = Field(default=1, description="passes over the turns")
    batch_tokens: Count = Field(default=16384, description="tokens per step, prompts included")
    learning_rate: LearningRate = Field(default=1e-4, description="peak learning rate of every policy")
    schedule: LearningRateSchedule = Field(default="cosine", description="decay of the learning rate, to 0")
    warmup_ratio: Fraction = Field(default=0.05, description="fraction of the steps with linear warmup")
    held_out_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.05, description="fraction of the episodes held out of training to measure the loss"
    )
    eval_every: NonNegativeCount = Field(
        default=10, description="steps between evaluations on held-out episodes; 0: only at the end"
    )

    def build_optimizer(self, run: RunSettings, steps: int) -> OptimizerSettings:
        """Return the run's optimizer with a warm start's learning rate and schedule, for ``steps`` steps."""
        return run.algorithm.optimizer.model_copy(
            update={
                "learning_rate": self.learning_rate,
                "schedule": self.schedule,
                "warmup_steps": round(self.warmup_ratio * steps),
                "min_lr_ratio": 0.0,
            }
        )
