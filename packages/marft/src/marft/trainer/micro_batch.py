"""Packed rows of a micro-batch: scored texts, choices from lists, teammate text, and the inputs to the loss.

A choice from a list scores the tokens of all its options, with gradient. Text that a teammate wrote inside an agent's
own turn may be scored too (LlamaRL, 2025).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft.common.token_data import ExpertTable, RoutedExperts
from marft.common.types import Action, ActionKey, Sample, TokenIds
from marft.config.interfaces.credit import Floats, Level, split_rows
from marft.models.choice_distribution import ChoiceSets, compute_entropies
from marft.models.devices import to_device
from marft.models.log_probs import TokenScores

if TYPE_CHECKING:
    from marft.models.backbone import Backbone
    from marft.models.log_probs import PackedMasks
    from marft.models.packed_rows import PackedRows


@dataclass(frozen=True, slots=True, eq=False)
class ScoredTokens:
    """Text to score after its context.

    Args:
        context: tokens before the text, shape [C].
        tokens: tokens of the text, shape [T].
        scored: True for tokens that count, shape [T].
        masks: index of each token's mask in the action's table, shape [T]; -1 without a mask.
        experts: recorded experts of the input tokens; None without a record.
    """

    context: TokenIds  # [C]
    tokens: TokenIds  # [T]
    scored: npt.NDArray[np.bool_]  # [T]
    masks: npt.NDArray[np.int32]  # [T]
    experts: RoutedExperts | None = None

    @property
    def input_tokens(self) -> TokenIds:
        """Input tokens for scoring."""
        return np.concatenate([self.context, self.tokens[:-1]])

    @property
    def row_length(self) -> int:
        """Number of input tokens for scoring."""
        return len(self.context) + len(self.tokens) - 1

    @property
    def num_scored(self) -> int:
        """Number of tokens that count."""
        return int(self.scored.sum())


def scored_tokens(action: Action) -> list[ScoredTokens]:
    """Return the texts to score for an action: each segment, or every option of a choice."""
    if action.choice is None:
        size = len(action.tokens)
        masks = action.masks.mask_indices(size) if action.masks else np.full(size, -1, np.int32)
        experts = action.experts or [None] * len(action.segments)
        return [
            ScoredTokens(context, action.tokens[start:stop], action.sampled_mask[start:stop], masks[start:stop], record)
            for (context, start, stop), record in zip(action.segments, experts, strict=True)
        ]
    options = (option.tokens for option in action.choice.options)
    return [
        ScoredTokens(action.prompt, tokens, np.ones(len(tokens), bool), np.full(len(tokens), -1, np.int32))
        for tokens in options
    ]


def replayed_experts(segments: Sequence[ScoredTokens], backbone: Backbone) -> list[ExpertTable]:
    """Return the experts to replay for each text, [length, L, K]; empty without replay.

    Raises:
        UserError: a record is of another model.
    """
    replay = backbone.router_replay
    records = [segment.experts for segment in segments]
    known = next((record for record in records if record is not None), None)
    if replay is None:
        return []
    if None in records:
        replay.warn_missing()
    if known is None:
        return []
    nothing = replace(known, flat=known.flat[:0])
    tables = [(segment.experts or nothing).table(segment.row_length) for segment in segments]
    return [replay.select_layers(table) for table in tables]


def count_input_tokens(action: Action) -> int:
    """Return the number of input tokens for scoring an action, with the contexts of all segments or options."""
    return sum(segment.row_length for segment in scored_tokens(action))


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceLayout:
    """Layout of a micro-batch's choices: R counts scored tokens, T decisions, C choices."""

    written: Tensor  # [T - C] indices of scored tokens that are decisions
    written_at: Tensor  # [T - C] their indices among the decisions
    option_positions: Tensor  # [R - (T - C)] indices of scored tokens in options
    choice_sets: ChoiceSets
    chosen: Tensor  # [C] index of the chosen option
    chosen_at: Tensor  # [C] indices among the decisions

    @staticmethod
    def from_actions(actions: Sequence[Action], device: torch.device) -> ChoiceLayout | None:
        """Return the layout for actions; None without a choice."""
        choices = [action.choice for action in actions if action.choice]
        if not choices:
            return None
        written: list[int] = []
        written_at: list[int] = []
        option_positions: list[int] = []
        chosen_at: list[int] = []
        scored = decisions = 0
        for action in actions:
            size = sum(segment.num_scored for segment in scored_tokens(action))
            if action.choice:
                option_positions += range(scored, scored + size)
                chosen_at.append(decisions)
            else:
                written += range(scored, scored + size)
                written_at += range(decisions, decisions + size)
            scored, decisions = scored + size, decisions + action.num_decisions
        choice_sets = ChoiceSets.from_lengths(
            [[len(option.tokens) for option in choice.options] for choice in choices],
            [[option.normaliser for option in choice.options] for choice in choices],
            device,
        )

        def indices(values: list[int]) -> Tensor:
            return to_device(np.array(values, np.int64), device)

        return ChoiceLayout(
            indices(written),
            indices(written_at),
            indices(option_positions),
            choice_sets,
            indices([choice.chosen for choice in choices]),
            indices(chosen_at),
        )

    def to_decisions(self, scores: TokenScores) -> TokenScores:
        """Convert log-probabilities and entropies of tokens [R] to decisions [T]."""
        table = self.choice_sets.log_softmax(scores.log_probs[self.option_positions])
        chosen_scores = table.gather(1, self.chosen[:, None])[:, 0]
        return TokenScores(
            self._join(scores.log_probs[self.written], chosen_scores),
            self._join(scores.entropies[self.written], compute_entropies(table)),
        )

    def _join(self, written: Tensor, chosen: Tensor) -> Tensor:
        decisions = written.new_zeros(len(self.written_at) + len(self.chosen_at))
        return decisions.index_add(0, self.written_at, written).index_add(0, self.chosen_at, chosen.to(written))


@dataclass(frozen=True, slots=True, eq=False)
class TeammateText:
    """Teammate tokens in the turns of a micro-batch; M is their number."""

    predict_from: Tensor  # [M] packed positions of the logits that predict the tokens
    targets: Tensor  # [M]
    temperatures: Tensor  # [M]
    author_log_probs: Tensor  # [M]
    advantages: Tensor  # [M] advantage of the agent's next own decision
    weights: Tensor  # [M] 1 / number of teammate tokens of the policy in the global minibatch

    @staticmethod
    def from_samples(
        samples: Sequence[Sample],
        predict_positions: Sequence[np.ndarray],
        temperatures: Sequence[float],
        tokens_of_policy: Mapping[str, int],
        device: torch.device,
    ) -> TeammateText | None:
        """Collect teammate tokens from samples; None without teammate tokens.

        Args:
            samples: samples of the micro-batch.
            predict_positions: for each sample, the packed position that predicts each token of its action, over all
                segments.
            temperatures: sampling temperature of each sample's agent.
            tokens_of_policy: number of teammate tokens of each policy in the global minibatch.
            device: device of the tensors.
        """
        rows: list[tuple[np.ndarray, ...]] = []
        for sample, token_positions, temperature in zip(samples, predict_positions, temperatures, strict=True):
            action = sample.action
            positions = np.flatnonzero(action.teammate_mask)
            if not len(positions):
                continue
            assert action.teammate_log_probs is not None, "a teammate's tokens have its log-probs"
            decisions = np.cumsum(action.sampled_mask)[positions].clip(max=len(sample.advantages) - 1)
            rows.append(
                (
                    token_positions[positions],
                    action.tokens[positions],
                    np.full(len(positions), temperature),
                    action.teammate_log_probs,
                    sample.advantages[decisions],
                    np.full(len(positions), 1.0 / tokens_of_policy[action.policy]),
                )
            )
        if not rows:
            return None
        predict_from, targets, *values = (np.concatenate(column) for column in zip(*rows, strict=True))
        return TeammateText(
            to_device(predict_from, device, torch.long),
            to_device(targets, device, torch.long),
            *(to_device(column, device, torch.float32) for column in values),
        )


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

    def unit_log_probs(self, token_values_T: Tensor) -> Tensor:
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

    def per_unit(self, token_values_T: Tensor) -> Tensor:
        """Return a value per unit, shape [U], where all tokens of a unit have the same value."""
        return token_values_T[self.first_tokens()] if self.level == "action" else token_values_T

    def unit_agents(self) -> np.ndarray:
        """Return the agent index of each unit, shape [U]."""
        if self.level == "token":
            return self.agents
        return np.array([self.agent_names.index(sample.action.agent) for sample in self.samples])


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
