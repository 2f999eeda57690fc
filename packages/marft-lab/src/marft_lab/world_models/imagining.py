"""Training on imagined episodes in addition to real episodes (``[dyna]``).

In Dyna (Sutton 1990), a model of the environment is learned from real experience. The learner trains on the model's
episodes as on real episodes. Uncertain episodes are left out. A model with wrong predictions of real episodes is
disabled (:mod:`marft_lab.world_models.trust`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol, cast

import numpy as np

from marft.agents.environment import Environment
from marft.agents.game import Attempt
from marft.common.seeds import derive_seed, generator
from marft.common.types import Episode
from marft.rewards.groups import members
from marft.rewards.shaping import local_rewards
from marft.rollout.ahead.around import Around
from marft.rollout.ahead.gathering import Gathering, OnDone
from marft.rollout.collection import Collection, play_forking, told_apart
from marft.rollout.playing import Rollouts, nobody
from marft.runs.checkpoints import State
from marft_lab.world_models.experience import Experience, Kept, read, write
from marft_lab.world_models.imagined import UNCERTAINTY, Imagined, flagged, was_cut
from marft_lab.world_models.interface import Fits, Situation, WorldModel
from marft_lab.world_models.settings import DynaSettings
from marft_lab.world_models.trust import Heard, Trust, heard_of
from marft_lab.world_models.words import lived_in


class PlaysElsewhere(Rollouts, Protocol):
    """Rollouts that can also play in another environment than the recipe's."""

    def play_in(self, environment: Environment, attempts: Sequence[Attempt], most_steps: int) -> list[Episode]:
        """Play attempts with the same team in a given environment, with rewards of that environment only."""
        ...


class Imagining(Around):
    """Rollout source that adds imagined episodes to a step's real episodes.

    Imagined episodes are played by the policies of the step. After a rollback of the policies, the experience stays
    valid.

    Args:
        gathering: source of real episodes.
        rollouts: rollouts for imagined episodes.
        folder: folder written by :meth:`write`, on resume; None at the start.

    Raises:
        ValueError: unreadable state file.
    """

    def __init__(self, gathering: Gathering, rollouts: PlaysElsewhere, folder: Path | None = None) -> None:
        super().__init__(gathering)
        self._rollouts, self._run = rollouts, rollouts.run
        dyna = self._run.section(DynaSettings)
        assert dyna is not None
        self._dyna = dyna
        self.kept = read(folder) if folder else Kept()
        self.model = self._fit(self.kept.experience, self.kept.fitted)

    def collect(self, state: State, on_done: OnDone) -> Collection:
        """Collect real episodes, test the model on them, fit the model to them, and add imagined episodes."""
        fresh = self._gathering.collect(state, on_done)
        real = [episode for episode in fresh.played if episode.scored]
        if not fresh.credit_inputs:
            return fresh
        was_on = self.kept.trust.on
        heard = self._live(real, state.step)
        imagined = self._imagine(state.step)
        kept = [episode for episode in imagined if episode.scored and not was_cut(episode)]
        if self._run.algorithm.dynamic_sampling:
            groups = members([episode.task.id for episode in kept])
            told = [group for group in groups if told_apart([kept[index] for index in group], self._run)]
            kept = [kept[index] for index in sorted(index for group in told for index in group)]
        learned = [*fresh.credit_inputs, *kept]
        metrics = self._of_the_model(heard) | _of_episodes(imagined, kept, len(learned))
        return replace(
            fresh, credit_inputs=learned, imagined=imagined, metrics={**fresh.metrics, **metrics},
            notes=(*fresh.notes, *self._said(was_on, state.step, heard)),
        )  # fmt: skip

    def _live(self, real: Sequence[Episode], step: int) -> list[Heard]:
        """Test the model on new episodes, update its trust, and then fit the model to the episodes.

        A model that loses trust drops its earlier experience.
        """
        returns = [{"": episode.total_reward, **local_rewards(episode)} for episode in real]
        dyna, experience = self._dyna, self.kept.experience.seen(returns)
        lived = [lived_in(episode, dyna.reads, dyna.memory) for episode in real]
        widths = experience.widths
        heard = [heard_of(self.model, steps, dyna.cutoff, widths) for steps in lived if steps]
        trust = self.kept.trust.after(heard, dyna.bound, dyna.alarm) if dyna.check else Trust()
        if self.kept.trust.on and not trust.on:
            experience = replace(experience, lived=())
        experience = experience.with_steps((one for steps in lived for one in steps), dyna.remember)
        self.kept = Kept(experience, trust, step + 1)
        self.model = self._fit(experience, step + 1)
        return heard

    def _fit(self, experience: Experience, step: int) -> WorldModel:
        return cast("Fits", self._dyna.model).fit(experience.lived, derive_seed(self._run.seed, "world model", step))

    def _imagine(self, step: int) -> list[Episode]:
        """Play imagined episodes for the credit assignment, and return them with the flag ``imagined``."""
        dyna, run = self._dyna, self._run
        count = dyna.extra_tasks(step, run.rollout.tasks_per_step) if self.kept.trust.on else 0
        begins = _begins(self.kept.experience, dyna.begins == "anywhere")
        if not count or not begins:
            return []
        stream = f"imagined/{step}"
        places = generator(run.seed, stream).integers(len(begins), size=count)
        groups = Counter(begins[place] for place in places)  # attempts with the same start are compared with each other
        world = Imagined(
            self.model, {f"{stream}/{number}": begin for number, begin in enumerate(groups)}, dyna.cutoff, dyna.reads,
            dyna.memory,
        )  # fmt: skip
        most = min(dyna.horizon, run.rollout.max_steps)
        critic = run.algorithm.critic.kind != "none"
        attempts = [
            Attempt(task, stream, sample, critic_states=critic)
            for task, times in zip(world.tasks("train"), groups.values(), strict=True)
            for sample in range(times * run.rollout.samples_per_task)
        ]

        def play(attempts: Sequence[Attempt], *, on_done: OnDone = nobody) -> list[Episode]:  # noqa: ARG001
            return self._rollouts.play_in(world, attempts, most)

        _, everything = play_forking(run, play, attempts, nobody)
        return [flagged(episode) for episode in everything]

    def _said(self, was_on: bool, step: int, heard: Sequence[Heard]) -> list[str]:
        """Return notes about a change of the model's trust."""
        on = self.kept.trust.on
        if on == was_on:
            return []
        if on:
            return [f"step {step + 1}: the world model is right of real episodes again, and is switched on"]
        missed, off = (float(np.mean([getattr(one, name) for one in heard])) for name in ("missed", "reward_error"))
        return [
            f"step {step + 1}: the world model is wrong of real episodes before it has learned from them (it missed "
            f"{missed:.0%} of what came next, and rewards by {off:.2f}), and is switched off until it is right again; "
            "nothing is imagined meanwhile. Where that comes again, set a longer dyna.memory, or another dyna.model"
        ]

    def _of_the_model(self, heard: Sequence[Heard]) -> dict[str, float]:
        sure = [one for one in heard if one.steps]
        found = {"imagined/on": float(self.kept.trust.on), "imagined/fitted": float(len(self.kept.experience.lived))}
        if heard:
            found["imagined/known"] = float(np.mean([one.known for one in heard]))
        if sure:
            found["imagined/missed"] = float(np.mean([one.missed for one in sure]))
            found["imagined/reward_error"] = float(np.mean([one.reward_error for one in sure]))
        return found

    def write(self, folder: Path) -> None:
        """Write the source's state and the world model's state to a checkpoint."""
        super().write(folder)
        write(folder, self.kept)


def _begins(experience: Experience, anywhere: bool) -> list[Situation]:
    """Return the possible start histories of imagined episodes.

    The starts of real episodes are repeated by frequency. With ``anywhere``, each observed history occurs once, because
    histories near a goal are rare.
    """
    if anywhere:
        return list(dict.fromkeys(one.situation for one in experience.lived))
    return [one.situation for one in experience.lived if one.first]


def _of_episodes(imagined: Sequence[Episode], kept: Sequence[Episode], learned: int) -> dict[str, float]:
    found = {
        "imagined/episodes": float(len(imagined)),
        "imagined/share": len(kept) / learned,
        "imagined/cut": float(sum(was_cut(episode) for episode in imagined)),
        "imagined/failed": float(sum(not episode.scored for episode in imagined)),
    }
    if kept:
        steps = [transition.declared.measures[UNCERTAINTY] for episode in kept for transition in episode.transitions]
        found["imagined/reward"] = float(np.mean([episode.total_reward for episode in kept]))
        found["imagined/uncertainty"] = float(np.mean(steps))
    return found
