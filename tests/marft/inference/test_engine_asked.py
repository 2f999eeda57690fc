"""What comes of a request to an engine apart: its text, and what a grammar allowed for where it ends early."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.common.marks import Grammar
from marft.common.types import Completion, Sampling
from marft.inference.apart.asked import Asked
from marft.inference.apart.words import Said
from marft.inference.spelling import Ending, spelling_of

NOBODY: Any = None
STOPS = (2,)


def ids(*values: int) -> Any:
    return np.array(values, np.int32)


def said(*tokens: int, finish: str = "stop", **held: Any) -> Said:
    return Said(1, ids(*tokens), np.zeros(len(tokens), np.float32), finish, 0, 0, **held)


def completed(asked: Asked, message: Said, tokenizer: PreTrainedTokenizerBase, sampling: Sampling) -> Completion:
    assert asked.take(message)
    return asked.completion(tokenizer, STOPS, sampling)


def test_the_token_that_ends_a_turn_is_no_part_of_its_text(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Whatever it spells: a recipe may end turns with a word."""
    asked = Asked(NOBODY, NOBODY)
    assert asked.take(said(5, 6, 7))
    whole, ended = (asked.completion(tiny_tokenizer, stops, Sampling()) for stops in ((2,), (7,)))
    assert ended.tokens.tolist() == whole.tokens.tolist() == [5, 6, 7]
    assert whole.text == tiny_tokenizer.decode([5, 6, 7])
    assert ended.text == tiny_tokenizer.decode([5, 6]) != whole.text


def test_of_a_text_that_ends_early_only_what_was_allowed_for_up_to_there_counts(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    table = np.array([[1], [2]], np.uint8)
    held = {"mask_at": ids(0, 2, 3), "mask_which": ids(0, 1, 0), "mask_table": table, "forced": ids(1, 4)}
    message, sampling = said(5, 6, 7, 8, 9, **held), Sampling(grammar=Grammar("regex", "a"))
    whole = completed(Asked(NOBODY, NOBODY), message, tiny_tokenizer, sampling)
    assert whole.masks is not None
    assert (whole.masks.at.tolist(), whole.forced) == ([0, 2, 3], (1, 4))
    ending = Ending(spelling_of(tiny_tokenizer, STOPS)(), (str(tiny_tokenizer.decode([7])),))
    early = completed(Asked(NOBODY, NOBODY, ending), message, tiny_tokenizer, sampling)
    assert (early.tokens.tolist(), early.finish) == ([5, 6, 7], "stop")
    assert early.masks is not None
    assert (early.masks.at.tolist(), early.forced) == ([0, 2], (1,))
