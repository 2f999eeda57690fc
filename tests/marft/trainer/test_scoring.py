"""A learner scores an action under the grammar masks that it was sampled with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from marft.common.token_data import GrammarMasks
from marft.common.types import Sample
from marft.trainer.scoring import score_actions
from tests.episodes import make_action
from tests.learners import begun, recipe


def test_a_masked_decision_is_scored_among_the_allowed_tokens(tmp_path: Path) -> None:
    learner = begun(recipe(tmp_path, "grpo"))
    first, second, last = 41, 77, 300

    def scores(tokens: tuple[int, ...], masks: GrammarMasks | None = None) -> np.ndarray:
        action = replace(make_action("actor", prompt=(5, 9, 200), tokens=tokens), masks=masks)
        return score_actions(learner.packing, [Sample(action, 1.0, np.ones(1))])[action.key]

    allowed = np.zeros(80, np.uint8)
    allowed[[first, second]] = 1
    masks = GrammarMasks.from_masks([0], [np.packbits(allowed, bitorder="little").tobytes()])
    free, other = scores((first, last)), scores((second, last))
    masked = scores((first, last), masks)
    np.testing.assert_allclose(masked[0], free[0] - np.logaddexp(free[0], other[0]), rtol=1e-4)
    np.testing.assert_allclose(masked[1], free[1], rtol=1e-5)  # the second decision had no mask
