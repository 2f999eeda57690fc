"""Shared fixtures: small random models, and the bundled tiny one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key, catching_logs
from hypothesis import HealthCheck, Phase, settings
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from marft.config import RunSettings
from marft.config.models import ModelSettings
from marft.models import held_in_half
from marft.models.backbone import Backbone
from marft.models.formats import load_tokenizer
from marft.models.loading import load_backbone
from marft.runs.folder import RunFolder
from tests.draws import DrawnFrom
from tests.helpers import settings as recipe_settings
from tests.runs import finished

settings.register_profile("marft", deadline=None, derandomize=True, max_examples=30)
settings.register_profile(  # for `make mutants`: the first failure is enough, however slow the machine
    "mutants", settings.get_profile("marft"), max_examples=100, phases=[Phase.explicit, Phase.generate], database=None,
    suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
)  # fmt: skip
settings.register_profile("nightly", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "marft"))
logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the background ignores it

# scripts of a skill, which run in the sandbox; packages that other Pythons import
collect_ignore_glob = [
    "skill_example/*",
    "toolsandbox_fake/*",
    "toolsandbox_real/*",
    "verifiers_fake/*",
    "verifiers_real/*",
]


def pytest_collection_finish() -> None:
    """What was imported by now stays: nothing of it is looked at again whenever garbage is collected."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def caplog(request: pytest.FixtureRequest) -> Iterator[pytest.LogCaptureFixture]:
    """pytest's own, where it is asked for: its plugin goes through 1,500 loggers six times for every test."""
    handler = LogCaptureHandler()
    request.node.stash[caplog_handler_key] = handler
    request.node.stash[caplog_records_key] = {"call": handler.records}
    with catching_logs(handler):
        logged = pytest.LogCaptureFixture(request.node, _ispytest=True)
        yield logged
        logged._finalize()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where slow tests alone are asked for, files that have none are not even imported."""
    if config.option.markexpr != "slow" or collection_path.suffix != ".py":
        return None
    return "mark.slow" not in collection_path.read_text(encoding="utf-8") or None


SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


@pytest.fixture
def multiplies_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that multiplies bfloat16 numbers faster than float32 ones."""
    has = {"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": True}
    monkeypatch.setattr(held_in_half.torch.cpu, "get_capabilities", lambda: has)


@pytest.fixture(scope="session")
def tiny_tokenizer() -> PreTrainedTokenizerBase:
    return load_tokenizer(ModelSettings(path="tiny"))


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    """A folder with a random two-layer Qwen2 and the tiny model's tokenizer; logits are far from uniform."""
    config = Qwen2Config(
        vocab_size=len(tiny_tokenizer), hidden_size=64, intermediate_size=96, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=512, tie_word_embeddings=True,
        eos_token_id=tiny_tokenizer.eos_token_id, pad_token_id=tiny_tokenizer.pad_token_id, bos_token_id=None,
    )  # fmt: skip
    with DrawnFrom(7):
        model = Qwen2ForCausalLM(config)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.15)
    folder = tmp_path_factory.mktemp("random_model")
    model.save_pretrained(folder)
    tiny_tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def backbone(random_model: Path) -> Backbone:
    return load_backbone(ModelSettings(path=str(random_model)), torch.device("cpu"), torch.float32)


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return finished(tmp_path_factory.mktemp("trained"))[1]


@pytest.fixture
def mine(trained: RunFolder, tmp_path: Path) -> tuple[RunSettings, RunFolder]:
    """A copy of a trained run, to damage."""
    run = recipe_settings("tiny", tmp_path)
    subprocess.run(["cp", "-r", str(trained.path), str(tmp_path / "test")], check=True)
    folder = RunFolder(tmp_path / "test")
    folder.write_config(run)
    return run, folder
