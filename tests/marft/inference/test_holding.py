"""Which tokens a text may go on with, where a grammar's tokenizer and a model's head know different ids."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from marft.inference.grammar_masking import GrammarMasker, GrammarState


class Grammars:
    """Allows for what it is told, of 32 ids."""

    def __init__(self, *rows: Sequence[int]) -> None:
        self.rows = rows

    def next_token_masks(self, matchers: Sequence[object]) -> Any:
        bits = np.zeros((len(self.rows), 32), bool)
        for row, ids in zip(bits, self.rows, strict=True):
            row[list(ids)] = True
        return np.packbits(bits, axis=1, bitorder="little")


class Matcher:
    def is_error(self) -> bool:
        return False

    def get_error(self) -> str:
        return ""


def texts(count: int) -> list[GrammarState]:
    return [GrammarState(Matcher()) for _ in range(count)]  # type: ignore[arg-type]


def allowed(holding: GrammarMasker, some: list[GrammarState]) -> list[list[int]]:
    bits = np.unpackbits(holding.set_masks(some), axis=1, bitorder="little")
    return [np.flatnonzero(row).tolist() for row in bits]


def test_ids_beyond_a_model_s_head_are_never_allowed() -> None:
    grammars: Any = Grammars(range(32), [3, 19, 20, 31])
    assert allowed(GrammarMasker(grammars, 20), texts(2)) == [list(range(20)), [3, 19]]


def test_a_text_that_nothing_is_left_of_has_a_problem_and_one_that_one_token_is_left_of_is_forced() -> None:
    grammars: Any = Grammars([25], [7])
    none, one = texts(2)
    holding = GrammarMasker(grammars, 20)
    logits = torch.zeros(2, 20)
    holding.mask_logits_(logits, [none, one])
    assert none.problem == "its grammar allows for no token"
    assert (one.problem, one.forced) == ("", [0])
    assert logits[1].softmax(0)[7] == pytest.approx(1.0)
