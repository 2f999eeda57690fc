"""Log-probabilities and gradients of SmolLM2's architecture with random weights, compared with the CPU's in float32."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from accelerator.stage import Setting
from accelerator.team import ROLES, Team, opened, play
from marft.common.types import Action, ActionKey, Episode
from marft.config import RunSettings
from marft.config.interfaces.credit import Floats
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import BatchCounts, build_sample
from marft.trainer.learner import Learner
from marft.trainer.scoring import score_batch

TOLERANCE = 1e-3


class Scores(NamedTuple):
    """Log-probabilities of all sampled tokens [T], and the gradient of their mean by parameter, on the CPU."""

    log_probs: Tensor
    gradients: dict[str, Tensor]


def compare_with_cpu(setting: Setting) -> None:
    """Compare the device in float32 and in bfloat16 with the CPU; save the differences."""
    team = Team("smollm2-135m", "llama", "float32", 64, 32, 8, 1024)
    if setting.small:
        team = replace(team, prompt=24, action=8, tasks=2, small=True)
    folder = team.checkpoint(setting)
    on_cpu = team.recipe(folder, "cpu")
    with opened(on_cpu, team.sizes.vocab_size) as rollouts:
        _fill_adapters(rollouts.models)
        episodes = play(rollouts, 0, team.tasks)
        reference = _score(on_cpu, rollouts.models, episodes)
    for dtype in ("float32", "bfloat16"):
        with setting.part(dtype):
            _compare(setting, replace(team, dtype=dtype), folder, episodes, reference)


def _compare(setting: Setting, team: Team, folder: Path, episodes: Sequence[Episode], reference: Scores) -> None:
    run = team.recipe(folder, setting.torch_device)
    with opened(run, team.sizes.vocab_size) as rollouts:
        _fill_adapters(rollouts.models)
        found = _score(run, rollouts.models, episodes)
        apart = (found.log_probs - reference.log_probs).abs()
        row = {
            "log_probs_max": float(apart.max()), "log_probs_mean": float(apart.mean()),
            "gradients": _relative(found.gradients, reference.gradients), "tokens": len(reference.log_probs),
        }  # fmt: skip
        if team.dtype == "float32":
            row["inside"] = max(row["log_probs_max"], row["gradients"]) <= TOLERANCE
        setting.save(**{team.dtype: row})
        played = play(rollouts, 1, len(episodes))
        engine = torch.cat([torch.from_numpy(action.log_probs) for action in _actions(played)])
        learner = _score(run, rollouts.models, played).log_probs
        setting.save(**{team.dtype: {**row, "engine_and_learner_max": float((engine - learner).abs().max())}})


def _fill_adapters(models: PolicyRegistry) -> None:
    """Give every adapter the same random weights on every device."""
    for seed, role in enumerate(ROLES):
        generator = torch.Generator().manual_seed(seed)
        for _, parameter in sorted(models.policies[role].parameters().items()):
            values = torch.randn(parameter.shape, generator=generator) * 0.05
            parameter.data.copy_(values.to(parameter.device))


def _actions(episodes: Sequence[Episode]) -> list[Action]:
    return [action for episode in episodes for action in episode.actions]


def _score(run: RunSettings, models: PolicyRegistry, episodes: Sequence[Episode]) -> Scores:
    """Score all actions in the order of the episodes, and differentiate the mean."""
    learner, actions = Learner(run, models), _actions(episodes)
    samples = [build_sample(action) for action in actions]
    by_action: dict[ActionKey, Floats] = {}
    for batch in learner.packing.micro_batches(samples, BatchCounts.from_samples(samples, pooled=False)):
        scored = score_batch(batch).log_probs
        (scored.sum() / 1000).backward()
        by_action |= batch.split_by_action(scored.detach().cpu().numpy())
    gradients = {}
    for role in ROLES:
        for name, parameter in models.policies[role].parameters().items():
            assert parameter.grad is not None, name
            gradients[f"{role}.{name}"] = parameter.grad.float().cpu()
            parameter.grad = None
    return Scores(torch.cat([torch.as_tensor(by_action[action.key]) for action in actions]), gradients)


def _relative(found: dict[str, Tensor], reference: dict[str, Tensor]) -> float:
    """Return the Euclidean distance of all gradients together, relative to the reference."""
    apart = sum(float((found[name] - value).double().square().sum()) for name, value in reference.items())
    return math.sqrt(apart / sum(float(value.double().square().sum()) for value in reference.values()))
