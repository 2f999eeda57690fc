"""vLLM and llama.cpp, each in an environment of its own, say with an export what an evaluation has played."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from marft.runs.run_folder import RunFolder
from tests.runs import finished
from tests.sources import ROOT

SMOLLM2 = ROOT / "runs" / "models" / "smollm2"

pytestmark = pytest.mark.slow


def python_of(reader: str) -> str:
    """The Python of its environment, where there is one."""
    name = f"MARFT_{reader.upper()}_PYTHON"
    if not os.environ.get(name):
        pytest.skip(f"{name} names no Python whose environment has what benchmarks/answer_with_{reader}.py names")
    return os.environ[name]


def says_what_was_played(reader: str, run: RunFolder, *words: str) -> None:
    script = str(ROOT / "benchmarks" / "export_parity.py")
    asked = [sys.executable, script, f"--{reader}", python_of(reader), "--run", str(run.path), "--tasks", "4", *words]
    subprocess.run(asked, check=True)


def test_vllm_says_it_with_an_adapter_a_request(trained: RunFolder) -> None:
    says_what_was_played("vllm", trained)


def test_llama_cpp_says_it_with_merged_models(tmp_path: Path) -> None:
    python_of("llama")
    if not SMOLLM2.is_dir():
        pytest.skip(
            "llama.cpp converts no model with the bundled tokenizer: python tools/smollm2.py runs/models/smollm2"
        )
    says_what_was_played(
        "llama", finished(tmp_path, "--models.base.path", str(small(tmp_path / "small")))[1], "--merged"
    )


def small(folder: Path) -> Path:
    """A random model of two layers, with SmolLM2's tokenizer and chat template."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = LlamaConfig.from_dict(json.loads((SMOLLM2 / "config.json").read_text()) | sizes | heads)
    torch.manual_seed(7)
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    model.save_pretrained(folder)
    for name in ("chat_template.jinja", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(SMOLLM2 / name, folder / name)
    return folder
