"""Training loop: rollout → credit → update → publish → record.

::

    RolloutSource ──▶ RolloutBatch ──▶ learner (credit → objective → schedule) ──▶ publish ──▶ next step
                            └────▶ metrics, guards, rollback, episodes, checkpoints

Callbacks observe a step. What changes the run is called here, in this order: rollout source, learner, curriculum,
publication, prompt optimizer, recording, validation, guards, rollback, checkpoint. A rollback restores weights,
optimizers, critic, prompts, and the state of credit and schedule. Steps, tasks, random streams, the metrics log and
callbacks go on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from marft.common.callbacks import Callback, CallbackList
from marft.common.errors import RunError
from marft.common.types import ActionCredit
from marft.config.run import RunSettings
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.evaluation.guards.monitor import GuardMonitor
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.async_rollout.sources import RolloutSource
from marft.rollout.local_runner import open_rollouts
from marft.rollout.rollout_batch import RolloutBatch
from marft.rollout.runner import RolloutRunner
from marft.rollout.task_sampler import TaskSampler, advance_curriculum
from marft.runs.callback_state import write_callback_states
from marft.runs.checkpoints import BEST_METRICS, CheckpointManager, CheckpointRecord, State
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft.trainer.choice_scoring import count_input_tokens
from marft.trainer.hooks import PromptOptimizer
from marft.trainer.interfaces import Progress
from marft.trainer.ranks.backends import LearnerBackend, RanksLostError, open_learner
from marft.trainer.recording import record_step
from marft.trainer.rollback import Rollback
from marft.trainer.run_init import RunInit
from marft.trainer.setup import add_callbacks, open_training_source, report_notes
from marft.trainer.step_metrics import PhaseTimer, compute_rollout_metrics, count_failures, validate


def train(
    run: RunSettings,
    folder: RunFolder,
    *,
    resume: bool = False,
    start_from: Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
) -> State:
    """Train a run to its last step, or until a callback requests a stop → final state.

    Args:
        run: recipe of the run.
        folder: folder of the run.
        resume: True to resume from the folder's newest intact checkpoint, exactly as if the run had never stopped.
        start_from: checkpoint folder of another run, to take initial weights from.
        overwrite: True to overwrite an existing run in the folder, after all checks have passed.
        callbacks: callbacks that observe the run, before those of the recipe.

    Raises:
        ValueError: the recipe or the folder is unusable. The folder is then unchanged.
        RunError: no episode of a step could be scored, no agent acted in any episode, or steps or ranks fail
            repeatedly.
    """
    observers = CallbackList([*callbacks, *(part.model_copy(deep=True) for part in run.callbacks)])
    note = observers.on_note
    with folder.acquire_lock():
        start = RunInit.prepare(run, folder, note, resume=resume, overwrite=overwrite, start_from=start_from)
        lost_count, last_step = 0, -1
        while isinstance(result := _train(start, observers, lost_count), RanksLostError):
            lost_count, before = result.times, last_step  # earlier losses are already in the metrics
            last_step = len(folder.read_metrics())
            if last_step <= before:
                raise result
            note(f"{result}; the other ranks are started again, and the run goes on from its last checkpoint")
            start = RunInit.prepare(run, folder, note, resume=True, overwrite=False, start_from=None)
        return result


def _train(start: RunInit, observers: CallbackList, lost_count: int) -> State | RanksLostError:
    """Train from a start to the end or a stop → final state.

    If ranks that hold shards are lost, return the error instead; saved checkpoints are intact.

    Args:
        start: start of the run.
        observers: callbacks of the user and of the recipe.
        lost_count: number of earlier losses of ranks.
    """
    run, folder = start.run, start.folder
    skip_forward = run.training.shard and run.engine.separate_weights  # no forward pass here before models are sharded
    with open_learner(run, lost_count) as learner, open_rollouts(run, for_parts=skip_forward) as rollouts:
        learner.join(rollouts.models)
        report_notes(run, rollouts.models, observers.on_note)
        state = learner.load(start)
        rollouts.excluded_tasks.update(state.set_aside)
        rollouts.publish(state.step)
        state, sampler, source, optimizer = open_training_source(start, state, rollouts)
        start.restore_callbacks(observers)
        start.commit(state, rollouts.models, learner.learner_state)
        state = optimizer.restore(state, folder) if optimizer else state
        with ExitStack() as stack:
            callbacks = add_callbacks(start, rollouts, rollouts.models, state, observers, stack)
            stack.enter_context(closing(source))
            log = stack.enter_context(closing(MetricsLog(folder.metrics)))
            loop = TrainingLoop(folder, rollouts, rollouts.models, learner, source, sampler, callbacks, log, optimizer)
            try:
                return loop.run_steps(state)
            except RanksLostError as error:
                return error


@dataclass(frozen=True, slots=True)
class TrainingLoop:
    """Parts of a run, and the loop that drives them. The parts do not know the loop."""

    folder: RunFolder
    rollouts: RolloutRunner
    models: PolicyRegistry
    learner: LearnerBackend
    source: RolloutSource  # episodes for each step: synchronous, asynchronous, reused or imagined
    sampler: TaskSampler
    callbacks: CallbackList
    log: MetricsLog
    optimizer: PromptOptimizer | None = None

    def run_steps(self, state: State) -> State:
        """Run the remaining steps → final state."""
        run, note = self.rollouts.run, self.callbacks.on_note
        min_age = run.guards.window if run.guards.on_collapse == "rollback" else 0
        checkpoints = CheckpointManager(self.folder, run.checkpoints, min_rollback_age=min_age)
        self.learner.set_note_callback(note)
        rollback = Rollback(run, checkpoints, self.models, self.learner.learner_state, self.learner.restore, note)
        rollback.begin(state)
        guards = GuardMonitor(run.guards, self.folder.read_metrics(), note, self.callbacks.on_guard)
        self.callbacks.on_train_start(state.step, run.training.steps)
        failures = count_failures(self.rollouts)
        stop = self.callbacks.wants_stop()
        while state.step < run.training.steps and not stop:
            state, metrics = self.step(state)
            if run.evaluation.every and state.step % run.evaluation.every == 0:
                metrics |= self._validate(state.step)
            before, failures = failures, count_failures(self.rollouts)
            metrics |= {name: failures[name] - before[name] for name in failures}  # also of learning and validation
            alerts = guards.check({"step": state.step, **metrics})
            metrics |= alerts.metrics()
            target = rollback.target(state, alerts.last_good_step())
            if target:
                metrics[ROLLBACK_KEY] = float(target.state.step)
            self.log.append({"step": state.step, **metrics})
            self.callbacks.on_step_end(state.step, metrics)
            stop = self.callbacks.wants_stop()
            should_save = state.step % run.checkpoints.every == 0 or state.step == run.training.steps
            if target:
                state = self._roll_back(state, target, rollback, guards)
            else:  # after a rollback the saved weights are not the measured weights
                names = BEST_METRICS[:2] if run.evaluation.every else BEST_METRICS[2:] if should_save else ()
                state = state.update_best(metrics, names)
            if should_save or stop or target or state.best_step == state.step:
                models, learner_state = self.models, self.learner.learner_state
                checkpoints.save(state, run, models, learner_state, self.log.current_digest(), self._save_extra)
        return state

    def step(self, state: State) -> tuple[State, dict[str, float]]:
        """Run one training step → new state, metrics."""
        run, timer, number = self.rollouts.run, PhaseTimer(), state.step + 1
        with timer("sampling"):
            batch = self.source.collect(state, self.callbacks.on_episode)
        used, sampling_seconds = self.source.usage(), self.source.usage_seconds(timer.seconds["sampling"])
        _check_batch(number, batch, self.callbacks.on_note)
        self.callbacks.on_rollout(number, batch.episodes)
        sampled = used.pop("sampled_tokens")
        metrics = compute_rollout_metrics(self.rollouts, batch) | used
        with timer("learning"):
            credits: list[ActionCredit] = []
            progress = Progress(state.step, state.environment_steps)
            metrics |= self.learner.learn(batch.credit_inputs, progress, credits.extend)
        metrics["seconds/learning"] = timer.seconds["learning"]
        self.callbacks.on_credit(number, credits)
        self.callbacks.on_update(number, batch.credit_inputs, metrics)
        state = self._advance(state, batch, metrics)
        if run.curriculum:
            curriculum = state.curriculum or self.sampler.initial_curriculum()
            curriculum, new_metrics = advance_curriculum(self.sampler, curriculum, batch.episodes, batch.next_draw)
            state, metrics = replace(state, curriculum=curriculum), metrics | new_metrics
        self.rollouts.publish(state.step)
        self.source.on_publish(state)
        self.callbacks.on_publish(number)
        if self.optimizer:
            with timer("prompt_optimization"):
                state, new_metrics = self.optimizer.step(state, batch.episodes, self.folder)
            metrics |= new_metrics
        with timer("recording"):
            metrics |= record_step(run, self.folder, number, batch, credits)
        input_tokens = sum(count_input_tokens(a) for episode in batch.credit_inputs for a in episode.actions)
        return state, metrics | timer.metrics() | {
            "tokens_per_second/sampling": sampled / sampling_seconds,
            "tokens_per_second/learning": input_tokens / timer.seconds["learning"],
            "episodes_per_second": len(batch.episodes) / timer.total(),
        }

    def _advance(self, state: State, batch: RolloutBatch, metrics: dict[str, float]) -> State:
        """Return the state after a step; report tasks that are excluded from now on."""
        excluded = dict(self.rollouts.excluded_tasks)
        for task in excluded.keys() - state.set_aside.keys():
            self.callbacks.on_note(f"task {task!r}: {excluded[task]}")
        return replace(
            state,
            step=state.step + 1,
            environment_steps=state.environment_steps + int(metrics["environment_steps"]),
            tasks_drawn=batch.tasks_drawn,
            set_aside=excluded,
        )

    def _validate(self, step: int) -> dict[str, float]:
        metrics = validate(self.rollouts, self.source)
        self.callbacks.on_validate(step, metrics)
        return metrics

    def _roll_back(self, state: State, target: CheckpointRecord, rollback: Rollback, guards: GuardMonitor) -> State:
        step = target.state.step
        state = rollback.roll_back(state, target, guards.learning_rate_factor())
        guards.roll_back(step)
        if self.optimizer:
            self.optimizer.restore(state, self.folder)
        self.rollouts.publish(state.step)
        self.source.on_rollback(state)
        self.callbacks.on_rollback(state.step, step)
        return state

    def _save_extra(self, folder: Path) -> None:
        """Save the data of the rollout source and the callbacks in a checkpoint's folder."""
        self.source.save(folder)
        write_callback_states(folder, self.callbacks.state_dict())


def _check_batch(step: int, batch: RolloutBatch, note: Callable[[str], None]) -> None:
    """Report a batch's notes.

    Raises:
        RunError: no episode could be scored, or no agent acted.
    """
    for text in batch.notes:
        note(text)
    if not batch.credit_inputs:
        raise RunError(
            f"step {step}: none of {len(batch.episodes)} episodes could be scored; the first says: "
            f"{batch.episodes[0].error}"
        )
    if not any(episode.actions for episode in batch.credit_inputs):
        raise RunError(
            f"step {step}: no agent was asked in any of {len(batch.episodes)} episodes: nothing can be learned "
            "from; a program of yours asks them at the addresses that it is given (clients[role].base_url)"
        )
