"""Samples, minibatches and micro-batches of credited actions, with weights from the global minibatch (formulas §6).

The weight of each unit of the surrogate (an action or a token) is fixed here, before any split. Loss functions return
sums, so the gradient is the same for every split. A micro-batch has a token limit, and no sample is ever split.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor

from marft.common import seeds
from marft.common.token_data import common_prefix_length
from marft.common.types import Action, Episode, Normalization, Sample, TokenIds
from marft.config.interfaces.credit import CreditOutput, Floats, Level, split_rows
from marft.models.backbone import Backbone
from marft.models.devices import send_together
from marft.models.log_probs import PackedMasks
from marft.models.packed_rows import PackedRows, PrefixTree, replay_keys, split_batches
from marft.rewards.shaping import is_success
from marft.trainer.micro_batch import (
    ChoiceLayout,
    FixedLogProbs,
    MicroBatch,
    TeammateText,
    count_input_tokens,
    replayed_experts,
    scored_tokens,
)
from marft.trainer.ranks.interface import Ranks, split_share_by_base

T = TypeVar("T")
Aggregation = Literal["action-mean", "action-mean-of-sums", "token-mean", "constant-length"]
EPSILON = 1e-8
SIZE_STEP = 64  # tokens; micro-batch sizes are rounded up to a multiple
MAX_SIZE_RATIO = 1.25  # maximum size relative to the first sample, if that sample alone exceeds the limit
INDICES = {"predict_from", "targets", "action_of"}  # columns of a micro-batch that are integers


def build_sample(action: Action, level: Level = "action") -> Sample:
    """Return a sample with advantage 0, for scoring or imitation."""
    return Sample(action, 1.0, np.zeros(1 if level == "action" else action.num_decisions))


def make_samples(
    episodes: Sequence[Episode],
    credit: CreditOutput,
    trained: Sequence[str],
    normalization: Normalization,
    normalize_advantages: bool,
) -> tuple[list[Sample], list[Floats]]:
    """Return samples for the trained actions, and their raw advantages.

    Advantages are normalized over exactly the decisions of these actions. Three kinds of actions take part in credit
    but are dropped here: actions of frozen policies, actions that only serve to judge others, and actions in which a
    grammar left no choice.

    Args:
        episodes: episodes of the batch.
        credit: credit of their actions.
        trained: policies in training.
        normalization: definition of Z (eq. 6).
        normalize_advantages: True to normalize advantages over the batch.
    """
    rows = [(episode, action) for episode in episodes for action in episode.actions]
    trained_rows = [
        i
        for i, (_, action) in enumerate(rows)
        if action.policy in trained and (not credit.trained or credit.trained[i]) and not action.is_forced
    ]
    raw = [credit.advantages[i] for i in trained_rows]
    advantages = normalize(raw) if normalize_advantages else raw
    samples = [
        Sample(rows[i][1], normalizer(rows[i][1], normalization), advantage, is_success(rows[i][0]))
        for i, advantage in zip(trained_rows, advantages, strict=True)
    ]
    return samples, raw


def normalize(advantages: Sequence[Floats]) -> list[Floats]:
    """Scale advantages to mean 0 and standard deviation 1 over all decisions.

    Advantages of exactly 0 count like any other.

    >>> [a.tolist() for a in normalize([np.array([1.0, 0.0]), np.array([-1.0])])]
    [[0.999999990000..., 0.0], [-0.999999990000...]]
    """
    if not advantages:
        return []
    flat = np.concatenate(advantages)
    std = float(flat.std(ddof=1)) if len(flat) > 1 else 0.0
    scaled = (flat - flat.mean()) / (std + EPSILON)
    return split_rows(scaled, [len(a) for a in advantages])


def normalizer(action: Action, normalization: Normalization) -> float:
    """Return Z of eq. 6: 1, the number of sampled tokens, or the number of words in the agent's text (minimum 1)."""
    if normalization == "none" or action.choice:  # options of a choice are already normalized one by one
        return 1.0
    if normalization == "tokens":
        return float(max(1, action.sampled_mask.sum()))
    return float(max(1, sum(len(text.split()) for text in action.agent_texts)))


def minibatches(samples: Sequence[Sample], count: int, seed: int, step: int, epoch: int) -> list[list[Sample]]:
    """Split each policy's samples evenly into ``count`` minibatches, shuffled for each epoch.

    Empty minibatches are dropped.
    """
    return split_shuffled(
        samples,
        count,
        lambda sample: sample.action.policy,
        lambda policy: seeds.generator(seed, "minibatches", policy, step, epoch),
    )


def split_shuffled(
    items: Sequence[T], count: int, group_of: Callable[[T], str], generator: Callable[[str], np.random.Generator]
) -> list[list[T]]:
    """Split each group's items evenly into ``count`` parts, shuffled; empty parts are dropped.

    Args:
        items: items of all groups.
        count: maximum number of parts.
        group_of: function that returns the group of an item.
        generator: function that returns the random generator of a group.
    """
    parts: list[list[T]] = [[] for _ in range(count)]
    for group in sorted(set(map(group_of, items))):
        own = [item for item in items if group_of(item) == group]
        order = generator(group).permutation(len(own))
        for part, indices in zip(parts, np.array_split(order, count), strict=True):
            part += [own[i] for i in indices]
    return [part for part in parts if part]


def select_mixed_lengths(samples: Sequence[Sample], count: int) -> list[Sample]:
    """Return samples with mixed lengths: the longest, the shortest, and some in between.

    At most ``count`` samples, and at most half of all samples, are returned.
    """
    ordered = sorted(samples, key=input_length, reverse=True)
    count = min(count, max(1, len(ordered) // 2))
    return [ordered[i] for i in np.linspace(0, len(ordered) - 1, count).round().astype(int)] if ordered else []


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Denominators for loss terms, from a global minibatch.

    Args:
        actions: number of actions of each policy.
        tokens: number of sampled tokens of each policy.
        successful_tokens: number of sampled tokens in successful episodes, of each policy.
        teammate_tokens: number of teammate tokens in each policy's turns.
    """

    actions: Mapping[str, int]
    tokens: Mapping[str, int]
    successful_tokens: Mapping[str, int]
    teammate_tokens: Mapping[str, int]

    @staticmethod
    def from_samples(samples: Sequence[Sample], pooled: bool) -> BatchCounts:
        """Count a minibatch; ``pooled`` counts all policies together (the paper's 1/(nT))."""
        actions: Counter[str] = Counter()
        tokens: Counter[str] = Counter()
        successful: Counter[str] = Counter()
        teammate: Counter[str] = Counter()
        for sample in samples:
            count = sample.action.num_decisions
            actions[sample.action.policy] += 1
            tokens[sample.action.policy] += count
            successful[sample.action.policy] += count * sample.solved
            teammate[sample.action.policy] += int(sample.action.teammate_mask.sum())
        counts = (actions, tokens, successful, teammate)
        return BatchCounts(*(dict.fromkeys(c, c.total()) for c in counts) if pooled else counts)

    def token_weight(self, sample: Sample, aggregation: Aggregation, constant_length: int) -> float:
        """Return the weight per sampled token in ``sample``."""
        policy = sample.action.policy
        if aggregation == "token-mean":
            return 1.0 / self.tokens[policy]
        length = sample.action.num_decisions if aggregation == "action-mean" else 1
        length = constant_length if aggregation == "constant-length" else length
        return 1.0 / (self.actions[policy] * length)

    def nll_weight(self, sample: Sample) -> float:
        """Return the weight of a sampled token in the likelihood loss; 0 in unsuccessful episodes."""
        return 1.0 / self.successful_tokens[sample.action.policy] if sample.solved else 0.0


@dataclass(frozen=True, slots=True, eq=False)
class IdleBatch:
    """Empty micro-batch for a rank with fewer micro-batches than its peers.

    All ranks must run the backbone equally often.
    """

    backbone: Backbone
    adapter: str | None

    def forward(self) -> Tensor:
        """Run the backbone; return a loss of 0 with gradient 0."""
        rows = PackedRows.from_rows([np.zeros(1, np.int32)], [self.adapter], self.backbone.device)
        return 0.0 * self.backbone.hidden_states(rows).sum()


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Packing for a run's samples: weights per policy, and weights per token.

    Args:
        backbones: backbone of each policy.
        adapters: adapter of each policy; None for the full model.
        temperatures: sampling temperature of each agent; log-probabilities use the same temperature.
        aggregation: weighting of tokens in the loss.
        level: unit of the surrogate: action or token.
        tokens_per_batch: maximum tokens per micro-batch. Actions are never cut; a longer action is packed alone.
        constant_length: length for aggregation ``constant-length``, in tokens.
        teammate_text: True to score teammate text in an agent's turn.
        share: True to compute common prefixes of rows once, if that is faster.
        sizes: fixed micro-batch size by ``id`` of the backbone, in tokens: see :meth:`with_fixed_sizes`.
        bases: base model of each policy, for the assignment to ranks.
    """

    backbones: Mapping[str, Backbone]
    adapters: Mapping[str, str | None]
    temperatures: Mapping[str, float]
    aggregation: Aggregation
    level: Level
    tokens_per_batch: int
    constant_length: int
    teammate_text: bool
    share: bool = False
    sizes: Mapping[int, int] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_on_cpu(self) -> bool:
        """True if a read from every backbone's device is free."""
        return all(backbone.device.type == "cpu" for backbone in self.backbones.values())

    def ranks_of(self, policy: str, ranks: Ranks) -> Ranks | None:
        """Return the ranks that train a policy's base; None if this rank does not."""
        return ranks.on(self.bases.get(policy, ""))

    def share_of(self, samples: Sequence[Sample], ranks: Ranks) -> list[Sample]:
        """Return a rank's share of a minibatch."""
        return split_share_by_base(
            ranks, samples, input_length, lambda sample: self.bases.get(sample.action.policy, "")
        )

    def with_fixed_sizes(self, parts: Sequence[Sequence[Sample]]) -> Packing:
        """Return a packing with one micro-batch size per backbone: the largest that ``parts`` need.

        Half-precision and GPU matrix products differ between batch sizes. With one size, the score of a token does not
        depend on the other rows, except in mixtures of experts. Scores of the same weights are then bitwise equal, and
        their ratio is 1.
        """
        sizes: dict[int, int] = {}
        for part in parts:
            for backbone, owned in self._by_backbone(part):
                if backbone.needs_fixed_size:
                    largest = max(group.tokens for group in self._split(backbone, owned))
                    sizes[id(backbone)] = max(sizes.get(id(backbone), 0), -(-largest // SIZE_STEP) * SIZE_STEP)
        return replace(self, sizes=sizes)

    def _by_backbone(self, samples: Sequence[Sample]) -> list[tuple[Backbone, list[Sample]]]:
        owners: dict[int, list[Sample]] = {}
        for sample in sorted(samples, key=input_length):
            owners.setdefault(id(self.backbones[sample.action.policy]), []).append(sample)
        return [(self.backbones[owned[0].action.policy], owned) for owned in owners.values()]

    def micro_batches(
        self, samples: Sequence[Sample], batch_counts: BatchCounts, fixed: FixedLogProbs | None = None
    ) -> list[MicroBatch]:
        """Split a minibatch into packed micro-batches.

        Args:
            samples: samples of the minibatch, or a rank's share.
            batch_counts: denominators of the global minibatch.
            fixed: log-probabilities scored before.
        """
        batches = []
        for backbone, owned in self._by_backbone(samples):
            for group in self._split(backbone, owned):
                ordered = sorted(group.samples, key=lambda sample: sample.action.policy)
                batches.append(_pack(ordered, self, batch_counts, fixed or FixedLogProbs(), group.shared))
        return batches

    def is_exact(self, samples: Sequence[Sample]) -> bool:
        """Return True if every other packing of this kind gives bitwise equal scores; False for some kinds of layers.

        See :attr:`Backbone.rounds_by_batch`.
        """
        if any(backbone.rounds_by_batch for backbone, _ in self._by_backbone(samples)):
            return False
        parts = self._by_backbone(samples) if self.share else []
        return not self.sizes and not any(group.shared for part in parts for group in self._split(*part))

    def _split(self, backbone: Backbone, samples: Sequence[Sample]) -> list[Bin]:
        size = self.sizes.get(id(backbone), 0)
        if self.share and (
            parts := pack_shared_prefixes(backbone, samples, self.adapters, size or self.tokens_per_batch)
        ):
            return parts
        return pack_by_tokens(samples, size) if size else pack_evenly(samples, self.tokens_per_batch)

    def pad_to_ranks(
        self, batches: Sequence[MicroBatch], policies: Sequence[str], ranks: Ranks
    ) -> list[MicroBatch | IdleBatch]:
        """Pad a rank's micro-batches with idle micro-batches, so that every rank runs each backbone equally often.

        Args:
            batches: micro-batches of this rank.
            policies: policies of all distributed samples, on every rank.
            ranks: all ranks.
        """
        if ranks.count == 1:
            return list(batches)
        first_policies = {
            id(self.backbones[name]): name for name in reversed(policies)
        }  # first policy of each backbone
        own_batches = {
            name: [b for b in batches if id(b.backbone) == key] for key, name in reversed(first_policies.items())
        }
        max_counts = np.max(ranks.gather([len(backbone_batches) for backbone_batches in own_batches.values()]), axis=0)
        padded: list[MicroBatch | IdleBatch] = []
        for (name, backbone_batches), count in zip(own_batches.items(), max_counts, strict=True):
            idle = int(count) - len(backbone_batches) if self.ranks_of(name, ranks) is not None else 0
            padded += [*backbone_batches, *[IdleBatch(self.backbones[name], self.adapters[name])] * idle]
        return padded


def _pack(
    samples: Sequence[Sample], packing: Packing, batch_counts: BatchCounts, fixed: FixedLogProbs, shared: bool
) -> MicroBatch:
    """Lay out the samples of a micro-batch, with common prefixes once if ``shared``."""
    actions = [sample.action for sample in samples]
    backbone = packing.backbones[actions[0].policy]
    device = backbone.device
    segments = [(action, segment) for action in actions for segment in scored_tokens(action)]
    texts = [segment.input_tokens for _, segment in segments]
    adapters = [packing.adapters[action.policy] for action, _ in segments]
    size = packing.sizes.get(id(backbone), 0)
    experts = replayed_experts([segment for _, segment in segments], backbone)
    rows = (
        PackedRows.from_tree(PrefixTree.from_replayed_rows(texts, adapters, experts), device, size)
        if shared
        else PackedRows.from_rows(texts, adapters, device, size, experts)
    )
    places = rows.token_indices()
    counts = np.array([action.num_decisions for action in actions])
    assert all(n == len(action.log_probs) for n, action in zip(counts, actions, strict=True)), "scored == sampled"
    before = [
        row_positions[len(segment.context) - 1 :] for row_positions, (_, segment) in zip(places, segments, strict=True)
    ]
    positions = [
        segment_positions[np.flatnonzero(segment.scored)]
        for segment_positions, (_, segment) in zip(before, segments, strict=True)
    ]
    targets = [segment.tokens[segment.scored] for _, segment in segments]
    names = tuple(sorted({action.agent for action in actions}))
    temperatures = [packing.temperatures[action.agent] for action in actions]
    plain = all(temperature == 1.0 for temperature in temperatures)
    scored = np.array([sum(segment.num_scored for segment in scored_tokens(action)) for action in actions])
    columns = {
        "predict_from": np.concatenate(positions),
        "targets": np.concatenate(targets),
        "temperatures": np.repeat(temperatures, 0 if plain else scored),
        **_decision_columns(samples, packing, batch_counts, fixed, counts),
    }
    arrays = [column.astype(np.int64 if name in INDICES else np.float32) for name, column in columns.items()]
    sent = dict(zip(columns, send_together(arrays, device), strict=True))
    return MicroBatch(
        samples=tuple(samples),
        backbone=backbone,
        rows=rows,
        predict_from=sent["predict_from"],
        targets=sent["targets"],
        temperatures=None if plain else sent["temperatures"],
        masks=PackedMasks.from_parts(
            [(action.masks, segment.masks[segment.scored]) for action, segment in segments], device
        ),
        chosen=ChoiceLayout.from_actions(actions, device),
        engine_log_probs=sent["engine_log_probs"],
        base_log_probs=sent["base_log_probs"] if fixed.base else None,
        action_of=sent["action_of"],
        normalizers=sent["normalizers"],
        advantages=sent["advantages"],
        unit_weights=sent["unit_weights"],
        log_factors=sent["log_factors"],
        token_weights=sent["token_weights"],
        nll_weights=sent["nll_weights"],
        teammate_text=(
            TeammateText.from_samples(
                samples, _concat_by_action(actions, before), temperatures, batch_counts.teammate_tokens, device
            )
            if packing.teammate_text
            else None
        ),
        agents=np.repeat([names.index(action.agent) for action in actions], counts),
        agent_names=names,
        level=packing.level,
    )


def _decision_columns(
    samples: Sequence[Sample],
    packing: Packing,
    batch_counts: BatchCounts,
    fixed: FixedLogProbs,
    counts: npt.NDArray[np.int64],
) -> dict[str, np.ndarray]:
    """Return what belongs to decisions, units and actions, by the names of :class:`MicroBatch`.

    Args:
        counts: decisions of each action, [A].
    """
    actions = [sample.action for sample in samples]
    by_action = packing.level == "action"
    token_weights = [
        batch_counts.token_weight(sample, packing.aggregation, packing.constant_length) for sample in samples
    ]
    units = np.ones(len(actions), np.int64) if by_action else counts
    unit_weights = (
        np.array([1.0 / batch_counts.actions[action.policy] for action in actions])
        if by_action
        else np.repeat(token_weights, counts)
    )
    return {
        "engine_log_probs": np.concatenate([action.log_probs for action in actions]),
        "base_log_probs": np.concatenate([fixed.base[action.key] for action in actions]) if fixed.base else np.empty(0),
        "action_of": np.repeat(np.arange(len(actions)), counts),
        "normalizers": np.array([sample.normalizer for sample in samples]),
        "advantages": np.concatenate([sample.advantages for sample in samples]),
        "unit_weights": unit_weights,
        "log_factors": np.repeat([sample.log_factor for sample in samples], units),
        "token_weights": np.repeat(token_weights, counts),
        "nll_weights": np.repeat([batch_counts.nll_weight(sample) for sample in samples], counts),
    }


def _concat_by_action(actions: Sequence[Action], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Concatenate the rows of each action."""
    remaining = iter(rows)
    return [np.concatenate([*islice(remaining, len(scored_tokens(action)))]) for action in actions]


class Bin(NamedTuple):
    """Micro-batch samples, and an upper bound on their tokens."""

    samples: list[Sample]
    tokens: int
    shared: bool = False  # True if common prefixes are stored once


def input_length(sample: Sample) -> int:
    """Return the number of input tokens for scoring a sample."""
    return count_input_tokens(sample.action)


def pack_by_tokens(samples: Sequence[Sample], limit: int) -> list[Bin]:
    """Split samples into runs of at most ``limit`` tokens; a longer sample forms its own run."""
    return [Bin(group, sum(map(input_length, group))) for group in split_batches(samples, input_length, limit)]


def pack_evenly(samples: Sequence[Sample], limit: int) -> list[Bin]:
    """Split samples into runs with similar size, at most ``limit`` tokens each."""
    total = sum(input_length(sample) for sample in samples)
    even_limit = math.ceil(total / math.ceil(total / limit)) + max(map(input_length, samples)) // 2
    return pack_by_tokens(samples, min(limit, even_limit))


def pack_shared_prefixes(
    backbone: Backbone, samples: Sequence[Sample], adapters: Mapping[str, str | None], limit: int
) -> list[Bin]:
    """Split samples into runs with common prefixes, counted once, at most ``limit`` tokens each.

    A sample above the limit also takes samples that add at most a quarter of its tokens. The result is empty if prefix
    sharing has no benefit.

    Args:
        backbone: backbone of the samples.
        samples: samples to split.
        adapters: adapter of each policy; rows of different adapters share no prefix.
        limit: maximum tokens of a run.
    """
    texts = [scored_tokens(sample.action) for sample in samples]
    flat = [segment.input_tokens for segments in texts for segment in segments]
    if experts := replayed_experts([segment for segments in texts for segment in segments], backbone):
        flat = replay_keys(flat, experts)[0]
    remaining = iter(flat)
    rows = [[*islice(remaining, len(segments))] for segments in texts]
    owners = [adapters[sample.action.policy] for sample in samples]
    prefix_tree = PrefixTree.from_rows(
        flat,
        [owner for owner, sample_rows in zip(owners, rows, strict=True) for _ in sample_rows],
    )
    if not backbone.benefits_from_tree(prefix_tree, sum(map(input_length, samples))):
        return []
    order = sorted(range(len(samples)), key=lambda number: (owners[number] or "", rows[number][0].tobytes()))
    bins: list[Bin] = []
    before, max_tokens = order[0], limit
    for number in order:
        is_same_owner = owners[before] == owners[number]
        added = _count_added_tokens(rows[number], rows[before] if is_same_owner else [])
        if bins and bins[-1].tokens + added <= max_tokens:
            bins[-1] = Bin([*bins[-1].samples, samples[number]], bins[-1].tokens + added, shared=True)
        else:
            bins.append(Bin([samples[number]], _count_added_tokens(rows[number], []), shared=True))
            max_tokens = limit if bins[-1].tokens <= limit else int(MAX_SIZE_RATIO * bins[-1].tokens)
        before = number
    return bins


def _count_added_tokens(rows: Sequence[TokenIds], previous_rows: Sequence[TokenIds]) -> int:
    """Return an upper bound on the tokens that ``rows`` add to ``previous_rows``."""
    return sum(
        len(row) - max((common_prefix_length(row, previous) for previous in (*previous_rows, *rows[:index])), default=0)
        for index, row in enumerate(rows)
    )
