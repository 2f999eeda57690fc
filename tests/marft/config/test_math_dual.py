"""What the benchmark of the paper's setting says of memory: sizes are those of the models themselves."""

from __future__ import annotations

import pytest
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)


def test_parameters_are_counted_as_in_the_model_and_its_adapter() -> None:
    import math_dual

    config = LlamaConfig(
        vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=8, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    sizes = math_dual.sizes_of(config, 4)
    matrices = {id(weight): weight.numel() for weight in model.parameters() if weight.dim() == 2}
    assert sizes.parameters == sum(matrices.values())
    adapted = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj", "v_proj"]))
    assert sizes.adapter == sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert sizes.cache == 2 * 3 * 2 * 8 * 4  # keys and values of three layers with two heads of eight numbers
    assert round(math_dual.QWEN_3B.parameters / 1e9, 2) == 3.09


def test_the_most_is_of_sampling_or_of_learning_whichever_takes_more() -> None:
    import math_dual

    parts = math_dual.estimate(math_dual.QWEN_3B, 2048)
    assert parts["total"] == pytest.approx(parts["weights"] + parts["adapters"] + parts["activations"])
    steps = [{"sampling": 10.0, "learning": 5.0, "sampled_tokens": 900.0, "read_tokens": 2000.0, "length": 112.5}]
    machine = {"processor": "a processor", "threads": 2, "device": "cpu"}
    result = {
        "machine": machine,
        "steps": steps,
        "peak_bytes": 3 * 2**30,
        "estimates": {"a model": parts, "another": parts},
    }
    written = math_dual.table(result)
    assert "| 1 | 10 s | 5 s | 900 | 2000 | 112 |" in written
    assert "3.0 GiB at most (a processor, 2 thread(s), cpu)" in written
    assert written.count(f"| {parts['total']:.2f} |") == 2
