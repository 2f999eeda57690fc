"""A team of two on a random model: its checkpoint, recipe and episodes."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import torch
from pydantic import PrivateAttr
from throughput import Numbers, word_tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM
from transformers.utils import logging

from accelerator.stage import Setting
from marft.common.types import Episode, Task
from marft.config import RunSettings, parse_recipe
from marft.envs.graded_sessions import Grade, SingleTurn
from marft.models.model_sizes import COMMON_MODELS, ModelSizes
from marft.rollout.local_runner import LocalRolloutRunner
from marft.rollout.rollout_batch import sample_attempts

ROLES = ("reasoner", "actor")
MODELS = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM)}


class Halves(Numbers):
    """Tasks of random numbers; every second episode is solved, whatever the answer."""

    _episodes: Iterator[int] = PrivateAttr(default_factory=itertools.count)

    def start(self, task: Task, seed: int) -> SingleTurn:  # noqa: ARG002
        solved = next(self._episodes) % 2
        return SingleTurn(task, lambda _: Grade(float(solved), bool(solved)))


@dataclass(frozen=True, slots=True)
class Team:
    """Team on a random model, with fixed lengths.

    Args:
        model: name in ``COMMON_MODELS``, whose sizes the model has.
        kind: model type.
        dtype: dtype of the weights.
        prompt: tokens of a task.
        action: tokens of an action.
        tasks: episodes per step.
        batch: tokens per micro-batch.
        small: True for the sizes of a rehearsal.
        quantization: quantization of the base.
    """

    model: str
    kind: str
    dtype: str
    prompt: int
    action: int
    tasks: int
    batch: int
    small: bool = False
    quantization: str = "none"

    @property
    def sizes(self) -> ModelSizes:
        """Sizes of the model; small ones for a rehearsal."""
        sizes = COMMON_MODELS[self.model]
        if not self.small:
            return sizes
        return replace(
            sizes, layers=2, hidden_size=64, intermediate_size=96, heads=4, key_heads=2, head_dim=16, vocab_size=512
        )

    def halved(self) -> Team:
        """Return the team with half the episodes and half the micro-batch."""
        return replace(self, tasks=max(1, self.tasks // 2), batch=max(256, self.batch // 2))

    def checkpoint(self, setting: Setting) -> Path:
        """Return the folder of the random model, created on the device if it does not exist."""
        folder = setting.scratch / f"{self.model}-{self.dtype}{'-small' * self.small}"
        if (folder / "complete").exists():
            return folder
        shutil.rmtree(folder, ignore_errors=True)
        sizes, (config, model) = self.sizes, MODELS[self.kind]
        torch.manual_seed(0)
        with torch.device("cuda" if setting.device == "cuda" else "cpu"):
            made = model(config(
                vocab_size=sizes.vocab_size, hidden_size=sizes.hidden_size, num_hidden_layers=sizes.layers,
                intermediate_size=sizes.intermediate_size, num_attention_heads=sizes.heads,
                num_key_value_heads=sizes.key_heads, max_position_embeddings=4096, tie_word_embeddings=True,
                dtype=self.dtype, bos_token_id=None, eos_token_id=None, pad_token_id=None,
            ))  # fmt: skip
        made.to(getattr(torch, self.dtype)).save_pretrained(folder)
        (folder / "complete").touch()
        return folder

    def recipe(self, folder: Path, device: str) -> RunSettings:
        """Return the recipe: a chain of two agents, each with its own LoRA."""
        return parse_recipe({
            "name": "gpu", "device": device,
            "models": {"base": {"path": str(folder), "dtype": self.dtype, "quantization": self.quantization}},
            "policies": {role: {"model": "base", "lora": {"rank": 16, "alpha": 32.0}} for role in ROLES},
            "agents": [
                {"role": role, "policy": role, "answers": role == "actor", "sampling": {"max_new_tokens": self.action}}
                for role in ROLES
            ],
            "environment": {
                "name": "accelerator.team:Halves", "vocabulary": self.sizes.vocab_size, "length": self.prompt,
            },
            "rollout": {"tasks_per_step": self.tasks, "samples_per_task": 1, "max_concurrent_episodes": self.tasks},
            "training": {"steps": 10, "tokens_per_micro_batch": self.batch},
            "algorithm": {"name": "marft", "critic": {"warmup_steps": 0}}
        })  # fmt: skip


@contextmanager
def opened(run: RunSettings, vocabulary: int) -> Iterator[LocalRolloutRunner]:
    """Open the runner of a recipe on a model whose tokens are numbers."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    words = word_tokenizer(vocabulary)
    with patch("marft.models.tokenizer_format.load_tokenizer", lambda _: words), LocalRolloutRunner(run) as rollouts:
        yield rollouts


def play(rollouts: LocalRolloutRunner, step: int, count: int) -> Sequence[Episode]:
    """Play ``count`` episodes.

    Raises:
        RuntimeError: an episode failed.
    """
    run = rollouts.run
    episodes = rollouts.play(sample_attempts(run, run.environment.tasks("train"), step, step * count, count))
    errors = [episode.error for episode in episodes if not episode.is_scored]
    if errors:
        raise RuntimeError(f"{len(errors)} of {len(episodes)} episodes failed: {errors[0]}")
    return episodes
