"""Supervised warm starts: what is learned from traces of other programs, and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, Strict

from marft.config.algorithm import LearningRate, OptimizerSettings
from marft.config.folders import AtHome
from marft.config.sections import Section
from marft.config.settings import Count, CountOrNone, Few, Filled, Fraction

if TYPE_CHECKING:
    from marft.config.run import RunSettings


class SftSettings(Section):
    """How ``marft sft`` learns from traces, and how ``marft score`` and it read them."""

    key: ClassVar[str] = "sft"

    traces: Annotated[tuple[Annotated[Filled, AtHome], ...], Strict(False)] = ()  # files; --from names them
    roles: dict[Filled, Filled] = {}  # whose turns those of a name in the traces are; --role "name=role" adds one
    # what a turn is a turn after: what the recipe's team would be told, or what the trace's agent was; auto: the latter
    # where the team is a program
    prompts: Literal["auto", "recipe", "trace"] = "auto"
    thinking: Literal["keep", "drop"] = "keep"  # whether thoughts in the traces are trained
    epochs: Few = 1  # passes over the turns
    batch_tokens: Count = 16384  # tokens that are read for a step, prompts included
    learning_rate: LearningRate = 1e-4  # of every policy
    schedule: Literal["cosine", "linear", "constant"] = "cosine"  # how the learning rate goes down, to 0
    warmup: Fraction = 0.05  # of the steps, in which it rises to its height
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.05  # of the episodes: not trained, their loss is measured
    every: CountOrNone = 10  # steps between looks at them; 0: only at the end

    def optimizer(self, run: RunSettings, steps: int) -> OptimizerSettings:
        """Return the run's optimizer with the schedule and learning rate of a warm start of ``steps`` steps."""
        return run.algorithm.optimizer.model_copy(
            update={
                "learning_rate": self.learning_rate,
                "schedule": self.schedule,
                "warmup_steps": round(self.warmup * steps),
                "final_fraction": 0.0,
            }
        )
