"""MAPPO's critic learns targets over their running mean and deviation, head by head, and resumes to the bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.common.types import Episode
from marft.models.backbone import Backbone
from marft.runs.run_folder import RunFolder
from marft.trainer.critic import Critic, ValueNormalizer
from marft.trainer.train import train
from tests import references_credit as slow
from tests.episodes import make_action
from tests.helpers import settings
from tests.marft.runs.test_resume import StopAfter, assert_same
from tests.marft.trainer.test_critic import critic, episode
from tests.nights import BY_NIGHT

TARGETS = st.lists(st.lists(st.floats(-50, 50), min_size=1, max_size=5), min_size=1, max_size=5)


@given(batches=TARGETS, decay=st.sampled_from([0.0, 0.5, 0.99, 0.99999]), value=st.floats(-50, 50))
def test_statistics_equal_the_slow_reference(batches: list[list[float]], decay: float, value: float) -> None:
    normaliser = ValueNormalizer(decay)
    for batch in batches:
        normaliser.update(np.array(batch))
    mean, deviation = slow.running_moments(batches, decay)
    normalised = normaliser.normalize(np.array([value]))
    assert normalised[0] == pytest.approx((value - mean) / deviation, rel=1e-4, abs=1e-4)
    assert normaliser.denormalize(normalised)[0] == pytest.approx(value, rel=1e-9, abs=1e-9)


def far_away(count: int = 16) -> tuple[list[Episode], list[np.ndarray]]:
    """Returns of 1000 ± 50, which the prompt tells."""
    batch = [episode(make_action("a", prompt=(5, n))) for n in range(3, 3 + count)]
    return batch, [np.array([1000.0 + 50.0 * (-1) ** n]) for n in range(count)]


def test_returns_far_from_zero_are_learned_as_well_as_small_ones(backbone: Backbone) -> None:
    def error(normalise: bool) -> float:
        mine = critic(backbone, epochs=20, normalize_values=normalise)
        batch, returns = far_away()
        mine.update(mine.evaluate(batch), returns, step=0)
        values = mine.evaluate(batch).actions
        return float(np.mean([abs(v[0] - r[0]) for v, r in zip(values, returns, strict=True)]))

    assert error(True) < 100
    assert error(False) > 500


def huber(error: float) -> float:
    return 0.5 * error**2 if abs(error) <= 1.0 else abs(error) - 0.5


def test_the_loss_is_taken_in_normalised_units_around_what_the_head_said(backbone: Backbone) -> None:
    mine = critic(backbone, normalize_values=True, value_clip=0.2)
    batch, returns = far_away(6)
    seen = []
    for step in range(3):
        seen.append([float(r[0]) + step for r in returns])
        values = mine.evaluate(batch)
        mean, deviation = slow.running_moments(seen[:-1], 0.99999) if step else (0.0, 1.0)
        said = [(float(v[0]) - mean) / deviation for v in values.actions]  # by the statistics of the batches before
        mean, deviation = slow.running_moments(seen, 0.99999)
        metrics = mine.update(values, [np.array([x]) for x in seen[-1]], step)
        losses = [huber(v - (x - mean) / deviation) for v, x in zip(said, seen[-1], strict=True)]
        assert metrics["critic/loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_every_head_has_statistics_of_its_own(backbone: Backbone) -> None:
    mine = critic(backbone, heads="agent", normalize_values=True, epochs=1)
    both = [episode(make_action("a", prompt=(5, n)), make_action("b", prompt=(6, n), index=1)) for n in range(3, 7)]
    mine.update(mine.evaluate(both), [np.array([x]) for _ in both for x in (10.0, -10.0)], step=0)
    means = {name: float(statistics.denormalize(np.zeros(1))[0]) for name, statistics in mine.normalizers.items()}
    assert means == pytest.approx({"base/a": 10.0, "base/b": -10.0})


def test_statistics_travel_with_the_critic(backbone: Backbone) -> None:
    assert not [name for name in critic(backbone).parameters() if name.endswith("sums")]

    def made() -> Critic:
        return critic(backbone, normalize_values=True)

    batch, returns = far_away(4)
    first, second = made(), made()
    first.update(first.evaluate(batch), returns, step=0)
    for name, parameter in second.parameters().items():
        parameter.data.copy_(first.parameters()[name])
    for a, b in zip(first.evaluate(batch).actions, second.evaluate(batch).actions, strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.slow
@BY_NIGHT
def test_a_resumed_mappo_run_equals_one_that_never_stopped(tmp_path: Path) -> None:
    def run(name: str) -> tuple[RunFolder, object]:
        made = settings(
            "tiny", tmp_path / name, "--algorithm", "{ name = 'mappo', optimizer = { learning_rate = 1e-2 } }",
            "--training.steps", "10", "--checkpoints.every", "5",
            environment={"name": "tests.plugins:Flaky", "steps": 2, "alternates": True},
        )  # fmt: skip
        return RunFolder.create(made), made

    straight, recipe = run("straight")
    train(recipe, straight)  # type: ignore[arg-type]
    stopped, recipe = run("stopped")
    assert train(recipe, stopped, callbacks=[StopAfter(4)]).step == 4  # type: ignore[arg-type]
    train(recipe, stopped, resume=True)  # type: ignore[arg-type]
    assert_same(stopped, straight)
