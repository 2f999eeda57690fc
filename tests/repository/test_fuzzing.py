"""Recipes that nobody would write: each is refused in words, in time, or is a run that can be written down.

All ten thousand: ``python -m tests.fuzzing``, or ``MARFT_FUZZ=10000`` for this file.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

from tests.fuzzing import judged, one, shown_everywhere
from tests.nights import some

SLICES = 6
COUNT = int(os.environ.get("MARFT_FUZZ", "600"))


@pytest.mark.slow
def test_every_recipe_of_the_docs_is_a_run_before_it_is_mutated(tmp_path: Path) -> None:
    assert {judged(table, [], tmp_path) for table in shown_everywhere()} == {"accepted"}


@pytest.mark.slow
@pytest.mark.parametrize("part", some(range(SLICES)))
def test_a_mutated_recipe_is_refused_in_words_or_reads_back_the_same(part: int, tmp_path: Path) -> None:
    originals, outcomes = list(shown_everywhere()), Counter[str]()
    for seed in range(part, COUNT, SLICES):
        try:
            outcomes[judged(*one(seed, originals), tmp_path)] += 1
        except Exception as error:
            raise AssertionError(f"python -m tests.fuzzing 1 {seed}") from error
    assert outcomes["refused"] > outcomes["accepted"] > 0
