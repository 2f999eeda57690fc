"""Incremental detokenization and stop-string detection."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from transformers import PreTrainedTokenizerBase

from marft.agents.live import Spelling
from marft.common.thoughts import Said
from marft.models.control_tokens import control_ids, spelled, spelled_inside


def spelling_of(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> Callable[..., Spelling]:
    """Return a factory for detokenizers without control tokens and ``stop_ids``.

    The factory's argument is true if the text continues an earlier text.
    """

    @cache
    def parts() -> tuple[set[int], set[int], bool]:
        vocabulary = tokenizer.get_vocab()
        bytes_ = {vocabulary[name] for byte in range(256) if (name := f"<0x{byte:02X}>") in vocabulary}
        return control_ids(tokenizer).union(stop_ids), bytes_, _tidies(tokenizer)

    def spelling(inside: bool = False) -> Spelling:
        return Spelling(partial(spelled_inside if inside else spelled, tokenizer), *parts())

    return spelling


def _tidies(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether decoding removes spaces. By default, transformers skips this cleanup for BPE tokenizers."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    told = getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
    return bool(tokenizer.clean_up_tokenization_spaces) and (type(model).__name__ != "BPE" or bool(told))


class Ending:
    """Stop-string matcher over sampled text; each call searches only the new text.

    Args:
        spelling: detokenizer without any tokens yet.
        stops: stop strings, at least one.
    """

    def __init__(self, spelling: Spelling, stops: Sequence[str | Said]) -> None:
        self._spelling, self.stops = spelling, stops
        self._words = [stop.text if isinstance(stop, Said) else stop for stop in stops]
        self._longest = max(map(len, self._words))

    def take(self, token: int) -> bool:
        """Add a sampled token; return whether the text now contains a stop string."""
        known = len(self._spelling.text)
        self._spelling.take([token])
        rest = self._spelling.rest()
        new = self._spelling.text[max(0, known - self._longest + 1) :] + rest
        return any(
            isinstance(stop, str) or stop.find(self._spelling.text + rest) >= 0
            for stop, word in zip(self.stops, self._words, strict=True)
            if word in new
        )
