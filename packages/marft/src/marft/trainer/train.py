"""Training of a run: open its parts, connect them, and drive them with :mod:`marft.trainer.loop`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from marft.common.callbacks import Callback, CallbackList
from marft.config.recipe_checks import warn_idle_settings
from marft.config.run import RunSettings
from marft.evaluation.guards.monitor import GuardMonitor
from marft.evaluation.tool_definitions import collect_definitions, describe_changes, write_definitions
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.async_rollout.sources import RolloutSource, open_source
from marft.rollout.local_runner import open_rollouts
from marft.rollout.rollout_batch import load_training_tasks
from marft.rollout.runner import RolloutRunner
from marft.rollout.task_sampler import TaskSampler
from marft.runs.checkpoints import CheckpointManager
from marft.runs.logger_callback import LoggerCallback
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.gpu_monitor import GpuMonitor
from marft.trainer.hooks import PromptOptimizer, TrainingSection
from marft.trainer.learner_backend import LearnerBackend, RanksLostError
from marft.trainer.learner_metrics import LogProbWarnings
from marft.trainer.loop import TrainingLoop
from marft.trainer.ranks.backends import open_learner
from marft.trainer.rollback import Rollback
from marft.trainer.run_init import RunInit


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
        state, sampler, source, optimizer = _open_training_source(start, state, rollouts)
        start.restore_callbacks(observers)
        start.commit(state, rollouts.models, learner.learner_state)
        state = optimizer.restore(state, folder) if optimizer else state
        with ExitStack() as stack:
            callbacks = _add_callbacks(start, rollouts, rollouts.models, state, observers, stack)
            stack.enter_context(closing(source))
            log = stack.enter_context(closing(MetricsLog(folder.metrics)))
            checkpoints, rollback, guards = _open_guards(start, state, rollouts.models, learner, callbacks)
            loop = TrainingLoop(
                folder=folder,
                rollouts=rollouts,
                models=rollouts.models,
                source=source,
                sampler=sampler,
                learner=learner,
                optimizer=optimizer,
                guards=guards,
                rollback=rollback,
                checkpoints=checkpoints,
                log=log,
                callbacks=callbacks,
            )
            try:
                return loop.run(state)
            except RanksLostError as error:
                return error


def report_notes(run: RunSettings, models: PolicyRegistry, note: Callable[[str], None]) -> None:
    """Report settings that have no effect, and models that run slowly."""
    for text in (*models.slow_model_warnings(), *warn_idle_settings(run)):
        note(text)


def _open_training_source(
    start: RunInit, state: State, rollouts: RolloutRunner
) -> tuple[State, TaskSampler, RolloutSource, PromptOptimizer | None]:
    """Open the source of the steps' episodes, wrapped by the recipe's sections.

    Returns:
        state with the training tasks, task sampler, source, and the prompt optimizer of a section or None.

    Raises:
        ValueError: the run was trained on other tasks before, or a section's part of the checkpoint cannot be read.
    """
    sampler = load_training_tasks(start.run)
    state = start.with_tasks(state, sampler)
    sections = [section for section in start.run.sections if isinstance(section, TrainingSection)]
    optimizers = [section.prompt_optimizer(rollouts, start.note) for section in sections]
    optimizer = next(filter(None, optimizers), None)
    folder = start.record.path if start.record and start.resume else None
    source = open_source(rollouts, sampler, state, folder)
    for section in sections:
        source = section.wrap_source(source, rollouts, folder)
    return state, sampler, source, optimizer


def _add_callbacks(
    start: RunInit,
    rollouts: RolloutRunner,
    models: PolicyRegistry,
    state: State,
    observers: CallbackList,
    stack: ExitStack,
) -> CallbackList:
    """Return the callbacks of a run: the user's, the recipe's, the sections', the loggers and MARFT's own.

    The exit stack calls their ``on_train_end``.
    """
    run, folder = start.run, start.folder
    definitions = collect_definitions(rollouts.team)
    if changed := describe_changes(folder.path, definitions):
        start.note(changed)
    write_definitions(folder.path, definitions)
    callbacks = stack.enter_context(CallbackList(list(observers)))
    for section in run.sections:
        if isinstance(section, TrainingSection):
            callbacks.add(*section.callbacks(run, folder, callbacks.on_note))
    callbacks.add(LoggerCallback(run, folder, state.step, observers.on_note))
    callbacks.add(GpuMonitor(run, models.device), LogProbWarnings(run.algorithm, callbacks.on_note))
    return callbacks


def _open_guards(
    start: RunInit, state: State, models: PolicyRegistry, learner: LearnerBackend, callbacks: CallbackList
) -> tuple[CheckpointManager, Rollback, GuardMonitor]:
    """Return what saves a run, restores it after a collapse, and notices the collapse."""
    run, note = start.run, callbacks.on_note
    min_age = run.guards.window if run.guards.on_collapse == "rollback" else 0
    checkpoints = CheckpointManager(start.folder, run.checkpoints, min_rollback_age=min_age)
    learner.set_note_callback(note)
    rollback = Rollback(run, checkpoints, models, learner.learner_state, learner.restore, note)
    rollback.begin(state)
    return checkpoints, rollback, GuardMonitor(run.guards, start.folder.read_metrics(), note, callbacks.on_guard)
