"""``report.html``: one self-contained page that shows what a run learned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from marft import atomic
from marft.endpoints.keys import masked_recipe
from marft.evaluation.compare import cells_of, gains_of, measures_of, not_evaluated
from marft.evaluation.curves import first_curves, other_curves
from marft.evaluation.pages import page
from marft.evaluation.showing import EXAMPLES, example
from marft.evaluation.transcripts import dropped
from marft.guards.watch import sentences
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder, step_of
from marft.types import Episode


def write_report(folder: RunFolder, against: Sequence[RunFolder] = ()) -> None:
    """Write the report of a run, from what its folder holds; other runs are shown beside its own results."""
    recipe, metrics, evaluations = folder.read_recipe(), folder.read_metrics(), folder.read_evaluations()
    rows = gains_of([folder, *against])
    recorded = Recorded(folder)
    episodes, seconds = (sum(row.get(name) or 0.0 for row in metrics) for name in ("episodes", "seconds"))
    written = page(
        "report.html.jinja",
        name=folder.path.name,
        summary=f"{recipe.algorithm.name} at {recipe.algorithm.level} level · "
        f"{' → '.join(agent.role for agent in recipe.agents)} · "
        f"{len(metrics)} of {recipe.training.steps} steps, {episodes:.0f} episodes in {seconds:.0f} s",
        dropped=int(sum(row.get("episodes_dropped") or 0.0 for row in metrics)),
        reasons=recorded.reasons(metrics),
        guards=sentences(recipe.guards, metrics),
        gains=rows,
        missing=not_evaluated(against),
        measures=measures_of(rows),
        cells_of=cells_of,
        unknown=any(row.unknown for row in rows),
        several=len({row.run for row in rows}) > 1,
        curves=first_curves(metrics),
        others=other_curves(metrics),
        samples=_evaluated(evaluations) or recorded.samples(),
        # last, for it names what could not be read above
        damaged=[f"metrics.jsonl: {problem}" for problem in folder.metrics_problems()] + recorded.problems,
        recipe=masked_recipe(folder.config.read_text(encoding="utf-8")),
    )
    atomic.write_file(folder.report, written)


@dataclass(frozen=True, slots=True)
class Sample:
    """A task, and what the team made of it at one time or several."""

    task: str
    attempts: Sequence[tuple[str, Mapping[str, object]]]  # when it was, and the episode


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """The same held-out tasks before and after."""
    sampled = [e for e in evaluations if e["mode"] == "sampled" and not e["shuffled_messages"] and e["examples"]]
    ordered = sorted(sampled, key=lambda e: (e["checkpoint"] != "base", e["checkpoint"]))
    tasks: dict[str, list[tuple[str, Mapping[str, object]]]] = {}
    for evaluation in [*ordered[:1], *ordered[1:][-1:]]:
        when = "before" if evaluation["checkpoint"] == "base" else evaluation["checkpoint"]
        for episode in evaluation["examples"]:
            tasks.setdefault(episode["observation"], []).append((when, episode))
    return [Sample(task, attempts) for task, attempts in tasks.items()]


class Recorded:
    """Training episodes as far as they were recorded, and what could not be read."""

    def __init__(self, folder: RunFolder) -> None:
        self._files = folder.recorded_steps()
        self.problems: list[str] = []

    def reasons(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
        """Why episodes could not be scored, and how many it was each time."""
        steps = {row["step"] for row in rows if row.get("episodes_dropped")}
        return dropped([episode for file in self._files if step_of(file) in steps for episode in self._read(file)])

    def samples(self) -> list[Sample]:
        """Episodes of the newest step, each of another task."""
        newest = self._files[-1:]
        tasks = {episode.task.id: episode for file in newest for episode in self._read(file) if episode.scored}
        return [
            Sample(episode.transitions[0].observation.text, [(f"training, {newest[0].stem}", example(episode))])
            for episode in list(tasks.values())[:EXAMPLES]
        ]

    def _read(self, file: Path) -> list[Episode]:
        try:
            return read_episodes(file)
        except ValueError as error:
            self.problems.append(str(error))
            return []
