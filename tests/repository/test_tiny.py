"""The bundled model: small, complete, skilled, and of mixed habits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, PreTrainedTokenizerBase

from marft.config import load_recipe
from marft.config.bundled import resolve_path
from marft.config.models import ModelSettings
from marft.envs.splits import assign_split
from marft.evaluation.evaluate import evaluate
from marft.models.loader import load_backbone
from marft.rollout.local_runner import LocalRolloutRunner
from tests.nights import BY_NIGHT, some
from tests.sources import ROOT

FOLDER = Path(resolve_path("tiny"))


@pytest.fixture(autouse=True)
def _tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools" / "tiny"))


def test_it_is_at_most_2_mb_with_everything() -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 2_000_000
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {file.name for file in FOLDER.iterdir()}


def test_it_is_a_qwen2_that_transformers_loads_and_generates_with(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER)
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert model.config.hidden_size // model.config.num_attention_heads >= 32
    prompt = tiny_tokenizer.apply_chat_template(
        [{"role": "user", "content": "12 + 34"}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    out = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert out.shape[1] > prompt["input_ids"].shape[1]


def test_the_tokenizer_loads_as_it_was_made(tiny_tokenizer: PreTrainedTokenizerBase) -> None:
    raw = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    text = r"State the answer: 23 + 85 - 12 = \boxed{96}. Ünïcode 你好"
    assert tiny_tokenizer.encode(text) == raw.encode(text).ids
    assert tiny_tokenizer.decode(raw.encode(text).ids) == text
    digits = [token for token in raw.encode("1234").tokens if token.strip()]
    assert digits == ["1", "2", "3", "4"]


def test_no_held_out_question_was_demonstrated() -> None:
    from demonstrations import demonstrations

    for demonstration in islice(demonstrations(seed=1), 2000):
        question = demonstration.chat[-1]["content"].split("\n\n")[0]
        if demonstration.role != "drill":
            assert assign_split(question) == "train"


def test_demonstrations_are_right_where_they_work_and_wrong_where_they_guess() -> None:
    from demonstrations import demonstrations

    works = {True: 0, False: 0}
    for demonstration in islice(demonstrations(seed=2), 2000):
        works[demonstration.works] += 1
        for step in demonstration.reply.replace(" so the", "").rstrip(".").split(", "):
            if " = " in step:
                left, _, right = step.partition(" = ")
                assert eval(left) == int(right)  # sums of our own making
    assert min(works.values()) > 300


@pytest.mark.slow
def test_single_steps_are_done_right_when_set_up_right() -> None:
    from random import Random

    from check import probes, skills

    backbone = load_backbone(ModelSettings(path="tiny"), torch.device("cpu"), torch.float32)
    from marft.models.tokenizer_format import load_tokenizer

    report = skills(backbone, load_tokenizer(ModelSettings(path="tiny")), probes(Random(5), 3, 150))
    assert report["reasoner skill"] > 0.95
    assert report["actor skill"] > 0.95


@pytest.fixture(scope="module")
def rollouts() -> Iterator[LocalRolloutRunner]:
    with LocalRolloutRunner(load_recipe("demo", ["--threads", "1"])) as made:
        yield made


@pytest.mark.slow
@pytest.mark.parametrize("mode", some(["sampled", "greedy"]))
@BY_NIGHT
def test_an_untuned_dual_team_solves_30_to_50_percent(rollouts: LocalRolloutRunner, mode: str) -> None:
    result, episodes = evaluate(rollouts, "base", mode, rollouts.run.environment.tasks("test")[:500])  # type: ignore[arg-type, attr-defined]
    assert result.tasks == 500
    assert 0.30 <= result.accuracy <= 0.50
    reasoner = [action.text for episode in episodes for action in episode.actions if action.agent == "reasoner"]
    actor = [action.text for episode in episodes for action in episode.actions if action.agent == "actor"]
    assert 0.2 < sum(text.startswith("The problem is") for text in reasoner) / 500 < 0.6
    assert 0.3 < sum(text.startswith("At a glance") for text in actor) / 500 < 0.8


def test_vllm_serves_it_with_an_adapter() -> None:
    pytest.importorskip("vllm", reason="needs vLLM")
    import subprocess

    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "tiny" / "vllm_parity.py")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
