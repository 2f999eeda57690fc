"""Training of a run: open its parts, connect them, and drive them with :mod:`marft.trainer.loop`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

from marft.common.callbacks import Callback, CallbackList
from marft.common.log import get_logger, receive_logs
from marft.config.recipe_checks import warn_idle_settings
from marft.config.run import RunSettings
from marft.config.secrets import redacted
from marft.evaluation.guards.monitor import GuardMonitor
from marft.evaluation.tool_definitions import collect_definitions, describe_changes, write_definitions
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.async_rollout.sources import RolloutSource, open_source
from marft.rollout.local_runner import open_rollout_runner
from marft.rollout.rollout_batch import load_training_tasks
from marft.rollout.runner import RolloutRunner
from marft.rollout.task_sampler import TaskSampler
from marft.runs.checkpoints import CheckpointManager
from marft.runs.logger_callback import LoggerCallback
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.advice import find_advice
from marft.trainer.gpu_monitor import GpuMonitor
from marft.trainer.hooks import PromptOptimizer, TrainingSection
from marft.trainer.learner_backend import LearnerBackend, RanksLostError
from marft.trainer.learner_metrics import LogProbWarnings
from marft.trainer.learning_check import LearningCheck
from marft.trainer.local_learner import open_learner
from marft.trainer.loop import TrainingLoop
from marft.trainer.rollback import Rollback
from marft.trainer.run_init import RunInit
from marft.trainer.task_check import TaskCheck

logger = get_logger(__name__)


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
    with receive_logs(redacted(observers.on_note)), folder.acquire_lock():
        start = RunInit.prepare(run, folder, resume=resume, overwrite=overwrite, start_from=start_from)
        lost_count, last_step = 0, -1
        while isinstance(result := _train(start, observers, lost_count), RanksLostError):
            lost_count, before = result.times, last_step  # earlier losses are already in the metrics
            last_step = len(folder.read_metrics())
            if last_step <= before:
                raise result
            logger.warning(f"{result}; the other ranks are started again, and the run goes on from its last checkpoint")
            start = RunInit.prepare(run, folder, resume=True, overwrite=False, start_from=None)
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
    keep_on_cpu = run.training.shard and run.engine.separate_weights  # no forward pass here before models are sharded
    with open_learner(run, lost_count) as learner, open_rollout_runner(run, keep_on_cpu=keep_on_cpu) as rollouts:
        learner.set_models(rollouts.models)
        log_warnings(run, rollouts.models)
        for advice in find_advice(run, rollouts.models.device):
            logger.info(advice)
        state = learner.load(start)
        rollouts.excluded_tasks.update(state.excluded_tasks)
        rollouts.publish(state.step)
        state, sampler, source, prompt_optimizer = _open_training_source(start, state, rollouts)
        start.restore_callbacks(observers)
        start.commit(state, rollouts.models, learner.learner_state)
        state = prompt_optimizer.restore(state, folder) if prompt_optimizer else state
        with ExitStack() as stack:
            callbacks = _add_callbacks(start, rollouts, rollouts.models, state, observers, stack)
            stack.enter_context(receive_logs(redacted(callbacks.on_note)))
            stack.enter_context(closing(source))
            log = stack.enter_context(closing(MetricsLog(folder.metrics_path)))
            checkpoints, rollback, guards = _open_checkpoints(start, state, rollouts.models, learner, callbacks)
            loop = TrainingLoop(
                folder=folder,
                rollouts=rollouts,
                models=rollouts.models,
                source=source,
                sampler=sampler,
                learner=learner,
                prompt_optimizer=prompt_optimizer,
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


def log_warnings(run: RunSettings, models: PolicyRegistry) -> None:
    """Log warnings about models that run slowly, and settings that have no effect."""
    for text in (*models.slow_model_warnings(), *warn_idle_settings(run)):
        logger.warning(text)


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
    if len(sampler) == 1:
        logger.warning("the training split has one task: the team may learn its answer by heart; add more tasks")
    state = start.with_tasks(state, sampler)
    sections = [section for section in start.run.sections if isinstance(section, TrainingSection)]
    optimizers = [section.prompt_optimizer(rollouts) for section in sections]
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
        logger.warning(changed)
    write_definitions(folder.path, definitions)
    callbacks = stack.enter_context(CallbackList(list(observers)))
    for section in run.sections:
        if isinstance(section, TrainingSection):
            callbacks.add(*section.callbacks(run, folder))
    callbacks.add(LoggerCallback(run, folder, state.step))
    callbacks.add(GpuMonitor(run, models.device), LogProbWarnings(run.algorithm), TaskCheck(run))
    callbacks.add(LearningCheck(start.metrics_before(state.step)))
    return callbacks


def _open_checkpoints(
    start: RunInit, state: State, models: PolicyRegistry, learner: LearnerBackend, callbacks: CallbackList
) -> tuple[CheckpointManager, Rollback, GuardMonitor]:
    """Return the checkpoints of a run, the rollback to them, and the guards that start a rollback."""
    run = start.run
    min_age = run.guards.window if run.guards.on_collapse == "rollback" else 0
    checkpoints = CheckpointManager(start.folder, run.checkpoints, min_rollback_age=min_age)
    rollback = Rollback(run, checkpoints, models, learner.learner_state, learner.restore)
    rollback.begin(state)
    return checkpoints, rollback, GuardMonitor(run.guards, start.folder.read_metrics(), callbacks.on_guard)
