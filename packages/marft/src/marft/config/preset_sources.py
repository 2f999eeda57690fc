"""Sources for the presets' values. Values without a source are our own choice."""

from __future__ import annotations

from collections.abc import Mapping

from marft.config.algorithms import PRESETS

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
