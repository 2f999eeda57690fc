"""vLLM and llama.cpp, each in an environment of its own, say with an export what an evaluation has played."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from marft.runs.folder import RunFolder

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "export_elsewhere.py"
PYTHONS = {"vllm": "MARFT_VLLM_PYTHON", "llama": "MARFT_LLAMA_PYTHON"}


@pytest.mark.slow
@pytest.mark.parametrize("reader", PYTHONS)
def test_it_says_what_was_played(reader: str, trained: RunFolder) -> None:
    python = os.environ.get(PYTHONS[reader])
    if not python:
        pytest.skip(f"{PYTHONS[reader]} names no Python whose environment has what benchmarks/in_{reader}.py names")
    words = [sys.executable, str(SCRIPT), f"--{reader}", python, "--run", str(trained.path), "--tasks", "4"]
    subprocess.run(words, check=True)
