"""Credit audit for a recorded step: comparison groups, zero advantages and gradient shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypedDict

import numpy as np

from marft.common.types import Episode
from marft.runs.credit_files import read_advantages, read_credit, read_groups
from marft_serve.viewer.episode_index import FileIndex
from marft_serve.viewer.library import Run

NUM_BINS = 41
EQUAL_TOLERANCE = 1e-8  # rewards whose range is below this count as equal


class Group(TypedDict):
    """Comparison group: its episodes by step and number, and their rewards."""

    key: str
    episodes: list[list[int | str]]
    rewards: list[float]
    mean: float
    std: float
    zero: bool


def load_credit(run: Run, file: FileIndex, episode: Episode) -> dict[str, dict[str, object]]:
    """Return recorded credit by action id for an episode; empty without a readable record."""
    path = find_credit_file(run, file)
    if path is None:
        return {}
    try:
        return read_credit(path, episode.stream, episode.task.id, episode.sample)
    except ValueError:
        return {}


def find_credit_file(run: Run, file: FileIndex) -> Path | None:
    """Return the credit file for a training step; None without one."""
    recorded = run.index.credit_files.get(file.file.name) if isinstance(file.file.step, int) else None
    return recorded.path if recorded else None


def build_audit(run: Run, file: FileIndex) -> dict[str, object]:
    """Return the credit audit for a training step.

    Raises:
        ValueError: the record cannot be read.
    """
    path = find_credit_file(run, file)
    groups = _build_groups(file, read_groups(path) if path else {})
    advantages = read_advantages(path) if path else {}
    row: Mapping[str, object] = next((r for r in reversed(run.log.rows) if r["step"] == file.file.step), {})
    shares = {agent["role"]: row.get(f"agents/{agent['role']}/gradient_share") for agent in run.agents}
    return {
        "step": file.file.step,
        "recorded": path is not None,
        "bytes": path.stat().st_size if path else 0,
        "groups": groups,
        "zero_advantages": _zero_fraction(advantages) if path else row.get("zero_advantage_fraction"),
        "zero_share": float(np.mean([group["zero"] for group in groups])) if groups else None,
        "gradient_share": {role: share for role, share in shares.items() if share is not None},
        "advantages": _build_histograms(advantages),
    }


def find_group(run: Run, file: FileIndex, number: int) -> Mapping[str, object] | None:
    """Return an episode's first comparison group; without a readable record, the attempts at its task."""
    path, recorded = find_credit_file(run, file), dict[str, list[tuple[str, str, int]]]()
    with suppress(ValueError):
        recorded = read_groups(path) if path else {}
    groups = _build_groups(file, recorded)
    match = next((group for group in groups if [file.file.step, number] in group["episodes"]), None)
    return {"key": match["key"], "episodes": match["episodes"], "rewards": match["rewards"]} if match else None


def _build_groups(file: FileIndex, recorded: Mapping[str, Sequence[tuple[str, str, int]]]) -> list[Group]:
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
    return [
        _build_group(key, members, [rows[number]["reward"] for number in members], file.file.step)
        for key, members in keyed.items()
        if members
    ]


def _build_group(key: str, numbers: Sequence[int], rewards: Sequence[float], step: int | str) -> Group:
    values = np.array(rewards, np.float64)
    return {
        "key": key,
        "episodes": [[step, number] for number in numbers],
        "rewards": list(rewards),
        "mean": float(values.mean()),
        "std": float(values.std(ddof=1)) if len(values) > 1 else 0.0,
        "zero": bool(np.ptp(values) < EQUAL_TOLERANCE),
    }


def _zero_fraction(advantages: Mapping[str, np.ndarray]) -> float | None:
    """Return the fraction of trained decisions with an advantage of exactly 0."""
    values = np.concatenate(list(advantages.values())) if advantages else np.empty(0)
    return float(np.mean(values == 0.0)) if len(values) else None


def _build_histograms(advantages: Mapping[str, np.ndarray]) -> dict[str, object]:
    """Return a histogram of each agent's advantages, with shared bins centered at 0."""
    finite = {role: values[np.isfinite(values)] for role, values in advantages.items()}
    max_advantage = max((float(np.abs(values).max()) for values in finite.values() if len(values)), default=0.0) or 1.0
    edges = np.linspace(-max_advantage, max_advantage, NUM_BINS + 1)
    return {
        role: {"edges": edges.tolist(), "counts": np.histogram(values, edges)[0].tolist()}
        for role, values in finite.items()
    }
