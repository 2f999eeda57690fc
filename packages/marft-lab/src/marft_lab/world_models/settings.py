"""Settings for ``[dyna]``: training on imagined episodes, and checks for compatibility."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from marft.config.models import opponent_pools
from marft.config.settings import Count, Fraction, Names, NonNegativeCount, SmallCount, did_you_mean
from marft.trainer.hooks import TrainingSection
from marft_lab.world_models.interface import FittableModel

if TYPE_CHECKING:
    from pathlib import Path

    from marft.config.run import RunSettings
    from marft.rollout.async_rollout.sources import RolloutSource
    from marft.rollout.runner import RolloutRunner


class DynaSettings(TrainingSection):
    """Training on imagined episodes from a world model that is fitted to real episodes.

    Imagined episodes never count as real episodes, and are not used for evaluation.
    """

    key: ClassVar[str] = "dyna"

    model: FittableModel = Field(description="world model; default: counts")
    share: Annotated[float, Field(ge=0, le=0.98)] = Field(
        default=0.5, description="imagined fraction of the episodes of a step"
    )
    warmup_steps: NonNegativeCount = Field(
        default=1, description="number of first training steps with only real episodes"
    )
    ramp_steps: NonNegativeCount = Field(
        default=0, description="training steps of linear growth of share after the warm-up; 0: full share at once"
    )
    horizon: Count = Field(
        default=32, description="maximum environment steps of an imagined episode, besides rollout.max_steps"
    )
    max_uncertainty: Fraction = Field(
        default=0.2,
        description="maximum uncertainty of the model; above it, an imagined episode is cut off and left out",
    )
    start_from: Literal["first", "anywhere"] = Field(
        default="first",
        description="starts of imagined episodes: first observations of real episodes, or any observed history",
    )
    input_roles: Names = Field(default=(), description="roles with texts that affect the environment; []: every role")
    history_length: SmallCount = Field(
        default=1, description="number of last observations that determine the next observation"
    )
    buffer_size: Annotated[int, Field(ge=100, le=1_000_000)] = Field(
        default=20_000, description="maximum transitions in the experience buffer; the newest stay"
    )
    auto_disable: bool = Field(default=True, description="disable the model after wrong predictions of real episodes")
    error_tolerance: Annotated[float, Field(ge=0, lt=1)] = Field(
        default=0.25,
        description=(
            "tolerated mean excess of the model's error over its own expectation; for rewards relative to the range of "
            "returns"
        ),
    )
    false_alarm_rate: Annotated[float, Field(gt=0, le=0.5)] = Field(
        default=1e-4, description="on average, at most one false alarm per 1 / false_alarm_rate real steps or episodes"
    )

    @model_validator(mode="before")
    @classmethod
    def _set_default_model(cls, table: object) -> object:
        return {"model": {"name": "counts"}, **table} if isinstance(table, dict) else table

    def share_at(self, step: int) -> float:
        """Return the imagined fraction of a training step; steps count from 0.

        >>> settings = DynaSettings.model_construct(share=0.5, warmup_steps=2, ramp_steps=4)
        >>> [settings.share_at(step) for step in range(7)]
        [0.0, 0.0, 0.125, 0.25, 0.375, 0.5, 0.5]
        """
        ramp_steps = step - self.warmup_steps + 1
        return 0.0 if ramp_steps <= 0 else self.share * min(1.0, ramp_steps / max(self.ramp_steps, 1))

    def extra_tasks(self, step: int, tasks: int) -> int:
        """Return the number of imagined tasks in a step with ``tasks`` real tasks."""
        share = self.share_at(step)
        return round(tasks * share / (1 - share))

    def wrap_source(self, source: RolloutSource, rollouts: RolloutRunner, folder: Path | None) -> RolloutSource:
        """Wrap a rollout source, to add imagined episodes."""
        from marft.rollout.local_runner import LocalRolloutRunner
        from marft_lab.world_models.rollout_source import ImaginedRolloutSource

        assert isinstance(rollouts, LocalRolloutRunner), "worker processes are refused when the recipe is read"
        return ImaginedRolloutSource(source, rollouts, folder)

    def problems(self, run: RunSettings) -> Iterable[str]:
        """Yield problems of the settings."""
        roles = [agent.role for agent in run.agents]
        for role in self.input_roles:
            if role not in roles:
                yield f"dyna.input_roles: no agent is called {role!r}{did_you_mean(role, roles)}"
        yield from self.model.problems(roles)
        if run.rollout.workers:
            yield "dyna: imagined episodes are played in the run's own process; set rollout.workers = 0"
        if run.rollout.max_policy_lag:
            yield "dyna: imagined episodes are played between steps, and never ahead; set rollout.max_policy_lag = 0"
        if opponent_pools(run):
            yield "dyna: nobody imagines whom of a pool it plays against; remove the pool, or [dyna]"
        if run.team.writes_prompts:
            yield "dyna: a program of yours acts in the world by itself, and would in imagined episodes; remove [dyna]"
        if run.algorithm.credit.keeps_state:
            yield (
                f"dyna: credit {run.algorithm.credit.name!r} remembers what episodes earned, and would take imagined "
                "ones for real; use another credit"
            )
        if getattr(run.algorithm.credit, "joint_mode", "") == "cross":
            yield (
                "dyna: imagined attempts that begin alike are one large group, of which joint_mode = 'cross' would "
                "play every tuple; set algorithm.credit.joint_mode = 'aligned'"
            )
        for agent in run.agents:
            if "environment" in agent.tools:
                yield (
                    f"agents.{agent.role}.tools: a world model has no tools of the environment, so imagined episodes "
                    "would lack them; remove 'environment', or [dyna]"
                )
            if agent.memory != "none" and self.start_from == "anywhere":
                yield (
                    f"dyna.start_from: {agent.role} has a memory, and would begin in the middle without any; set "
                    "start_from = 'first'"
                )
