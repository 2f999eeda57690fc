"""Supervised warm start: load traces, imitate them, and save ordinary checkpoints.

::

    traces ──▶ replay ──▶ turns ──▶ Supervisor ──▶ checkpoint ──▶ marft train … --from
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from marft.common.errors import RunError
from marft.common.observing import Observer, Silent
from marft.config.run import RunSettings
from marft.models.formats import load_formats
from marft.models.pool import Models
from marft.runs.checkpoints import Checkpoints, State
from marft.runs.folder import RunFolder
from marft.runs.sinks import MetricSinks
from marft.trainer.cutting import length
from marft.trainer.keeping import not_finite
from marft.trainer.starting import IMITATED, Start
from marft.trainer.supervised import Imitation, Supervisor
from marft.trainer.undoing import Before
from marft_serve.traces.lessons import Lessons, plan, read_lessons
from marft_serve.traces.record import Tally
from marft_serve.traces.settings import SftSettings

HELD_OUT = "sft/held_out_loss"


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Result of a warm start.

    Args:
        state: state after the last step.
        steps: number of planned steps; ``state.step`` is lower if the warm start was stopped.
        tally: counter of skipped items.
        held_out: final loss on the held-out turns, in nats per token; NaN without held-out turns.
    """

    state: State
    steps: int
    tally: Tally
    held_out: float


def warm_start(
    run: RunSettings, folder: RunFolder, *, resume: bool = False, start_from: Path | None = None,
    overwrite: bool = False, observer: Observer | None = None,
) -> WarmStart:  # fmt: skip
    """Imitate the traces of a recipe (``sft.traces``) to the end, or until the observer stops the run.

    Args:
        run: the recipe.
        folder: the run folder.
        resume: True to resume from the last checkpoint.
        start_from: checkpoint folder with the initial weights.
        overwrite: True to replace an existing run.
        observer: callbacks for progress and messages; optional.

    Raises:
        ValueError: the recipe, the traces or the folder are invalid. The folder is then unchanged.
        RunError: a step produced a non-finite value.
    """
    observer = observer or Silent()
    if not SftSettings.of(run).traces:
        raise ValueError("sft.traces: no file of traces is named; give one:  marft sft … --from traces.jsonl")
    with folder.held():
        start = Start.of(
            run, folder, observer.note, resume=resume, overwrite=overwrite, start_from=start_from, imitates=True
        )
        formats, tally = load_formats(run), Tally()
        lessons = read_lessons(run, formats, tally, lambda told: observer.episode(told.episode))
        for line in (_summary(lessons), *tally.lines()):
            observer.note(line)
        steps = plan(lessons.trained, run)
        models = Models(run, formats)
        supervisor = Supervisor(run, models, len(steps), SftSettings.of(run).optimizer(run, len(steps)))
        state = start.load(models, supervisor)
        state = start.with_digest(state, IMITATED + lessons.digest, "turns of the traces")
        start.commit(state, models, supervisor)
        state, held_out = _Loop(run, folder, models, supervisor, lessons, observer).go_on(state, steps)
        return WarmStart(state, len(steps), tally, held_out)


def _summary(lessons: Lessons) -> str:
    return f"{lessons.episodes} episodes: {len(lessons.trained)} actions to imitate, {len(lessons.held_out)} held out"


@dataclass(frozen=True, slots=True)
class _Loop:
    run: RunSettings
    folder: RunFolder
    models: Models
    supervisor: Supervisor
    lessons: Lessons
    observer: Observer

    def go_on(self, state: State, steps: Sequence[tuple[int, list[int]]]) -> tuple[State, float]:
        """Train from the current step to the end; return the final state and the loss on the held-out turns."""
        run, checkpoints = self.run, Checkpoints(self.folder, self.run.checkpoints)
        held_out, every = self._held_out(), SftSettings.of(run).every
        with MetricSinks(run, self.folder, state.step, self.observer) as sinks:
            self.observer.began(state.step, len(steps))
            if self.lessons.held_out:
                sinks.note(f"held out: {held_out.mean():.4f} nats a token after step {state.step}")
            stop = self.observer.wants_stop()
            while state.step < len(steps) and not stop:
                state, metrics = self._step(state, steps)
                last = state.step == len(steps)
                if self.lessons.held_out and (last or (every and state.step % every == 0)):
                    held_out = self._held_out()
                    metrics |= _losses(held_out, HELD_OUT)
                    if state.best_step == 0 or -held_out.mean() > state.best_score:
                        state = replace(state, best_step=state.step, best_score=-held_out.mean(), best_by=HELD_OUT)
                sinks.write(state.step, metrics)
                self.observer.step(state.step, metrics)
                stop = self.observer.wants_stop()
                due = state.step % run.checkpoints.every == 0 or state.step == state.best_step
                if last or stop or due:
                    checkpoints.save(state, run, self.models, self.supervisor, sinks.mark())
        return state, held_out.mean()

    def _step(self, state: State, steps: Sequence[tuple[int, list[int]]]) -> tuple[State, dict[str, float]]:
        """Run a single optimizer step.

        Raises:
            RunError: a value was not finite; the step was undone.
        """
        began = time.perf_counter()
        epoch, numbers = steps[state.step]
        samples = [self.lessons.trained[number] for number in numbers]
        before = Before(self.supervisor)
        before.take()
        imitation, metrics = self.supervisor.learn(samples, state.step)
        if broken := not_finite(self.supervisor):
            before.restore()
            raise RunError(
                f"step {state.step + 1}: {', '.join(broken)} did not stay finite. What was saved is whole; lower "
                f"sft.learning_rate (now {SftSettings.of(self.run).learning_rate:g})"
            )
        seconds = time.perf_counter() - began
        metrics |= _losses(imitation, "sft/loss") | {
            "sft/epoch": epoch + 1.0,
            "sft/tokens": float(sum(imitation.tokens.values())),
            "seconds": seconds,
            "tokens_per_second/learning": sum(map(length, samples)) / seconds,
        }
        return replace(state, step=state.step + 1), metrics

    def _held_out(self) -> Imitation:
        return self.supervisor.measure(self.lessons.held_out)


def _losses(imitation: Imitation, name: str) -> dict[str, float]:
    """Return the loss for the team and each agent, in nats per token."""
    return {name: imitation.mean()} | {f"agents/{agent}/{name}": imitation.mean(agent) for agent in imitation.tokens}
