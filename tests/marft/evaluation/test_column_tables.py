"""Tables with a column per evaluation: they fit 100 columns, and no cell is broken."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from marft.cli.console import evaluation_table
from marft.evaluation.checkpoint_results import CheckpointResult, MetricResult, _build_table
from marft.evaluation.column_tables import ColumnTable, short_names
from marft.evaluation.metric_tables import build_metric_table

WIDTH = 100


def shown(table: ColumnTable, width: int = WIDTH) -> list[str]:
    console = Console(width=width, file=io.StringIO())
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def evaluations(targets: int, checkpoints: int, *, shuffled: bool = True) -> list[dict[str, Any]]:
    """Evaluations in two modes, of every target and checkpoint, with and without messages of other tasks."""
    measured = {
        "message_tokens": [17.2, 1], "cost_tokens": [12_345, 1], "agents/reasoner/cost_tokens": [12_345, 1],
        "cost_seconds": [0.45, 1], "agents/reasoner/cost_seconds": [0.2, 1], "critical_path_seconds": [0.4, 1],
    }  # fmt: skip
    row = {
        "tasks": 500, "failed": 3, "unknown": 2, "accuracy": 0.478, "interval": (0.43, 0.52), "reward": -0.478,
        "reward_interval": (-0.43, -0.52), "passes": {"pass@4": (0.5, (0.1, 0.9))}, "measured": {"t": measured},
    }  # fmt: skip
    return [
        {**row, "target": f"runs/team-{target}", "checkpoint": f"step_{number:06}", "mode": mode, "shuffled_messages": one}
        for target in range(targets) for mode in ("greedy", "sampled") for number in range(checkpoints)
        for one in ((False, True) if shuffled else (False,))
    ]  # fmt: skip


@pytest.mark.parametrize("width", [WIDTH, 80, 1000])
@pytest.mark.parametrize(("targets", "checkpoints"), [(1, 1), (1, 2), (1, 6), (6, 2)])
def test_evaluations_fit_and_no_cell_is_broken(width: int, targets: int, checkpoints: int) -> None:
    rows = evaluations(targets, checkpoints)
    results, metrics = (
        shown(build(rows, targets=targets > 1), width) for build in (evaluation_table, build_metric_table)
    )
    assert max(map(len, [*results, *metrics])) <= min(width, WIDTH)
    assert [" ".join(results).count(cell) for cell in ("43.0% to 52.0%", "-0.430 to -0.520")] == [len(rows)] * 2
    assert " ".join(metrics).count("12345") == 2 * len(rows)
    labels = {line[:27].strip() for line in metrics if line and not line.startswith("   ")}
    assert labels == {
        "metric", "messages (tokens)", "tokens per episode", "reasoner", "seconds of work", "critical path (seconds)",
    }  # fmt: skip


@pytest.mark.parametrize("runs", range(2, 7))
def test_comparisons_fit_and_runs_of_a_mode_stand_side_by_side(runs: int) -> None:
    measured = MetricResult(0.4, 0.478, (0.43, 0.52), 0.078, (0.02, 0.12), 0.3)
    rows = [
        CheckpointResult(f"chain_of_{number}", "step_000050", mode, 500, 1, measured, measured)
        for number in range(runs) for mode in ("greedy", "sampled")
    ]  # fmt: skip
    lines = shown(_build_table(rows))
    assert max(map(len, lines)) <= WIDTH
    modes = [mode for line in lines for mode in line.split() if mode in ("greedy", "sampled")]
    assert modes == ["greedy"] * runs + ["sampled"] * runs
    assert " ".join(lines).count("+2.0 to +12.0") == 2 * runs


def test_blocks_are_as_few_as_fit_and_about_equally_wide() -> None:
    rows = [(Text("label"), ["x" * 20] * 7)]
    table = ColumnTable("", [["a"]] * 7, rows)
    assert table.split(100) == [range(3), range(3, 7)]
    assert table.split(1000) == [range(7)]
    assert table.split(30) == [range(n, n + 1) for n in range(7)]
    assert table.split(3) == table.split(30)  # a column is not broken into blocks


def test_runs_have_the_shortest_names_that_tell_them_apart() -> None:
    assert short_names(["runs/a", "old/runs/a", "runs/b"]) == ["runs/a", "old/runs/a", "b"]
    assert short_names(["runs/a", "runs/a"]) == ["a", "a"]
    assert short_names(["a", "x/a", "."]) == ["a", "x/a", "."]
