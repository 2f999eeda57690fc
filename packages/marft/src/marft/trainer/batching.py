"""Minibatches and micro-batches of credited actions, with weights from the global minibatch (formulas §6).

The weight of each unit of the surrogate (an action or a token) is fixed here, before any split. Loss functions return
sums, so the gradient is the same for every split.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from marft.common import seeds
from marft.common.types import Action, ActionKey, Episode, Normalization, Sample
from marft.models.backbone import Backbone
from marft.models.devices import to_device
from marft.models.packed_rows import PackedRows
from marft.models.prefix_tree import PrefixTree
from marft.models.token_masks import PackedMasks
from marft.rewards.shaping import is_success
from marft.trainer.bin_packing import Bin, input_length, pack_by_tokens, pack_evenly, pack_shared_prefixes
from marft.trainer.choice_scoring import ChoiceLayout, ScoredTokens, scored_tokens
from marft.trainer.interfaces import CreditOutput, Floats, Level, split_rows
from marft.trainer.rank_group import Ranks, split_share_by_base
from marft.trainer.teammate_text import TeammateText

Aggregation = Literal["action-mean", "action-mean-of-sums", "token-mean", "constant-length"]
EPSILON = 1e-8
SIZE_STEP = 64  # tokens; micro-batch sizes are rounded up to a multiple


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
    parts: list[list[Sample]] = [[] for _ in range(count)]
    for policy in sorted({sample.action.policy for sample in samples}):
        policy_samples = [sample for sample in samples if sample.action.policy == policy]
        order = seeds.generator(seed, "minibatches", policy, step, epoch).permutation(len(policy_samples))
        for part, indices in zip(parts, np.array_split(order, count), strict=True):
            part += [policy_samples[i] for i in indices]
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
class MicroBatch:
    """Packed rows for samples on a backbone, with the inputs to their loss.

    T counts decisions: sampled tokens, plus one per action chosen from a list. R counts scored tokens: sampled tokens,
    plus the tokens of every option. U counts units: actions at action level, decisions at token level.
    """

    samples: tuple[Sample, ...]  # [B]
    backbone: Backbone
    rows: PackedRows
    predict_from: Tensor  # [R] packed positions of the logits that predict the scored tokens
    targets: Tensor  # [R]
    temperatures: Tensor | None  # [R], None when all are 1
    masks: PackedMasks | None  # [R], None without a grammar
    chosen: ChoiceLayout | None  # layout of choices from lists; None without choices
    engine_log_probs: Tensor  # [T]
    base_log_probs: Tensor | None  # [T] under the untuned base; None if the loss does not use them
    action_of: Tensor  # [T] row of each token's action in the micro-batch
    normalizers: Tensor  # [B] Z of each action
    advantages: Tensor  # [U]
    unit_weights: Tensor  # [U]
    log_factors: Tensor  # [U] log factor of each unit's ratio
    token_weights: Tensor  # [T] for entropy and KL
    nll_weights: Tensor  # [T]
    teammate_text: TeammateText | None  # None if not trained or absent
    agents: np.ndarray  # [T] agent of each token, as an index into agent_names
    agent_names: tuple[str, ...]
    level: Level

    def units(self, token_values_T: Tensor) -> Tensor:
        """Return log-probabilities of units, shape [U].

        At action level they are sums over the action, divided by Z (eq. 6). At token level they stay unchanged.
        """
        if self.level == "token":
            return token_values_T
        sums = torch.zeros(len(self.normalizers), dtype=token_values_T.dtype, device=token_values_T.device)
        return sums.index_add(0, self.action_of, token_values_T) / self.normalizers.to(token_values_T.dtype)

    def collect_tokens(self, values: Mapping[ActionKey, Floats], dtype: torch.dtype = torch.float64) -> Tensor:
        """Collect values of every decision, given by the action's key → tensor [T]."""
        flat = np.concatenate([values[sample.action.key] for sample in self.samples])
        return to_device(flat, self.engine_log_probs.device, dtype)

    def split_by_action(self, token_values_T: Floats) -> dict[ActionKey, Floats]:
        """Split values [T] on the host by the action's key; inverse of :meth:`collect_tokens`."""
        rows = split_rows(token_values_T, [sample.action.num_decisions for sample in self.samples])
        return {sample.action.key: row for sample, row in zip(self.samples, rows, strict=True)}

    def first_tokens(self) -> Tensor:
        """Return the index of each action's first sampled token, shape [B]."""
        counts = np.array([sample.action.num_decisions for sample in self.samples])
        return to_device(counts.cumsum() - counts, self.action_of.device)

    def unit_agents(self) -> np.ndarray:
        """Return the agent index of each unit, shape [U]."""
        if self.level == "token":
            return self.agents
        return np.array([self.agent_names.index(sample.action.agent) for sample in self.samples])


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
class FixedLogProbs:
    """Log-probabilities scored before the first update, by the action's key.

    Args:
        old: log-probabilities under the learner's own policies.
        base: log-probabilities under the untuned base.
        exact: True if every other packing gives bitwise equal scores.
    """

    old: Mapping[ActionKey, Floats] = field(default_factory=dict)
    base: Mapping[ActionKey, Floats] = field(default_factory=dict)
    exact: bool = True


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
        depend on the other rows. Scores of the same weights are then bitwise equal, and their ratio is 1.
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
        """Return True if every other packing of this kind gives bitwise equal scores."""
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
    actions = [sample.action for sample in samples]
    backbone = packing.backbones[actions[0].policy]
    device = backbone.device
    segments = [(action, segment) for action in actions for segment in scored_tokens(action)]
    rows = _pack_rows(segments, packing, backbone, shared)
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
    scored = np.array([sum(int(segment.scored.sum()) for segment in scored_tokens(action)) for action in actions])
    names = tuple(sorted({action.agent for action in actions}))
    token_weights = [
        batch_counts.token_weight(sample, packing.aggregation, packing.constant_length) for sample in samples
    ]
    units = np.ones(len(actions), np.int64) if packing.level == "action" else counts
    unit_weights = (
        np.array([1.0 / batch_counts.actions[action.policy] for action in actions])
        if packing.level == "action"
        else np.repeat(token_weights, counts)
    )

    temperatures = [packing.temperatures[action.agent] for action in actions]
    plain = all(temperature == 1.0 for temperature in temperatures)

    def tensor(values: np.ndarray, dtype: torch.dtype = torch.float32) -> Tensor:
        return to_device(values, device, dtype)

    return MicroBatch(
        samples=tuple(samples),
        backbone=backbone,
        rows=rows,
        predict_from=tensor(np.concatenate(positions), torch.long),
        targets=tensor(np.concatenate(targets), torch.long),
        temperatures=None if plain else tensor(np.repeat(temperatures, scored)),
        masks=PackedMasks.from_parts(
            [(action.masks, segment.masks[segment.scored]) for action, segment in segments], device
        ),
        chosen=ChoiceLayout.from_actions(actions, device),
        engine_log_probs=tensor(np.concatenate([action.log_probs for action in actions])),
        base_log_probs=tensor(np.concatenate([fixed.base[action.key] for action in actions])) if fixed.base else None,
        action_of=tensor(np.repeat(np.arange(len(actions)), counts), torch.long),
        normalizers=tensor(np.array([sample.normalizer for sample in samples])),
        advantages=tensor(np.concatenate([sample.advantages for sample in samples])),
        unit_weights=tensor(unit_weights),
        log_factors=tensor(np.repeat([sample.log_factor for sample in samples], units)),
        token_weights=tensor(np.repeat(token_weights, counts)),
        nll_weights=tensor(np.repeat([batch_counts.nll_weight(sample) for sample in samples], counts)),
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


def _pack_rows(
    segments: Sequence[tuple[Action, ScoredTokens]], packing: Packing, backbone: Backbone, shared: bool
) -> PackedRows:
    """Lay out the inputs of all segments, with common prefixes once if ``shared``."""
    texts = [np.concatenate([segment.context, segment.tokens[:-1]]) for _, segment in segments]
    adapters = [packing.adapters[action.policy] for action, _ in segments]
    size = packing.sizes.get(id(backbone), 0)
    if shared:
        return PackedRows.from_tree(PrefixTree.from_rows(texts, adapters), backbone.device, size)
    return PackedRows.from_rows(texts, adapters, backbone.device, size)


def _concat_by_action(actions: Sequence[Action], rows: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Concatenate the rows of each action."""
    remaining = iter(rows)
    return [np.concatenate([*islice(remaining, len(scored_tokens(action)))]) for action in actions]
