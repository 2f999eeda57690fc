"""Learning from imagined episodes beside real ones (``[dyna]``), and what does not go with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from marft.config.parts import WorldModelPlugin
from marft.config.pools import pools_of
from marft.config.settings import Count, CountOrNone, Few, Fraction, Names, did_you_mean
from marft.trainer.seams import TrainingSection

if TYPE_CHECKING:
    from pathlib import Path

    from marft.config.run import RunSettings
    from marft.rollout.ahead.gathering import Gathering
    from marft.rollout.playing import Rollouts


class DynaSettings(TrainingSection):
    """A world model is fitted to the real episodes, and the team learns from episodes that are imagined with it, too.
    These are never counted as real ones, nor evaluated on."""

    key: ClassVar[str] = "dyna"

    model: WorldModelPlugin  # the world model; counts, where none is named
    share: Annotated[float, Field(ge=0, le=0.98)] = 0.5  # of the episodes that a step plays, how many are imagined
    warm_up: CountOrNone = 1  # first steps, which learn from real episodes alone
    ramp: CountOrNone = 0  # steps after those in which the share grows to what it is; 0: at once
    horizon: Count = 32  # environment steps of an imagined episode, at most; rollout.max_steps holds, too
    cutoff: Fraction = 0.2  # uncertainty of the model above which an imagined episode is cut off, and left out
    # what imagined episodes begin with: what real ones begin with, or anything that was observed in one
    begins: Literal["first", "anywhere"] = "first"
    reads: Names = ()  # roles whose words the environment goes by; []: all
    memory: Few = 1  # last observations of an episode that what follows depends on
    remember: Annotated[int, Field(ge=100, le=1_000_000)] = 20_000  # environment steps it is fitted to: the newest
    check: bool = True  # whether it is switched off where it is wrong of real episodes
    # how much more often than it expects itself the model may be wrong, on average; of rewards, as a share of how
    # far returns differ
    bound: Annotated[float, Field(ge=0, lt=1)] = 0.25
    alarm: Annotated[float, Field(gt=0, le=0.5)] = 1e-4  # real steps, or episodes, per false alarm: one over this

    @model_validator(mode="before")
    @classmethod
    def _counts_unless_said(cls, table: object) -> object:
        return {"model": {"name": "counts"}, **table} if isinstance(table, dict) else table

    def share_at(self, step: int) -> float:
        """The share of a step, counted from 0.

        >>> settings = DynaSettings.model_construct(share=0.5, warm_up=2, ramp=4)
        >>> [settings.share_at(step) for step in range(7)]
        [0.0, 0.0, 0.125, 0.25, 0.375, 0.5, 0.5]
        """
        since = step - self.warm_up + 1
        return 0.0 if since <= 0 else self.share * min(1.0, since / max(self.ramp, 1))

    def extra_tasks(self, step: int, tasks: int) -> int:
        """Return how many tasks are imagined in a step beside ``tasks`` real ones."""
        share = self.share_at(step)
        return round(tasks * share / (1 - share))

    def wrap_source(self, source: Gathering, rollouts: Rollouts, folder: Path | None) -> Gathering:
        from marft.rollout.rollouts import LocalRollouts
        from marft_lab.world_models.imagining import Imagining

        assert isinstance(rollouts, LocalRollouts), "worker processes are refused when the recipe is read"
        return Imagining(source, rollouts, folder)

    def problems(self, run: RunSettings) -> Iterable[str]:
        roles = [agent.role for agent in run.agents]
        for role in self.reads:
            if role not in roles:
                yield f"dyna.reads: no agent is called {role!r}{did_you_mean(role, roles)}"
        yield from self.model.problems(roles)
        if run.rollout.processes:
            yield "dyna: imagined episodes are played in the run's own process; set rollout.processes = 0"
        if run.rollout.max_policy_lag:
            yield "dyna: imagined episodes are played between steps, and never ahead; set rollout.max_policy_lag = 0"
        if pools_of(run):
            yield "dyna: nobody imagines whom of a pool it plays against; remove the pool, or [dyna]"
        if run.team.own_words:
            yield "dyna: a program of yours acts in the world by itself, and would in imagined episodes; remove [dyna]"
        if hasattr(run.algorithm.credit, "load_state_dict"):
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
            if agent.memory != "none" and self.begins == "anywhere":
                yield (
                    f"dyna.begins: {agent.role} has a memory, and would begin in the middle without any; set begins = "
                    "'first'"
                )
