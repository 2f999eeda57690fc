"""What vLLM is started with, without vLLM."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import make_dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from marft.inference.subprocess_engine import vllm_server
from marft.inference.subprocess_engine.messages import EngineInit

OPENED = EngineInit("model", "bfloat16", 100, 7, 2, 16, 5, {"enforce_eager": True})
TAKEN = (
    "model", "dtype", "max_model_len", "max_num_seqs", "seed", "skip_tokenizer_init", "generation_config",
    "logprobs_mode", "max_logprobs", "enable_prefix_caching", "disable_log_stats", "enable_chunked_prefill",
    "enable_lora", "max_loras", "max_lora_rank", "enforce_eager", "enable_sleep_mode", "enable_return_routed_experts",
    "enable_mixed_moe_lora_format",
)  # fmt: skip


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """What vLLM is started with."""

    def start(opened: EngineInit, on_cpu: bool = False) -> dict[str, Any]:
        made: list[Any] = []
        modules = {
            "vllm": {"__version__": "1.0"}, "vllm.engine": {}, "vllm.v1": {}, "vllm.v1.engine": {},
            "vllm.engine.arg_utils": {
                "AsyncEngineArgs": make_dataclass("AsyncEngineArgs", [(name, Any, None) for name in TAKEN])
            },
            "vllm.platforms": {"current_platform": SimpleNamespace(is_cpu=lambda: on_cpu)},
            "vllm.v1.engine.async_llm": {"AsyncLLM": SimpleNamespace(from_engine_args=made.append)},
        }  # fmt: skip
        for name, values in modules.items():
            module = ModuleType(name)
            vars(module).update(values)
            monkeypatch.setitem(sys.modules, name, module)
        assert vllm_server._start_engine(opened, tmp_path)[1] == "vLLM 1.0"
        return {name: value for name, value in vars(made[0]).items() if value is not None}

    return start


def test_vllm_is_started_as_the_run_has_it_and_samples_as_policies_do(started: Any) -> None:
    given = started(OPENED)
    assert [given[name] for name in ("model", "dtype", "max_model_len", "max_num_seqs", "seed")] == [
        "model", "bfloat16", 100, 7, 5,
    ]  # fmt: skip
    assert (given["enable_lora"], given["max_loras"], given["max_lora_rank"]) == (True, 2, 16)
    assert given["logprobs_mode"] == "processed_logprobs"  # of the distribution that a token was drawn from
    assert given["generation_config"] == "vllm"  # nothing of the model's own
    assert (given["enforce_eager"], "enable_sleep_mode" in given, "enable_chunked_prefill" in given) == (
        True, False, False,
    )  # fmt: skip
    assert started(replace(OPENED, sleep_mode=True))["enable_sleep_mode"] is True
    on_cpu = started(replace(OPENED, sleep_mode=True, max_adapters=0), on_cpu=True)
    assert "enable_sleep_mode" not in on_cpu
    assert "enable_lora" not in on_cpu
    assert on_cpu["enable_chunked_prefill"] is False


@pytest.mark.parametrize(
    ("on_cpu", "recurrent", "cached"), [(True, True, False), (True, False, True), (False, True, True)]
)
def test_prefixes_are_cached_but_for_recurrent_states_on_a_cpu(
    on_cpu: bool, recurrent: bool, cached: bool, started: Any
) -> None:
    """vLLM caches recurrent states only with chunked prefill, which is off on a CPU."""
    assert started(replace(OPENED, recurrent=recurrent), on_cpu)["enable_prefix_caching"] is cached


def test_experts_are_reported_and_adapted_where_a_recipe_asks(
    started: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = "enable_return_routed_experts", "enable_mixed_moe_lora_format"
    assert not {*names} & started(OPENED).keys()
    given = started(replace(OPENED, router_replay=True, expert_adapters=True))
    assert [given[name] for name in names] == [True, True]
    config = tmp_path / "adapter_config.json"
    for parameters, options in ((None, {}), (["experts.down_proj"], {"is_3d_lora_weight": True})):
        config.write_text(json.dumps({"target_parameters": parameters}))
        assert vllm_server.adapter_options(str(tmp_path)) == options
    routed = SimpleNamespace(routed_experts=np.ones((5, 2, 4), np.uint8))
    assert vllm_server._experts(routed).dtype == np.int32
    assert vllm_server._experts(SimpleNamespace()).size == 0
    monkeypatch.setattr(f"{__name__}.TAKEN", TAKEN[:3])
    with pytest.raises(ValueError, match=r"vLLM 1\.0 does not report experts; set router_replay = false"):
        started(replace(OPENED, router_replay=True))


def test_what_a_recipe_says_of_vllm_comes_last_and_what_it_does_not_take_is_named(started: Any) -> None:
    assert started(replace(OPENED, options={"max_num_seqs": 3, "dtype": "float32"}))["max_num_seqs"] == 3
    with pytest.raises(ValueError, match=r"engine\.engine_args: vLLM 1\.0 takes no gpu_memory_utilisation"):
        started(replace(OPENED, options={"gpu_memory_utilisation": 0.5}))


def test_what_the_user_has_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in vllm_server.ENVIRONMENT_VARIABLES:
        monkeypatch.setenv(name, "")  # so that it is taken back
        monkeypatch.delenv(name)
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setattr(vllm_server, "_serve", lambda end: end)
    monkeypatch.setattr(vllm_server.socket, "socket", lambda fileno: fileno)
    monkeypatch.setattr(vllm_server.asyncio, "run", lambda end: end)
    vllm_server.main(3)
    assert os.environ["VLLM_LOGGING_LEVEL"] == "DEBUG"
    assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
