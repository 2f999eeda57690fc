"""Fixtures of all tests: small random models, the bundled tiny one, trained runs; and which doctests are collected."""

from __future__ import annotations

import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import torch
from _pytest.doctest import DoctestModule
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key, catching_logs
from transformers import PreTrainedTokenizerBase, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from marft.config import RunSettings
from marft.config.models import ModelSettings
from marft.models import half_precision
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.tokenizer_format import load_tokenizer
from marft.runs.run_folder import RunFolder
from tests.draws import DrawnFrom
from tests.helpers import settings as recipe_settings
from tests.runs import finished

logging.set_verbosity_error()
logging.disable_progress_bar()
torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path,
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect no doctests of a file that has none: to find that out takes an import, and a look at all it holds."""
    found = yield
    return [one for one in found if not isinstance(one, DoctestModule) or ">>>" in file_path.read_text("utf-8")]


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


@pytest.fixture
def multiplies_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """A processor that multiplies bfloat16 numbers faster than float32 ones."""
    has = {"architecture": "x86_64", "avx512_bf16": True, "amx_bf16": True}
    monkeypatch.setattr(half_precision.torch.cpu, "get_capabilities", lambda: has)


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
