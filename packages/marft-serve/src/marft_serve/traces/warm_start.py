"""Supervised warm start: load traces, imitate them, and save ordinary checkpoints.

::

    traces ──▶ replay ──▶ turns ──▶ Supervisor ──▶ checkpoint ──▶ marft train … --init-from
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from marft.common import seeds
from marft.common.callbacks import Callback, CallbackList
from marft.common.errors import RunError, UserError
from marft.common.log import get_logger, receive_logs
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Sample
from marft.config.run import RunSettings
from marft.config.secrets import redacted
from marft.models.packed_rows import split_batches
from marft.models.policy_registry import PolicyRegistry
from marft.models.tokenizer_format import TokenizerFormat, load_tokenizer_formats
from marft.runs.checkpoints import CheckpointManager, write_callback_states
from marft.runs.logger_callback import LoggerCallback
from marft.runs.metrics_log import MetricsLog
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.batching import build_sample, input_length
from marft.trainer.micro_batch import scored_tokens
from marft.trainer.non_finite_guard import Snapshot, find_non_finite
from marft.trainer.run_init import SFT_PREFIX, RunInit
from marft_serve.traces.reader import read_traces
from marft_serve.traces.replayer import ReplayedTrace, TraceReplayer
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.sft import SftLearner, SftLoss
from marft_serve.traces.types import SkipCounter, TracedTurn

logger = get_logger(__name__)
NO_TRAINABLE_TURNS = "the traces hold no turn that a policy in training could learn from"
HELD_OUT_LOSS = "sft/held_out_loss"


@dataclass(frozen=True, slots=True)
class ImitationData:
    """Training and held-out turns for imitation learning.

    Args:
        train: samples for training.
        held_out: samples for evaluation only.
        episodes: number of source episodes.
    """

    train: Sequence[Sample]
    held_out: Sequence[Sample]
    episodes: int

    @property
    def digest(self) -> str:
        """Hash over the data: token ids and marks in every sample, and the split."""
        digest = hashlib.sha256()
        for sample in (*self.train, *self.held_out):
            action = sample.action
            digest.update(f"{action.policy}/{action.agent}/{len(action.tokens)}".encode())
            for array in (action.prompt, action.tokens, action.marks):
                digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(str(len(self.train)).encode())
        return digest.hexdigest()


def load_imitation_data(
    run: RunSettings,
    formats: Mapping[str, TokenizerFormat],
    skip_counter: SkipCounter,
    on_replayed: Callable[[ReplayedTrace], None] = lambda _: None,
) -> ImitationData:
    """Load a recipe's traces.

    Args:
        run: the recipe.
        formats: chat format of each policy.
        skip_counter: counter of skipped items.
        on_replayed: callback for each replayed trace.

    Raises:
        UserError: a file cannot be opened, or no turn is left to train; the message gives the reasons.
    """
    episodes = list[list[Sample]]()
    with TraceReplayer(run, skip_counter, formats) as replayer:
        for replayed in replayer.replay(
            read_traces([Path(path) for path in SftSettings.from_run(run).traces], skip_counter), grade=False
        ):
            on_replayed(replayed)
            samples = [build_sample(action) for action in iter_trainable_actions(replayed, replayer, skip_counter)]
            episodes += [samples] if samples else []
        replayer.skip_unused_roles()
    if not episodes:
        raise UserError("\n  ".join([f"{NO_TRAINABLE_TURNS}:", *skip_counter.format_lines()]))
    order = seeds.generator(run.seed, "sft", "held out").permutation(len(episodes))
    fraction = SftSettings.from_run(run).held_out_fraction
    held_out_count = max(1, round(fraction * len(episodes))) if fraction else 0
    held_out_indices = set(order[: min(held_out_count, len(episodes) - 1)].tolist())
    return ImitationData(
        train=[sample for n, samples in enumerate(episodes) if n not in held_out_indices for sample in samples],
        held_out=[sample for n, samples in enumerate(episodes) if n in held_out_indices for sample in samples],
        episodes=len(episodes),
    )


def iter_trainable_actions(
    replayed: ReplayedTrace, replayer: TraceReplayer, skip_counter: SkipCounter
) -> Iterator[Action]:
    """Yield an episode's trainable actions.

    Skipped are actions of frozen policies, actions with weight 0, and actions longer than the policy's context.
    """
    turns_by_action: dict[ActionKey, list[tuple[TracedTurn, int]]] = {}
    for key, turn, count, _ in replayed.turns:
        turns_by_action.setdefault(key._replace(stream=key.stream.partition("+")[0]), []).append((turn, count))
    for action in replayed.episode.actions if replayed.episode.is_scored else ():
        if action.policy not in replayer.run.trained_policies:
            continue
        turns, context = turns_by_action[action.key], replayer.renderer.context_length(action.policy)
        location = turns[0][0].location
        if any(len(segment.context) + len(segment.tokens) > context for segment in scored_tokens(action)):
            skip_counter.skip("turn", f"with its prompt it has more tokens than the context, {context}", location)
            continue
        masked = mask_zero_weight_turns(action, [(turn.weight, count) for turn, count in turns])
        if masked.num_decisions:
            yield masked
        else:
            skip_counter.skip("turn", "its weight is 0", location)


def mask_zero_weight_turns(action: Action, turns: Sequence[tuple[float, int]]) -> Action:
    """Mask the tokens in turns with weight 0; they stay in the context and are not trained.

    Args:
        action: the action.
        turns: weight and number of sampled tokens of each turn, in order.
    """
    if all(weight for weight, _ in turns):
        return action
    if action.choice:
        return replace(
            action,
            choice=None,
            marks=np.full(len(action.tokens), TokenSource.TOOL, np.uint8),
            log_probs=action.log_probs[:0],
        )
    ignored = np.repeat([not weight for weight, _ in turns], [count for _, count in turns])
    marks = action.marks.copy()
    marks[np.flatnonzero(action.sampled_mask)[ignored]] = TokenSource.TOOL
    return replace(action, marks=marks, log_probs=action.log_probs[~ignored])


def plan_steps(samples: Sequence[Sample], run: RunSettings) -> list[tuple[int, list[int]]]:
    """Plan a warm start: epoch and sample indices for each step.

    A step has about ``sft.batch_tokens`` tokens, prompts included. The order differs by epoch and follows from the
    run's seed.
    """
    steps = list[tuple[int, list[int]]]()
    for epoch in range(SftSettings.from_run(run).epochs):
        order = seeds.generator(run.seed, "sft", epoch).permutation(len(samples)).tolist()
        batches = split_batches(
            order, lambda number: input_length(samples[number]), SftSettings.from_run(run).batch_tokens
        )
        steps += [(epoch, batch) for batch in batches]
    return steps


@dataclass(frozen=True, slots=True)
class WarmStartResult:
    """Result of a warm start.

    Args:
        state: state after the last step.
        steps: number of planned steps; ``state.step`` is lower if the warm start was stopped.
        skip_counter: counter of skipped items.
        initial_held_out_loss: loss on the held-out turns before the first step of this training, in nats per token;
            NaN without held-out turns.
        held_out_loss: the same after the last step.
    """

    state: State
    steps: int
    skip_counter: SkipCounter
    initial_held_out_loss: float
    held_out_loss: float

    @property
    def learned(self) -> bool:
        """False if the loss on the held-out turns did not fall."""
        return math.isnan(self.held_out_loss) or self.held_out_loss < self.initial_held_out_loss


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
        UserError: the recipe, the traces or the folder are invalid. The folder is then unchanged.
        RunError: a step produced a non-finite value.
    """
    callback = CallbackList([*callbacks, *(part.model_copy(deep=True) for part in run.callbacks)])
    if not SftSettings.from_run(run).traces:
        raise UserError("sft.traces: no file of traces is named; give one:  marft sft … --traces traces.jsonl")
    with receive_logs(redacted(callback.on_note)), folder.acquire_lock():
        init = RunInit.prepare(run, folder, resume=resume, overwrite=overwrite, start_from=start_from, is_sft=True)
        formats, skip_counter = load_tokenizer_formats(run), SkipCounter()
        data = load_imitation_data(run, formats, skip_counter, lambda replayed: callback.on_episode(replayed.episode))
        for line in (_summarize(data), *skip_counter.format_lines()):
            logger.info(line)
        steps = plan_steps(data.train, run)
        policies = PolicyRegistry(run, formats)
        learner = SftLearner(run, policies, len(steps), SftSettings.from_run(run).build_optimizer(run, len(steps)))
        state = init.load(policies, learner)
        state = init.with_digest(state, SFT_PREFIX + data.digest, "turns of the traces")
        init.restore_callbacks(callback)
        init.commit(state, policies, learner)
        loop = _TrainLoop(run, folder, policies, learner, data, callback)
        initial_loss = loop.measure_held_out()
        state, held_out_loss = loop.train(state, steps, initial_loss)
        return WarmStartResult(state, len(steps), skip_counter, initial_loss.mean(), held_out_loss)


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

    def train(
        self, state: State, steps: Sequence[tuple[int, list[int]]], held_out_loss: SftLoss
    ) -> tuple[State, float]:
        """Train from the current step to the end; return the final state and the loss on the held-out turns."""
        run, checkpoints = self.run, CheckpointManager(self.folder, self.run.checkpoints)
        eval_interval = SftSettings.from_run(run).eval_every
        with (
            CallbackList(list(self.callbacks)) as callbacks,
            receive_logs(redacted(callbacks.on_note)),
            closing(MetricsLog(self.folder.metrics_path)) as log,
        ):
            callbacks.add(LoggerCallback(run, self.folder, state.step))
            callbacks.on_train_start(state.step, len(steps))
            if self.data.held_out:
                logger.info(f"held out: {held_out_loss.mean():.4f} nats a token after step {state.step}")
            stop = callbacks.wants_stop()
            while state.step < len(steps) and not stop:
                state, metrics = self._run_step(state, steps)
                last = state.step == len(steps)
                if self.data.held_out and (last or (eval_interval and state.step % eval_interval == 0)):
                    held_out_loss = self.measure_held_out()
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

    def measure_held_out(self) -> SftLoss:
        """Return the loss on the held-out turns."""
        return self.learner.evaluate(self.data.held_out)


def _build_metrics(losses: SftLoss, name: str) -> dict[str, float]:
    """Return the loss for the team and each agent, in nats per token."""
    return {name: losses.mean()} | {f"agents/{agent}/{name}": losses.mean(agent) for agent in losses.tokens}
