"""Grammar-constrained sampling: a token mask per row and step, applied to the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor

from marft.common.token_data import Grammar, GrammarMasks
from marft.models.devices import to_device
from marft.models.token_masks import mask_logits

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from marft.inference.grammar_compiler import GrammarCompiler


class GrammarState:
    """Grammar state for one text: matcher, masks and forced positions.

    Args:
        matcher: matcher of the text's grammar.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.forced: list[int] = []  # token positions
        self.problem = ""  # why the grammar can no longer be enforced; "" if it can
        self._positions: list[int] = []
        self._masks: list[bytes] = []
        self._count = 0

    def set_mask(self, mask: bytes, tokens: int) -> None:
        """Set the mask for the next token; ``tokens`` counts allowed tokens. A repeated call has no effect."""
        if self._positions and self._positions[-1] == self._count:
            del self._positions[-1], self._masks[-1]
        if self.forced and self.forced[-1] == self._count:
            del self.forced[-1]
        if tokens > 1:
            self._positions.append(self._count)
            self._masks.append(mask)
        else:
            self.forced.append(self._count)
        if tokens < 1 or self.matcher.is_error():
            self.problem = self.matcher.get_error() or "its grammar allows for no token"

    def add_token(self, token: int) -> None:
        """Advance by one sampled token."""
        self._count += 1
        if not self.problem and not self.matcher.consume_token(token):
            self.problem = self.matcher.get_error()

    def build_masks(self) -> GrammarMasks | None:
        """Return the masks at positions with several allowed tokens; None without such positions."""
        return GrammarMasks.from_masks(self._positions, self._masks) if self._positions else None


class GrammarMasker:
    """Grammar masks for the rows in a model's batch.

    Args:
        compiler: grammar compiler of the model's tokenizer.
        vocabulary: number of ids in the language-model head. Ids beyond the tokenizer's vocabulary are never allowed.
    """

    def __init__(self, compiler: GrammarCompiler, vocabulary: int) -> None:
        self.compiler, self.vocabulary = compiler, vocabulary
        self._vocabulary_mask = np.packbits(np.ones(vocabulary, bool), bitorder="little")
        self._mask_cache: dict[bytes, bytes] = {}  # previous masks, so that equal masks share one object

    def new_state(self, grammar: Grammar) -> GrammarState:
        """Start the grammar state for a new text.

        Raises:
            ValueError: the grammar cannot be enforced.
        """
        return GrammarState(self.compiler.new_matcher(grammar))

    def set_masks(self, states: Sequence[GrammarState]) -> npt.NDArray[np.uint8]:
        """Set the allowed next tokens for each text; return the packed masks, [B, bytes]."""
        allowed = self.compiler.next_token_masks([state.matcher for state in states])
        bits = np.zeros((len(states), len(self._vocabulary_mask)), np.uint8)
        width = min(allowed.shape[1], len(self._vocabulary_mask))
        bits[:, :width] = allowed[:, :width] & self._vocabulary_mask[:width]
        counts = np.bitwise_count(bits).sum(1).tolist()
        for state, mask, count in zip(states, bits, counts, strict=True):
            packed = mask.tobytes()
            state.set_mask(self._mask_cache.setdefault(packed, packed), count)
        bits[np.array(counts) == 0] = 0xFF  # a text without an allowed token has a problem and ends with this token
        return bits

    def mask_logits_(self, logits_BV: Tensor, states: Sequence[GrammarState | None]) -> None:
        """Mask the logits in place for each row with a grammar."""
        bits = self.set_masks([state for state in states if state])
        at = to_device(np.array([row for row, state in enumerate(states) if state]), logits_BV.device)
        logits_BV[at] = mask_logits(logits_BV[at], to_device(bits, logits_BV.device))

    def clear_cache(self) -> None:
        """Clear the mask cache."""
        self._mask_cache.clear()
