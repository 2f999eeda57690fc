"""Self-contained HTML report of a run, ``report.html``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from marft.common import atomic
from marft.common.types import Episode
from marft.config.keys import masked_recipe
from marft.evaluation.compare import cells_of, gains_of, measures_of, not_evaluated, passes_cells
from marft.evaluation.curves import curves_beside, first_curves, other_curves
from marft.evaluation.graph import draw
from marft.evaluation.guards.watch import sentences
from marft.evaluation.pages import page, svg
from marft.evaluation.showing import EXAMPLES, example
from marft.evaluation.trajectories.by_cohort import Cohort, by_cohort, shared_fields
from marft.evaluation.trajectories.table import headings, trajectory_rows
from marft.evaluation.transcripts import dropped
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder, step_of
from marft.runs.written import read_headline

MOST_COHORTS = 20  # maximum number of cohorts of a field on the page


def write_report(folder: RunFolder, against: Sequence[RunFolder] = ()) -> None:
    """Write a run's report from its folder, with other runs beside its own results."""
    recipe, metrics, evaluations = folder.read_recipe(), folder.read_metrics(), folder.read_evaluations()
    rows = gains_of([folder, *against])
    recorded = Recorded(folder)
    episodes, seconds = (sum(row.get(name) or 0.0 for row in metrics) for name in ("episodes", "seconds"))
    written = page(
        "marft.evaluation",
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
        worth=read_headline(folder.worth / "worth.json"),
        passes=passes_cells(evaluations),
        headings=headings(evaluations),
        trajectories=trajectory_rows(evaluations),
        cohorts=_cohorts(evaluations),
        most_cohorts=MOST_COHORTS,
        beside=curves_beside(by_name([folder, *against])) if against else [],
        graph=recorded.graph(),
        curves=first_curves(metrics),
        others=other_curves(metrics),
        samples=_evaluated(evaluations) or recorded.samples(),
        # last, because the calls above collect the unreadable files
        damaged=[f"metrics.jsonl: {problem}" for problem in folder.metrics_problems()] + recorded.problems,
        recipe=masked_recipe(folder.config.read_text(encoding="utf-8")),
    )
    atomic.write_file(folder.report, written)


def by_name(folders: Sequence[RunFolder]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of several metrics logs by run name, or by path for runs with the same name."""
    names = Counter(folder.path.name for folder in folders)
    called = [str(folder.path) if names[folder.path.name] > 1 else folder.path.name for folder in folders]
    return {name: folder.read_metrics() for name, folder in zip(called, folders, strict=True)}


def _cohorts(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, list[Cohort]]:
    """Return metrics by cohort for each field; [] for a field with too many cohorts for a page."""
    by_field = {field: by_cohort(evaluations, field) for field in shared_fields(evaluations)}
    return {field: cohorts if len(cohorts) <= MOST_COHORTS else [] for field, cohorts in by_field.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """Task with the team's attempts."""

    task: str
    attempts: Sequence[tuple[str, Mapping[str, object]]]  # label of the time, and the episode


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """Return held-out tasks before and after training, from sampled evaluations if any exist."""
    own = [e for e in evaluations if not e["shuffled_messages"] and e.get("examples")]
    sampled = [e for e in own if e["mode"] == "sampled"] or own
    ordered = sorted(sampled, key=lambda e: (e["checkpoint"] != "base", e["checkpoint"]))
    tasks: dict[str, list[tuple[str, Mapping[str, object]]]] = {}
    for evaluation in [*ordered[:1], *ordered[1:][-1:]]:
        when = "before" if evaluation["checkpoint"] == "base" else evaluation["checkpoint"]
        for episode in evaluation["examples"]:
            tasks.setdefault(episode["observation"], []).append((when, episode))
    return [Sample(task, attempts) for task, attempts in tasks.items()]


class Recorded:
    """Recorded training episodes, with the problems of unreadable files."""

    def __init__(self, folder: RunFolder) -> None:
        self._files = folder.recorded_steps()
        self.problems: list[str] = []
        self._newest = [episode for file in self._files[-1:] for episode in self._read(file)]

    def reasons(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
        """Return the reasons for unscored episodes, each with its number of episodes."""
        steps = {row["step"] for row in rows if row.get("episodes_dropped")}
        older = [episode for file in self._files[:-1] if step_of(file) in steps for episode in self._read(file)]
        newest = self._newest if self._files and step_of(self._files[-1]) in steps else []
        return dropped([*older, *newest])

    def samples(self) -> list[Sample]:
        """Return an episode for each task in the newest step."""
        tasks = {episode.task.id: episode for episode in self._newest if episode.scored}
        return [
            Sample(episode.transitions[0].observation.whole, [(f"training, {self._files[-1].stem}", example(episode))])
            for episode in list(tasks.values())[:EXAMPLES]
        ]

    def graph(self) -> Markup | None:
        """Draw the first episode in the newest step with the largest number of acting agents, or return None."""
        acted = [episode for episode in self._newest if episode.scored and episode.actions]
        most = max(acted, key=lambda episode: len({action.agent for action in episode.actions}), default=None)
        return svg(draw(most)) if most else None

    def _read(self, file: Path) -> list[Episode]:
        try:
            return read_episodes(file)
        except ValueError as error:
            self.problems.append(str(error))
            return []
