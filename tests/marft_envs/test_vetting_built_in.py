"""Every environment that ships is held to what ``marft check-env`` looks for."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from marft.common.packages import bundled_plugins
from marft.config.bundled import bundled_names
from marft.config.load import load_recipe
from marft_envs.env_check.runner import run_checks
from marft_envs.env_check.target import CheckTarget, Limits, find_target, target_from_recipe
from tests.nights import NIGHT, some

GAMES = {"gymnasium": "tests.gym_games:Walk", "pettingzoo": "tests.gym_games:Nim"}  # somebody else's, worn by ours
ELSEWHERE = {"toolsandbox", "verifiers"}  # play in a process of somebody else's package
FEW = {"train_tasks": 60, "held_out_tasks": 12}
LATER = set() if NIGHT else {"code", "mle"}  # half a minute each
KNOWN = {"textarena": {"splits"}}  # a match of Kuhn poker is one of twelve: held-out ones differ in their seed alone
BY_DAY = Limits(
    tasks=1, held_out_tasks=0, max_median_seconds=0.5, max_call_seconds=5, max_blocking_seconds=0.1, use_processes=False
)
AT_NIGHT = Limits(tasks=2, max_median_seconds=0.5, max_call_seconds=5, max_blocking_seconds=0.1)


def subject(name: str, folder: Path) -> CheckTarget:
    """A built-in environment, small, with the team that is recommended for it."""
    if name == "table":
        with (folder / "towns.csv").open("w") as file:
            csv.writer(file).writerows([("question", "answer"), *((f"{n}?", f"t{n}") for n in range(60))])
        return find_target(name, {"path": str(folder / "towns.csv")})
    if name == "math":
        problems = (json.dumps({"problem": f"{n} + {n}?", "answer": str(2 * n)}) for n in range(60))
        (folder / "problems.jsonl").write_text("\n".join(problems))
        return find_target(name, {"path": str(folder / "problems.jsonl")})
    if name == "reasoning_gym":
        return find_target(name, {"dataset": "chain_sum", **FEW})
    if name in GAMES:
        return find_target(name, {"game": GAMES[name], "reward_scale": 0.01, "max_steps": 12, **FEW})
    changes: dict[str, Any] = {"environment": FEW}
    return target_from_recipe(load_recipe(name, (), changes)) if name in bundled_names() else find_target(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(sorted({*bundled_plugins("environments")} - ELSEWHERE - LATER), of=8))
def test_a_built_in_environment_passes_every_check(name: str, tmp_path: Path) -> None:
    report = run_checks(subject(name, tmp_path), AT_NIGHT if NIGHT else BY_DAY)
    assert set(report.checks_with_grade("failure")) == KNOWN.get(name, set()), [
        (verdict.check, verdict.findings) for verdict in report.results if verdict.findings
    ]
