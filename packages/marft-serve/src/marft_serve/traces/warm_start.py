"""Supervised warm start: load traces, imitate them, and save ordinary checkpoints.

::

    traces ──▶ replay ──▶ turns ──▶ Supervisor ──▶ checkpoint ──▶ marft train … --init-from
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from marft.common.callbacks import Callback, CallbackList
from marft.common.errors import RunError
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.models.tokenizer_format import load_formats
from marft.runs.callback_state import write_callback_states
from marft.runs.checkpoints import CheckpointManager, State
from marft.runs.logger_callback import LoggerCallback
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft.trainer.bin_packing import input_length
from marft.trainer.learner_state import find_non_finite
from marft.trainer.non_finite_guard import Snapshot
from marft.trainer.run_init import SFT_PREFIX, RunInit
from marft.trainer.sft import SftLearner, SftLoss
from marft_serve.traces.imitation_data import ImitationData, load_imitation_data, plan_steps
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import SkipCounter

HELD_OUT_LOSS = "sft/held_out_loss"


@dataclass(frozen=True, slots=True)
class WarmStartResult:
    """Result of a warm start.

    Args:
        state: state after the last step.
        steps: number of planned steps; ``state.step`` is lower if the warm start was stopped.
        skip_counter: counter of skipped items.
        held_out_loss: final loss on the held-out turns, in nats per token; NaN without held-out turns.
    """

    state: State
    steps: int
    skip_counter: SkipCounter
    held_out_loss: float


def warm_start(
    run: RunSettings,
    folder: RunFolder,
    *,
    resume: bool = False,
    start_from: Path | None = None,
    overwrite: bool = False,
    callbacks: Sequence[Callback] = (),
) -> WarmStartResult:
    """Imitate the traces of a recipe (``sft.traces``) to the end, or until a callback stops the run.

    Args:
        run: the recipe.
        folder: the run folder.
        resume: True to resume from the last checkpoint.
        start_from: checkpoint folder with the initial weights.
        overwrite: True to replace an existing run.
        callbacks: callbacks that observe the run, before those of the recipe.

    Raises:
        ValueError: the recipe, the traces or the folder are invalid. The folder is then unchanged.
        RunError: a step produced a non-finite value.
    """
    callback = CallbackList([*callbacks, *(part.model_copy(deep=True) for part in run.callbacks)])
    if not SftSettings.from_run(run).traces:
        raise ValueError("sft.traces: no file of traces is named; give one:  marft sft … --traces traces.jsonl")
    with folder.acquire_lock():
        init = RunInit.prepare(
            run, folder, callback.on_note, resume=resume, overwrite=overwrite, start_from=start_from, is_sft=True
        )
        formats, skip_counter = load_formats(run), SkipCounter()
        data = load_imitation_data(run, formats, skip_counter, lambda replayed: callback.on_episode(replayed.episode))
        for line in (_summarize(data), *skip_counter.format_lines()):
            callback.on_note(line)
        steps = plan_steps(data.train, run)
        policies = PolicyRegistry(run, formats)
        learner = SftLearner(run, policies, len(steps), SftSettings.from_run(run).build_optimizer(run, len(steps)))
        state = init.load(policies, learner)
        state = init.with_digest(state, SFT_PREFIX + data.digest, "turns of the traces")
        init.restore_callbacks(callback)
        init.commit(state, policies, learner)
        state, held_out_loss = _TrainLoop(run, folder, policies, learner, data, callback).train(state, steps)
        return WarmStartResult(state, len(steps), skip_counter, held_out_loss)


def _summarize(data: ImitationData) -> str:
    return f"{data.episodes} episodes: {len(data.train)} actions to imitate, {len(data.held_out)} held out"


@dataclass(frozen=True, slots=True)
class _TrainLoop:
    run: RunSettings
    folder: RunFolder
    policies: PolicyRegistry
    learner: SftLearner
    data: ImitationData
    callbacks: CallbackList

    def train(self, state: State, steps: Sequence[tuple[int, list[int]]]) -> tuple[State, float]:
        """Train from the current step to the end; return the final state and the loss on the held-out turns."""
        run, checkpoints = self.run, CheckpointManager(self.folder, self.run.checkpoints)
        held_out_loss, eval_interval = self._measure_held_out(), SftSettings.from_run(run).eval_every
        with CallbackList(list(self.callbacks)) as callbacks, closing(MetricsLog(self.folder.metrics)) as log:
            callbacks.add(LoggerCallback(run, self.folder, state.step, self.callbacks.on_note))
            callbacks.on_train_start(state.step, len(steps))
            if self.data.held_out:
                callbacks.on_note(f"held out: {held_out_loss.mean():.4f} nats a token after step {state.step}")
            stop = callbacks.wants_stop()
            while state.step < len(steps) and not stop:
                state, metrics = self._run_step(state, steps)
                last = state.step == len(steps)
                if self.data.held_out and (last or (eval_interval and state.step % eval_interval == 0)):
                    held_out_loss = self._measure_held_out()
                    metrics |= _build_metrics(held_out_loss, HELD_OUT_LOSS)
                    if state.best_step == 0 or -held_out_loss.mean() > state.best_score:
                        state = replace(
                            state, best_step=state.step, best_score=-held_out_loss.mean(), best_by=HELD_OUT_LOSS
                        )
                log.append({"step": state.step, **metrics})
                callbacks.on_step_end(state.step, metrics)
                stop = callbacks.wants_stop()
                save_due = state.step % run.checkpoints.every == 0 or state.step == state.best_step
                if last or stop or save_due:
                    checkpoints.save(state, run, self.policies, self.learner, log.current_digest(), self._save_extra)
        return state, held_out_loss.mean()

    def _run_step(self, state: State, steps: Sequence[tuple[int, list[int]]]) -> tuple[State, dict[str, float]]:
        """Run a single optimizer step.

        Raises:
            RunError: a value was not finite; the step was undone.
        """
        start_time = time.perf_counter()
        epoch, indices = steps[state.step]
        samples = [self.data.train[number] for number in indices]
        snapshot = Snapshot(self.learner)
        snapshot.take()
        losses, metrics = self.learner.learn(samples, state.step)
        if non_finite := find_non_finite(self.learner):
            snapshot.restore()
            raise RunError(
                f"step {state.step + 1}: {', '.join(non_finite)} did not stay finite. What was saved is whole; lower "
                f"sft.learning_rate (now {SftSettings.from_run(self.run).learning_rate:g})"
            )
        seconds = time.perf_counter() - start_time
        metrics |= _build_metrics(losses, "sft/loss") | {
            "sft/epoch": epoch + 1.0,
            "sft/tokens": float(sum(losses.tokens.values())),
            "seconds": seconds,
            "tokens_per_second/learning": sum(map(input_length, samples)) / seconds,
        }
        return replace(state, step=state.step + 1), metrics

    def _save_extra(self, folder: Path) -> None:
        write_callback_states(folder, self.callbacks.state_dict())

    def _measure_held_out(self) -> SftLoss:
        return self.learner.evaluate(self.data.held_out)


def _build_metrics(losses: SftLoss, name: str) -> dict[str, float]:
    """Return the loss for the team and each agent, in nats per token."""
    return {name: losses.mean()} | {f"agents/{agent}/{name}": losses.mean(agent) for agent in losses.tokens}
