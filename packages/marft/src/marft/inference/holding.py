"""Grammar-constrained sampling: a token mask per row and step, applied to the whole batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from torch import Tensor

from marft.common.marks import Grammar, Masks
from marft.models.devices import sent
from marft.models.masked import held

if TYPE_CHECKING:
    from llguidance import LLMatcher

    from marft.inference.grammars import Grammars


class Text:
    """Grammar state for one text: matcher, masks and forced positions.

    Args:
        matcher: matcher of the text's grammar.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.forced: list[int] = []  # token positions
        self.problem = ""  # why the grammar can no longer be enforced; "" if it can
        self._at: list[int] = []
        self._masks: list[bytes] = []
        self._count = 0

    def allow(self, mask: bytes, tokens: int) -> None:
        """Set the mask for the next token; ``tokens`` counts allowed tokens. A repeated call has no effect."""
        if self._at and self._at[-1] == self._count:
            del self._at[-1], self._masks[-1]
        if self.forced and self.forced[-1] == self._count:
            del self.forced[-1]
        if tokens > 1:
            self._at.append(self._count)
            self._masks.append(mask)
        else:
            self.forced.append(self._count)
        if tokens < 1 or self.matcher.is_error():
            self.problem = self.matcher.get_error() or "its grammar allows for no token"

    def take(self, token: int) -> None:
        """Advance by one sampled token."""
        self._count += 1
        if not self.problem and not self.matcher.consume_token(token):
            self.problem = self.matcher.get_error()

    def masks(self) -> Masks | None:
        """Return the masks at positions with several allowed tokens; None without such positions."""
        return Masks.of(self._at, self._masks) if self._at else None


class Holding:
    """Grammar masks for the rows in a model's batch.

    Args:
        grammars: grammar compiler of the model's tokenizer.
        vocabulary: number of ids in the language-model head. Ids beyond the tokenizer's vocabulary are never allowed.
    """

    def __init__(self, grammars: Grammars, vocabulary: int) -> None:
        self.grammars, self.vocabulary = grammars, vocabulary
        self._head = np.packbits(np.ones(vocabulary, bool), bitorder="little")
        self._known: dict[bytes, bytes] = {}  # previous masks, so that equal masks share one object

    def begin(self, grammar: Grammar) -> Text:
        """Start the grammar state for a new text.

        Raises:
            ValueError: the grammar cannot be enforced.
        """
        return Text(self.grammars.matcher(grammar))

    def allow(self, texts: Sequence[Text]) -> npt.NDArray[np.uint8]:
        """Set the allowed next tokens for each text; return the packed masks, [B, bytes]."""
        found = self.grammars.next_tokens([text.matcher for text in texts])
        bits = np.zeros((len(texts), len(self._head)), np.uint8)
        width = min(found.shape[1], len(self._head))
        bits[:, :width] = found[:, :width] & self._head[:width]
        counts = np.bitwise_count(bits).sum(1).tolist()
        for text, mask, count in zip(texts, bits, counts, strict=True):
            packed = mask.tobytes()
            text.allow(self._known.setdefault(packed, packed), count)
        bits[np.array(counts) == 0] = 0xFF  # a text without an allowed token has a problem and ends with this token
        return bits

    def hold_(self, logits_BV: Tensor, texts: Sequence[Text | None]) -> None:
        """Mask the logits in place for each row with a grammar."""
        bits = self.allow([text for text in texts if text])
        at = sent(np.array([row for row, text in enumerate(texts) if text]), logits_BV.device)
        logits_BV[at] = held(logits_BV[at], sent(bits, logits_BV.device))

    def forget(self) -> None:
        """Clear the mask cache."""
        self._known.clear()
