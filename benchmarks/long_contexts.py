"""Measure time and memory by prompt length, for playing and learning, with and without shared prefixes.

    python benchmarks/long_contexts.py                # each case in its own process; resumes
    python benchmarks/long_contexts.py --minutes 2.5  # starts no further case after this time
    python benchmarks/long_contexts.py --smollm2 DIR  # SmolLM2 from tools/smollm2.py; up to 4,096 tokens

Four attempts at one task share a LoRA of rank 8 on a random Llama (4 layers, hidden 128, intermediate 384, 4 heads,
2 key heads; context 32,768). *Playing*: all four read the prompt and write an action of 1,024 tokens each. Then they
read the prompt of their next turn, which adds 64 tokens. *Learning*: log-probs of the four actions and the gradient of
their sum, in micro-batches of 8,192 tokens. Memory is the process's peak minus its memory with the loaded model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from marft.agents.streaming import Detokenizer
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Sample, SamplingParams
from marft.config.models import ModelSettings
from marft.inference.decoding import DecodeRequest, RunningBatch
from marft.models.backbone import Backbone
from marft.models.devices import keep_freed_memory
from marft.models.loader import load_backbone
from marft.trainer.batching import BatchCounts, Packing
from marft.trainer.scoring import score_batch

ATTEMPTS, ACTION, NEXT = 4, 1024, 64
PROMPTS = (512, 4096, 16_384)
VOCABULARY = 4096
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
WORDS = {
    "learning": "plain",
    "learning, shared": "prefixes shared",
    "learning, recomputed": "gradient checkpointing",
    "learning, both": "both",
}
KINDS = ("playing", "playing, shared", *WORDS)


def save_model(folder: Path) -> None:
    """Save a random model."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=384, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32_768, tie_word_embeddings=True,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def load(folder: Path, recompute: bool) -> Backbone:
    settings = ModelSettings(path=str(folder), gradient_checkpointing=recompute)
    backbone = load_backbone(settings, torch.device("cpu"), torch.float32)
    backbone.add_adapter("policy", 8, 16.0, TARGETS, seed=0)
    return backbone


def texts(prompt: int) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return random ids of a prompt, and of the action of each attempt."""
    random = np.random.default_rng(0)
    return random.integers(3, VOCABULARY, prompt).astype(np.int32), [
        random.integers(3, VOCABULARY, ACTION).astype(np.int32) for _ in range(ATTEMPTS)
    ]


def play(backbone: Backbone, prompt: int, shared: bool) -> dict[str, float]:
    """Play two turns of every attempt."""
    ids, _ = texts(prompt)
    random = np.random.default_rng(1)
    batch = RunningBatch(backbone, (), lambda: Detokenizer(lambda _: ""), 2**30 if shared else 0)
    seconds = {}

    def read(name: str, prompts: list[np.ndarray], tokens: int) -> list[np.ndarray]:
        uniforms = random.random((ATTEMPTS, tokens), np.float32)
        rows = [
            DecodeRequest("policy", p, SamplingParams(max_new_tokens=tokens), u)
            for p, u in zip(prompts, uniforms, strict=True)
        ]
        began = time.perf_counter()
        done = batch.admit(rows)
        seconds[name] = time.perf_counter() - began
        while len(batch):
            done += batch.step()
        seconds[f"{name}, written"] = time.perf_counter() - began - seconds[name]
        return [np.concatenate([one.row.prompt, one.tokens]) for one in done]

    said = read("first turn", [ids] * ATTEMPTS, ACTION)
    read("next turn", [np.concatenate([one, random.integers(3, VOCABULARY, NEXT).astype(np.int32)]) for one in said], 1)
    tokens = batch.prefill.tokens
    return {**seconds, "asked": tokens.requested, "computed": tokens.computed}


def learn(backbone: Backbone, prompt: int, shared: bool) -> dict[str, float]:
    """Score all actions, and compute their gradient."""
    ids, actions = texts(prompt)
    samples = [
        Sample(
            Action(
                key=ActionKey("train/0", "t", number, 0, "agent", 0), policy="policy", index=0, sees=(), prompt=ids,
                tokens=tokens, marks=np.full(ACTION, TokenSource.SAMPLED, np.uint8),
                log_probs=np.zeros(ACTION, np.float32), text="", finish="length", message_tokens=(),
            ),
            1.0, np.ones(1),
        )
        for number, tokens in enumerate(actions)
    ]  # fmt: skip
    packing = Packing(
        {"policy": backbone}, {"policy": "policy"}, {"agent": 1.0}, "token-mean", "action", 8192,
        constant_length=1, teammate_text=False, share=shared,
    )  # fmt: skip
    began, computed = time.perf_counter(), 0
    for batch in packing.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False)):
        computed += len(batch.rows.ids)
        score_batch(batch).log_probs.sum().backward()
    return {
        "seconds": time.perf_counter() - began,
        "asked": ATTEMPTS * (prompt + ACTION - 1),
        "computed": computed,
    }


def measure(kind: str, prompt: int, folder: Path) -> dict[str, float]:
    """Measure one case in this process."""
    keep_freed_memory()
    backbone = load(folder, "recomputed" in kind or "both" in kind)
    what = play if kind.startswith("playing") else learn
    shared = "shared" in kind or "both" in kind
    before = machine.footprint()["memory_mb"]
    result = what(backbone, prompt, shared)
    return {**result, "memory_mb": most_memory_mb() - before}


def most_memory_mb() -> int:
    """Return the peak resident memory of this process, in MiB (Linux)."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024


def table(results: dict[str, Any]) -> str:
    """Return the results as Markdown."""
    lines = [
        "| prompt | | tokens asked for | computed | first prompt | 1,024 tokens written | next prompt | memory |",
        "| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, row in results.items():
        kind, prompt = name.split(" @ ")
        if kind.startswith("playing"):
            lines.append(
                f"| {int(prompt):,} | {'kept' if 'shared' in kind else 'plain'} | {row['asked']:,} | "
                f"{row['computed']:,} | {row['first turn']:.2f} s | {row['first turn, written']:.1f} s | "
                f"{row['next turn']:.2f} s | {row['memory_mb']:,} MB |"
            )
    lines += [
        "",
        "| prompt | learning | tokens asked for | computed | time | memory |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for name, row in results.items():
        kind, prompt = name.split(" @ ")
        if kind.startswith("learning"):
            lines.append(
                f"| {int(prompt):,} | {WORDS[kind]} | {row['asked']:,} | {row['computed']:,} | "
                f"{row['seconds']:.1f} s | {row['memory_mb']:,} MB |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help="KIND @ PROMPT: measure this case in this process and print JSON")
    parser.add_argument("--folder", type=Path, help="folder of the model for --case")
    parser.add_argument("--smollm2", type=Path, help="folder with SmolLM2, instead of a random model")
    parser.add_argument("--minutes", type=float, default=60.0, help="start no further case after this many minutes")
    arguments = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    if arguments.case:
        kind, prompt = arguments.case.split(" @ ")
        print(json.dumps(measure(kind, int(prompt), arguments.folder)))
        return
    name = "long_contexts_smollm2" if arguments.smollm2 else "long_contexts"
    path = machine.RESULTS / f"{name}.json"
    found = json.loads(path.read_text()) if path.exists() else {"machine": machine.describe(), "cases": {}}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as random_model:
        save_model(Path(random_model))
        prompts = [prompt for prompt in PROMPTS if prompt <= 4096 or not arguments.smollm2]
        for case in [f"{kind} @ {prompt}" for prompt in prompts for kind in KINDS]:
            if case in found["cases"] or time.monotonic() - began > 60 * arguments.minutes:
                continue
            folder = str(arguments.smollm2 or random_model)
            command = [sys.executable, __file__, "--case", case, "--folder", folder]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(done.stderr)
            found["cases"][case] = json.loads(done.stdout.splitlines()[-1])
            print(case, found["cases"][case], flush=True)
            machine.save(name, found)
    order = [f"{kind} @ {prompt}" for prompt in PROMPTS for kind in KINDS]
    found["cases"] = {case: found["cases"][case] for case in order if case in found["cases"]}
    machine.save(name, found)
    (machine.RESULTS / f"{name}.md").write_text(table(found["cases"]))


if __name__ == "__main__":
    main()
