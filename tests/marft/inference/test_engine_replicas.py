"""Several engines of the same policies, and ones that rest while the learner has their device."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from marft.common.types import ActionKey, Prompt, SamplingParams, VersionRange
from marft.inference.subprocess_engine.engine import SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.launch import vllm_init_message
from marft.inference.subprocess_engine.messages import EngineInit
from marft.inference.subprocess_engine.replicas import ReplicatedEngine, SharedSave, assign_devices, set_visible_devices
from marft.models.policy_registry import PolicyRegistry
from tests.helpers import settings
from tests.marft.inference.test_engine_apart import Weights, command

PROMPT = Prompt(np.array([5, 6, 7, 8], np.int32))


def key(task: str, call: int = 0) -> ActionKey:
    return ActionKey("train/0", task, 0, 0, "actor", call)


async def said(engine: Any, task: str = "t", call: int = 0) -> Any:
    return await engine.sample("actor", PROMPT, SamplingParams(max_new_tokens=4), key(task, call))


def log(folder: Path) -> list[str]:
    return (folder / "log").read_text(encoding="utf-8").split("\n")[:-1]


def opened(folder: Path, **does: Any) -> EngineInit:
    folder.mkdir(exist_ok=True)
    return EngineInit("model", "float32", 64, 4, 1, 8, 0, {"folder": str(folder), **does})


class TestReplicas:
    @pytest.mark.slow
    def test_all_get_the_weights_which_are_written_once_and_share_the_requests(
        self, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase
    ) -> None:
        weights = Weights()

        async def use() -> None:
            once = SharedSave(weights.save)
            policies = {"actor": SubprocessPolicy(tiny_tokenizer, (2,), once)}
            engines = [
                SubprocessEngine(
                    f"fake {n}", command, opened(tmp_path / f"{n}", dies=n), policies, seed=1, timeout=20.0
                )
                for n in range(2)
            ]
            both = ReplicatedEngine(engines, {"actor": once})
            try:
                await both.start()
                await both.publish({"actor": weights}, 3)
                answers = await asyncio.gather(*(said(both, f"t{n}") for n in range(40)))
                assert [answer.tokens.tolist() for answer in answers] == [[5, 6, 7, 8]] * 40
                assert {answer.versions for answer in answers} == {VersionRange(3, 3)}
                assert (both.version("actor"), both.usage()["sampled_tokens"]) == (3, 160)
                assert both.usage()["engine_restarts"] == 1  # one of them was killed, and asked again
            finally:
                await both.close()

        asyncio.run(asyncio.wait_for(use(), 60))
        assert len(weights.written) == 2  # versions, for two engines
        assert all(log(tmp_path / f"{n}").count("SampleRequest") >= 16 for n in range(2))

    def test_what_is_asked_of_a_task_goes_where_it_was_asked_before(self) -> None:
        both = ReplicatedEngine([Counting(), Counting()], {})  # type: ignore[list-item]

        async def use() -> None:
            for task in range(8):
                for call in range(4):
                    await said(both, f"t{task}", call)

        asyncio.run(use())
        asked = [engine.asked for engine in both.engines]  # type: ignore[attr-defined]
        assert sorted(asked[0] + asked[1]) == sorted(f"t{task}" for task in range(8) for _ in range(4))
        assert not set(asked[0]) & set(asked[1])
        assert all(asked)

    def test_one_that_has_much_to_do_is_spared(self) -> None:
        both = ReplicatedEngine([Counting(hold := asyncio.Event()), Counting(hold)], {})  # type: ignore[list-item]

        async def use() -> None:
            asking = [asyncio.create_task(said(both, "t", call)) for call in range(20)]
            await asyncio.sleep(0)
            hold.set()
            await asyncio.gather(*asking)

        asyncio.run(use())
        counts = sorted(len(engine.asked) for engine in both.engines)  # type: ignore[attr-defined]
        assert counts[0] + counts[1] == 20
        assert counts[1] - counts[0] <= 5


class Counting:
    """Knows of which tasks it was asked."""

    def __init__(self, hold: asyncio.Event | None = None) -> None:
        self.asked: list[str] = []
        self.hold = hold

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> None:
        self.asked.append(key.task)
        if self.hold:
            await self.hold.wait()


class TestDevices:
    @pytest.mark.parametrize(
        ("replicas", "devices", "expected"),
        [(1, [], [""]), (2, [], ["4,5", "6,7"]), (1, ["5"], ["5"]), (2, ["5", "7"], ["5", "7"])],
    )
    def test_they_are_divided_evenly(self, replicas: int, devices: list[str], expected: list[str]) -> None:
        assert assign_devices(replicas, devices, ["4", "5", "6", "7"]) == expected

    def test_without_any_all_are_on_the_processor(self) -> None:
        assert assign_devices(3, [], []) == ["", "", ""]

    def test_those_that_cannot_be_divided_are_refused(self) -> None:
        with pytest.raises(ValueError, match=r"3 GPUs \(0, 1, 2\) cannot be divided among 2 replicas"):
            assign_devices(2, [], ["0", "1", "2"])

    def test_a_program_sees_its_own_alone(self) -> None:
        assert set_visible_devices(lambda end: ["program", str(end)], "2,3")(7) == [
            "env",
            "CUDA_VISIBLE_DEVICES=2,3",
            "program",
            "7",
        ]
        assert set_visible_devices(lambda end: ["program"], "")(7) == ["program"]


def test_adapters_that_vllm_has_no_room_for_are_refused() -> None:
    policies = {
        name: SimpleNamespace(adapter=name, lora=SimpleNamespace(rank=rank, target_parameters=()))
        for name, rank in (("a", 8), ("b", 600))
    }
    models: Any = SimpleNamespace(policies=policies)
    nothing: Any = None
    with pytest.raises(ValueError, match=r"room for adapters of rank 512, and one of \['a', 'b'\] has 600"):
        vllm_init_message(nothing, nothing, models, ["a", "b"])


@pytest.mark.parametrize(("has", "computes"), [("avx2", "float32"), ("amx_bf16", "bfloat16")])
def test_vllm_computes_in_the_precision_that_the_learner_does(
    has: str, computes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A base that is held in half and multiplied in float32 would else be sampled from with other log-probs."""
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: {"architecture": "x86_64", has: True})
    run = settings("tiny", tmp_path, "--models.base.dtype", "bfloat16", "--engine", "{ kind = 'vllm' }")
    models = PolicyRegistry(run)
    head = models.policies["actor"].backbone.head
    engine: Any = run.engine
    assert vllm_init_message(engine, run, models, ["actor"]).dtype == computes
    head.weight = torch.nn.Parameter(head.weight.detach().half(), requires_grad=False)  # the embeddings are as before
    assert vllm_init_message(engine, run, models, ["actor"]).dtype == "float16"


def test_links_are_files_of_their_own_names_and_outlive_the_first(tmp_path: Path) -> None:
    weights = Weights()
    once = SharedSave(weights.save)
    once(tmp_path / "a")
    once(tmp_path / "b")
    assert os.path.samefile(tmp_path / "a/adapter", tmp_path / "b/adapter")  # noqa: PTH121
    once.invalidate()
    once(tmp_path / "c")
    assert [folder.name for folder in weights.written] == ["a", "c"]


@pytest.mark.slow
class TestResting:
    @pytest.fixture
    def offloaded(self, tmp_path: Path, tiny_tokenizer: PreTrainedTokenizerBase) -> Callable[..., None]:
        def run(use: Callable[[SubprocessEngine], Awaitable[None]], **does: Any) -> None:
            async def whole() -> None:
                policies = {"actor": SubprocessPolicy(tiny_tokenizer, (2,), Weights().save)}
                first = replace(opened(tmp_path, **does), sleep_mode=True)
                engine = SubprocessEngine("fake", command, first, policies, seed=1, timeout=20.0)
                try:
                    await engine.start()
                    await use(engine)
                finally:
                    await engine.close()

            asyncio.run(asyncio.wait_for(whole(), 60))

        return run

    def test_it_rests_once_it_has_settled_and_is_awake_before_it_loads(
        self, offloaded: Callable[..., None], tmp_path: Path
    ) -> None:
        async def use(engine: SubprocessEngine) -> None:
            await said(engine)
            await engine.wait_idle()
            await engine.wait_idle()
            await engine.publish({"actor": Weights()}, 1)
            await asyncio.gather(*(said(engine, call=call) for call in range(2)))
            await engine.wait_idle()
            await said(engine)

        offloaded(use)
        turns = [
            "SleepCommand asleep", "SleepCommand", "LoadCommand", "SampleRequest", "SampleRequest",
            "SleepCommand asleep", "SleepCommand", "SampleRequest",
        ]  # fmt: skip
        assert log(tmp_path) == ["LoadCommand", "SampleRequest", *turns]

    def test_one_that_was_started_again_rests_too(self, offloaded: Callable[..., None], tmp_path: Path) -> None:
        async def use(engine: SubprocessEngine) -> None:
            await said(engine)
            await engine.wait_idle()
            assert (await said(engine)).tokens.tolist() == [5, 6, 7, 8]
            assert engine.usage()["engine_restarts"] == 1

        offloaded(use, dies_resting=1)
        assert log(tmp_path) == [
            "LoadCommand", "SampleRequest", "SleepCommand asleep", "LoadCommand", "SleepCommand asleep", "SleepCommand",
            "SampleRequest",
        ]  # fmt: skip
