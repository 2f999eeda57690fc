"""Presets: each algorithm name maps to level, credit, objective, schedule and optimizer, as plain data.

``[algorithm] name = "marft"`` starts from the table below. Every other key of ``[algorithm]`` in a recipe replaces the
preset's value, field by field. A different credit, objective or schedule replaces its whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_COMMON: Mapping[str, object] = {
    "epochs": 1,
    "minibatches": 1,
    "schedule": {"name": "simultaneous"},
    "optimizer": {"learning_rate": 3e-5, "warmup_steps": 3},
}
_ACTIONS: Mapping[str, object] = {**_COMMON, "level": "action", "normalization": "tokens"}
_TOKENS: Mapping[str, object] = {**_COMMON, "level": "token"}
_CRITIC: Mapping[str, object] = {
    "learning_rate": 1e-3,
    "hidden_size": 64,
    "loss": "huber",
    "epochs": 4,
    "warmup_steps": 1,
}
_NO_CRITIC: Mapping[str, object] = {"kind": "none"}
_PPO_ACTIONS: Mapping[str, object] = {
    **_ACTIONS,
    "epochs": 2,
    "minibatches": 2,
    "kl_stop": 0.05,
    "objective": {"name": "ppo"},
    "critic": _CRITIC,
}
_REINFORCE_ACTIONS: Mapping[str, object] = {
    **_ACTIONS,
    "normalization": "none",
    "normalize_advantages": False,
    "objective": {"name": "reinforce"},
    "critic": _NO_CRITIC,
}
_PPO_TOKENS_NO_CRITIC: Mapping[str, object] = {
    **_TOKENS,
    "normalize_advantages": False,
    "minibatches": 2,
    "objective": {"name": "ppo"},
    "critic": _NO_CRITIC,
}
_PAPER: Mapping[str, object] = {
    "level": "action",
    "normalization": "none",
    "epochs": 1,
    "minibatches": 1,
    "kl_stop": 0.02,
    "denominator": "pooled",
    "credit": {
        "name": "gae",
        "successor": "joint",
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
        "hidden_size": 64,
        "loss": "huber",
        "coefficient": 1.0,
        "max_gradient_norm": 0.5,
        "epochs": 1,
        "warmup_steps": 0,
    },
}

_MARFT: Mapping[str, Any] = {
    "level": "action",
    "normalization": "tokens",
    "epochs": 2,
    "minibatches": 2,
    "kl_stop": 0.05,
    "equal_rewards": "zero",
    "entropy_coefficient": 0.0,
    "denominator": "policy",
    "credit": {
        "name": "gae",
        "successor": "joint",
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
    "critic": {"learning_rate": 1e-3, "hidden_size": 64, "loss": "huber", "epochs": 4, "warmup_steps": 1},
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "marft": _MARFT,
    "marft-team": {**_MARFT, "team_kl": 0.01, "optimizer": {**_MARFT["optimizer"], "schedule": "linear"}},
    "marft-paper-table3": {**_PAPER, "entropy_coefficient": 0.1},
    "marft-paper-table4": {**_PAPER, "entropy_coefficient": 0.0},
    "marft-paper-table5": {**_PAPER, "entropy_coefficient": 0.01},
    "ppo": {
        **_TOKENS,
        "epochs": 2,
        "minibatches": 2,
        "kl_stop": 0.05,
        "credit": {"name": "gae", "successor": "joint", "gamma_step": 1.0},
        "objective": {"name": "ppo"},
        "critic": _CRITIC,
    },
    "ippo": {
        **_PPO_ACTIONS,
        "credit": {"name": "gae", "successor": "agent"},
        "critic": {**_CRITIC, "kind": "independent", "heads": "agent"},
    },
    "mappo": {
        **_PPO_ACTIONS,
        "credit": {"name": "gae", "successor": "agent"},
        "critic": {**_CRITIC, "normalize_values": True},
    },
    "happo": {**_PPO_ACTIONS, "credit": {"name": "step-gae"}, "schedule": {"name": "sequential"}},
    "hatrpo": {
        **_ACTIONS,
        "epochs": 2,
        "minibatches": 2,
        "credit": {"name": "step-gae"},
        "objective": {"name": "ppo", "clip": 0.5},
        "schedule": {"name": "sequential", "kl_limit": 0.01},
        "critic": _CRITIC,
    },
    "a2po": {**_PPO_ACTIONS, "credit": {"name": "step-gae"}, "schedule": {"name": "a2po"}},
    "coma": {
        **_ACTIONS,
        "normalize_advantages": False,
        "credit": {"name": "counterfactual", "resamples": 2},
        "objective": {"name": "ppo"},
        "critic": _NO_CRITIC,
    },
    "reinforce": {**_REINFORCE_ACTIONS, "credit": {"name": "batch", "whiten": False}},
    "reinforce++": {
        **_PPO_TOKENS_NO_CRITIC,
        "kl": {"coefficient": 0.001, "apply_to": "reward", "estimator": "k1"},
        "credit": {"name": "batch"},
    },
    "rloo": {**_REINFORCE_ACTIONS, "credit": {"name": "rloo"}},
    "grpo": {
        **_PPO_TOKENS_NO_CRITIC,
        "aggregation": "action-mean",
        "kl": {"coefficient": 0.04, "estimator": "k3"},
        "credit": {"name": "grpo"},
    },
    "aipo": {
        **_PPO_TOKENS_NO_CRITIC,
        "credit": {"name": "grpo"},
        "teammate_text": {"coefficient": 1.0, "weight": {"name": "bounded"}},
    },
    "dr-grpo": {
        **_PPO_TOKENS_NO_CRITIC,
        "aggregation": "constant-length",
        "credit": {"name": "grpo", "scale_rewards": False},
    },
    "gspo": {
        **_ACTIONS,
        "normalize_advantages": False,
        "minibatches": 2,
        "credit": {"name": "grpo"},
        "objective": {"name": "ppo", "clip": 3e-4, "clip_high": 4e-4},
        "critic": _NO_CRITIC,
    },
    "dapo": {
        **_PPO_TOKENS_NO_CRITIC,
        "dynamic_sampling": 2,
        "credit": {"name": "grpo"},
        "objective": {"name": "ppo", "clip": 0.2, "clip_high": 0.28},
    },
    "vapo": {
        **_TOKENS,
        "minibatches": 2,
        "nll_coefficient": 0.1,
        "credit": {
            "name": "gae",
            "successor": "joint",
            "gamma_step": 1.0,
            "lambda_agent": 1.0,
            "adaptive_lambda": 0.05,
        },
        "objective": {"name": "ppo", "clip": 0.2, "clip_high": 0.28},
        "critic": {**_CRITIC, "warmup_steps": 5},
    },
    "cispo": {
        **_PPO_TOKENS_NO_CRITIC,
        "credit": {"name": "grpo"},
        "objective": {"name": "cispo"},
    },
    "at-grpo": {
        **_PPO_TOKENS_NO_CRITIC,
        "aggregation": "action-mean",
        "credit": {"name": "tree", "candidates": 4},
    },
    "agent-grpo": {
        **_PPO_TOKENS_NO_CRITIC,
        "aggregation": "action-mean",
        "credit": {"name": "agent-group"},
    },
    "magrpo": {**_REINFORCE_ACTIONS, "credit": {"name": "magrpo"}},
    "rae": {**_REINFORCE_ACTIONS, "credit": {"name": "rae"}},
    "comam": {
        **_PPO_TOKENS_NO_CRITIC,
        "aggregation": "action-mean",
        "credit": {"name": "comam"},
    },
    "dpo": {
        **_REINFORCE_ACTIONS,
        "minibatches": 2,
        "credit": {"name": "preference"},
        "objective": {"name": "dpo"},
    },
    "rft": {
        **_PPO_TOKENS_NO_CRITIC,
        "credit": {"name": "best"},
        "objective": {"name": "reinforce"},
    },
}

DESCRIPTIONS: Mapping[str, str] = {
    "marft": "Our vetted defaults: no discount inside an episode step, critic targets from whole returns, dual clip.",
    "marft-team": "As marft, for teams of any size: a budget for how far all policies move together, rates that fall.",
    "marft-paper-table3": "The MARFT paper's Table 3, entropy 0.1: where its single agent collapses after a surge.",
    "marft-paper-table4": "The MARFT paper's Table 4, entropy 0.",
    "marft-paper-table5": "The MARFT paper's Table 5, entropy 0.01.",
    "ppo": "PPO over the tokens of all agents as one sequence, without KL to the base (Schulman et al. 2017).",
    "ippo": "Every agent for itself: its own recursion and value head, only what it sees (de Witt et al. 2020).",
    "mappo": "As IPPO with one centralized critic, which learns normalized values (Yu et al. 2022).",
    "happo": "One policy after another, weighed with how far those before have moved (Kuba et al. 2022).",
    "hatrpo": "As HAPPO, but an update is accepted only as far as its KL is within a trust region.",
    "a2po": "Sequential with preceding-agent correction of ratios and advantages (Wang et al. 2023).",
    "coma": "A counterfactual baseline for every action, by playing on from it anew (after Foerster et al. 2018).",
    "reinforce": "The policy gradient with the plain return (Williams 1992).",
    "reinforce++": "Return minus the KL still to come, token by token, whitened over the batch (Hu et al. 2025).",
    "rloo": "The others of the group are the baseline (Ahmadian et al. 2024).",
    "grpo": "Group-relative advantages, KL to the base in the loss (Shao et al. 2024).",
    "aipo": "GRPO that also learns what helpers replied in the middle of a turn, weighed and clipped (AIPO, 2026).",
    "dr-grpo": "GRPO without the divisions that favour easy tasks and long wrong answers (Liu et al. 2025).",
    "gspo": "One ratio for a whole sequence, length-normalised, with a narrow clip of its own (Zheng et al. 2025).",
    "dapo": "Clip higher, token mean over the batch, groups drawn until they tell attempts apart (Yu et al. 2025).",
    "vapo": "DAPO's loss with a pre-trained critic, adaptive λ, and likelihood of what succeeded (Yue et al. 2025).",
    "cispo": "The weight is clipped, the gradient never (MiniMax-M1, 2025).",
    "at-grpo": "Candidates sampled from the same state, for every agent and turn (Stronger-MAS: Zhao et al. 2025).",
    "agent-grpo": "Every agent has a baseline and a scale of its own (Dr. MAS).",
    "magrpo": "The joint return from the turn on, relative to the group's, for every agent (Liu et al. 2025).",
    "rae": "A running baseline for every role (SPIRAL: Liu et al. 2025).",
    "comam": "Own rewards, and a share of the team's by how alike the two rank a group (after CoMAM, 2026).",
    "dpo": "Pairs of fresh attempts, the joint log-ratio of all agents' actions in one loss (Rafailov et al. 2023).",
    "rft": "Each role's likelihood of its turns in the team's own solved attempts, step after step (Yuan et al. 2023).",
}
