"""vLLM takes new weights between two tokens of running requests: ``make test-vllm``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from marft.common.types import ActionKey, Completion, Prompt, SamplingParams, VersionRange
from marft.config.bundled import resolve_path
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests import in_flight
from tests.helpers import settings

PYTHON = os.environ.get("MARFT_VLLM", "")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON, reason="minutes, and gigabytes: make test-vllm installs vLLM and runs them"),
]
VLLM = (
    "--engine",
    f"{{kind = 'vllm', python = '{PYTHON}', weight_updates = 'in_flight', max_batch_size = 4, "
    "engine_args = {enforce_eager = true, block_size = 32}}",
)
CLOSE = 1e-4  # nats a token
PROMPT = np.resize(np.arange(5, 29, dtype=np.int32), 100)  # three full blocks, which vLLM caches
TOKENS = 160


class Policy:
    """The actor of a run with vLLM, and the adapters that it has had."""

    def __init__(self, rollouts: LocalRolloutRunner, folder: Path) -> None:
        self.rollouts, self.folder, self.version = rollouts, folder, 0

    def move(self) -> None:
        """Change the adapter, and save it for the reference."""
        for weights in self.rollouts.models.policies["actor"].parameters().values():
            weights.data.add_(0.02)
        self.version += 1
        self.rollouts.models.save_policy("actor", self.folder / f"{self.version}")

    async def publish(self) -> None:
        await self.rollouts.engine.publish({"actor": self.rollouts.models.policies["actor"]}, self.version)

    async def sample(self, call: int, **sampling: Any) -> Completion:
        how = SamplingParams(**{"max_new_tokens": TOKENS, **sampling})
        return await self.rollouts.engine.sample(
            "actor", Prompt(PROMPT), how, ActionKey("train/0", "t", 0, 0, "a", call)
        )

    def expected(self, completion: Completion, change: int) -> NDArray[np.float32]:
        """Return log-probs if the last adapter replaced the one before at token ``change``, with one cache."""
        adapters = [str(self.folder / f"{number}") for number in (self.version - 1, self.version)]
        return in_flight.log_probs(resolve_path("tiny"), adapters, PROMPT.tolist(), completion.tokens.tolist(), change)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Policy]:
    folder = tmp_path_factory.mktemp("in_flight")
    with LocalRolloutRunner(settings("tiny", folder / "runs", *VLLM)) as rollouts:
        router: Any = rollouts.engine.engines["actor"]
        own = router.engines["actor"].policies
        own["actor"] = replace(own["actor"], stop_ids=())  # actions end by their length alone
        policy = Policy(rollouts, folder)
        policy.move()
        rollouts.wait_for(policy.publish())
        yield policy


async def update_during(policy: Policy, waiting: int = 0) -> tuple[list[Completion], list[Completion]]:
    """Sample four long actions, and publish new weights when one has 20 tokens.

    Args:
        waiting: number of further actions that wait for a row of the batch.
    """
    enough, count = asyncio.Event(), 0

    def count_token(_: int) -> None:
        nonlocal count
        count += 1
        if count == 20:
            enough.set()

    streamed = policy.sample(0, on_token=count_token, temperature=0.0)
    running = [asyncio.ensure_future(each) for each in (streamed, *map(policy.sample, (1, 2, 3)))]
    await asyncio.sleep(0.1)
    queued = [asyncio.ensure_future(policy.sample(4 + call)) for call in range(waiting)]
    await asyncio.wait_for(enough.wait(), 120)
    policy.move()
    await policy.publish()
    return list(await asyncio.gather(*running)), list(await asyncio.gather(*queued))


def test_running_requests_continue_with_the_new_weights_on_their_own_cache(policy: Policy) -> None:
    completions, _ = policy.rollouts.wait_for(update_during(policy))
    changed = [each for each in completions if each.token_versions is not None]
    assert completions[0] in changed
    for completion in changed:
        assert completion.token_versions is not None
        change = completion.token_versions.tolist().index(policy.version)
        assert change >= 1
        assert (np.diff(completion.token_versions) != 0).sum() == 1
        assert completion.versions == VersionRange(policy.version - 1, policy.version)
        assert np.abs(policy.expected(completion, change) - completion.log_probs).max() < CLOSE
        recomputed = np.abs(policy.expected(completion, 0) - completion.log_probs)[change:]
        assert recomputed.max() > 10 * CLOSE  # so its keys and values are those of older weights
    assert policy.rollouts.usage()["engine_restarts"] == 0


def test_a_new_request_is_sampled_as_by_a_fresh_engine(policy: Policy, tmp_path: Path) -> None:
    """Its prompt is in the prefix cache, with keys and values of older weights."""
    policy.rollouts.wait_for(update_during(policy))
    after = policy.rollouts.wait_for(policy.sample(9, temperature=0.0))
    assert after.versions == VersionRange(policy.version, policy.version)
    assert np.abs(policy.expected(after, 0) - after.log_probs).max() < CLOSE
    with LocalRolloutRunner(settings("tiny", tmp_path)) as here:
        fresh = Policy(here, tmp_path)
        for name, weights in here.models.policies["actor"].parameters().items():
            weights.data.copy_(policy.rollouts.models.policies["actor"].parameters()[name])
        here.publish(policy.version)
        tokens = here.wait_for(fresh.sample(9, temperature=0.0)).tokens.tolist()
        assert tokens == after.tokens.tolist()[: len(tokens)]  # the in-process engine ends turns


def test_a_request_in_the_queue_of_vllm_reads_no_keys_and_values_of_older_weights(policy: Policy) -> None:
    running, queued = policy.rollouts.wait_for(update_during(policy, waiting=3))
    assert running[0].versions == VersionRange(policy.version - 1, policy.version)
    new = [each for each in queued if each.versions == VersionRange(policy.version, policy.version)]
    assert new
    for completion in new:
        assert np.abs(policy.expected(completion, 0) - completion.log_probs).max() < CLOSE


@pytest.mark.parametrize("kind", ["lora", "full"])
def test_a_run_with_a_lag_learns_without_restarts_and_within_its_lag(tmp_path: Path, kind: str) -> None:
    long = [f"--agents.{role}.sampling.max_new_tokens" for role in ("reasoner", "actor")]
    run = settings(
        "tiny", tmp_path, *VLLM, "--policies.actor.train", kind, "--training.steps", "5", "--rollout.max_policy_lag",
        "2", long[0], "200", long[1], "200",
    )  # fmt: skip
    train(run, folder := RunFolder.create(run))
    rows = list(folder.read_metrics())
    assert {row["engine_restarts"] for row in rows} == {0.0}
    assert max(row["policy_lag_max"] for row in rows) <= 2
    actions = [
        action
        for file in sorted(folder.episodes.iterdir())
        for episode in read_episodes(file)
        for action in episode.actions
    ]
    mixed = [action for action in actions if action.versions.lowest < action.versions.highest]
    for action in mixed:  # few or none, by timing
        assert action.token_versions is not None
        assert len(action.token_versions) == len(action.log_probs)
        assert VersionRange(int(action.token_versions[0]), int(action.token_versions[-1])) == action.versions
