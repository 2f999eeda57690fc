"""What comes of a request to an engine apart: its text, and what a grammar allowed for where it ends early."""

from __future__ import annotations

from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from marft.common.token_data import Grammar
from marft.common.types import Completion, SamplingParams
from marft.inference.detokenizer import StopStringChecker, detokenizer_factory
from marft.inference.subprocess_engine.engine import PendingRequest
from marft.inference.subprocess_engine.messages import SampleRequest, TokenChunk

NOBODY: Any = None
REQUEST = SampleRequest(1, "actor", np.array([7], np.int32), SamplingParams(), 0, [2])
STOPS = (2,)


def ids(*values: int) -> Any:
    return np.array(values, np.int32)


def said(*tokens: int, finish: str = "stop", **held: Any) -> TokenChunk:
    return TokenChunk(1, ids(*tokens), np.zeros(len(tokens), np.float32), finish, 0, 0, **held)


def completed(
    asked: PendingRequest, message: TokenChunk, tokenizer: PreTrainedTokenizerBase, sampling: SamplingParams
) -> Completion:
    assert asked.add_chunk(message)
    return asked.build_completion(tokenizer, STOPS, sampling)


def test_the_token_that_ends_a_turn_is_no_part_of_its_text(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    """Whatever it spells: a recipe may end turns with a word."""
    asked = PendingRequest(REQUEST, NOBODY)
    assert asked.add_chunk(said(5, 6, 7))
    whole, ended = (asked.build_completion(tiny_tokenizer, stops, SamplingParams()) for stops in ((2,), (7,)))
    assert ended.tokens.tolist() == whole.tokens.tolist() == [5, 6, 7]
    assert whole.text == tiny_tokenizer.decode([5, 6, 7])
    assert ended.text == tiny_tokenizer.decode([5, 6]) != whole.text


def test_of_a_text_that_ends_early_only_what_was_allowed_for_up_to_there_counts(
    tiny_tokenizer: PreTrainedTokenizerBase,
) -> None:
    table = np.array([[1], [2]], np.uint8)
    held = {"mask_at": ids(0, 2, 3), "mask_which": ids(0, 1, 0), "mask_table": table, "forced": ids(1, 4)}
    message, sampling = said(5, 6, 7, 8, 9, **held), SamplingParams(grammar=Grammar("regex", "a"))
    whole = completed(PendingRequest(REQUEST, NOBODY), message, tiny_tokenizer, sampling)
    assert whole.masks is not None
    assert (whole.masks.at.tolist(), whole.forced) == ([0, 2, 3], (1, 4))
    ending = StopStringChecker(detokenizer_factory(tiny_tokenizer, STOPS)(), (str(tiny_tokenizer.decode([7])),))
    early = completed(PendingRequest(REQUEST, NOBODY, ending), message, tiny_tokenizer, sampling)
    assert (early.tokens.tolist(), early.finish) == ([5, 6, 7], "stop")
    assert early.masks is not None
    assert (early.masks.at.tolist(), early.forced) == ([0, 2], (1,))
