"""Count kernel launches, synchronizations and copies of a decoded token batch and of learning, on a simulated GPU.

    python benchmarks/launches.py                  # counts of this tree, beside the stored ones of "before"
    python benchmarks/launches.py --store before   # store the counts as "before"

A small model decides nothing with its speed on a CPU, but it launches as many kernels per layer as a large one. The
script builds the bundled model, and models of SmolLM2-135M's shape with 2 and 4 layers and random weights, in bfloat16
with LoRA of rank 8 on all linear layers. Counts are linear in layers and micro-batches, so four measured steps give the
counts per layer and per micro-batch, and those of 30 layers. Launches are a lower bound: an operation counts as one
kernel (``tests/simulated_gpu``). Writes results/launches.json and .md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import machine
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from marft.agents.streaming import Detokenizer
from marft.cli.handlers import silence_transformers
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Episode, Observation, Sample, SamplingParams, Task, Transition
from marft.config import RunSettings, load_recipe
from marft.config.algorithm import KLSettings
from marft.config.bundled import resolve_path
from marft.config.interfaces.schedule import Progress, UpdatePhase
from marft.inference.decoding import DecodeRequest, RunningBatch
from marft.models.policy_registry import PolicyRegistry
from marft.runs.checkpoints import CheckpointManager, load_checkpoint
from marft.runs.metrics_log import LogDigest
from marft.runs.run_folder import RunFolder
from marft.runs.state import State, read_record
from marft.trainer.local_learner import LocalLearner
from marft.trainer.micro_batch import FixedLogProbs
from marft.trainer.scoring import score_actions
from marft.trainer.update import PolicyUpdater

sys.path.append(str(Path(__file__).parents[1]))

from tests.simulated_gpu import Counts, counting, simulated_gpu

LAYERS, FULL_LAYERS = (2, 4), 30
BATCH_TOKENS = (1300, 650)  # tokens per micro-batch; the samples fill 2 and 4 micro-batches
ROLES = ("reasoner", "actor")
ALONE = {"kl": KLSettings(), "minibatches": 1}  # without scores of other weights, in one optimizer step
EPISODES, PROMPT, ACTION = 16, 64, 16
UNITS = ("decode step", "prefill", "learning", "scoring", "training step")
FIGURES = ("launches", "synchronizations", "copies to device", "bytes to device", "copies to host", "bytes to host")
Figures = dict[str, float]


@dataclass(frozen=True)
class Model:
    """Model to measure, with its number of layers."""

    name: str
    path: str
    layers: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="now", choices=("now", "before"))
    parser.add_argument("--lines", choices=UNITS, help="print the lines behind the counts of a unit, and store nothing")
    parser.add_argument("--results", type=Path, default=machine.RESULTS)
    arguments = parser.parse_args()
    silence_transformers()
    if arguments.lines:
        print(report_lines(arguments.lines))
        return
    path = arguments.results / "launches.json"
    stored = json.loads(path.read_text()) if path.exists() else {}
    stored[arguments.store] = measure()
    path.write_text(json.dumps(stored, indent=2, sort_keys=True) + "\n")
    (arguments.results / "launches.md").write_text(table(stored))
    print(table(stored))


def measure() -> dict[str, Any]:
    """Return the figures of each unit: for the bundled model, per layer, and for SmolLM2-135M's layers."""
    with tempfile.TemporaryDirectory() as folder:
        small = [Model("smollm2", str(random_model(Path(folder), layers)), layers) for layers in LAYERS]
        shallow, deep = (measure_model(model) for model in small)
        tiny = measure_model(Model("tiny", "tiny", 2))
    units = {}
    for unit in shallow:
        per_layer = {name: (deep[unit][name] - shallow[unit][name]) / (LAYERS[1] - LAYERS[0]) for name in FIGURES}
        full = {name: shallow[unit][name] + (FULL_LAYERS - LAYERS[0]) * per_layer[name] for name in FIGURES}
        units[unit] = {"tiny": tiny[unit], "per layer": per_layer, f"{FULL_LAYERS} layers": full}
    return units


def measure_model(model: Model) -> dict[str, Figures]:
    """Return the figures of each unit of work on a model."""
    return dict(decoding(model)) | dict(learning(model)) | dict(saving(model))


def random_model(folder: Path, layers: int) -> Path:
    """Write a model with random weights and the widths of SmolLM2-135M."""
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=layers, num_attention_heads=9,
        num_key_value_heads=3, max_position_embeddings=2048, tie_word_embeddings=True, eos_token_id=2, bos_token_id=1,
    )  # fmt: skip
    torch.manual_seed(0)
    path = folder / f"layers_{layers}"
    LlamaForCausalLM(config).save_pretrained(path)
    tiny = Path(resolve_path("tiny"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"):
        if (tiny / name).exists():
            (path / name).write_bytes((tiny / name).read_bytes())
    return path


def recipe(model: Model, algorithm: str, *overrides: str) -> RunSettings:
    """Return the demo's recipe with another model, on the GPU."""
    return load_recipe("demo", [
        "--models.base.path", model.path, "--device", "cuda", "--algorithm", f"{{ name = '{algorithm}' }}",
        "--policies.reasoner.lora.rank", "8", "--policies.actor.lora.rank", "8", *overrides,
    ])  # fmt: skip


def figures(counts: Counts) -> Figures:
    """Return the figures of a scope."""
    sent, read = counts.to_device, counts.to_host
    numbers = (counts.num_launches, counts.num_syncs, sent.number, sent.bytes, read.number, read.bytes)
    return dict(zip(FIGURES, map(float, numbers), strict=True))


def decoding(model: Model) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of prefill and of a decoded token batch: one adapter, then two."""
    for name, adapters in (("one policy", ROLES[:1]), ("two policies", ROLES)):
        with counted_decoding(model, adapters) as (prefill, step):
            yield f"prefill, {name}", figures(prefill)
            yield f"decode step, {name}", figures(step)


@contextmanager
def counted_decoding(model: Model, adapters: Sequence[str]) -> Iterator[tuple[Counts, Counts]]:
    """Count the prefill of eight rows, and a later decoding step."""
    random = np.random.default_rng(0)
    with simulated_gpu():
        backbone = PolicyRegistry(recipe(model, "grpo")).base_models["base"]
        batch = RunningBatch(backbone, [-1], lambda: Detokenizer(str))
        rows = [
            DecodeRequest(
                adapters[number * len(adapters) // 8], random.integers(3, 400, PROMPT + number).astype(np.int32),
                SamplingParams(max_new_tokens=8), random.random(8, np.float32),
            )
            for number in range(8)
        ]  # fmt: skip
        with counting("prefill") as prefill:
            batch.admit(rows)
        batch.step()
        with counting("decode step") as step:
            batch.step()
        yield prefill, step


def learner_of(model: Model, algorithm: str, *overrides: str) -> LocalLearner:
    """Return a learner after a training step, which creates the optimizers' moments."""
    run = recipe(model, algorithm, *overrides)
    learner = LocalLearner(run)
    learner.set_models(PolicyRegistry(run))
    learner.learn(random_episodes(), Progress(0, 0))
    return learner


def learning(model: Model) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of a micro-batch, of an update besides its micro-batches, of scoring, and of a whole step."""
    measured = [counted_learning(model, tokens) for tokens in BATCH_TOKENS]
    batches = [-(-EPISODES * len(ROLES) * (PROMPT + ACTION - 1) // tokens) for tokens in BATCH_TOKENS]
    for unit in ("learning", "scoring"):
        few, many = (figures(counts[unit]) for counts in measured)
        slope = {name: (many[name] - few[name]) / (batches[1] - batches[0]) for name in FIGURES}
        yield f"{unit} micro-batch", slope
        yield f"{unit}, besides micro-batches", {name: few[name] - batches[0] * slope[name] for name in FIGURES}
    yield f"training step, {batches[0]} micro-batches", figures(measured[0]["training step"])


def counted_learning(model: Model, tokens: int) -> dict[str, Counts]:
    """Count a training step with GRPO, and its update and scoring alone."""
    with simulated_gpu():
        learner = learner_of(model, "grpo", "--training.tokens_per_micro_batch", str(tokens))
        state, episodes = learner.learner_state, random_episodes()
        samples = [Sample(action, 1.0, np.ones(ACTION)) for episode in episodes for action in episode.actions]
        with counting("training step") as step:
            learner.learn(episodes, Progress(1, 24))
        setup = replace(state.update_setup(), settings=state.settings.model_copy(update=ALONE))
        with counting("learning") as update:
            PolicyUpdater(setup, FixedLogProbs()).run(UpdatePhase(ROLES), samples, 1)
        with counting("scoring") as scoring:
            score_actions(state.packing, samples)
    return {counts.name: counts for counts in (step, update, scoring)}


def saving(model: Model) -> Iterator[tuple[str, Figures]]:
    """Yield the figures of the critic, of an adapter's way to a sampler, of a checkpoint, and of a resume."""
    with simulated_gpu(), tempfile.TemporaryDirectory() as output:
        learner = learner_of(model, "marft", "--training.tokens_per_micro_batch", "1300", "--output", output)
        state, episodes = learner.learner_state, random_episodes()
        critic = state.critic
        assert critic is not None
        with counting("critic: values") as counts:
            values = critic.evaluate(episodes)
        yield counts.name, figures(counts)
        with counting("critic: update") as counts:
            critic.update(values, values.actions, 0)
        yield counts.name, figures(counts)
        with counting("publish: adapter to a file") as counts:
            learner.models.save_policy("actor", Path(output) / "actor")
        yield counts.name, figures(counts)
        with counting("publish: adapter from a file") as counts:
            learner.models.load_policy("actor", Path(output) / "actor")
        yield counts.name, figures(counts)
        folder = RunFolder.create(learner.run)
        manager = CheckpointManager(folder, learner.run.checkpoints)
        with counting("checkpoint") as counts:
            path = manager.save(State(step=1), learner.run, learner.models, state, LogDigest.from_content(b""))
        yield counts.name, figures(counts)
        with counting("resume") as counts:
            load_checkpoint(read_record(path), learner.models, state)
        yield counts.name, figures(counts)


def random_episodes() -> list[Episode]:
    """Return episodes of random tokens with equal lengths."""
    random = np.random.default_rng(0)
    return [_random_episode(random, sample) for sample in range(EPISODES)]


def _random_episode(random: np.random.Generator, sample: int) -> Episode:
    actions = tuple(_random_action(random, role, index, sample) for index, role in enumerate(ROLES))
    earned = (Transition(Observation("o"), float(sample % 2)),)
    return Episode(Task("t", "o"), "train/0", sample, actions, "terminated", earned)


def _random_action(random: np.random.Generator, role: str, index: int, sample: int) -> Action:
    prompt, tokens = (random.integers(3, 400, size).astype(np.int32) for size in (PROMPT, ACTION))
    return Action(
        key=ActionKey("train/0", "t", sample, 0, role, 0),
        policy=role,
        index=index,
        sees=(),
        prompt=prompt,
        tokens=tokens,
        marks=np.full(ACTION, TokenSource.SAMPLED, np.uint8),
        log_probs=random.normal(-1, 0.1, ACTION).astype(np.float32),
        text="",
        finish="stop",
        message_tokens=(),
    )


def report_lines(unit: str) -> str:
    """Return the lines behind the counts of a unit on the bundled model."""
    model = Model("tiny", "tiny", 2)
    if unit in ("learning", "scoring", "training step"):
        return counted_learning(model, BATCH_TOKENS[0])[unit].report(40)
    with counted_decoding(model, ROLES) as (prefill, step):
        return (prefill if unit == "prefill" else step).report(40)


def table(stored: Mapping[str, Any]) -> str:
    """Return the table: each figure before and now."""
    lines = [
        "# Kernel launches, synchronizations and copies", "",
        "`python benchmarks/launches.py`: counts on a simulated GPU, bfloat16, LoRA of rank 8, without CUDA graphs. "
        "Each figure: before → now. SmolLM2-135M: 30 layers, from 2 and 4 measured layers.", "",
    ]  # fmt: skip
    now = stored.get("now") or stored["before"]
    for model in ("tiny", f"{FULL_LAYERS} layers", "per layer"):
        title = {"tiny": "Bundled model, 2 layers", "per layer": "Per layer of SmolLM2-135M"}.get(model, "SmolLM2-135M")
        names = FIGURES if model != "per layer" else FIGURES[:3]
        lines += [f"## {title}", "", f"| | {' | '.join(names)} |", f"| --- |{' ---: |' * len(names)}"]
        for unit in now:
            cells = [_cell(stored, unit, model, name) for name in names]
            lines.append(f"| {unit} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join(lines)


def _cell(stored: Mapping[str, Any], unit: str, model: str, name: str) -> str:
    numbers = [stored[label][unit][model][name] for label in ("before", "now") if unit in stored.get(label, {})]
    return " → ".join(dict.fromkeys(f"{number:,.1f}".removesuffix(".0") for number in numbers))


if __name__ == "__main__":
    main()
