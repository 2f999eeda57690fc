"""Measure the speed of one iteration: play 32 episodes, value them, run one action-level PPO epoch on every policy.

    python benchmarks/throughput.py              # all cases
    python benchmarks/throughput.py --case dual  # one case, as JSON

The model is a random Qwen2 (4 layers, hidden 128, intermediate 384, 4 heads, 2 key heads), with LoRA of rank 8 on q
and v. Every rollout observation has exactly 100 tokens, seen actions included. Every action has exactly 64.

The floor of an iteration is its matrix arithmetic at the float32 matrix rate measured in the same run. It covers
prefill and decode of all actions, and the learner's forward and backward with respect to activations (the base is
frozen). It also covers the critic's forward over the observations. Attention, norms, sampling and Python are not in
the floor.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from unittest.mock import patch

import machine
import numpy as np
import torch
from pydantic import Field
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from marft.common.types import Task
from marft.config import parse_recipe
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.schedule import Progress
from marft.envs.graded_sessions import Grade, SingleTurn
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import sample_attempts
from marft.trainer.learner import Learner

HIDDEN, LAYERS, INTERMEDIATE, HEADS, KEY_HEADS = 128, 4, 384, 4, 2
OBSERVATION, ACTION, EPISODES = 100, 64, 32
HEADER = 3  # "Message from agent_0:" has three words, and a word is a token


class Numbers(Environment):
    """Tasks of random numbers; the reward is a coin flip."""

    vocabulary: Annotated[int, Field(gt=0)]
    length: Annotated[int, Field(gt=0)]

    def tasks(self, split: str) -> list[Task]:  # noqa: ARG002
        random = np.random.default_rng(0)
        numbers = random.integers(1, self.vocabulary, (4 * EPISODES, self.length))
        return [Task(str(number), " ".join(map(str, row))) for number, row in enumerate(numbers)]

    def start(self, task: Task, seed: int) -> SingleTurn:
        return SingleTurn(task, lambda _: Grade(float(seed % 2), bool(seed % 2)))


def save_model(folder: Path, vocabulary: int) -> None:
    """Save a random model without an end-of-turn token."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=vocabulary, hidden_size=HIDDEN, intermediate_size=INTERMEDIATE, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=KEY_HEADS, max_position_embeddings=4096,
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    Qwen2ForCausalLM(config).save_pretrained(folder)


def word_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    """Return a tokenizer whose words are the numbers below ``vocabulary``. Every word is a token with itself as id."""
    words = Tokenizer(models.WordLevel({str(number): number for number in range(vocabulary)}, unk_token="0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words)
    fast.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    return fast


def recipe(folder: Path, agents: int, vocabulary: int, observation: int) -> dict[str, Any]:
    """Return a chain in which every agent sees the previous one: 33 + 3 + 64 = 100 tokens.

    The first agent gets guidance instead.
    """
    shared = observation - HEADER - ACTION
    padding = " ".join(["1"] * (observation - shared))
    return {
        "name": "throughput",
        "models": {"base": {"path": str(folder)}},
        "policies": {f"agent_{n}": {"model": "base", "lora": {"rank": 8, "alpha": 16.0}} for n in range(agents)},
        "agents": [
            {
                "role": f"agent_{n}",
                "policy": f"agent_{n}",
                "guidance": "" if n else padding,
                "answers": n == agents - 1,
                "sampling": {"max_new_tokens": ACTION},
            }
            for n in range(agents)
        ],
        "team": {"organization": "chain", "visible": "previous"},
        "environment": {"name": "throughput:Numbers", "vocabulary": vocabulary, "length": shared},
        "rollout": {"tasks_per_step": EPISODES, "samples_per_task": 1},
        "algorithm": {
            "name": "marft", "epochs": 1, "minibatches": 1, "kl_stop": 0.0,
            "critic": {"kind": "independent", "epochs": 1, "warmup_steps": 0},  # reads exactly the observation
        },
    }  # fmt: skip


def floor_operations(agents: int, vocabulary: int, observation: int) -> dict[str, float]:
    """Return the matrix operations of one iteration by phase: two per weight and token."""
    width = HIDDEN // HEADS
    attention = HIDDEN * HIDDEN * 2 + 2 * HIDDEN * KEY_HEADS * width  # q, o, k, v
    layer = attention + 3 * HIDDEN * INTERMEDIATE
    base, head = LAYERS * layer, HIDDEN * vocabulary
    actions = EPISODES * agents
    learner = 2.0 * actions * ((observation + ACTION) * base + ACTION * head)
    return {
        "prefill": 2.0 * actions * observation * base,
        "decode": 2.0 * actions * ACTION * (base + head),
        "learner forward": learner,
        "learner backward": learner,
        "critic": 2.0 * actions * observation * base,
    }


def measure(agents: int, vocabulary: int, observation: int, iterations: int) -> dict[str, Any]:
    """Run one case in this process; return medians over iterations, after two warm-up iterations."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder), vocabulary)
        run = parse_recipe(recipe(Path(folder), agents, vocabulary, observation))
        words = word_tokenizer(vocabulary)  # else transformers would split words as for Qwen2
        with (
            patch("marft.models.tokenizer_format.load_tokenizer", lambda _: words),
            LocalRolloutRunner(run) as rollouts,
        ):
            learner = Learner(run, rollouts.models)
            tasks = run.environment.tasks("train")
            rows = [iterate(rollouts, learner, tasks, step, observation) for step in range(iterations + 2)][2:]
    rate = machine.matmul_rate()
    seconds = {phase: float(np.median([row[phase] for row in rows])) for phase in rows[0]}
    floor = floor_operations(agents, vocabulary, observation)
    total = seconds["playing"] + seconds["learning"]
    return {
        "agents": agents,
        "vocabulary": vocabulary,
        "observation_tokens": observation,
        "episodes_per_second": EPISODES / total,
        "milliseconds_per_action": 1000 * total / (EPISODES * agents),
        "seconds": {**seconds, "iteration": total},
        "floor_gflop": {phase: operations / 1e9 for phase, operations in floor.items()},
        "matmul_gflop_per_second": rate / 1e9,
        "floor_episodes_per_second": EPISODES * rate / sum(floor.values()),
        "share_of_floor": sum(floor.values()) / rate / total,
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def iterate(
    rollouts: LocalRolloutRunner, learner: Learner, tasks: Sequence[Task], step: int, observation: int
) -> dict[str, float]:
    began = time.perf_counter()
    episodes = rollouts.play(sample_attempts(rollouts.run, tasks, step, step * EPISODES, EPISODES))
    played = time.perf_counter()
    learner.learn(episodes, Progress(step, 0))
    rollouts.publish(step + 1)
    learned = time.perf_counter()
    for episode in episodes:
        assert episode.is_scored, episode.error
        for action in episode.actions:
            assert (len(action.prompt), len(action.tokens)) == (observation, ACTION)
    return {"playing": played - began, "learning": learned - played}


CASES = {
    "dual": {"agents": 2, "vocabulary": 4096, "observation": OBSERVATION},
    "eight agents": {"agents": 8, "vocabulary": 4096, "observation": OBSERVATION},
    "large vocabulary": {"agents": 2, "vocabulary": 151_936, "observation": OBSERVATION},
    "large vocabulary, 4 × the prompt": {"agents": 2, "vocabulary": 151_936, "observation": 4 * OBSERVATION},
    "4 × the prompt": {"agents": 2, "vocabulary": 4096, "observation": 4 * OBSERVATION},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=list(CASES), help="measure one case in this process and print JSON")
    parser.add_argument("--iterations", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.case:
        print(json.dumps(measure(**CASES[arguments.case], iterations=arguments.iterations)))
        return
    results = {}
    for case, settings in CASES.items():
        iterations = arguments.iterations if settings["vocabulary"] < 100_000 else 3
        command = [sys.executable, __file__, "--case", case, "--iterations", str(iterations)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr)
        results[case] = row = json.loads(done.stdout.splitlines()[-1])
        print(
            f"{case:33s} {row['episodes_per_second']:5.1f} episodes/s  {row['milliseconds_per_action']:5.2f} ms/act  "
            f"playing {row['seconds']['playing']:.3f} s  learning {row['seconds']['learning']:.3f} s  "
            f"{row['share_of_floor']:5.1%} of the floor ({row['matmul_gflop_per_second']:.0f} GFLOP/s)  "
            f"{row['peak_memory_mb']:.0f} MB",
            flush=True,
        )
    print(f"saved {machine.save('throughput', {'machine': machine.describe(), 'cases': results})}")


if __name__ == "__main__":
    main()
