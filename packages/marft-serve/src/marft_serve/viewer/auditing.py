"""The credit audit of a recorded step: who was compared with whom, what taught nothing, whose gradient it was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from marft.runs.credit import read_advantages, read_credit, read_groups
from marft_serve.viewer.library import Run
from marft_serve.viewer.shelf import Indexed

BINS = 41
EQUAL = 1e-8  # rewards whose range is below this count as equal


def known_of(run: Run, file: Indexed, stream: str, task: str, sample: int) -> dict[str, dict[str, Any]]:
    """What was recorded of an episode's actions after credit, by their ids; nothing where nothing was, or where the
    file cannot be read."""
    path = credit_file(run, file)
    if path is None:
        return {}
    try:
        return read_credit(path, stream, task, sample)
    except ValueError:
        return {}


def credit_file(run: Run, file: Indexed) -> Path | None:
    """What was recorded of a training step after credit."""
    recorded = run.shelf.credits.get(file.of.name) if isinstance(file.of.step, int) else None
    return recorded.path if recorded else None


def audit(run: Run, file: Indexed) -> dict[str, Any]:
    """The credit audit of a training step.

    Raises:
        ValueError: what was recorded cannot be read.
    """
    path = credit_file(run, file)
    groups = _groups(file, read_groups(path) if path else {})
    advantages = read_advantages(path) if path else {}
    row: Mapping[str, Any] = next((r for r in reversed(run.log.rows) if r["step"] == file.of.step), {})
    shares = {agent["role"]: row.get(f"agents/{agent['role']}/gradient_share") for agent in run.agents}
    return {
        "step": file.of.step,
        "recorded": path is not None,
        "bytes": path.stat().st_size if path else 0,
        "groups": groups,
        "zero_advantages": _zeros(advantages) if path else row.get("zero_advantage_fraction"),
        "zero_share": float(np.mean([group["zero"] for group in groups])) if groups else None,
        "gradient_share": {role: share for role, share in shares.items() if share is not None},
        "advantages": _histograms(advantages),
    }


def group_of(run: Run, file: Indexed, number: int) -> Mapping[str, Any] | None:
    """The first group that an episode is in; the attempts at its task where the record cannot be read."""
    path, recorded = credit_file(run, file), dict[str, list[tuple[str, str, int]]]()
    with suppress(ValueError):
        recorded = read_groups(path) if path else {}
    groups = _groups(file, recorded)
    found = next((group for group in groups if [file.of.step, number] in group["episodes"]), None)
    return {name: found[name] for name in ("key", "episodes", "rewards")} if found else None


def _groups(file: Indexed, recorded: Mapping[str, Sequence[tuple[str, str, int]]]) -> list[dict[str, Any]]:
    """Groups by their keys; where credit compared nothing, the attempts at each task."""
    assert file.table is not None
    rows = file.table.select(["stream", "task", "sample", "reward", "status", "origin"]).to_pylist()
    numbers = {(row["stream"], row["task"], row["sample"]): number for number, row in enumerate(rows)}
    keyed: dict[str, list[int]] = {}
    for key, episodes in recorded.items():
        keyed[key] = [numbers[episode] for episode in episodes if episode in numbers]
    if not recorded:
        for number, row in enumerate(rows):
            if row["origin"] is None and row["status"] in ("terminated", "truncated", "paused"):
                keyed.setdefault(row["task"], []).append(number)
    return [_group(key, of, [rows[number]["reward"] for number in of], file.of.step) for key, of in keyed.items() if of]


def _group(key: str, numbers: Sequence[int], rewards: Sequence[float], step: int | str) -> dict[str, Any]:
    earned = np.array(rewards, np.float64)
    return {
        "key": key,
        "episodes": [[step, number] for number in numbers],
        "rewards": list(rewards),
        "mean": float(earned.mean()),
        "std": float(earned.std(ddof=1)) if len(earned) > 1 else 0.0,
        "zero": bool(np.ptp(earned) < EQUAL),
    }


def _zeros(advantages: Mapping[str, np.ndarray]) -> float | None:
    """The share of trained decisions whose advantage is exactly 0."""
    every = np.concatenate(list(advantages.values())) if advantages else np.empty(0)
    return float(np.mean(every == 0.0)) if len(every) else None


def _histograms(advantages: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """How each agent's advantages lie, in the same bins around 0."""
    finite = {role: values[np.isfinite(values)] for role, values in advantages.items()}
    most = max((float(np.abs(values).max()) for values in finite.values() if len(values)), default=0.0) or 1.0
    edges = np.linspace(-most, most, BINS + 1)
    return {
        role: {"edges": edges.tolist(), "counts": np.histogram(values, edges)[0].tolist()}
        for role, values in finite.items()
    }
