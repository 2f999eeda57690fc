"""Difference between sampler and learner on random mixtures of experts, with and without router replay.

    python benchmarks/router_replay.py

Both have the same bfloat16 weights. The sampler decodes with MARFT's engine. The learner scores the sampled tokens
with its own experts, with the recorded ones, or with the recorded ones of sampled tokens alone. All run on a CPU.
Writes results/router_replay.json and .md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM

from marft.agents.streaming import Detokenizer
from marft.common.token_data import NO_EXPERT, ExpertTable
from marft.common.types import SamplingParams
from marft.config.models import ModelSettings
from marft.inference.decoding import DecodeRequest, RowResult, RunningBatch
from marft.models.backbone import Backbone
from marft.models.loader import load_backbone
from marft.models.packed_rows import PackedRows

VOCABULARY, HIDDEN, LAYERS = 512, 128, 8
COMMON = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 64, "moe_intermediate_size": 64,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
    "max_position_embeddings": 512, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None,
}  # fmt: skip
FAMILIES = {
    "Qwen3-MoE": ("Qwen3MoeConfig", {"num_experts": 32, "num_experts_per_tok": 4, "norm_topk_prob": True}),
    "gpt-oss": ("GptOssConfig", {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 64}),
    "GLM-4.5": (
        "Glm4MoeConfig",
        {"n_routed_experts": 32, "num_experts_per_tok": 4, "n_shared_experts": 1, "first_k_dense_replace": 1},
    ),
}
LEARNERS = ("float32", "bfloat16")
ROWS, PROMPT, TOKENS = 32, 64, 96


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    rows = [row for family in FAMILIES for row in measure(family)]
    save(arguments.results, {**machine.describe(), "rows": rows})


def measure(family: str) -> list[dict[str, Any]]:
    """Return a row for each learner and kind of replay."""
    with tempfile.TemporaryDirectory() as folder:
        build_model(family, Path(folder))
        results = sample(load(folder, "bfloat16"))
        rows = []
        for dtype in LEARNERS:
            learner = load(folder, dtype)
            for replay in ("none", "sampled tokens", "all tokens"):
                rows.append({"family": family, "learner": dtype, "replay": replay, **compare(learner, results, replay)})
        return rows


def build_model(family: str, folder: Path) -> None:
    """Save a random model with logits far from uniform, in bfloat16."""
    name, settings = FAMILIES[family]
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(getattr(transformers, name)(**COMMON, **settings), dtype=torch.float32)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=1.2 * parameter.shape[-1] ** -0.5)
    model.to(torch.bfloat16).save_pretrained(folder)


def load(folder: str, dtype: str) -> Backbone:
    settings = ModelSettings(path=folder, router_replay=True)
    return load_backbone(settings, torch.device("cpu"), getattr(torch, dtype))


def sample(sampler: Backbone) -> list[RowResult]:
    random = np.random.default_rng(0)
    batch = RunningBatch(sampler, [], lambda: Detokenizer(str))
    requests = [
        DecodeRequest(
            None,
            random.integers(3, VOCABULARY, PROMPT).astype(np.int32),
            SamplingParams(max_new_tokens=TOKENS),
            random.random(TOKENS, np.float32),
        )
        for _ in range(ROWS)
    ]
    finished = batch.admit(requests)
    while len(batch):
        finished += batch.step()
    return finished


@torch.no_grad()
def compare(learner: Backbone, results: Sequence[RowResult], replay: str) -> dict[str, float]:
    """Return the difference of log-probs, and the share of tokens with other experts in a layer, without replay."""
    differences, changed = [], []
    for result in results:
        row = np.concatenate([result.row.prompt, result.tokens[:-1]])
        assert result.experts is not None
        table = result.experts.table(len(row))
        packed = PackedRows.from_rows([row], [None], learner.device, experts=_replayed(table, replay))
        with learner.record_experts() as log:
            hidden = learner.hidden_states(packed)[PROMPT - 1 :]
        selected = log.table()
        assert selected is not None
        log_probs = learner.compute_logits(hidden, None).log_softmax(-1)
        ids = torch.from_numpy(result.tokens).long()[:, None]
        differences.append(np.abs(log_probs.gather(1, ids)[:, 0].numpy() - result.log_probs))
        changed.append((np.sort(selected.numpy(), -1) != np.sort(table, -1)).any((1, 2)))
    flat = np.concatenate(differences)
    return {
        "mean": float(flat.mean()),
        "max": float(flat.max()),
        "other_experts": float(np.concatenate(changed).mean()),
        "bytes_per_token": table[0].nbytes,
    }


def _replayed(table: ExpertTable, replay: str) -> list[ExpertTable]:
    if replay == "none":
        return []
    table = table.copy()
    if replay == "sampled tokens":
        table[: PROMPT - 1] = NO_EXPERT
    return [table]


def render(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        f"{ROWS} rows with {PROMPT} prompt tokens and {TOKENS} sampled tokens; {LAYERS} layers; 4 of 32 experts for a "
        "token; bfloat16 sampler.",
        "",
        "| model | learner | replay | mean \\|Δ\\| a token, nats | largest | tokens with other experts |",
        "| --- | --- | --- | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row['family']} | {row['learner']} | {row['replay']} | {row['mean']:.2g} | {row['max']:.2g} "
        f"| {row['other_experts']:.1%} |"
        for row in rows
    ]
    return "\n".join(lines) + "\n"


def save(results: Path, measured: dict[str, Any]) -> None:
    results.mkdir(parents=True, exist_ok=True)
    (results / "router_replay.json").write_text(json.dumps(measured, indent=2) + "\n")
    (results / "router_replay.md").write_text(render(measured["rows"]))
    print(render(measured["rows"]))


if __name__ == "__main__":
    main()
