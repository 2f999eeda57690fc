"""Grammar-constrained sampling (llguidance): grammars compiled per tokenizer, and a token mask per row and step.

If an engine in another process does not report its masks, this process recomputes them by replaying the tokens. Both
sides use the same llguidance version and the same tokenizer, so both get the same masks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property, lru_cache
from importlib.metadata import version
from threading import Lock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from marft.common.errors import RowFailedError, RunError, UserError
from marft.common.packages import install_command
from marft.common.texts import truncate
from marft.common.token_data import Grammar, GrammarMasks
from marft.common.types import Completion
from marft.inference.schema_checks import check_schema, serialize_schema

if TYPE_CHECKING:
    from llguidance import LLExecutor, LLMatcher, LLTokenizer
    from torch import Tensor

    from marft.models.backbone import Backbone

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

    def check_grammar(self, grammar: Grammar) -> None:
        """Check a grammar by compiling it.

        Raises:
            UserError: the grammar cannot be enforced; the message gives the reason.
        """
        self.new_matcher(grammar)

    def new_matcher(self, grammar: Grammar) -> LLMatcher:
        """Return a matcher in its initial state.

        Raises:
            UserError: the grammar cannot be enforced.
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
                raise UserError(truncate(" ".join(matcher.get_error().split()), MAX_ERROR_LENGTH))
            copy = matcher.deep_copy()
            if not self.next_token_masks([copy]).any() or copy.is_error():
                raise UserError("no text has this form")
        return matcher

    @cached_property
    def _grammar_tokenizer(self) -> LLTokenizer:
        if self.end_token is None:
            raise UserError("its model has no end-of-turn token, which a text that is whole would end with")
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            raise UserError(f"its tokenizer is a {type(self.tokenizer).__name__}, and no fast one")
        try:
            from llguidance.hf import from_tokenizer
        except ImportError:
            raise UserError(f"grammars need a package that is not installed: {install_command('grammar')}") from None
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
        raise UserError(f"llguidance cannot hold this form: {truncate(str(error), MAX_ERROR_LENGTH)}") from None


_compilers: WeakKeyDictionary[PreTrainedTokenizerBase, dict[int | None, GrammarCompiler]] = WeakKeyDictionary()
_compilers_lock = Lock()


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

    @staticmethod
    def for_model(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int], backbone: Backbone) -> GrammarMasker:
        """Return a masker for a model and its tokenizer."""
        return GrammarMasker(GrammarCompiler.for_tokenizer(tokenizer, stop_ids), len(backbone.head.weight))

    def new_state(self, grammar: Grammar) -> GrammarState:
        """Start the grammar state for a new text.

        Raises:
            UserError: the grammar cannot be enforced.
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
        # worker processes render prompts without torch
        from marft.models.devices import to_device
        from marft.models.log_probs import mask_logits

        bits = self.set_masks([state for state in states if state])
        at = to_device(np.array([row for row, state in enumerate(states) if state]), logits_BV.device)
        logits_BV[at] = mask_logits(logits_BV[at], to_device(bits, logits_BV.device))

    def clear_cache(self) -> None:
        """Clear the mask cache."""
        self._mask_cache.clear()


def grammar_setup(tokenizer: PreTrainedTokenizerBase, masker: GrammarMasker) -> tuple[str, str]:
    """Return the tokenizer as JSON and the end-of-turn token, for an engine with grammar support.

    Both are "" if the policy does not support grammars.
    """
    try:
        masker.compiler.check_grammar(Grammar("regex", "a"))
    except ValueError:
        return "", ""
    assert masker.compiler.end_token is not None, "checked just now"
    return str(tokenizer.backend_tokenizer.to_str()), str(tokenizer.convert_ids_to_tokens(masker.compiler.end_token))


def check_same_version(engine_version: str) -> None:
    """Check for the same llguidance version on both sides.

    Args:
        engine_version: the engine's llguidance version; "": the engine does not support grammars.

    Raises:
        RunError: the version differs, so its masks may differ.
    """
    own_version = version("llguidance")
    if engine_version != own_version:
        raise RunError(
            f"the engine's llguidance is {engine_version or 'none'}, and that of this run {own_version}, which may "
            "allow a grammar something else: install it where the engine is:  pip install --no-deps "
            f"llguidance=={own_version}"
        )


def add_masks(completion: Completion, grammar: Grammar, masker: GrammarMasker) -> Completion:
    """Add the grammar masks to a completion by replaying its tokens.

    Raises:
        RowFailedError: the grammar does not allow a sampled token.
    """
    state = masker.new_state(grammar)
    for index, token in enumerate(completion.tokens.tolist()):
        masker.set_masks([state])
        state.add_token(token)
        if state.problem:
            message = f"a text could not be held to its grammar: at its token {index}, {state.problem}"
            raise RowFailedError(message, grammar_failed=True)
    return replace(completion, masks=state.build_masks(), forced=tuple(state.forced))
