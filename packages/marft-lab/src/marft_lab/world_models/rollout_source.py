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

import numpy as np

from marft.agents.game import Attempt
from marft.common.log import get_logger
from marft.common.seeds import derive_seed, generator
from marft.common.types import Episode
from marft.rewards.groups import group_indices
from marft.rewards.shaping import local_rewards
from marft.rollout.async_rollout.sources import RolloutSource, RolloutSourceWrapper
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import RolloutBatch, play_with_forks, rewards_vary
from marft.rollout.runner import EpisodeCallback, ignore_episode
from marft.runs.state import State
from marft_lab.world_models.environment import UNCERTAINTY, ModelEnvironment, is_stopped_by_uncertainty, mark_imagined
from marft_lab.world_models.experience_buffer import ExperienceBuffer, WorldModelState, read_state, write_state
from marft_lab.world_models.interface import History, WorldModel
from marft_lab.world_models.settings import DynaSettings
from marft_lab.world_models.text_codec import extract_transitions
from marft_lab.world_models.trust import PredictionErrors, Trust, compute_errors

logger = get_logger(__name__)


class ImaginedRolloutSource(RolloutSourceWrapper):
    """Rollout source that adds imagined episodes to a step's real episodes.

    Imagined episodes are played by the policies of the step. After a rollback of the policies, the experience stays
    valid.

    Args:
        source: source of real episodes.
        rollouts: rollouts for imagined episodes.
        folder: folder written by :meth:`save`, on resume; None at the start.

    Raises:
        ValueError: unreadable state file.
    """

    def __init__(self, source: RolloutSource, rollouts: LocalRolloutRunner, folder: Path | None = None) -> None:
        super().__init__(source)
        self._rollouts, self._run = rollouts, rollouts.run
        settings = self._run.section(DynaSettings)
        assert settings is not None
        self._settings = settings
        self.model_state = read_state(folder) if folder else WorldModelState()
        self.model = self._fit_model(self.model_state.buffer, self.model_state.fit_step)

    def collect(self, state: State, on_done: EpisodeCallback) -> RolloutBatch:
        """Collect real episodes, test the model on them, fit the model to them, and add imagined episodes."""
        fresh = self._source.collect(state, on_done)
        real = [episode for episode in fresh.episodes if episode.is_scored]
        if not fresh.training_episodes:
            return fresh
        was_enabled = self.model_state.trust.enabled
        errors = self._update_model(real, state.step)
        self._log_trust(was_enabled, state.step, errors)
        imagined = self._play_imagined(state.step)
        usable = [episode for episode in imagined if episode.is_scored and not is_stopped_by_uncertainty(episode)]
        if self._run.algorithm.dynamic_sampling:
            groups = group_indices([episode.task.id for episode in usable])
            kept_groups = [group for group in groups if rewards_vary([usable[index] for index in group], self._run)]
            usable = [usable[index] for index in sorted(index for group in kept_groups for index in group)]
        training_episodes = [*fresh.training_episodes, *usable]
        metrics = self._model_metrics(errors) | _episode_metrics(imagined, usable, len(training_episodes))
        return replace(
            fresh,
            training_episodes=training_episodes,
            imagined=imagined,
            metrics={**fresh.metrics, **metrics},
        )

    def _update_model(self, real: Sequence[Episode], step: int) -> list[PredictionErrors]:
        """Test the model on new episodes, update its trust, and then fit the model to the episodes.

        A model that loses trust drops its earlier experience.
        """
        returns = [{"": episode.total_reward, **local_rewards(episode)} for episode in real]
        settings, buffer = self._settings, self.model_state.buffer.add_returns(returns)
        episode_transitions = [
            extract_transitions(episode, settings.input_roles, settings.history_length) for episode in real
        ]
        widths = buffer.return_ranges
        errors = [
            compute_errors(self.model, steps, settings.max_uncertainty, widths)
            for steps in episode_transitions
            if steps
        ]
        trust = Trust()
        if settings.auto_disable:
            trust = self.model_state.trust.update(errors, settings.error_tolerance, settings.false_alarm_rate)
        if self.model_state.trust.enabled and not trust.enabled:
            buffer = replace(buffer, transitions=())
        buffer = buffer.add_transitions(
            (transition for steps in episode_transitions for transition in steps), settings.buffer_size
        )
        self.model_state = WorldModelState(buffer, trust, step + 1)
        self.model = self._fit_model(buffer, step + 1)
        return errors

    def _fit_model(self, buffer: ExperienceBuffer, step: int) -> WorldModel:
        return self._settings.model.fit(buffer.transitions, derive_seed(self._run.seed, "world model", step))

    def _play_imagined(self, step: int) -> list[Episode]:
        """Play imagined episodes for the credit assignment, and return them with the flag ``imagined``."""
        settings, run = self._settings, self._run
        count = settings.extra_tasks(step, run.rollout.tasks_per_step) if self.model_state.trust.enabled else 0
        histories = _start_histories(self.model_state.buffer, settings.start_from == "anywhere")
        if not count or not histories:
            return []
        stream = f"imagined/{step}"
        indices = generator(run.seed, stream).integers(len(histories), size=count)
        # attempts with the same start are compared with each other
        groups = Counter(histories[index] for index in indices)
        environment = ModelEnvironment(
            self.model,
            {f"{stream}/{number}": history for number, history in enumerate(groups)},
            settings.max_uncertainty,
            settings.input_roles,
            settings.history_length,
        )
        max_steps = min(settings.horizon, run.rollout.max_steps)
        critic = run.algorithm.critic.kind != "none"
        attempts = [
            Attempt(task, stream, sample, record_critic_states=critic)
            for task, times in zip(environment.tasks("train"), groups.values(), strict=True)
            for sample in range(times * run.rollout.samples_per_task)
        ]

        def play(attempts: Sequence[Attempt], *, on_done: EpisodeCallback = ignore_episode) -> list[Episode]:  # noqa: ARG001
            return self._rollouts.play_in(environment, attempts, max_steps)

        _, everything = play_with_forks(run, play, attempts, ignore_episode)
        return [mark_imagined(episode) for episode in everything]

    def _log_trust(self, was_enabled: bool, step: int, errors: Sequence[PredictionErrors]) -> None:
        """Log a change of the model's trust."""
        is_enabled = self.model_state.trust.enabled
        if is_enabled == was_enabled:
            return
        if is_enabled:
            logger.warning(f"step {step + 1}: the world model is right of real episodes again, and is switched on")
            return
        missed, off = (
            float(np.mean([getattr(error, name) for error in errors])) for name in ("missed", "reward_error")
        )
        logger.warning(
            f"step {step + 1}: the world model is wrong of real episodes before it has learned from them (it missed "
            f"{missed:.0%} of what came next, and rewards by {off:.2f}), and is switched off until it is right again; "
            "nothing is imagined meanwhile. Where that comes again, set a longer dyna.history_length, or another "
            "dyna.model"
        )

    def _model_metrics(self, errors: Sequence[PredictionErrors]) -> dict[str, float]:
        certain = [error for error in errors if error.steps]
        metrics = {
            "imagined/enabled": float(self.model_state.trust.enabled),
            "imagined/fit_steps": float(len(self.model_state.buffer.transitions)),
        }
        if errors:
            metrics["imagined/certain_fraction"] = float(np.mean([error.certain_fraction for error in errors]))
        if certain:
            metrics["imagined/prediction_error"] = float(np.mean([error.missed for error in certain]))
            metrics["imagined/reward_error"] = float(np.mean([error.reward_error for error in certain]))
        return metrics

    def save(self, folder: Path) -> None:
        """Write the source's state and the world model's state to a checkpoint."""
        super().save(folder)
        write_state(folder, self.model_state)


def _start_histories(buffer: ExperienceBuffer, anywhere: bool) -> list[History]:
    """Return the possible start histories of imagined episodes.

    The starts of real episodes are repeated by frequency. With ``anywhere``, each observed history occurs once, because
    histories near a goal are rare.
    """
    if anywhere:
        return list(dict.fromkeys(transition.history for transition in buffer.transitions))
    return [transition.history for transition in buffer.transitions if transition.is_first]


def _episode_metrics(imagined: Sequence[Episode], usable: Sequence[Episode], total: int) -> dict[str, float]:
    metrics = {
        "imagined/episodes": float(len(imagined)),
        "imagined/share": len(usable) / total,
        "imagined/rejected": float(sum(is_stopped_by_uncertainty(episode) for episode in imagined)),
        "imagined/failed": float(sum(not episode.is_scored for episode in imagined)),
    }
    if usable:
        steps = [transition.declared.measures[UNCERTAINTY] for episode in usable for transition in episode.transitions]
        metrics["imagined/reward"] = float(np.mean([episode.total_reward for episode in usable]))
        metrics["imagined/uncertainty"] = float(np.mean(steps))
    return metrics
