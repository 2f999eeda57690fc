"""Compiled grammars per tokenizer (llguidance): validation and allowed next tokens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from marft.common.marks import Grammar
from marft.common.satellites import install_command
from marft.common.texts import cut
from marft.inference.schema_checks import check_schema
from marft.inference.schemas import schema_text

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

KEPT = 256  # compiled grammars per tokenizer
SHOWN = 400  # maximum length of an error message, in characters


class Grammars:
    """Grammar compiler for one tokenizer; thread-safe.

    Args:
        end: end-of-turn token, allowed or required after a complete text. None: the model has no end-of-turn token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end: int | None) -> None:
        self.tokenizer, self.end = tokenizer, end
        self._lock = Lock()
        self._compiled = lru_cache(KEPT)(self._compile)

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> Grammars:
        """Return the cached compiler for a tokenizer; the first entry in ``stop_ids`` ends a turn."""
        end = stop_ids[0] if stop_ids else None
        with _making:
            return _known.setdefault(tokenizer, {}).setdefault(end, Grammars(tokenizer, end))

    def check(self, grammar: Grammar) -> None:
        """Check a grammar by compiling it.

        Raises:
            ValueError: the grammar cannot be enforced; the message gives the reason.
        """
        self.matcher(grammar)

    def matcher(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher in its initial state.

        Raises:
            ValueError: the grammar cannot be enforced.
        """
        whole = self._compiled(grammar)  # compilation may take seconds, so it runs outside the lock
        with self._lock:
            return whole.deep_copy()

    def next_tokens(self, matchers: Sequence[LLMatcher]) -> npt.NDArray[np.uint8]:
        """Return the allowed next tokens per text, packed as in :class:`marft.common.marks.Masks`, [B, bytes]."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        words = allocate_token_bitmask(len(matchers), self._tokens.vocab_size)
        numbered = [(matcher, row) for row, matcher in enumerate(matchers)]
        with no_panic():
            fill_next_token_bitmask_par(self._executor, numbered, words)
        return words.view(np.uint8)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        with no_panic():
            if grammar.kind == "json":
                schema = json.loads(grammar.text)
                check_schema(schema)
                text = LLMatcher.grammar_from_json_schema(schema_text(schema))
            elif grammar.kind == "regex":
                text = LLMatcher.grammar_from_regex(grammar.text)
            else:
                text = LLMatcher.grammar_from_lark(grammar.text)
            matcher = LLMatcher(self._tokens, text, log_level=0)
            if matcher.is_error():
                raise ValueError(cut(" ".join(matcher.get_error().split()), SHOWN))
            begun = matcher.deep_copy()
            if not self.next_tokens([begun]).any() or begun.is_error():
                raise ValueError("no text has this form")
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
            raise ValueError(f"grammars need a package that is not installed: {install_command('grammar')}") from None
        return from_tokenizer(self.tokenizer, eos_token=self.end)

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor()


@contextmanager
def no_panic() -> Iterator[None]:
    """Convert a panic inside llguidance to a ``ValueError``, since ``except Exception`` does not catch panics."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"llguidance cannot hold this form: {cut(str(error), SHOWN)}") from None


_known: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int | None, Grammars]] = WeakKeyDictionary()
_making = Lock()
