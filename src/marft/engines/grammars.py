"""Grammars on one tokenizer: what may come next in a text (llguidance), and whether a grammar can be held at all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from marft.engines.schemas import schema_text
from marft.marks import Grammar
from marft.texts import cut

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

KEPT = 256  # grammars of a tokenizer that stay compiled
SHOWN = 400  # characters of a complaint
TO_INSTALL = "grammars need a package that is not installed: pip install 'marft[grammar]'"


class Grammars:
    """What a tokenizer's texts can be held to. It may be used from several threads.

    Args:
        end: the token that ends a turn, which a text that is whole may or must go on with.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: int | None) -> None:
        self.tokenizer, self.end = tokenizer, end
        self._lock = Lock()
        self._compiled = lru_cache(KEPT)(self._compile)

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> Grammars:
        """Those of a tokenizer, whose turns end with the first of ``stop_ids``; made once."""
        end = stop_ids[0] if stop_ids else None
        with _making:
            return _known.setdefault(tokenizer, {}).setdefault(end, Grammars(tokenizer, end))

    def check(self, grammar: Grammar) -> None:
        """
        Raises:
            ValueError: it cannot be held; the message says why.
        """
        self.matcher(grammar)

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """The state of a text of which nothing is written yet.

        Raises:
            ValueError: the grammar cannot be held.
        """
        with self._lock:
            return self._compiled(grammar).deep_copy()

    def next_tokens(self, matchers: Sequence[LLMatcher]) -> npt.NDArray[np.uint8]:
        """The tokens that each text may go on with, packed as in :class:`marft.marks.Masks`, [B, bytes]."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        words = allocate_token_bitmask(len(matchers), self._tokens.vocab_size)
        numbered = [(matcher, row) for row, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, numbered, words)
        return words.view(np.uint8)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        if grammar.kind == "json":
            text = LLMatcher.grammar_from_json_schema(schema_text(json.loads(grammar.text)))
        elif grammar.kind == "regex":
            text = LLMatcher.grammar_from_regex(grammar.text)
        else:
            text = LLMatcher.grammar_from_lark(grammar.text)
        matcher = LLMatcher(self._tokens, text, log_level=0)
        if matcher.is_error():
            raise ValueError(cut(" ".join(matcher.get_error().split()), SHOWN))
        return matcher

    @cached_property
    def _tokens(self) -> LLTokenizer:
        if self.end is None:
            raise ValueError("its model has no end-of-turn token, which a text that is whole would end with")
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            raise ValueError(f"its tokenizer is a {type(self.tokenizer).__name__}, and no fast one")
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise ValueError(TO_INSTALL) from None
        return from_tokenizer(self.tokenizer, eos_token=self.end)

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor()


_known: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int | None, Grammars]] = WeakKeyDictionary()
_making = Lock()
