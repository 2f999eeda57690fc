"""Presets: an algorithm by name is a level, a credit, an objective, a schedule and an optimizer, as plain data.

``[algorithm] name = "marft"`` starts from the table below; every other key of ``[algorithm]`` in a recipe replaces
the preset's value, field by field. Naming another credit, objective or schedule replaces that whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMMON: Mapping[str, Any] = {
    "epochs": 1,
    "minibatches": 1,
    "schedule": {"name": "simultaneous"},
    "optimizer": {"learning_rate": 3e-5, "warmup_steps": 3},
}
_ACTIONS: Mapping[str, Any] = {**_COMMON, "level": "action", "normalisation": "tokens"}
_TOKENS: Mapping[str, Any] = {**_COMMON, "level": "token"}
_CRITIC: Mapping[str, Any] = {"learning_rate": 1e-3, "hidden": 64, "loss": "huber", "epochs": 4, "warmup_steps": 1}
_NO_CRITIC: Mapping[str, Any] = {"kind": "none"}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    # Our vetted defaults: no discount inside an episode step, critic targets from whole returns, dual clip.
    "marft": {
        "level": "action",
        "normalisation": "tokens",
        "epochs": 2,
        "minibatches": 2,
        "kl_stop": 0.05,
        "entropy": 0.0,
        "denominator": "policy",
        "credit": {
            "name": "gae",
            "chain": "joint",
            "gamma_token": 1.0,
            "gamma_agent": 1.0,
            "gamma_step": 0.99,
            "lambda_token": 1.0,
            "lambda_agent": 0.95,
            "lambda_step": 0.95,
            "lambda_critic": 1.0,
        },
        "objective": {"name": "ppo", "clip": 0.2, "dual_clip": 3.0},
        "schedule": {"name": "simultaneous"},
        "optimizer": {"learning_rate": 3e-5, "epsilon": 1e-8, "max_gradient_norm": 1.0, "warmup_steps": 3},
        "critic": {"learning_rate": 1e-3, "hidden": 64, "loss": "huber", "epochs": 4, "warmup_steps": 1},
    },
    # The settings of the MARFT paper, at every hop the same discount.
    "marft-paper": {
        "level": "action",
        "normalisation": "none",
        "epochs": 1,
        "minibatches": 1,
        "kl_stop": 0.02,
        "entropy": 0.01,
        "denominator": "pooled",
        "credit": {
            "name": "gae",
            "chain": "joint",
            "gamma_token": 0.99,
            "gamma_agent": 0.99,
            "gamma_step": 0.99,
            "lambda_token": 0.95,
            "lambda_agent": 0.95,
            "lambda_step": 0.95,
            "lambda_critic": 0.95,
        },
        "objective": {"name": "ppo", "clip": 0.2, "dual_clip": 0.0},
        "schedule": {"name": "simultaneous"},
        "optimizer": {"learning_rate": 1e-6, "epsilon": 1e-5, "max_gradient_norm": 0.5, "warmup_steps": 0},
        "critic": {
            "learning_rate": 1e-5,
            "epsilon": 1e-5,
            "hidden": 64,
            "loss": "huber",
            "coefficient": 1.0,
            "max_gradient_norm": 0.5,
            "epochs": 1,
            "warmup_steps": 0,
        },
    },
    # PPO over the tokens of all agents as one sequence, as in single-agent RLHF (Schulman et al. 2017).
    "ppo": {
        **_TOKENS,
        "epochs": 2,
        "minibatches": 2,
        "kl_stop": 0.05,
        "credit": {"name": "gae", "chain": "joint", "gamma_step": 1.0},
        "objective": {"name": "ppo"},
        "critic": _CRITIC,
    },
    # Every agent learns for itself: its own recursion, its own value head, only what it sees (de Witt et al. 2020).
    "ippo": {
        **_ACTIONS,
        "epochs": 2,
        "minibatches": 2,
        "kl_stop": 0.05,
        "credit": {"name": "gae", "chain": "agent"},
        "objective": {"name": "ppo"},
        "critic": {**_CRITIC, "kind": "independent", "heads": "agent"},
    },
    # As IPPO with one centralised critic (Yu et al. 2022).
    "mappo": {
        **_ACTIONS,
        "epochs": 2,
        "minibatches": 2,
        "kl_stop": 0.05,
        "credit": {"name": "gae", "chain": "agent"},
        "objective": {"name": "ppo"},
        "critic": _CRITIC,
    },
    # One policy after another, weighed with how far those before have moved (Kuba et al. 2022).
    "happo": {
        **_ACTIONS,
        "epochs": 2,
        "minibatches": 2,
        "kl_stop": 0.05,
        "credit": {"name": "step-gae"},
        "objective": {"name": "ppo"},
        "schedule": {"name": "sequential"},
        "critic": _CRITIC,
    },
    # As HAPPO, but an update is accepted only as far as its KL is within a trust region.
    "hatrpo": {
        **_ACTIONS,
        "epochs": 2,
        "minibatches": 2,
        "credit": {"name": "step-gae"},
        "objective": {"name": "ppo", "clip": 0.5},
        "schedule": {"name": "sequential", "kl_limit": 0.01},
        "critic": _CRITIC,
    },
    # Sequential with preceding-agent correction of ratios and advantages (Wang et al. 2023).
    "a2po": {
        **_ACTIONS,
        "epochs": 2,
        "minibatches": 2,
        "kl_stop": 0.05,
        "credit": {"name": "step-gae"},
        "objective": {"name": "ppo"},
        "schedule": {"name": "a2po"},
        "critic": _CRITIC,
    },
    # A counterfactual baseline for every action, by playing on from it anew (after Foerster et al. 2018).
    "coma": {
        **_ACTIONS,
        "normalise_advantages": False,
        "credit": {"name": "counterfactual", "resamples": 2},
        "objective": {"name": "ppo"},
        "critic": _NO_CRITIC,
    },
    # The policy gradient with the plain return (Williams 1992).
    "reinforce": {
        **_ACTIONS,
        "normalisation": "none",
        "normalise_advantages": False,
        "credit": {"name": "batch", "whiten": False},
        "objective": {"name": "reinforce"},
        "critic": _NO_CRITIC,
    },
    # Returns whitened over the batch, KL in the reward (Hu et al. 2025).
    "reinforce++": {
        **_TOKENS,
        "normalise_advantages": False,
        "minibatches": 2,
        "kl": {"coefficient": 0.001, "place": "reward", "estimator": "k1"},
        "credit": {"name": "batch"},
        "objective": {"name": "ppo"},
        "critic": _NO_CRITIC,
    },
    # The others of the group are the baseline (Ahmadian et al. 2024).
    "rloo": {
        **_ACTIONS,
        "normalisation": "none",
        "normalise_advantages": False,
        "credit": {"name": "rloo"},
        "objective": {"name": "reinforce"},
        "critic": _NO_CRITIC,
    },
    # Group-relative advantages, KL to the base in the loss (Shao et al. 2024).
    "grpo": {
        **_TOKENS,
        "aggregation": "action-mean",
        "normalise_advantages": False,
        "minibatches": 2,
        "kl": {"coefficient": 0.04, "estimator": "k3"},
        "credit": {"name": "grpo"},
        "objective": {"name": "ppo"},
        "critic": _NO_CRITIC,
    },
    # GRPO without the divisions that favour easy tasks and long wrong answers (Liu et al. 2025).
    "dr-grpo": {
        **_TOKENS,
        "aggregation": "constant-length",
        "normalise_advantages": False,
        "minibatches": 2,
        "credit": {"name": "grpo", "scale": False},
        "objective": {"name": "ppo"},
        "critic": _NO_CRITIC,
    },
    # One ratio for a whole sequence, length-normalised, with a narrow clip of its own (Zheng et al. 2025).
    "gspo": {
        **_ACTIONS,
        "normalise_advantages": False,
        "minibatches": 2,
        "credit": {"name": "grpo"},
        "objective": {"name": "ppo", "clip": 3e-4, "clip_high": 4e-4},
        "critic": _NO_CRITIC,
    },
    # Clip higher, token mean over the batch, groups drawn until they tell attempts apart (Yu et al. 2025).
    "dapo": {
        **_TOKENS,
        "normalise_advantages": False,
        "minibatches": 2,
        "dynamic_sampling": 2,
        "credit": {"name": "grpo"},
        "objective": {"name": "ppo", "clip": 0.2, "clip_high": 0.28},
        "critic": _NO_CRITIC,
    },
    # DAPO's loss with a pre-trained critic, length-adaptive λ, and likelihood of what succeeded (Yue et al. 2025).
    "vapo": {
        **_TOKENS,
        "minibatches": 2,
        "nll": 0.1,
        "credit": {"name": "gae", "chain": "joint", "gamma_step": 1.0, "lambda_agent": 1.0, "adaptive_lambda": 0.05},
        "objective": {"name": "ppo", "clip": 0.2, "clip_high": 0.28},
        "critic": {**_CRITIC, "warmup_steps": 5},
    },
    # The weight is clipped, the gradient never (MiniMax-M1, 2025).
    "cispo": {
        **_TOKENS,
        "normalise_advantages": False,
        "minibatches": 2,
        "credit": {"name": "grpo"},
        "objective": {"name": "cispo"},
        "critic": _NO_CRITIC,
    },
    # Candidates sampled from the same state, for every agent and turn (Stronger-MAS: Zhao et al. 2025).
    "at-grpo": {
        **_TOKENS,
        "aggregation": "action-mean",
        "normalise_advantages": False,
        "minibatches": 2,
        "credit": {"name": "tree", "candidates": 4},
        "objective": {"name": "ppo"},
        "critic": _NO_CRITIC,
    },
    # Every agent has a baseline and a scale of its own (Dr. MAS).
    "agent-grpo": {
        **_TOKENS,
        "aggregation": "action-mean",
        "normalise_advantages": False,
        "minibatches": 2,
        "credit": {"name": "agent-group"},
        "objective": {"name": "ppo"},
        "critic": _NO_CRITIC,
    },
    # The joint return of the group, for every agent (Liu et al. 2025).
    "magrpo": {
        **_ACTIONS,
        "normalisation": "none",
        "normalise_advantages": False,
        "credit": {"name": "magrpo"},
        "objective": {"name": "reinforce"},
        "critic": _NO_CRITIC,
    },
    # A running baseline for every role (SPIRAL: Liu et al. 2025).
    "rae": {
        **_ACTIONS,
        "normalisation": "none",
        "normalise_advantages": False,
        "credit": {"name": "rae"},
        "objective": {"name": "reinforce"},
        "critic": _NO_CRITIC,
    },
}
