"""An environment made from a world model, in which whoever plays the real one plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from marft.agents.environment import Split
from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft_lab.world_models.interface import Outcome, Prediction, Situation, WorldModel
from marft_lab.world_models.words import action_text, gone_on, observation_of

UNCERTAINTY, CUT = "uncertainty", "cut"  # what is declared of imagined steps


@dataclass(frozen=True, slots=True)
class Imagined:
    """Episodes as a world model has them. Its tasks are situations that they begin with.

    Args:
        begins: by a task's id.
        cutoff: an episode is cut off in the step of which the model is more uncertain than that.
        reads: roles whose words the environment goes by; (): all.
        memory: observations that the model is told, at most.
    """

    model: WorldModel
    begins: Mapping[str, Situation]
    cutoff: float
    reads: Sequence[str] = ()
    memory: int = 1

    def tasks(self, split: Split) -> Sequence[Task]:
        """All of them are for training: nothing that is imagined is ever held out."""
        if split != "train":
            return []
        return [Task(name, observation_of(begin.observed[-1]).text) for name, begin in self.begins.items()]

    def start(self, task: Task, seed: int) -> ImaginedSession:
        return ImaginedSession(self, self.begins[task.id], seed)


class ImaginedSession:
    """One imagined episode. Of what may come of a joint action its stream draws."""

    def __init__(self, world: Imagined, situation: Situation, seed: int) -> None:
        self._world, self._situation = world, situation
        self._stream = np.random.Generator(np.random.Philox(seed))

    async def reset(self) -> Observation:
        return observation_of(self._situation.observed[-1])

    async def step(self, actions: JointAction) -> Step:
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
        """Nothing is held."""


def drawn(prediction: Prediction, uniform: float) -> Outcome:
    """The outcome at a place of the cumulated probabilities.

    Args:
        uniform: in [0, 1).
    """
    place = int(np.searchsorted(np.cumsum(prediction.probabilities), uniform, side="right"))
    return prediction.outcomes[min(place, len(prediction.outcomes) - 1)]


def was_cut(episode: Episode) -> bool:
    """Whether an imagined episode ended where the model did not know how it goes on."""
    return any(CUT in transition.declared.measures for transition in episode.transitions[-1:])


def flagged(episode: Episode) -> Episode:
    """The episode, marked as one that nobody has lived."""
    return replace(episode, imagined=True)
