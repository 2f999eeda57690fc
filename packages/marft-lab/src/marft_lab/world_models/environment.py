"""Environment based on a world model, for the same team as the real environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from marft.common.types import Episode, JointAction, Observation, Step, Task
from marft.config.interfaces.environment import Environment, Split
from marft_lab.world_models.interface import History, Outcome, Prediction, WorldModel
from marft_lab.world_models.text_codec import action_text, decode_observation, extend_history

UNCERTAINTY, TRUNCATED = "uncertainty", "cut"  # measures of imagined steps


class ModelEnvironment(Environment):
    """Environment with episodes from a world model; its tasks are start histories.

    Args:
        model: fitted world model.
        start_histories: start history of each task, by task id.
        cutoff: uncertainty of the model above which an episode is truncated.
        input_roles: roles whose texts affect the environment; () for all.
        memory: maximum observations in the model's input.
    """

    _model: WorldModel
    _start_histories: Mapping[str, History]
    _cutoff: float
    _input_roles: Sequence[str]
    _memory: int

    def __init__(
        self,
        model: WorldModel,
        start_histories: Mapping[str, History],
        cutoff: float,
        input_roles: Sequence[str] = (),
        memory: int = 1,
    ) -> None:
        super().__init__()
        self._model, self._start_histories, self._cutoff = model, start_histories, cutoff
        self._input_roles, self._memory = input_roles, memory

    def tasks(self, split: Split) -> Sequence[Task]:
        """Return the train split's tasks; no imagined task is ever held out."""
        if split != "train":
            return []
        return [
            Task(name, decode_observation(history.observations[-1]).text)
            for name, history in self._start_histories.items()
        ]

    def start(self, task: Task, seed: int) -> ModelSession:
        """Create an episode's session."""
        return ModelSession(self, self._start_histories[task.id], seed)


class ModelSession:
    """Imagined episode; each step samples an outcome from the model's prediction."""

    def __init__(self, environment: ModelEnvironment, history: History, seed: int) -> None:
        self._environment, self._history = environment, history
        self._stream = np.random.Generator(np.random.Philox(seed))

    async def reset(self) -> Observation:
        """Return the first observation."""
        return decode_observation(self._history.observations[-1])

    async def step(self, actions: JointAction) -> Step:
        """Return a sampled step; a step above the uncertainty cutoff truncates the episode."""
        environment = self._environment
        action = action_text(actions.actions, environment._input_roles)
        prediction = environment._model.predict(self._history, action)
        measures = {UNCERTAINTY: prediction.uncertainty}
        if not prediction.outcomes or prediction.uncertainty > environment._cutoff:
            observation = decode_observation(self._history.observations[-1])
            return Step(observation, 0.0, truncated=True, info={"measures": {**measures, TRUNCATED: 1.0}})
        outcome = sample_outcome(prediction, float(self._stream.random()))
        if outcome.next_observation:
            self._history = extend_history(self._history, action, outcome.next_observation, environment._memory)
        return Step(
            decode_observation(outcome.next_observation) if outcome.next_observation else Observation(""),
            outcome.reward,
            terminated=not outcome.next_observation,
            agent_rewards=dict(outcome.agent_rewards),
            success=outcome.success,
            info={"measures": measures},
        )

    async def close(self) -> None:
        """No-op: the session holds no resources."""


def sample_outcome(prediction: Prediction, uniform: float) -> Outcome:
    """Return the outcome at a position of the cumulative probabilities.

    Args:
        prediction: prediction with at least one outcome.
        uniform: random number in [0, 1).
    """
    index = int(np.searchsorted(np.cumsum(prediction.probabilities), uniform, side="right"))
    return prediction.outcomes[min(index, len(prediction.outcomes) - 1)]


def is_stopped_by_uncertainty(episode: Episode) -> bool:
    """Return True if an imagined episode was truncated by the model's uncertainty."""
    return any(TRUNCATED in transition.declared.measures for transition in episode.transitions[-1:])


def mark_imagined(episode: Episode) -> Episode:
    """Return the episode with the flag ``imagined``."""
    return replace(episode, imagined=True)
