"""What sampled tokens spell, as a model's tokenizer decodes them, and whether that has come to what ends it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

from transformers import PreTrainedTokenizerBase

from marft.agents.live import Spelling
from marft.common.thoughts import Said
from marft.models.control_tokens import control_ids, spelled, spelled_inside


def spelling_of(tokenizer: PreTrainedTokenizerBase, stop_ids: Sequence[int]) -> Callable[..., Spelling]:
    """What makes a spelling of one text; control tokens and ``stop_ids`` are no part of it. It takes whether the text
    goes on from another."""

    @cache
    def parts() -> tuple[set[int], set[int], bool]:
        vocabulary = tokenizer.get_vocab()
        bytes_ = {vocabulary[name] for byte in range(256) if (name := f"<0x{byte:02X}>") in vocabulary}
        return control_ids(tokenizer).union(stop_ids), bytes_, _tidies(tokenizer)

    def spelling(inside: bool = False) -> Spelling:
        return Spelling(partial(spelled_inside if inside else spelled, tokenizer), *parts())

    return spelling


def _tidies(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether decoding takes spaces away: transformers does not where the model of a tokenizer is BPE, unless told."""
    model = getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None)
    told = getattr(tokenizer, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output", False)
    return bool(tokenizer.clean_up_tokenization_spaces) and (type(model).__name__ != "BPE" or bool(told))


class Ending:
    """Whether a text that is sampled holds one that ends it. Only what is new in it is looked at.

    Args:
        spelling: of nothing yet.
    """

    def __init__(self, spelling: Spelling, stops: Sequence[str | Said]) -> None:
        self._spelling, self.stops = spelling, stops
        self._words = [stop.text if isinstance(stop, Said) else stop for stop in stops]
        self._longest = max(map(len, self._words))

    def take(self, token: int) -> bool:
        """The next token is this one → whether one of the stops stands there now."""
        known = len(self._spelling.text)
        self._spelling.take([token])
        rest = self._spelling.rest()
        new = self._spelling.text[max(0, known - self._longest + 1) :] + rest
        return any(
            isinstance(stop, str) or stop.find(self._spelling.text + rest) >= 0
            for stop, word in zip(self.stops, self._words, strict=True)
            if word in new
        )
