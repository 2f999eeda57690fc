"""Credit audit for a recorded step: comparison groups, zero advantages and gradient shares."""

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
    """Return recorded credit by action id for an episode; empty without a readable record."""
    path = credit_file(run, file)
    if path is None:
        return {}
    try:
        return read_credit(path, stream, task, sample)
    except ValueError:
        return {}


def credit_file(run: Run, file: Indexed) -> Path | None:
    """Return the credit file for a training step; None without one."""
    recorded = run.shelf.credits.get(file.of.name) if isinstance(file.of.step, int) else None
    return recorded.path if recorded else None


def audit(run: Run, file: Indexed) -> dict[str, Any]:
    """Return the credit audit for a training step.

    Raises:
        ValueError: the record cannot be read.
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
    """Return an episode's first comparison group; without a readable record, the attempts at its task."""
    path, recorded = credit_file(run, file), dict[str, list[tuple[str, str, int]]]()
    with suppress(ValueError):
        recorded = read_groups(path) if path else {}
    groups = _groups(file, recorded)
    found = next((group for group in groups if [file.of.step, number] in group["episodes"]), None)
    return {name: found[name] for name in ("key", "episodes", "rewards")} if found else None


def _groups(file: Indexed, recorded: Mapping[str, Sequence[tuple[str, str, int]]]) -> list[dict[str, Any]]:
    """Return the comparison groups by key; without recorded groups, the attempts at each task."""
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
    """Return the fraction of trained decisions with an advantage of exactly 0."""
    every = np.concatenate(list(advantages.values())) if advantages else np.empty(0)
    return float(np.mean(every == 0.0)) if len(every) else None


def _histograms(advantages: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return a histogram of each agent's advantages, with shared bins centered at 0."""
    finite = {role: values[np.isfinite(values)] for role, values in advantages.items()}
    most = max((float(np.abs(values).max()) for values in finite.values() if len(values)), default=0.0) or 1.0
    edges = np.linspace(-most, most, BINS + 1)
    return {
        role: {"edges": edges.tolist(), "counts": np.histogram(values, edges)[0].tolist()}
        for role, values in finite.items()
    }
