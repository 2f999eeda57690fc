"""Presets: each algorithm name maps to level, credit, objective, schedule and optimizer, as plain data.

``[algorithm] name = "marft"`` starts from the table below. Every other key of ``[algorithm]`` in a recipe replaces the
preset's value, field by field. A different credit, objective or schedule replaces its whole table.

``SOURCES`` names the publication behind each value. Values without a source are our own choice.
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
    "dppo": {
        **_PPO_TOKENS_NO_CRITIC,
        "credit": {"name": "grpo"},
        "objective": {"name": "dppo"},
    },
    "drpo": {
        **_PPO_TOKENS_NO_CRITIC,
        "credit": {"name": "grpo"},
        "objective": {"name": "drpo"},
    },
    "maxrl": {**_PPO_TOKENS_NO_CRITIC, "credit": {"name": "maxrl"}},
    "gdpo": {**_PPO_TOKENS_NO_CRITIC, "aggregation": "action-mean", "credit": {"name": "gdpo"}},
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
    "marft": "Vetted defaults: no discount inside an environment step, critic targets from full returns, dual clip.",
    "marft-team": "As marft, for teams of any size: a KL budget for the joint policy, and falling learning rates.",
    "marft-paper-table3": "Table 3 of the MARFT paper, entropy 0.1: the paper's single agent collapses after a surge.",
    "marft-paper-table4": "Table 4 of the MARFT paper, entropy 0.",
    "marft-paper-table5": "Table 5 of the MARFT paper, entropy 0.01.",
    "ppo": "PPO over the tokens of the whole team as one sequence, without KL to the base (Schulman et al. 2017).",
    "ippo": "Independent agents, each with its own recursion, value head and view (de Witt et al. 2020).",
    "mappo": "As IPPO, with one centralized critic that learns normalized values (Yu et al. 2022).",
    "happo": "Sequential updates, each weighted with the change of earlier policies (Kuba et al. 2022).",
    "hatrpo": "As HAPPO, with updates limited to a KL trust region.",
    "a2po": "Sequential updates with preceding-agent correction of ratios and advantages (Wang et al. 2023).",
    "coma": "Counterfactual baseline for each action, from replays after the action (after Foerster et al. 2018).",
    "reinforce": "Policy gradient with the plain return (Williams 1992).",
    "reinforce++": "Return minus remaining KL for each token, whitened over the batch (Hu et al. 2025).",
    "rloo": "Baseline from the other attempts of the group (Ahmadian et al. 2024).",
    "grpo": "Group-relative advantages, KL to the base in the loss (Shao et al. 2024).",
    "aipo": "GRPO that also trains on helper replies in the middle of a turn, weighted and clipped (AIPO, 2026).",
    "dr-grpo": "GRPO without the divisions that favor easy tasks and long wrong answers (Liu et al. 2025).",
    "gspo": "One length-normalized ratio per sequence, with a narrow clip (Zheng et al. 2025).",
    "dapo": "Higher upper clip, token mean over the batch, new groups until rewards differ (Yu et al. 2025).",
    "vapo": "DAPO loss with a pre-trained critic, adaptive λ, and likelihood of successful attempts (Yue et al. 2025).",
    "cispo": "Clipped weight, unclipped gradient (MiniMax-M1, 2025).",
    "dppo": "GRPO with a trust region in probability instead of in ratio (Qi et al. 2026).",
    "drpo": "As DPPO, with a smooth penalty instead of dropped gradients (Yao et al. 2026).",
    "maxrl": "Likelihood of success instead of its rate: seldom solved tasks weigh more (Tajwar et al. 2026).",
    "gdpo": "Each reward term normalized in its group before the terms are added (Liu et al. 2026).",
    "at-grpo": "Candidates sampled from the same state for each agent and turn (Stronger-MAS: Zhao et al. 2025).",
    "agent-grpo": "Own baseline and scale for each agent (Dr. MAS).",
    "magrpo": "Joint return from the turn on, relative to the group's, for each agent (Liu et al. 2025).",
    "rae": "Running baseline for each role (SPIRAL: Liu et al. 2025).",
    "comam": "Own rewards plus a share of the team's, by their agreement in ranking a group (after CoMAM, 2026).",
    "dpo": "Pairs of fresh attempts, one loss on the team's joint log-ratio (Rafailov et al. 2023).",
    "rft": "Likelihood of each role's turns in the team's own solved attempts, repeated each step (Yuan et al. 2023).",
}

OWN_CHOICE = "ours"

_PAPER_CODE = "MARFT paper, its public code"
_PPO = {
    "objective.clip": "Schulman et al. 2017, §6.1",
    "credit.lambda_step": "Schulman et al. 2017, Table 3",
    "credit.lambda_agent": "Schulman et al. 2017, Table 3",
}
_MAPPO = dict.fromkeys(
    ("objective.clip", "credit.gamma_step", "credit.lambda_step", "critic.loss"), "Yu et al. 2022, its public code"
)
_HAPPO = {
    "credit.gamma_step": "Kuba et al. 2022, its public code",
    "credit.lambda_step": "Kuba et al. 2022, its public code",
    "credit.value": "Kuba et al. 2022",
}
_GRPO = {"credit.scale_rewards": "Shao et al. 2024, §4.1.2"}


def _marft_paper(table: int) -> dict[str, str]:
    source = f"MARFT paper, Table {table}"
    keys = (
        "optimizer.learning_rate",
        "critic.learning_rate",
        "optimizer.epsilon",
        "critic.epsilon",
        "entropy_coefficient",
        "objective.clip",
        "epochs",
        "minibatches",
        "critic.epochs",
        "critic.minibatches",
        "critic.loss",
        "critic.coefficient",
        "critic.hidden_size",
        "optimizer.max_gradient_norm",
        "critic.max_gradient_norm",
        "credit.gamma_token",
        "credit.gamma_agent",
        "credit.gamma_step",
        "credit.lambda_token",
        "credit.lambda_agent",
        "credit.lambda_step",
        "credit.lambda_critic",
    )
    return {
        **dict.fromkeys(keys, source),
        "credit.successor": "MARFT paper, Algorithm 3",
        "denominator": "MARFT paper, 1/(nT) of its objective",
        "kl_stop": "MARFT paper, its code sample",
        "normalization": f"{_PAPER_CODE}, normalization_mode = sum",
        "critic.value_clip": f"{_PAPER_CODE}, clip_param",
        "objective.dual_clip": "MARFT paper: none",
        "optimizer.warmup_steps": "MARFT paper: none",
        "optimizer.weight_decay": _PAPER_CODE,
        "critic.warmup_steps": _PAPER_CODE,
    }


SOURCES: Mapping[str, Mapping[str, str]] = {
    "marft": {"objective.clip": "MARFT paper, Tables 3–5", "objective.dual_clip": "Ye et al. 2020"},
    "marft-team": {"objective.clip": "MARFT paper, Tables 3–5", "objective.dual_clip": "Ye et al. 2020"},
    "marft-paper-table3": _marft_paper(3),
    "marft-paper-table4": _marft_paper(4),
    "marft-paper-table5": _marft_paper(5),
    "ppo": {**_PPO, "credit.gamma_step": "RLHF: no discount"},
    "ippo": {**_MAPPO, "critic.heads": "de Witt et al. 2020", "critic.kind": "de Witt et al. 2020"},
    "mappo": {
        **_MAPPO,
        "critic.kind": "Yu et al. 2022",
        "critic.normalize_values": "Yu et al. 2022, §5.1",
        "critic.value_decay": "Yu et al. 2022, its public code",
    },
    "happo": {**_HAPPO, "objective.clip": "Kuba et al. 2022, its public code"},
    "hatrpo": _HAPPO,
    "a2po": {"credit.value": "Wang et al. 2023", "schedule.first_clip": "Wang et al. 2023, its public code"},
    "coma": {},
    "reinforce": {"normalization": "Williams 1992", "objective.name": "Williams 1992"},
    "reinforce++": dict.fromkeys(("credit.whiten", "kl.estimator", "kl.apply_to", "objective.clip"), "Hu et al. 2025"),
    "rloo": {"normalization": "Ahmadian et al. 2024", "objective.name": "Ahmadian et al. 2024"},
    "grpo": {
        **_GRPO,
        "aggregation": "Shao et al. 2024, eq. 3",
        "kl.coefficient": "Shao et al. 2024, §4.2",
        "kl.estimator": "Shao et al. 2024, eq. 4",
        "kl.apply_to": "Shao et al. 2024, eq. 3",
        "epochs": "Shao et al. 2024, §4.2",
    },
    "aipo": _GRPO,
    "dr-grpo": {
        "aggregation": "Liu et al. 2025 (Dr. GRPO)",
        "credit.scale_rewards": "Liu et al. 2025 (Dr. GRPO)",
        "kl.coefficient": "Liu et al. 2025 (Dr. GRPO): none",
    },
    "gspo": {
        **_GRPO,
        "normalization": "Zheng et al. 2025",
        "objective.clip": "Zheng et al. 2025, §5.1",
        "objective.clip_high": "Zheng et al. 2025, §5.1",
    },
    "dapo": {
        **_GRPO,
        "aggregation": "Yu et al. 2025, §3.3",
        "objective.clip": "Yu et al. 2025, §4.1",
        "objective.clip_high": "Yu et al. 2025, §4.1",
        "kl.coefficient": "Yu et al. 2025, §2.3: none",
    },
    "vapo": {
        "aggregation": "Yue et al. 2025",
        "credit.adaptive_lambda": "Yue et al. 2025: α",
        "credit.lambda_critic": "Yue et al. 2025",
        "credit.gamma_step": "Yue et al. 2025",
        "nll_coefficient": "Yue et al. 2025: μ",
        "objective.clip": "Yue et al. 2025",
        "objective.clip_high": "Yue et al. 2025",
    },
    "cispo": {**_GRPO, "aggregation": "MiniMax-M1 2025"},
    "dppo": {**_GRPO, "objective.divergence": "Qi et al. 2026, its public code"},
    "drpo": {**_GRPO, "objective.delta": "Yao et al. 2026, §4"},
    "maxrl": {"credit.name": "Tajwar et al. 2026"},
    "gdpo": {"credit.name": "Liu et al. 2026 (GDPO)"},
    "at-grpo": {"credit.scale_rewards": "Zhao et al. 2025"},
    "agent-grpo": {"credit.scale_rewards": "Dr. MAS"},
    "magrpo": {"credit.scale_rewards": "Liu et al. 2025 (MAGRPO)", "credit.joint_mode": "Liu et al. 2025 (MAGRPO)"},
    "rae": {"credit.decay": "Liu et al. 2025 (SPIRAL): α"},
    "comam": {},
    "dpo": {
        "normalization": "Rafailov et al. 2023",
        "objective.loss": "Rafailov et al. 2023, eq. 7",
        "objective.beta": "Rafailov et al. 2023, App. B",
    },
    "rft": dict.fromkeys(("aggregation", "credit.distinct", "credit.select"), "Yuan et al. 2023"),
}


def find_source(preset: str, key: str) -> str:
    """Return the source for a preset's value, such as ``objective.clip``; ``"ours"`` by default.

    >>> find_source("gspo", "objective.clip"), find_source("gspo", "minibatches")
    ('Zheng et al. 2025, §5.1', 'ours')
    """
    assert preset in PRESETS
    return SOURCES[preset].get(key, OWN_CHOICE)
