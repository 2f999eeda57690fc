"""Training loop: play, credit, learn, publish, record.

::

    Task ──▶ play ──▶ Episode ──▶ Learner (credit → objective → schedule) ──▶ publish ──▶ next step
                          └─────▶ metrics, episodes, checkpoints
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from marft.common.callbacks import Callback, NullCallback
from marft.common.errors import RunError
from marft.common.types import ActionCredit, Episode
from marft.config.helpers import warn_untrained_replies
from marft.config.run import RunSettings, warn_idle_cluster, warn_idle_kl_stop
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import evaluate
from marft.evaluation.guards.history import ROLLBACK_KEY
from marft.evaluation.guards.monitor import GuardMonitor
from marft.evaluation.metrics import episode_metrics, remote_metrics
from marft.evaluation.text_metrics.characters import format_rates
from marft.evaluation.tool_definitions import collect_definitions, describe_changes, write_definitions
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.async_rollout.factory import open_source
from marft.rollout.async_rollout.sources import RolloutSource
from marft.rollout.local_runner import open_rollouts
from marft.rollout.rollout_batch import RolloutBatch, load_training_tasks
from marft.rollout.runner import FAILURE_METRICS, RolloutRunner
from marft.rollout.task_sampler import TaskSampler, advance_curriculum
from marft.runs.checkpoints import CheckpointManager, State, checkpoint_name
from marft.runs.credit_files import write_credit
from marft.runs.episode_files import write_episodes
from marft.runs.metric_sinks import MetricSinks
from marft.runs.run_folder import RunFolder
from marft.trainer.choice_scoring import count_input_tokens
from marft.trainer.gpu_monitor import GpuMonitor
from marft.trainer.hooks import PromptOptimizer, TrainingSection
from marft.trainer.interfaces import Progress
from marft.trainer.log_prob_warnings import LogProbWarnings
from marft.trainer.ranks.backends import LearnerBackend, RanksLostError, open_learner
from marft.trainer.rollback import Rollback
from marft.trainer.run_init import RunInit

BEST_METRICS = ("validation_accuracy", "validation_reward", "reward")  # metrics for the best checkpoint, by priority


def train(
    run: RunSettings, folder: RunFolder, *, resume: bool = False, start_from: Path | None = None,
    overwrite: bool = False, callback: Callback | None = None,
) -> State:  # fmt: skip
    """Train a run to its last step, or until the callback requests a stop → final state.

    Args:
        run: recipe of the run.
        folder: folder of the run.
        resume: True to resume from the folder's newest intact checkpoint, exactly as if the run had never stopped.
        start_from: checkpoint folder of another run, to take initial weights from.
        overwrite: True to overwrite an existing run in the folder, after all checks have passed.
        callback: callback of the run; by default none.

    Raises:
        ValueError: the recipe or the folder is unusable. The folder is then unchanged.
        RunError: no episode of a step could be scored, no agent acted in any episode, or steps or ranks fail
            repeatedly.
    """
    callback = callback or NullCallback()
    with folder.acquire_lock():
        start = RunInit.prepare(
            run, folder, callback.on_note, resume=resume, overwrite=overwrite, start_from=start_from
        )
        lost_count, last_step = 0, -1
        while isinstance(result := _train(start, callback, lost_count), RanksLostError):
            lost_count, before = result.times, last_step  # earlier losses are already in the metrics
            last_step = len(folder.read_metrics())
            if last_step <= before:
                raise result
            callback.on_note(
                f"{result}; the other ranks are started again, and the run goes on from its last checkpoint"
            )
            start = RunInit.prepare(run, folder, callback.on_note, resume=True, overwrite=False, start_from=None)
        return result


def _train(start: RunInit, callback: Callback, lost_count: int) -> State | RanksLostError:
    """Train from a start to the end or a stop → final state.

    If ranks that hold shards are lost, return the error instead; saved checkpoints are intact.

    Args:
        start: start of the run.
        lost_count: number of earlier losses of ranks.
    """
    run, folder = start.run, start.folder
    skip_forward = run.training.shard and run.engine.separate_weights  # no forward pass here before models are sharded
    with open_learner(run, lost_count) as learner, open_rollouts(run, for_parts=skip_forward) as rollouts:
        learner.join(rollouts.models)
        notes = (
            *rollouts.models.slow_model_warnings(),
            *warn_idle_cluster(run),
            *warn_idle_kl_stop(run),
            *warn_untrained_replies(run),
        )
        for text in notes:
            callback.on_note(text)
        state = learner.load(start)
        rollouts.excluded_tasks.update(state.set_aside)
        rollouts.publish(state.step)
        tasks = load_training_tasks(run)
        state = start.with_tasks(state, tasks)
        sections = [section for section in run.sections if isinstance(section, TrainingSection)]
        optimizers = [section.prompt_optimizer(rollouts, callback.on_note) for section in sections]
        optimizer = next(filter(None, optimizers), None)
        resume_folder = start.record.path if start.record and start.resume else None
        source = open_source(rollouts, tasks, state, resume_folder)
        for section in sections:
            source = section.wrap_source(source, rollouts, resume_folder)
        start.commit(state, rollouts.models, learner.learner_state)
        state = optimizer.restore(state, folder) if optimizer else state
        definitions = collect_definitions(rollouts.team)
        changed = describe_changes(folder.path, definitions)
        if changed:
            callback.on_note(changed)
        write_definitions(folder.path, definitions)
        with ExitStack() as stack:
            for section in sections:
                callback = stack.enter_context(section.observe(callback, run, folder))
            stack.enter_context(closing(source))
            try:
                return _run_steps(rollouts, rollouts.models, learner, state, source, tasks, folder, callback, optimizer)
            except RanksLostError as error:
                return error


def _run_steps(
    rollouts: RolloutRunner,
    models: PolicyRegistry,
    learner: LearnerBackend,
    state: State,
    source: RolloutSource,
    sampler: TaskSampler,
    folder: RunFolder,
    callback: Callback,
    optimizer: PromptOptimizer | None = None,
) -> State:
    run = rollouts.run
    can_roll_back = run.guards.on_collapse == "rollback"
    checkpoints = CheckpointManager(folder, run.checkpoints, min_rollback_age=run.guards.window if can_roll_back else 0)
    with MetricSinks(run, folder, state.step, callback) as sinks:
        learner.set_note_callback(sinks.note)
        rollback = Rollback(run, checkpoints, models, learner.learner_state, learner.restore, sinks.note)
        rollback.begin(state)
        warnings, gpu_monitor = LogProbWarnings(run.algorithm, sinks.note), GpuMonitor(run, models.device)
        watch = GuardMonitor(run.guards, folder.read_metrics(), sinks.note, sinks.guard)
        callback.on_train_start(state.step, run.training.steps)
        failures = _count_failures(rollouts)
        stop = callback.wants_stop()
        while state.step < run.training.steps and not stop:
            known_excluded = set(state.set_aside)
            state, metrics = _step(
                rollouts, learner, state, source, sampler, folder, callback, gpu_monitor, sinks.note, optimizer
            )
            for task in state.set_aside.keys() - known_excluded:
                sinks.note(f"task {task!r}: {state.set_aside[task]}")
            if run.evaluation.every and state.step % run.evaluation.every == 0:
                metrics |= _validate(rollouts, source)
            before, failures = failures, _count_failures(rollouts)
            metrics |= {name: failures[name] - before[name] for name in failures}  # also during learning and validation
            warnings.check(metrics)
            alerts = watch.check({"step": state.step, **metrics})
            metrics |= alerts.metrics()
            target = rollback.target(state, alerts.last_good_step())
            if target:
                metrics[ROLLBACK_KEY] = float(target.state.step)
            sinks.write(state.step, metrics)
            callback.on_step_end(state.step, metrics)
            stop = callback.wants_stop()
            should_save = state.step % run.checkpoints.every == 0 or state.step == run.training.steps
            if not target:  # after a rollback the saved weights are not the measured weights
                state = _update_best(
                    state,
                    metrics,
                    BEST_METRICS[:2] if run.evaluation.every else BEST_METRICS[2:] if should_save else (),
                )
                should_save = should_save or state.best_step == state.step
            if target:
                state = rollback.roll_back(state, target, watch.learning_rate_factor())
                watch.roll_back(target.state.step)
                if optimizer:
                    optimizer.restore(state, folder)
                rollouts.publish(state.step)
                source.on_rollback(state)
            if should_save or stop or target:
                checkpoints.save(state, run, models, learner.learner_state, sinks.log_digest(), source.save)
    return state


def _count_failures(rollouts: RolloutRunner) -> dict[str, float]:
    """Return failure counts so far, by metric name."""
    return {name: count for name, count in rollouts.usage().items() if name in FAILURE_METRICS}


def _step(
    rollouts: RolloutRunner,
    learner: LearnerBackend,
    state: State,
    source: RolloutSource,
    sampler: TaskSampler,
    folder: RunFolder,
    callback: Callback,
    gpu_monitor: GpuMonitor,
    note: Callable[[str], None],
    optimizer: PromptOptimizer | None = None,
) -> tuple[State, dict[str, float]]:
    run, timer = rollouts.run, _PhaseTimer()
    gpu_monitor.begin()
    with timer("sampling"):
        batch = source.collect(state, callback.on_episode)
    for text in batch.notes:
        note(text)
    used, sampling_seconds = source.usage(), source.usage_seconds(timer.seconds["sampling"])
    episodes = batch.episodes
    if not batch.credit_inputs:
        raise RunError(
            f"step {state.step + 1}: none of {len(episodes)} episodes could be scored; "
            f"the first says: {episodes[0].error}"
        )
    if not any(episode.actions for episode in batch.credit_inputs):
        raise RunError(
            f"step {state.step + 1}: no agent was asked in any of {len(episodes)} episodes: nothing can be learned "
            "from; a program of yours asks them at the addresses that it is given (clients[role].base_url)"
        )
    sampled = used.pop("sampled_tokens")
    metrics = _compute_rollout_metrics(rollouts, batch) | used
    with timer("learning"):
        credit_records: list[ActionCredit] = []
        progress = Progress(state.step, state.environment_steps)
        metrics |= learner.learn(batch.credit_inputs, progress, credit_records.extend)
    state = replace(
        state,
        step=state.step + 1,
        environment_steps=state.environment_steps + int(metrics["environment_steps"]),
        tasks_drawn=batch.tasks_drawn,
        set_aside=dict(rollouts.excluded_tasks),
    )
    if run.curriculum:
        curriculum = state.curriculum or sampler.initial_curriculum()
        curriculum, new_metrics = advance_curriculum(sampler, curriculum, episodes, batch.next_draw)
        state, metrics = replace(state, curriculum=curriculum), metrics | new_metrics
    rollouts.publish(state.step)
    source.on_publish(state)
    if optimizer:
        with timer("prompt_optimization"):
            state, new_metrics = optimizer.step(state, episodes, folder)
        metrics |= new_metrics
    with timer("recording"):
        interval = run.training.record_episodes_every
        if interval and state.step % interval == 0:
            name = f"{checkpoint_name(state.step)}.parquet"
            write_episodes(folder.episodes / name, batch.recorded)
            _record_imagined(folder.imagined / name, batch.imagined)
            metrics |= _record_credit(folder.credit / name, _select_recorded(batch.recorded, credit_records, run))
    input_tokens = sum(count_input_tokens(a) for episode in batch.credit_inputs for a in episode.actions)
    metrics |= gpu_monitor.metrics(batch.credit_inputs, timer.seconds["learning"])
    return state, metrics | timer.metrics() | {
        "tokens_per_second/sampling": sampled / sampling_seconds,
        "tokens_per_second/learning": input_tokens / timer.seconds["learning"],
        "episodes_per_second": len(episodes) / timer.total(),
    }


def _compute_rollout_metrics(rollouts: RolloutRunner, batch: RolloutBatch) -> dict[str, float]:
    """Return metrics for a step's episodes, before training on them."""
    roles, episodes = [agent.role for agent in rollouts.run.agents], batch.episodes
    metrics = episode_metrics(episodes, roles, rollouts.version)
    metrics |= format_rates([episode for episode in episodes if episode.is_scored], rollouts.run.guards.formats)
    metrics |= batch.metrics | remote_metrics([*batch.recorded, *batch.imagined], roles)
    sampled_actions = {action.key for episode in batch.recorded for action in episode.actions}
    metrics["sampled_actions"] = float(len(sampled_actions))  # forks included, replayed actions counted once
    return metrics


def _select_recorded(
    recorded: Sequence[Episode], credit_records: Sequence[ActionCredit], run: RunSettings
) -> list[ActionCredit]:
    """Return the credit to record: the step's own episodes, without reused episodes."""
    names = {episode.name for episode in recorded} if run.training.record_credit else set()
    return [credit for credit in credit_records if credit.episode.name in names]


def _record_imagined(path: Path, imagined: Sequence[Episode]) -> None:
    """Write world-model episodes to a separate folder; delete the file after a reverted step."""
    if imagined:
        write_episodes(path, imagined)
    else:
        path.unlink(missing_ok=True)


def _record_credit(path: Path, credit_records: Sequence[ActionCredit]) -> dict[str, float]:
    """Write the credit for a step's actions → file size in bytes; delete the file after a reverted step."""
    if not credit_records:
        path.unlink(missing_ok=True)
        return {}
    return {"credit_bytes": float(write_credit(path, credit_records))}


def _validate(rollouts: RolloutRunner, source: RolloutSource) -> dict[str, float]:
    """Return accuracy and reward on the validation tasks; unknown metrics are omitted."""
    tasks = read_tasks(rollouts.run.environment, "validation")[: rollouts.run.evaluation.validation_tasks]
    evaluation, episodes = evaluate(rollouts, "now", "sampled", tasks, split="validation")
    source.exclude_validation(episodes)
    metrics = {"validation_accuracy": evaluation.accuracy, "validation_reward": evaluation.reward}
    return {name: value for name, value in metrics.items() if value is not None}


def _update_best(state: State, metrics: Mapping[str, float], names: Sequence[str]) -> State:
    """Return the state with the best checkpoint updated.

    A metric with higher priority in ``BEST_METRICS`` replaces metrics with lower priority, regardless of their values.

    Args:
        state: state after the step.
        metrics: metrics of the step.
        names: metrics in ``BEST_METRICS`` that count at this step.
    """
    name = next((name for name in names if not math.isnan(metrics.get(name, math.nan))), "")
    best_rank = BEST_METRICS.index(state.best_by) if state.best_step else len(BEST_METRICS)
    if not name or BEST_METRICS.index(name) > best_rank:
        return state
    if BEST_METRICS.index(name) < best_rank or metrics[name] > state.best_score:
        return replace(state, best_step=state.step, best_score=metrics[name], best_by=name)
    return state


class _PhaseTimer:
    """Timer with seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        started_at = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - started_at

    def total(self) -> float:
        return math.fsum(self.seconds.values())

    def metrics(self) -> dict[str, float]:
        return {**{f"seconds/{phase}": value for phase, value in self.seconds.items()}, "seconds": self.total()}
