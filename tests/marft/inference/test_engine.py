"""The local engine: in-order admission makes results independent of timing; nothing hidden shapes sampling."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import CancelledError
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch

from marft.common.types import ActionKey, Completion, Prompt, SamplingParams
from marft.config.interfaces.engine import Sampler
from marft.inference.caller_thread import GRACE_SECONDS, CallerThreadExecutor
from marft.inference.local import LocalEngine
from marft.rollout.local_runner import LocalRolloutRunner
from tests.helpers import settings


def key(sample: int, agent: str = "a", step: int = 0) -> ActionKey:
    return ActionKey("s", "t", sample, step, agent, 0)


async def chains(engine: Sampler, count: int, jitter: random.Random | None) -> list[list[Completion]]:
    """``count`` two-agent chains at once, with pauses outside the engine between the agents."""

    async def chain(sample: int) -> list[Completion]:
        first = await engine.sample(
            "reasoner", Prompt(np.array([5, 6, sample + 3], np.int32)), SamplingParams(max_new_tokens=6), key(sample)
        )
        if jitter:
            with engine.external_wait():
                await asyncio.sleep(jitter.random() / 100)
        prompt = Prompt(np.concatenate([[9], first.tokens]).astype(np.int32))
        return [first, await engine.sample("actor", prompt, SamplingParams(max_new_tokens=9), key(sample, "b"))]

    order = list(range(count))
    if jitter:
        jitter.shuffle(order)
    done = await asyncio.gather(*(chain(sample) for sample in order))
    return [done[order.index(sample)] for sample in range(count)]


def test_results_do_not_depend_on_timing_to_the_last_bit(random_model: Path) -> None:
    with LocalRolloutRunner(settings(random_model)) as rollouts:
        torch.manual_seed(0)
        for policy in ("reasoner", "actor"):
            for adapter in rollouts.models.policies[policy].backbone.adapters(policy).values():
                torch.nn.init.normal_(adapter.b, std=0.2)
        plain = rollouts.wait_for(chains(rollouts.engine, 12, None))
    for seed in range(3):
        with LocalRolloutRunner(settings(random_model)) as rollouts:
            torch.manual_seed(0)
            for policy in ("reasoner", "actor"):
                for adapter in rollouts.models.policies[policy].backbone.adapters(policy).values():
                    torch.nn.init.normal_(adapter.b, std=0.2)
            shaken = rollouts.wait_for(chains(rollouts.engine, 12, random.Random(seed)))
        for expected, mine in zip(plain, shaken, strict=True):
            for a, b in zip(expected, mine, strict=True):
                assert a.tokens.tolist() == b.tokens.tolist()
                assert a.log_probs.tobytes() == b.log_probs.tobytes()


def test_continuous_admission_samples_the_same_tokens(random_model: Path) -> None:
    with (
        LocalRolloutRunner(settings(random_model)) as one,
        LocalRolloutRunner(settings(random_model, "runs", "--engine.admission", "continuous")) as two,
    ):
        a = one.wait_for(chains(one.engine, 6, None))
        b = two.wait_for(chains(two.engine, 6, None))
    for expected, mine in zip(a, b, strict=True):
        assert [c.tokens.tolist() for c in expected] == [c.tokens.tolist() for c in mine]


def test_no_more_rows_run_than_allowed_and_all_are_answered(random_model: Path) -> None:
    with LocalRolloutRunner(settings(random_model, "runs", "--engine.max_batch_size", "3")) as rollouts:
        done = rollouts.wait_for(chains(rollouts.engine, 10, None))
        assert len(done) == 10
        assert max(len(batch) for batch in cast(LocalEngine, rollouts.engine.engines["actor"])._batches.values()) <= 3


def test_the_models_generation_config_shapes_nothing(random_model: Path, tmp_path: Path) -> None:
    """A top-k hidden in generation_config.json once made every ratio wrong."""
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(random_model, folder)
    (folder / "generation_config.json").write_text('{"do_sample": true, "top_k": 1, "temperature": 0.01, "top_p": 0.1}')
    results = []
    for path in (random_model, folder):
        with LocalRolloutRunner(settings(path)) as rollouts:
            results.append(rollouts.wait_for(chains(rollouts.engine, 4, None)))
    for a, b in zip(*results, strict=True):
        assert [c.tokens.tolist() for c in a] == [c.tokens.tolist() for c in b]


def test_the_text_leaves_out_the_end_of_turn_and_what_follows_a_stop_string(random_model: Path) -> None:
    with LocalRolloutRunner(settings(random_model)) as rollouts:
        engine = rollouts.engine
        prompt = Prompt(np.array([5, 6, 7], np.int32))
        free = rollouts.wait_for(engine.sample("actor", prompt, SamplingParams(max_new_tokens=12), key(0)))
        stop = free.text[3:5]
        cut = rollouts.wait_for(engine.sample("actor", prompt, SamplingParams(max_new_tokens=12, stop=(stop,)), key(0)))
        assert cut.finish == "stop"
        assert cut.text == free.text[: free.text.index(stop)]
        assert len(cut.tokens) < len(free.tokens)


def test_an_error_in_the_engine_reaches_everyone_who_waits(random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalRolloutRunner(settings(random_model)) as rollouts:

        def boom(*_: object) -> None:
            raise RuntimeError("device lost")

        monkeypatch.setattr(rollouts.engine.engines["actor"], "_advance", boom)

        async def ask() -> list[object]:
            calls = (
                rollouts.engine.sample(
                    "actor", Prompt(np.array([5], np.int32)), SamplingParams(max_new_tokens=2), key(n)
                )
                for n in range(3)
            )
            return list(await asyncio.gather(*calls, return_exceptions=True))

        assert [str(error) for error in rollouts.wait_for(ask())] == ["device lost"] * 3


def test_an_interrupt_in_the_middle_of_a_computation_is_not_waited_for() -> None:
    """Whoever had asked for it once never heard of its end, and a second Ctrl-C took the ten seconds of grace."""
    executor = CallerThreadExecutor()

    def interrupted() -> None:
        raise KeyboardInterrupt

    async def settles() -> None:
        driver = asyncio.ensure_future(asyncio.get_running_loop().run_in_executor(executor, interrupted))
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.wait([driver])

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        executor.wait_for(settles())
    assert time.monotonic() - began < GRACE_SECONDS / 2
    executor.shutdown()


class TestBackground:
    def test_what_runs_there_goes_on_while_its_caller_does_something_else(self) -> None:
        executor = CallerThreadExecutor()
        begun = executor.start_background(asyncio.sleep(0.02, "over"))
        assert executor.wait_for(asyncio.sleep(0, "mine")) == "mine"
        assert begun.outcome.result(5) == "over"
        executor.shutdown()

    def test_what_it_raises_is_its_outcome(self) -> None:
        async def fails() -> None:
            raise ValueError("boom")

        executor = CallerThreadExecutor()
        with pytest.raises(ValueError, match="boom"):
            executor.start_background(fails()).outcome.result(5)
        executor.shutdown()

    def test_it_is_over_once_it_has_let_go_of_what_it_holds(self) -> None:
        let_go: list[int] = []

        async def holds(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.05)
                let_go.append(number)

        executor = CallerThreadExecutor()
        begun = [executor.start_background(holds(number)) for number in range(3)]
        executor.wait_for(asyncio.sleep(0.01))
        executor.cancel_background(begun)
        assert sorted(let_go) == [0, 1, 2]
        for one in begun:
            assert isinstance(one.outcome.exception(0), CancelledError)
        executor.shutdown()

    def test_what_is_cancelled_before_it_began_never_does(self) -> None:
        begun: list[int] = []

        async def begins() -> None:
            begun.append(1)

        executor = CallerThreadExecutor()
        blocked = threading.Event()
        executor._loop.call_soon_threadsafe(blocked.wait)
        one = executor.start_background(begins())
        one.cancel()
        blocked.set()
        executor.cancel_background([one])
        assert isinstance(one.outcome.exception(5), CancelledError)
        assert not begun
        executor.shutdown()
