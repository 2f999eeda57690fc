"""Holding texts to their grammars while they are sampled: one mask a row and step, applied to all rows at once."""

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
    """A text that is being written, and what it might have been.

    Args:
        matcher: of its grammar.
    """

    def __init__(self, matcher: LLMatcher) -> None:
        self.matcher = matcher
        self.forced: list[int] = []  # places
        self.problem = ""  # why the grammar cannot be held any more
        self._at: list[int] = []
        self._masks: list[bytes] = []
        self._count = 0

    def allow(self, mask: bytes, tokens: int) -> None:
        """The next token is one of those of ``mask``, which are so many. Said again, it changes nothing."""
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
        """The next token is this one."""
        self._count += 1
        if not self.problem and not self.matcher.consume_token(token):
            self.problem = self.matcher.get_error()

    def masks(self) -> Masks | None:
        """What was allowed for where it was more than one token."""
        return Masks.of(self._at, self._masks) if self._at else None


class Holding:
    """Holds the rows of one model.

    Args:
        grammars: of its tokenizer.
        vocabulary: ids that its head knows: those beyond the tokenizer's are never allowed.
    """

    def __init__(self, grammars: Grammars, vocabulary: int) -> None:
        self.grammars, self.vocabulary = grammars, vocabulary
        self._head = np.packbits(np.ones(vocabulary, bool), bitorder="little")
        self._known: dict[bytes, bytes] = {}  # masks that came before: equal ones are one object

    def begin(self, grammar: Grammar) -> Text:
        """A text of a grammar."""
        return Text(self.grammars.matcher(grammar))

    def allow(self, texts: Sequence[Text]) -> npt.NDArray[np.uint8]:
        """Tell each text which tokens it may go on with → those, packed, [B, bytes]."""
        found = self.grammars.next_tokens([text.matcher for text in texts])
        bits = np.zeros((len(texts), len(self._head)), np.uint8)
        width = min(found.shape[1], len(self._head))
        bits[:, :width] = found[:, :width] & self._head[:width]
        counts = np.bitwise_count(bits).sum(1).tolist()
        for text, mask, count in zip(texts, bits, counts, strict=True):
            packed = mask.tobytes()
            text.allow(self._known.setdefault(packed, packed), count)
        bits[np.array(counts) == 0] = 0xFF  # of a text that has a problem, which ends with this token
        return bits

    def hold_(self, logits_BV: Tensor, texts: Sequence[Text | None]) -> None:
        """Leave the logits of each row that has a text only those tokens that it may go on with."""
        bits = self.allow([text for text in texts if text])
        at = sent(np.array([row for row, text in enumerate(texts) if text]), logits_BV.device)
        logits_BV[at] = held(logits_BV[at], sent(bits, logits_BV.device))

    def forget(self) -> None:
        """Forget the masks that came before."""
        self._known.clear()
