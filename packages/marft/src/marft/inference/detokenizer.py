"""Incremental detokenization and stop-string detection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from transformers import PreTrainedTokenizerBase

from marft.agents.streaming import Detokenizer
from marft.common.reasoning import StopString
from marft.models.control_tokens import control_token_ids, decode_continuation, decode_text


def detokenizer_factory(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> Callable[..., Detokenizer]:
    """Return a factory for detokenizers without control tokens and ``stop_ids``.

    The factory's argument is true if the text continues an earlier text.
    """

    @cache
    def parts() -> tuple[set[int], set[int], bool]:
        vocabulary = tokenizer.get_vocab()
        bytes_ = {vocabulary[name] for byte in range(256) if (name := f"<0x{byte:02X}>") in vocabulary}
        return control_token_ids(tokenizer).union(stop_ids), bytes_, _cleans_up_spaces(tokenizer)

    def make_detokenizer(continues: bool = False) -> Detokenizer:
        return Detokenizer(partial(decode_continuation if continues else decode_text, tokenizer), *parts())

    return make_detokenizer


def _cleans_up_spaces(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether decoding removes spaces. By default, transformers skips this cleanup for BPE tokenizers."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    forced = getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
    return bool(tokenizer.clean_up_tokenization_spaces) and (type(model).__name__ != "BPE" or bool(forced))


class StopStringChecker:
    """Stop-string matcher over sampled text; each call searches only the new text.

    Args:
        detokenizer: detokenizer without any tokens yet.
        stops: stop strings, at least one.
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str | StopString]) -> None:
        self._detokenizer, self.stops = detokenizer, stops
        self._stop_texts = [stop.text if isinstance(stop, StopString) else stop for stop in stops]
        self._max_length = max(map(len, self._stop_texts))

    def add_token(self, token: int) -> bool:
        """Add a sampled token; return whether the text now contains a stop string."""
        checked_length = len(self._detokenizer.text)
        self._detokenizer.add_tokens([token])
        unfinished = self._detokenizer.pending_text()
        new_text = self._detokenizer.text[max(0, checked_length - self._max_length + 1) :] + unfinished
        return any(
            isinstance(stop, str) or stop.find(self._detokenizer.text + unfinished) >= 0
            for stop, stop_text in zip(self.stops, self._stop_texts, strict=True)
            if stop_text in new_text
        )
