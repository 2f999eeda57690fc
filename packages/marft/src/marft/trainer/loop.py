"""Training loop: rollout → credit → update → publish → record.

::

    RolloutSource ──▶ RolloutBatch ──▶ learner (credit → schedule → objective) ──▶ publish ──▶ next step
                            └────▶ metrics, guards, rollback, episodes, checkpoints

    learner: LocalLearner.learn ──▶ NonFiniteGuard.learn ──▶ Learner.learn (learner.py shows the rest of the path)

:mod:`marft.trainer.train` opens the parts of a run and passes them to the loop. The parts do not know the loop.
Callbacks observe a step; ``on_update`` may also add metrics. The loop calls what changes the run, in this order:
rollout source, learner, curriculum, publication, prompt optimizer, recording, validation, guards, rollback, checkpoint.
A rollback restores weights, optimizers, critic, prompts, and the state of credit and schedule. Steps, tasks, random
streams, the metrics log and callbacks continue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from marft.common.errors import RunError
from marft.common.log import get_logger
from marft.config.interfaces.schedule import Progress
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.rollout.rollout_batch import RolloutBatch
from marft.rollout.task_sampler import advance_curriculum
from marft.runs.checkpoints import write_callback_states
from marft.runs.state import BEST_METRICS
from marft.trainer.recording import record_step
from marft.trainer.step_metrics import PhaseTimer, compute_rollout_metrics, count_failures, throughput, validate

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from marft.common.callbacks import CallbackList
    from marft.common.types import ActionCredit, Episode
    from marft.evaluation.guards.monitor import GuardMonitor
    from marft.models.policy_registry import PolicyRegistry
    from marft.rollout.async_rollout.sources import RolloutSource
    from marft.rollout.runner import RolloutRunner
    from marft.rollout.task_sampler import TaskSampler
    from marft.runs.checkpoints import CheckpointManager
    from marft.runs.metrics_log import MetricsLog
    from marft.runs.run_folder import RunFolder
    from marft.runs.state import CheckpointRecord, State
    from marft.trainer.hooks import PromptOptimizer
    from marft.trainer.learner_backend import LearnerBackend
    from marft.trainer.rollback import Rollback

logger = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLoop:
    """Parts of a run, and the loop that drives them."""

    folder: RunFolder
    rollouts: RolloutRunner
    models: PolicyRegistry
    source: RolloutSource  # episodes for each step: synchronous, asynchronous, reused or imagined
    sampler: TaskSampler
    learner: LearnerBackend
    prompt_optimizer: PromptOptimizer | None
    guards: GuardMonitor
    rollback: Rollback
    checkpoints: CheckpointManager
    log: MetricsLog
    callbacks: CallbackList

    def run(self, state: State) -> State:
        """Run the remaining steps → final state."""
        run = self.rollouts.run
        self.callbacks.on_train_start(state.step, run.training.steps)
        failures = count_failures(self.rollouts)
        stop = self.callbacks.wants_stop()
        while state.step < run.training.steps and not stop:
            state, metrics = self.step(state)
            if run.evaluation.every and state.step % run.evaluation.every == 0:
                metrics |= self._validate(state.step)
            before, failures = failures, count_failures(self.rollouts)
            metrics |= {name: failures[name] - before[name] for name in failures}  # also of learning and validation
            alerts = self.guards.check({"step": state.step, **metrics})
            metrics |= alerts.metrics()
            target = self.rollback.target(state, alerts.last_good_step())
            if target:
                metrics[ROLLBACK_KEY] = float(target.state.step)
            self.log.append({"step": state.step, **metrics})
            self.callbacks.on_step_end(state.step, metrics)
            stop = self.callbacks.wants_stop()
            should_save = state.step % run.checkpoints.every == 0 or state.step == run.training.steps
            if target:
                state = self._roll_back(state, target)
            else:  # after a rollback the saved weights are not the measured weights
                names = BEST_METRICS[:2] if run.evaluation.every else BEST_METRICS[2:] if should_save else ()
                state = state.update_best(metrics, names)
            if should_save or stop or target or state.best_step == state.step:
                models, learner_state = self.models, self.learner.learner_state
                self.checkpoints.save(state, run, models, learner_state, self.log.current_digest(), self._save_extra)
        return state

    def step(self, state: State) -> tuple[State, dict[str, float]]:
        """Run one training step → new state, metrics."""
        run, timer, number = self.rollouts.run, PhaseTimer(), state.step + 1
        with timer("sampling"):
            batch = self.source.collect(state, self.callbacks.on_episode)
        used, sampling_seconds = self.source.latest_batch_usage(), self.source.usage_seconds(timer.seconds["sampling"])
        self._check_batch(number, batch)
        self.callbacks.on_rollout(number, batch.episodes)
        metrics = compute_rollout_metrics(self.rollouts, batch) | used
        with timer("learning"):
            credits: list[ActionCredit] = []
            progress, repeats = Progress(state.step, state.environment_steps), list[RolloutBatch]()
            play_again = partial(self._play_again, state, repeats, used, timer)
            metrics |= self.learner.learn(batch.training_episodes, progress, credits.extend, play_again)
        if repeats:
            batch = batch.extend(repeats)
            sampling_seconds = timer.seconds["sampling"]
            metrics |= compute_rollout_metrics(self.rollouts, batch) | used
        sampled_tokens = metrics.pop("sampled_tokens")
        metrics["seconds/learning"] = timer.seconds["learning"]
        self.callbacks.on_credit(number, credits)
        self.callbacks.on_update(number, batch.training_episodes, metrics)
        state = self._advance(state, batch, metrics)
        if run.curriculum:
            curriculum = state.curriculum or self.sampler.initial_curriculum()
            curriculum, new_metrics = advance_curriculum(self.sampler, curriculum, batch.episodes, batch.next_draw)
            state, metrics = replace(state, curriculum=curriculum), metrics | new_metrics
        self.rollouts.publish(state.step)
        self.source.on_publish(state)
        self.callbacks.on_publish(number)
        if self.prompt_optimizer:
            with timer("prompt_optimization"):
                state, new_metrics = self.prompt_optimizer.step(state, batch.episodes, self.folder)
            metrics |= new_metrics
        with timer("recording"):
            metrics |= record_step(run, self.folder, number, batch, credits)
        return state, metrics | timer.metrics() | throughput(batch, sampled_tokens, sampling_seconds, timer)

    def _play_again(
        self, state: State, repeats: list[RolloutBatch], used: dict[str, float], timer: PhaseTimer
    ) -> Sequence[Episode]:
        """Publish the policies as updated so far, and play the step's tasks again → scored episodes.

        The new weights keep the number of the step before, because a version number counts finished steps.

        Args:
            state: state before the step.
            repeats: earlier repetitions in this step; the new one is appended.
            used: sampling usage of the step, which grows.
            timer: seconds of the step's phases.
        """
        with timer("sampling"):
            self.rollouts.publish(state.step)
            batch = self.source.play_again(state, len(repeats) + 1, self.callbacks.on_episode)
        for name, count in self.source.latest_batch_usage().items():
            used[name] = used.get(name, 0.0) + count
        self._check_batch(state.step + 1, batch)
        repeats.append(batch)
        return batch.training_episodes

    def _check_batch(self, step: int, batch: RolloutBatch) -> None:
        """Check that a batch can be learned from.

        Raises:
            RunError: no episode could be scored, or no agent acted.
        """
        if not batch.training_episodes:
            raise RunError(
                f"step {step}: none of {len(batch.episodes)} episodes could be scored; the first says: "
                f"{batch.episodes[0].error}"
            )
        if not any(episode.actions for episode in batch.training_episodes):
            raise RunError(
                f"step {step}: no agent was asked in any of {len(batch.episodes)} episodes: nothing can be learned "
                "from; a program of yours asks them at the addresses that it is given (clients[role].base_url)"
            )

    def _advance(self, state: State, batch: RolloutBatch, metrics: dict[str, float]) -> State:
        """Return the state after a step; log tasks that are excluded from now on."""
        excluded = dict(self.rollouts.excluded_tasks)
        for task in excluded.keys() - state.excluded_tasks.keys():
            logger.warning(f"task {task!r}: {excluded[task]}")
        return replace(
            state,
            step=state.step + 1,
            environment_steps=state.environment_steps + int(metrics["environment_steps"]),
            tasks_drawn=batch.tasks_drawn,
            excluded_tasks=excluded,
        )

    def _validate(self, step: int) -> dict[str, float]:
        metrics = validate(self.rollouts, self.source)
        self.callbacks.on_validate(step, metrics)
        return metrics

    def _roll_back(self, state: State, target: CheckpointRecord) -> State:
        state = self.rollback.roll_back(state, target, self.guards.learning_rate_factor())
        logger.warning(self.guards.roll_back(target.state.step))
        if self.prompt_optimizer:
            self.prompt_optimizer.restore(state, self.folder)
        self.rollouts.publish(state.step)
        self.source.on_rollback(state)
        self.callbacks.on_rollback(state.step, target.state.step)
        return state

    def _save_extra(self, folder: Path) -> None:
        """Save the data of the rollout source and the callbacks in a checkpoint's folder."""
        self.source.save(folder)
        write_callback_states(folder, self.callbacks.state_dict())
