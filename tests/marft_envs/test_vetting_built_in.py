"""Every environment that ships is held to what ``marft check-env`` looks for."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from marft.common.registry import bundled_parts
from marft.config.bundled import bundled_names
from marft.config.load import load_recipe
from marft_envs.vetting.check import check
from marft_envs.vetting.limits import Limits
from marft_envs.vetting.subject import Subject, of_recipe, subject_of
from tests.nights import NIGHT, some

GAMES = {"gymnasium": "tests.gym_games:Walk", "pettingzoo": "tests.gym_games:Nim"}  # somebody else's, worn by ours
ELSEWHERE = {"toolsandbox", "verifiers"}  # play in a process of somebody else's package
FEW = {"train_tasks": 60, "held_out_tasks": 12}
LATER = set() if NIGHT else {"code", "mle"}  # half a minute each
KNOWN = {"textarena": {"splits"}}  # a match of Kuhn poker is one of twelve: held-out ones differ in their seed alone
BY_DAY = Limits(tasks=1, held_out_tasks=0, middle_seconds=0.5, longest_seconds=5, hold_seconds=0.1, processes=False)
AT_NIGHT = Limits(tasks=2, middle_seconds=0.5, longest_seconds=5, hold_seconds=0.1)


def subject(name: str, folder: Path) -> Subject:
    """A built-in environment, small, with the team that is recommended for it."""
    if name == "table":
        with (folder / "towns.csv").open("w") as file:
            csv.writer(file).writerows([("question", "answer"), *((f"{n}?", f"t{n}") for n in range(60))])
        return subject_of(name, {"path": str(folder / "towns.csv")})
    if name == "math":
        problems = (json.dumps({"problem": f"{n} + {n}?", "answer": str(2 * n)}) for n in range(60))
        (folder / "problems.jsonl").write_text("\n".join(problems))
        return subject_of(name, {"path": str(folder / "problems.jsonl")})
    if name == "reasoning_gym":
        return subject_of(name, {"dataset": "chain_sum", **FEW})
    if name in GAMES:
        return subject_of(name, {"game": GAMES[name], "scale": 0.01, "max_steps": 12, **FEW})
    changes: dict[str, Any] = {"environment": FEW}
    return of_recipe(load_recipe(name, (), changes)) if name in bundled_names() else subject_of(name, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("name", some(sorted({*bundled_parts("environments")} - ELSEWHERE - LATER), of=8))
def test_a_built_in_environment_passes_every_check(name: str, tmp_path: Path) -> None:
    report = check(subject(name, tmp_path), AT_NIGHT if NIGHT else BY_DAY)
    assert set(report.of("failure")) == KNOWN.get(name, set()), [
        (verdict.check, verdict.findings) for verdict in report.verdicts if verdict.findings
    ]
