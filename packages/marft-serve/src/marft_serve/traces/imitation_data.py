"""Data for imitation learning: recorded turns in the form of actions by the recipe's agents.

Only the agents' own tokens are trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from marft.common import seeds
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Sample
from marft.config.run import RunSettings
from marft.models.batches import split_batches
from marft.models.tokenizer_format import TokenizerFormat
from marft.trainer.bin_packing import input_length
from marft.trainer.choice_scoring import scored_tokens
from marft.trainer.sft import build_sample
from marft_serve.traces.reader import read_traces
from marft_serve.traces.replayer import ReplayedTrace, TraceReplayer
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.types import SkipCounter, TracedTurn

NO_TRAINABLE_TURNS = "the traces hold no turn that a policy in training could learn from"


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
        ValueError: a file cannot be opened, or no turn is left to train; the message gives the reasons.
    """
    episodes = list[list[Sample]]()
    with TraceReplayer(run, skip_counter, formats) as replayer:
        for replayed in replayer.replay(
            read_traces([Path(path) for path in SftSettings.from_run(run).traces], skip_counter), grade=False
        ):
            on_replayed(replayed)
            samples = [build_sample(action) for action in iter_trainable_actions(replayed, replayer, skip_counter)]
            episodes += [samples] if samples else []
        unused = replayer.roles.unused_names()
    if unused:
        skip_counter.skip("role", f"no turn is by {', '.join(map(repr, unused))}, which --role names", "--role")
    if not episodes:
        raise ValueError("\n  ".join([f"{NO_TRAINABLE_TURNS}:", *skip_counter.format_lines()]))
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
        turns, context = turns_by_action[action.key], replayer.renderer.context(action.policy)
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
