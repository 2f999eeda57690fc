"""Environment based on a world model, for the same team as the real environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marft.agents.environment import Split
from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft_lab.world_models.interface import Outcome, Prediction, Situation, WorldModel
from marft_lab.world_models.words import action_text, gone_on, observation_of

UNCERTAINTY, CUT = "uncertainty", "cut"  # measures of imagined steps


@dataclass(frozen=True, slots=True)
class Imagined:
    """Environment with episodes from a world model; its tasks are start histories.

    Args:
        model: fitted world model.
        begins: start history of each task, by task id.
        cutoff: uncertainty of the model above which an episode is truncated.
        reads: roles whose texts affect the environment; () for all.
        memory: maximum observations in the model's input.
    """

    model: WorldModel
    begins: Mapping[str, Situation]
    cutoff: float
    reads: Sequence[str] = ()
    memory: int = 1

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the train split's tasks; no imagined task is ever held out."""
        if split != "train":
            return []
        return [Task(name, observation_of(begin.observed[-1]).text) for name, begin in self.begins.items()]

    def start(self, task: Task, seed: int) -> ImaginedSession:
        """Create an episode's session."""
        return ImaginedSession(self, self.begins[task.id], seed)


class ImaginedSession:
    """Imagined episode; each step samples an outcome from the model's prediction."""

    def __init__(self, world: Imagined, situation: Situation, seed: int) -> None:
        self._world, self._situation = world, situation
        self._stream = np.random.Generator(np.random.Philox(seed))

    async def reset(self) -> Observation:
        """Return the first observation."""
        return observation_of(self._situation.observed[-1])

    async def step(self, actions: JointAction) -> Step:
        """Return a sampled step; a step above the uncertainty cutoff truncates the episode."""
        world = self._world
        said = action_text(actions.actions, world.reads)
        prediction = world.model.predict(self._situation, said)
        measures = {UNCERTAINTY: prediction.uncertainty}
        if not prediction.outcomes or prediction.uncertainty > world.cutoff:
            shown = observation_of(self._situation.observed[-1])
            return Step(shown, 0.0, truncated=True, info={"measures": {**measures, CUT: 1.0}})
        outcome = drawn(prediction, float(self._stream.random()))
        if outcome.following:
            self._situation = gone_on(self._situation, said, outcome.following, world.memory)
        return Step(
            observation_of(outcome.following) if outcome.following else Observation(""),
            outcome.reward,
            terminated=not outcome.following,
            agent_rewards=dict(outcome.agent_rewards),
            success=outcome.success,
            info={"measures": measures},
        )

    async def close(self) -> None:
        """No-op: the session holds no resources."""


def drawn(prediction: Prediction, uniform: float) -> Outcome:
    """Return the outcome at a position of the cumulative probabilities.

    Args:
        prediction: prediction with at least one outcome.
        uniform: random number in [0, 1).
    """
    place = int(np.searchsorted(np.cumsum(prediction.probabilities), uniform, side="right"))
    return prediction.outcomes[min(place, len(prediction.outcomes) - 1)]


def was_cut(episode: Episode) -> bool:
    """Return True if an imagined episode was truncated by the model's uncertainty."""
    return any(CUT in transition.declared.measures for transition in episode.transitions[-1:])


def flagged(episode: Episode) -> Episode:
    """Return the episode with the flag ``imagined``."""
    return replace(episode, imagined=True)
