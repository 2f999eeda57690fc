"""On a simulated GPU, imitation waits for the GPU once per optimizer step for its loss, and once for its norms."""

from __future__ import annotations

from pathlib import Path

import pytest

from marft.models.policy_registry import PolicyRegistry
from marft_serve.traces.settings import SftSettings
from marft_serve.traces.sft import SftLearner
from tests.learners import episodes, recipe, samples_of
from tests.simulated_gpu import counting, simulated_gpu


@pytest.mark.slow
def test_imitating_reads_losses_and_norms(tmp_path: Path, random_model: Path) -> None:
    size = "--training.tokens_per_micro_batch", "100"
    run = recipe(tmp_path, "marft", "--models.base.path", str(random_model), "--device", "cuda", *size)
    with simulated_gpu():
        learner = SftLearner(run, PolicyRegistry(run), 2, SftSettings.from_run(run).build_optimizer(run, 2))
        with counting("a step") as counts:
            learner.learn(samples_of(episodes(4)), 0)
    assert counts.num_syncs <= 2, counts.report()
