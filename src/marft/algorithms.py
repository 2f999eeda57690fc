"""Presets: an algorithm by name is a level, a credit, an objective, a schedule and an optimizer, as plain data.

``[algorithm] name = "marft"`` starts from the table below; every other key of ``[algorithm]`` in a recipe replaces
the preset's value, field by field. Naming another credit, objective or schedule replaces that whole table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
}
