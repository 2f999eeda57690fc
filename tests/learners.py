"""Learners whose policies say something of their own, and episodes of random tokens for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from marft.common.types import Episode, Observation, Sample, Task, Transition
from marft.config import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.learner import Learner
from marft.trainer.ranks.interface import SINGLE_RANK, Ranks
from tests.episodes import make_action
from tests.helpers import settings

ROLES = ("reasoner", "actor")


STILL = ("--algorithm.optimizer.learning_rate", "1e-12", "--algorithm.optimizer.warmup_steps", "0")


def recipe(tmp_path: Path, name: str, *overrides: str, dtype: str = "float32") -> RunSettings:
    return settings(
        "tiny", tmp_path, "--algorithm", f"{{ name = '{name}', critic = {{ warmup_steps = 0 }} }}",
        "--models.base.dtype", dtype, "--training.tokens_per_micro_batch", "400", *overrides,
    )  # fmt: skip


def begun(run: RunSettings, ranks: Ranks = SINGLE_RANK) -> Learner:
    """A learner whose adapters say something of their own."""
    torch.manual_seed(0)
    models = PolicyRegistry(run)
    for role in ROLES:  # a policy of whole weights has none
        for adapter in (one for base in models.base_models.values() for one in base.adapters(role).values()):
            torch.nn.init.normal_(adapter.b, std=0.05)
    return Learner(run, models, ranks)


def episodes(count: int = 12, seed: int = 0, noise: float = 0.1) -> list[Episode]:
    """Of random tokens; what the engine says of them is wrong by ``noise``."""
    random = np.random.default_rng(seed)
    made = []
    for sample in range(count):
        actions = []
        for index, role in enumerate(ROLES):
            prompt = tuple(int(i) for i in random.integers(3, 440, random.integers(4, 90)))
            tokens = tuple(int(i) for i in random.integers(3, 440, random.integers(1, 30)))
            action = make_action(role, index=index, sample=sample, prompt=prompt, tokens=tokens)
            actions.append(replace(action, log_probs=random.normal(-1.0, noise, len(tokens)).astype(np.float32)))
        earned = (Transition(Observation("o"), float(sample % 2)),)
        made.append(Episode(Task("t", "o"), "train/0", sample, tuple(actions), "terminated", earned))
    return made


def samples_of(batch: Sequence[Episode]) -> list[Sample]:
    return [Sample(action, 1.0, np.ones(1)) for episode in batch for action in episode.actions]
