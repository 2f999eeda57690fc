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

from marft.common.errors import RunError
from marft.common.observing import Observer, Silent
from marft.common.types import ActionCredit, Episode
from marft.config.consulting import unlearned_replies
from marft.config.run import RunSettings, idle_cluster, idle_kl_stop
from marft.envs.tasks import tasks_of
from marft.evaluation.definitions import definitions_of, note_of, write_definitions
from marft.evaluation.evaluate import evaluate
from marft.evaluation.guards.history import RETURNED
from marft.evaluation.guards.watch import Watch
from marft.evaluation.metrics import episode_metrics, remote_metrics
from marft.evaluation.writing.characters import format_rates
from marft.models.pool import Models
from marft.rollout.ahead.gathering import Gathering
from marft.rollout.ahead.opening import open_gathering
from marft.rollout.collection import Collection, training_tasks
from marft.rollout.drawing import Draws, advanced
from marft.rollout.playing import LOST, Rollouts
from marft.rollout.rollouts import open_rollouts
from marft.runs.checkpoints import Checkpoints, State, name_of
from marft.runs.credit import write_credit
from marft.runs.episodes import write_episodes
from marft.runs.folder import RunFolder
from marft.runs.sinks import MetricSinks
from marft.trainer.cautions import Cautions
from marft.trainer.choice_scoring import tokens_read
from marft.trainer.gauging import Gauge
from marft.trainer.interfaces import Progress
from marft.trainer.ranks.learners import Learners, RanksLostError, open_learners
from marft.trainer.returning import Returning
from marft.trainer.seams import PromptOptimizer, TrainingSection
from marft.trainer.starting import Start

MEASURES = ("validation_accuracy", "validation_reward", "reward")  # metrics for the best checkpoint, by priority


def train(
    run: RunSettings, folder: RunFolder, *, resume: bool = False, start_from: Path | None = None,
    overwrite: bool = False, observer: Observer | None = None,
) -> State:  # fmt: skip
    """Train a run to its last step, or until the observer requests a stop → final state.

    Args:
        run: recipe of the run.
        folder: folder of the run.
        resume: True to resume from the folder's newest intact checkpoint, exactly as if the run had never stopped.
        start_from: checkpoint folder of another run, to take initial weights from.
        overwrite: True to overwrite an existing run in the folder, after all checks have passed.
        observer: observer of the run; by default none.

    Raises:
        ValueError: the recipe or the folder is unusable. The folder is then unchanged.
        RunError: no episode of a step could be scored, no agent acted in any episode, or steps or ranks fail
            repeatedly.
    """
    observer = observer or Silent()
    with folder.held():
        start = Start.of(run, folder, observer.note, resume=resume, overwrite=overwrite, start_from=start_from)
        lost, reached = 0, -1
        while isinstance(found := _train(start, observer, lost), RanksLostError):
            lost, before = found.times, reached  # earlier losses are already in the metrics
            reached = len(folder.read_metrics())
            if reached <= before:
                raise found
            observer.note(f"{found}; the other ranks are started again, and the run goes on from its last checkpoint")
            start = Start.of(run, folder, observer.note, resume=True, overwrite=False, start_from=None)
        return found


def _train(start: Start, observer: Observer, lost: int) -> State | RanksLostError:
    """Train from a start to the end or a stop → final state.

    If ranks that hold shards are lost, return the error instead; saved checkpoints are intact.

    Args:
        start: start of the run.
        lost: number of earlier losses of ranks.
    """
    run, folder = start.run, start.folder
    nothing_passes = run.training.shard and run.engine.apart  # no forward pass here before models are sharded
    with open_learners(run, lost) as learners, open_rollouts(run, for_parts=nothing_passes) as rollouts:
        learners.join(rollouts.models)
        said = (*rollouts.models.notes(), *idle_cluster(run), *idle_kl_stop(run), *unlearned_replies(run))
        for text in said:
            observer.note(text)
        state = learners.load(start)
        rollouts.set_aside.update(state.set_aside)
        rollouts.publish(state.step)
        tasks = training_tasks(run)
        state = start.with_tasks(state, tasks)
        sections = [section for section in run.sections if isinstance(section, TrainingSection)]
        optimizers = [section.prompt_optimizer(rollouts, observer.note) for section in sections]
        optimizer = next(filter(None, optimizers), None)
        begun = start.record.path if start.record and start.resume else None
        gathering = open_gathering(rollouts, tasks, state, begun)
        for section in sections:
            gathering = section.wrap_source(gathering, rollouts, begun)
        start.commit(state, rollouts.models, learners.kept)
        state = optimizer.restore(state, folder) if optimizer else state
        told = definitions_of(rollouts.team)
        changed = note_of(folder.path, told)
        if changed:
            observer.note(changed)
        write_definitions(folder.path, told)
        with ExitStack() as stack:
            for section in sections:
                observer = stack.enter_context(section.observe(observer, run, folder))
            stack.enter_context(closing(gathering))
            try:
                return _go_on(rollouts, rollouts.models, learners, state, gathering, tasks, folder, observer, optimizer)
            except RanksLostError as error:
                return error


def _go_on(
    rollouts: Rollouts,
    models: Models,
    learners: Learners,
    state: State,
    gathering: Gathering,
    draws: Draws,
    folder: RunFolder,
    observer: Observer,
    optimizer: PromptOptimizer | None = None,
) -> State:
    run = rollouts.run
    goes_back = run.guards.on_collapse == "return"
    checkpoints = Checkpoints(folder, run.checkpoints, spare=run.guards.window if goes_back else 0)
    with MetricSinks(run, folder, state.step, observer) as sinks:
        learners.noting(sinks.note)
        returning = Returning(run, checkpoints, models, learners.kept, learners.restore, sinks.note)
        returning.begin(state)
        cautions, gauge = Cautions(run.algorithm, sinks.note), Gauge(run, models.device)
        watch = Watch(run.guards, folder.read_metrics(), sinks.note, sinks.guard)
        observer.began(state.step, run.training.steps)
        lost = _lost(rollouts)
        stop = observer.wants_stop()
        while state.step < run.training.steps and not stop:
            known = set(state.set_aside)
            state, metrics = _step(
                rollouts, learners, state, gathering, draws, folder, observer, gauge, sinks.note, optimizer
            )
            for task in state.set_aside.keys() - known:
                sinks.note(f"task {task!r}: {state.set_aside[task]}")
            if run.evaluation.every and state.step % run.evaluation.every == 0:
                metrics |= _validate(rollouts, gathering)
            before, lost = lost, _lost(rollouts)
            metrics |= {name: lost[name] - before[name] for name in lost}  # also during learning and validation
            cautions.look(metrics)
            raised = watch.look({"step": state.step, **metrics})
            metrics |= raised.metrics()
            target = returning.target(state, raised.well())
            if target:
                metrics[RETURNED] = float(target.state.step)
            sinks.write(state.step, metrics)
            observer.step(state.step, metrics)
            stop = observer.wants_stop()
            due = state.step % run.checkpoints.every == 0 or state.step == run.training.steps
            if not target:  # after a rollback the saved weights are not the measured weights
                state = _rate(state, metrics, MEASURES[:2] if run.evaluation.every else MEASURES[2:] if due else ())
                due = due or state.best_step == state.step
            if target:
                state = returning.go_back(state, target, watch.cooled())
                watch.go_back(target.state.step)
                if optimizer:
                    optimizer.restore(state, folder)
                rollouts.publish(state.step)
                gathering.abandon(state)
            if due or stop or target:
                checkpoints.save(state, run, models, learners.kept, sinks.mark(), gathering.write)
    return state


def _lost(rollouts: Rollouts) -> dict[str, float]:
    """Return failure counts so far, by metric name."""
    return {name: count for name, count in rollouts.usage().items() if name in LOST}


def _step(
    rollouts: Rollouts,
    learners: Learners,
    state: State,
    gathering: Gathering,
    draws: Draws,
    folder: RunFolder,
    observer: Observer,
    gauge: Gauge,
    note: Callable[[str], None],
    optimizer: PromptOptimizer | None = None,
) -> tuple[State, dict[str, float]]:
    run, watch = rollouts.run, _Watch()
    gauge.begin()
    with watch("sampling"):
        collection = gathering.collect(state, observer.episode)
    for text in collection.notes:
        note(text)
    used, sampling_seconds = gathering.used(), gathering.seconds(watch.seconds["sampling"])
    episodes = collection.played
    if not collection.credit_inputs:
        raise RunError(
            f"step {state.step + 1}: none of {len(episodes)} episodes could be scored; "
            f"the first says: {episodes[0].error}"
        )
    if not any(episode.actions for episode in collection.credit_inputs):
        raise RunError(
            f"step {state.step + 1}: no agent was asked in any of {len(episodes)} episodes: nothing can be learned "
            "from; a program of yours asks them at the addresses that it is given (clients[role].base_url)"
        )
    sampled = used.pop("sampled_tokens")
    metrics = _metrics_of_play(rollouts, collection) | used
    with watch("learning"):
        credits: list[ActionCredit] = []
        progress = Progress(state.step, state.environment_steps)
        metrics |= learners.learn(collection.credit_inputs, progress, credits.extend)
    state = replace(
        state,
        step=state.step + 1,
        environment_steps=state.environment_steps + int(metrics["environment_steps"]),
        tasks_drawn=collection.tasks_drawn,
        set_aside=dict(rollouts.set_aside),
    )
    if run.curriculum:
        standing = state.curriculum or draws.begun()
        standing, found = advanced(draws, standing, episodes, collection.begun)
        state, metrics = replace(state, curriculum=standing), metrics | found
    rollouts.publish(state.step)
    gathering.published(state)
    if optimizer:
        with watch("profiles"):
            state, found = optimizer.step(state, episodes, folder)
        metrics |= found
    with watch("recording"):
        every = run.training.record_episodes_every
        if every and state.step % every == 0:
            name = f"{name_of(state.step)}.parquet"
            write_episodes(folder.episodes / name, collection.recorded)
            _record_imagined(folder.imagined / name, collection.imagined)
            metrics |= _record_credit(folder.credit / name, _of(collection.recorded, credits, run))
    read = sum(tokens_read(a) for episode in collection.credit_inputs for a in episode.actions)
    metrics |= gauge.metrics(collection.credit_inputs, watch.seconds["learning"])
    return state, metrics | watch.metrics() | {
        "tokens_per_second/sampling": sampled / sampling_seconds,
        "tokens_per_second/learning": read / watch.seconds["learning"],
        "episodes_per_second": len(episodes) / watch.total(),
    }


def _metrics_of_play(rollouts: Rollouts, collection: Collection) -> dict[str, float]:
    """Return metrics for a step's episodes, before training on them."""
    roles, episodes = [agent.role for agent in rollouts.run.agents], collection.played
    metrics = episode_metrics(episodes, roles, rollouts.version)
    metrics |= format_rates([episode for episode in episodes if episode.scored], rollouts.run.guards.formats)
    metrics |= collection.metrics | remote_metrics([*collection.recorded, *collection.imagined], roles)
    sampled_actions = {action.key for episode in collection.recorded for action in episode.actions}
    metrics["sampled_actions"] = float(len(sampled_actions))  # forks included, replayed actions counted once
    return metrics


def _of(recorded: Sequence[Episode], credits: Sequence[ActionCredit], run: RunSettings) -> list[ActionCredit]:
    """Return the credit to record: the step's own episodes, without reused episodes."""
    names = {episode.name for episode in recorded} if run.training.record_credit else set()
    return [credit for credit in credits if credit.episode.name in names]


def _record_imagined(path: Path, imagined: Sequence[Episode]) -> None:
    """Write world-model episodes to a separate folder; delete the file after a reverted step."""
    if imagined:
        write_episodes(path, imagined)
    else:
        path.unlink(missing_ok=True)


def _record_credit(path: Path, credits: Sequence[ActionCredit]) -> dict[str, float]:
    """Write the credit for a step's actions → file size in bytes; delete the file after a reverted step."""
    if not credits:
        path.unlink(missing_ok=True)
        return {}
    return {"credit_bytes": float(write_credit(path, credits))}


def _validate(rollouts: Rollouts, gathering: Gathering) -> dict[str, float]:
    """Return accuracy and reward on the validation tasks; unknown metrics are omitted."""
    tasks = tasks_of(rollouts.run.environment, "validation")[: rollouts.run.evaluation.validation_tasks]
    evaluation, episodes = evaluate(rollouts, "now", "sampled", tasks, split="validation")
    gathering.validated(episodes)
    measured = {"validation_accuracy": evaluation.accuracy, "validation_reward": evaluation.reward}
    return {name: value for name, value in measured.items() if value is not None}


def _rate(state: State, metrics: Mapping[str, float], measures: Sequence[str]) -> State:
    """Return the state with the best checkpoint updated.

    A metric with higher priority in ``MEASURES`` replaces metrics with lower priority, regardless of their values.

    Args:
        state: state after the step.
        metrics: metrics of the step.
        measures: metrics in ``MEASURES`` that count at this step.
    """
    name = next((name for name in measures if not math.isnan(metrics.get(name, math.nan))), "")
    known = MEASURES.index(state.best_by) if state.best_step else len(MEASURES)
    if not name or MEASURES.index(name) > known:
        return state
    if MEASURES.index(name) < known or metrics[name] > state.best_score:
        return replace(state, best_step=state.step, best_score=metrics[name], best_by=name)
    return state


class _Watch:
    """Timer with seconds by phase."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - began

    def total(self) -> float:
        return math.fsum(self.seconds.values())

    def metrics(self) -> dict[str, float]:
        return {**{f"seconds/{phase}": value for phase, value in self.seconds.items()}, "seconds": self.total()}
