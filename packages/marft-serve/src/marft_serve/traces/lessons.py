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
from marft.common.marks import Mark
from marft.common.types import Action, ActionKey, Sample
from marft.config.run import RunSettings
from marft.models.batches import in_batches
from marft.models.formats import Format
from marft.trainer.choice_scoring import scored_tokens
from marft.trainer.cutting import length
from marft.trainer.supervised import as_sample
from marft_serve.traces.reading import read_traces
from marft_serve.traces.record import Tally, TracedTurn
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.stage import Stage, Told

NOTHING = "the traces hold no turn that a policy in training could learn from"


@dataclass(frozen=True, slots=True)
class Lessons:
    """Training and held-out turns for imitation learning.

    Args:
        trained: samples for training.
        held_out: samples for evaluation only.
        episodes: number of source episodes.
    """

    trained: Sequence[Sample]
    held_out: Sequence[Sample]
    episodes: int

    @property
    def digest(self) -> str:
        """Hash over the data: token ids and marks in every sample, and the split."""
        digest = hashlib.sha256()
        for sample in (*self.trained, *self.held_out):
            action = sample.action
            digest.update(f"{action.policy}/{action.agent}/{len(action.tokens)}".encode())
            for array in (action.prompt, action.tokens, action.marks):
                digest.update(np.ascontiguousarray(array).tobytes())
        digest.update(str(len(self.trained)).encode())
        return digest.hexdigest()


def read_lessons(
    run: RunSettings, formats: Mapping[str, Format], tally: Tally, on_done: Callable[[Told], None] = lambda _: None
) -> Lessons:
    """Load a recipe's traces.

    Args:
        run: the recipe.
        formats: chat format of each policy.
        tally: counter of skipped items.
        on_done: callback for each replayed trace.

    Raises:
        ValueError: a file cannot be opened, or no turn is left to train; the message gives the reasons.
    """
    episodes = list[list[Sample]]()
    with Stage(run, tally, formats) as stage:
        for told in stage.tell(read_traces([Path(path) for path in SftSettings.of(run).traces], tally), grade=False):
            on_done(told)
            samples = [as_sample(action) for action in imitated(told, stage, tally)]
            episodes += [samples] if samples else []
        unused = stage.roles.unused()
    if unused:
        tally.skip("role", f"no turn is by {', '.join(map(repr, unused))}, which --role names", "--role")
    if not episodes:
        raise ValueError("\n  ".join([f"{NOTHING}:", *tally.lines()]))
    order = seeds.generator(run.seed, "sft", "held out").permutation(len(episodes))
    held_out = SftSettings.of(run).held_out
    wanted = max(1, round(held_out * len(episodes))) if held_out else 0
    apart = set(order[: min(wanted, len(episodes) - 1)].tolist())
    return Lessons(
        trained=[sample for n, samples in enumerate(episodes) if n not in apart for sample in samples],
        held_out=[sample for n, samples in enumerate(episodes) if n in apart for sample in samples],
        episodes=len(episodes),
    )


def imitated(told: Told, stage: Stage, tally: Tally) -> Iterator[Action]:
    """Yield an episode's trainable actions.

    Skipped are actions of frozen policies, actions with weight 0, and actions longer than the policy's context.
    """
    said: dict[ActionKey, list[tuple[TracedTurn, int]]] = {}
    for key, turn, count, _ in told.said:
        said.setdefault(key._replace(stream=key.stream.partition("+")[0]), []).append((turn, count))
    for action in told.episode.actions if told.episode.scored else ():
        if action.policy not in stage.run.trained_policies:
            continue
        turns, context = said[action.key], stage.renderer.context(action.policy)
        place = turns[0][0].place
        if any(len(one.context) + len(one.tokens) > context for one in scored_tokens(action)):
            tally.skip("turn", f"with its prompt it has more tokens than the context, {context}", place)
            continue
        left = weighed(action, [(turn.weight, count) for turn, count in turns])
        if left.decisions:
            yield left
        else:
            tally.skip("turn", "its weight is 0", place)


def weighed(action: Action, turns: Sequence[tuple[float, int]]) -> Action:
    """Mask the tokens in turns with weight 0; they stay in the context and are not trained.

    Args:
        action: the action.
        turns: weight and number of sampled tokens of each turn, in order.
    """
    if all(weight for weight, _ in turns):
        return action
    if action.choice:
        return replace(
            action, choice=None, marks=np.full(len(action.tokens), Mark.TOOL, np.uint8), log_probs=action.log_probs[:0]
        )
    ignored = np.repeat([not weight for weight, _ in turns], [count for _, count in turns])
    marks = action.marks.copy()
    marks[np.flatnonzero(action.sampled)[ignored]] = Mark.TOOL
    return replace(action, marks=marks, log_probs=action.log_probs[~ignored])


def plan(samples: Sequence[Sample], run: RunSettings) -> list[tuple[int, list[int]]]:
    """Plan a warm start: epoch and sample indices for each step.

    A step has about ``sft.batch_tokens`` tokens, prompts included. The order differs by epoch and follows from the
    run's seed.
    """
    steps = list[tuple[int, list[int]]]()
    for epoch in range(SftSettings.of(run).epochs):
        order = seeds.generator(run.seed, "sft", epoch).permutation(len(samples)).tolist()
        batches = in_batches(order, lambda number: length(samples[number]), SftSettings.of(run).batch_tokens)
        steps += [(epoch, batch) for batch in batches]
    return steps
