"""The run directory: where everything of a run lies (docs: architecture, run directory)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft.config.load import load_recipe, to_toml
from marft.config.run import RunSettings
from marft.runs import atomic


@dataclass(frozen=True, slots=True)
class RunFolder:
    path: Path

    @staticmethod
    def create(run: RunSettings) -> RunFolder:
        """Make ``<output>/<name>`` with the resolved recipe in it.

        Raises:
            ValueError: a run of that name is there already.
        """
        folder = RunFolder(Path(run.output) / run.name)
        if folder.config.exists():
            raise ValueError(
                f"{folder.path} holds a run already; go on with it (--resume), give this one another name (--name …), "
                "or delete it"
            )
        folder.write_config(run)
        return folder

    @staticmethod
    def open(path: str | Path) -> RunFolder:
        """Open an existing run.

        Raises:
            ValueError: there is none.
        """
        folder = RunFolder(Path(path))
        if not folder.config.is_file():
            raise ValueError(f"no run at {path}: it has no config.toml")
        return folder

    def write_config(self, run: RunSettings) -> None:
        """Save the resolved recipe."""
        atomic.write_file(self.config, to_toml(run))

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def episodes(self) -> Path:
        return self.path / "episodes"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def evaluations(self) -> Path:
        return self.path / "evaluations"

    @property
    def replays(self) -> Path:
        return self.path / "replays"

    @property
    def graphs(self) -> Path:
        return self.path / "graphs"

    def recorded_steps(self) -> list[Path]:
        """Files of recorded episodes, oldest first."""
        return sorted(path for path in self.episodes.glob("step_*.parquet") if path.stem[5:].isdigit())

    def recorded(self, step: int) -> Path:
        """The recorded episodes of a training step, counted from 1; 0 is the last one.

        Raises:
            ValueError: nothing was recorded, or not at that step.
        """
        files = self.recorded_steps()
        if not files:
            raise ValueError(f"{self.path} has no recorded episodes; train with training.record_episodes_every = 1")
        chosen = next((path for path in files if not step or step_of(path) == step), None)
        if chosen is None:
            known = ", ".join(str(step_of(path)) for path in files)
            raise ValueError(f"{self.path} recorded no episodes of step {step}; there are: {known}")
        return chosen if step else files[-1]

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    def settings(self) -> RunSettings:
        return load_recipe(self.config)

    def read_metrics(self) -> list[dict[str, Any]]:
        """One object a step; a last line that a crash cut short is left out."""
        if not self.metrics.is_file():
            return []
        rows = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError:
                break
        return rows

    def write_evaluation(self, evaluation: Mapping[str, Any], name: str) -> Path:
        path = self.evaluations / f"{name}.json"
        atomic.write_file(path, json.dumps(evaluation, indent=2) + "\n")
        return path

    def read_evaluations(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.evaluations.glob("*.json"))]


def step_of(path: Path) -> int:
    """The training step in a name such as ``step_000010.parquet``."""
    return int(path.stem.removeprefix("step_"))
