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

from marft.common.packages import install_command
from marft.common.texts import truncate
from marft.common.token_data import Grammar
from marft.inference.schema_checks import check_schema
from marft.inference.schemas import serialize_schema

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer

CACHE_SIZE = 256  # compiled grammars per tokenizer
MAX_ERROR_LENGTH = 400  # maximum length of an error message, in characters


class GrammarCompiler:
    """Grammar compiler for one tokenizer; thread-safe.

    Args:
        end_token: end-of-turn token, allowed or required after a complete text. None: the model has no end-of-turn
            token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_token: int | None) -> None:
        self.tokenizer, self.end_token = tokenizer, end_token
        self._lock = Lock()
        self._compile_cached = lru_cache(CACHE_SIZE)(self._compile)

    @staticmethod
    def for_tokenizer(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> GrammarCompiler:
        """Return the cached compiler for a tokenizer; the first entry in ``stop_ids`` ends a turn."""
        end_token = stop_ids[0] if stop_ids else None
        with _compilers_lock:
            return _compilers.setdefault(tokenizer, {}).setdefault(end_token, GrammarCompiler(tokenizer, end_token))

    def check(self, grammar: Grammar) -> None:
        """Check a grammar by compiling it.

        Raises:
            ValueError: the grammar cannot be enforced; the message gives the reason.
        """
        self.new_matcher(grammar)

    def new_matcher(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher in its initial state.

        Raises:
            ValueError: the grammar cannot be enforced.
        """
        compiled = self._compile_cached(grammar)  # compilation may take seconds, so it runs outside the lock
        with self._lock:
            return compiled.deep_copy()

    def next_token_masks(self, matchers: Sequence[LLMatcher]) -> npt.NDArray[np.uint8]:
        """Return the allowed next tokens per text, packed as in :class:`~marft.common.token_data.GrammarMasks`.

        The shape is [B, bytes].
        """
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask_par

        bitmask = allocate_token_bitmask(len(matchers), self._grammar_tokenizer.vocab_size)
        numbered = [(matcher, row) for row, matcher in enumerate(matchers)]
        with convert_panics():
            fill_next_token_bitmask_par(self._executor, numbered, bitmask)
        return bitmask.view(np.uint8)

    def _compile(self, grammar: Grammar) -> LLMatcher:
        from llguidance import LLMatcher

        with convert_panics():
            if grammar.kind == "json":
                schema = json.loads(grammar.text)
                check_schema(schema)
                text = LLMatcher.grammar_from_json_schema(serialize_schema(schema))
            elif grammar.kind == "regex":
                text = LLMatcher.grammar_from_regex(grammar.text)
            else:
                text = LLMatcher.grammar_from_lark(grammar.text)
            matcher = LLMatcher(self._grammar_tokenizer, text, log_level=0)
            if matcher.is_error():
                raise ValueError(truncate(" ".join(matcher.get_error().split()), MAX_ERROR_LENGTH))
            copy = matcher.deep_copy()
            if not self.next_token_masks([copy]).any() or copy.is_error():
                raise ValueError("no text has this form")
        return matcher

    @cached_property
    def _grammar_tokenizer(self) -> LLTokenizer:
        if self.end_token is None:
            raise ValueError("its model has no end-of-turn token, which a text that is whole would end with")
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            raise ValueError(f"its tokenizer is a {type(self.tokenizer).__name__}, and no fast one")
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise ValueError(f"grammars need a package that is not installed: {install_command('grammar')}") from None
        return from_tokenizer(self.tokenizer, eos_token=self.end_token)

    @cached_property
    def _executor(self) -> LLExecutor:
        from llguidance import LLExecutor

        return LLExecutor()


@contextmanager
def convert_panics() -> Iterator[None]:
    """Convert a panic inside llguidance to a ``ValueError``, since ``except Exception`` does not catch panics."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"llguidance cannot hold this form: {truncate(str(error), MAX_ERROR_LENGTH)}") from None


_compilers: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int | None, GrammarCompiler]] = WeakKeyDictionary()
_compilers_lock = Lock()
