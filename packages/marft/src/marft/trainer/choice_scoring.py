"""Conversion from token scores to decisions, for actions chosen from a list.

All options of a choice are scored, with gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from marft.common.types import Action, TokenIds
from marft.models.choice_distribution import ChoiceSets, compute_entropies
from marft.models.devices import to_device
from marft.models.log_probs import TokenScores


@dataclass(frozen=True, slots=True, eq=False)
class ScoredTokens:
    """Text to score after its context.

    Args:
        context: tokens before the text, shape [C].
        tokens: tokens of the text, shape [T].
        scored: True for tokens that count, shape [T].
        masks: index of each token's mask in the action's table, shape [T]; -1 without a mask.
    """

    context: TokenIds  # [C]
    tokens: TokenIds  # [T]
    scored: npt.NDArray[np.bool_]  # [T]
    masks: npt.NDArray[np.int32]  # [T]


def scored_tokens(action: Action) -> list[ScoredTokens]:
    """Return the texts to score for an action: each segment, or every option of a choice."""
    if action.choice is None:
        size = len(action.tokens)
        masks = action.masks.mask_indices(size) if action.masks else np.full(size, -1, np.int32)
        return [
            ScoredTokens(context, action.tokens[start:stop], action.sampled_mask[start:stop], masks[start:stop])
            for context, start, stop in action.segments
        ]
    options = (option.tokens for option in action.choice.options)
    return [
        ScoredTokens(action.prompt, tokens, np.ones(len(tokens), bool), np.full(len(tokens), -1, np.int32))
        for tokens in options
    ]


def count_input_tokens(action: Action) -> int:
    """Return the number of input tokens for scoring an action, with the contexts of all segments or options."""
    return sum(len(segment.context) + len(segment.tokens) - 1 for segment in scored_tokens(action))


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
            size = sum(int(segment.scored.sum()) for segment in scored_tokens(action))
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
