"""Setup of a run's rollout source and callbacks, before its first step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

from marft.common.callbacks import CallbackList
from marft.config.run import RunSettings, warn_idle_settings
from marft.evaluation.tool_definitions import collect_definitions, describe_changes, write_definitions
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.async_rollout.factory import open_source
from marft.rollout.async_rollout.sources import RolloutSource
from marft.rollout.rollout_batch import load_training_tasks
from marft.rollout.runner import RolloutRunner
from marft.rollout.task_sampler import TaskSampler
from marft.runs.checkpoints import State
from marft.runs.logger_callback import LoggerCallback
from marft.trainer.gpu_monitor import GpuMonitor
from marft.trainer.hooks import PromptOptimizer, TrainingSection
from marft.trainer.log_prob_warnings import LogProbWarnings
from marft.trainer.run_init import RunInit


def report_notes(run: RunSettings, models: PolicyRegistry, note: Callable[[str], None]) -> None:
    """Report settings that have no effect, and models that run slowly."""
    for text in (*models.slow_model_warnings(), *warn_idle_settings(run)):
        note(text)


def open_training_source(
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


def add_callbacks(
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
