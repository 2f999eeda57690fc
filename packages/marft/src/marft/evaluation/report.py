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
from marft.config.api_keys import mask_recipe
from marft.evaluation.checkpoint_results import (
    compare_runs,
    describe_unevaluated,
    format_cells,
    format_passes,
    list_measures,
)
from marft.evaluation.curves import compare_curves, draw_main_curves, other_curves
from marft.evaluation.episode_graph import draw_episode
from marft.evaluation.guards.monitor import replay_messages
from marft.evaluation.html_pages import render_page, to_svg
from marft.evaluation.serialization import MAX_EXAMPLES, episode_to_dict
from marft.evaluation.trajectories.cohort_metrics import Cohort, compute_cohort_metrics, shared_fields
from marft.evaluation.trajectories.table import build_metric_rows, column_names
from marft.evaluation.transcripts import count_failure_reasons
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder, parse_step
from marft.runs.saved_schemas import read_headline

MAX_COHORTS = 20  # maximum number of cohorts of a field on the page


def write_report(folder: RunFolder, against: Sequence[RunFolder] = ()) -> None:
    """Write a run's report from its folder, with other runs beside its own results."""
    recipe, metrics, evaluations = folder.read_recipe(), folder.read_metrics(), folder.read_evaluations()
    rows = compare_runs([folder, *against])
    recorded = RecordedEpisodes(folder)
    episodes, seconds = (sum(row.get(name) or 0.0 for row in metrics) for name in ("episodes", "seconds"))
    html = render_page(
        "marft.evaluation",
        "report.html.jinja",
        name=folder.path.name,
        summary=f"{recipe.algorithm.name} at {recipe.algorithm.level} level · "
        f"{' → '.join(agent.role for agent in recipe.agents)} · "
        f"{len(metrics)} of {recipe.training.steps} steps, {episodes:.0f} episodes in {seconds:.0f} s",
        dropped=int(sum(row.get("episodes_dropped") or 0.0 for row in metrics)),
        reasons=recorded.failure_reasons(metrics),
        guards=replay_messages(recipe.guards, metrics),
        gains=rows,
        missing=describe_unevaluated(against),
        measures=list_measures(rows),
        cells_of=format_cells,
        unknown=any(row.unknown for row in rows),
        several=len({row.run for row in rows}) > 1,
        worth=read_headline(folder.worth / "worth.json"),
        passes=format_passes(evaluations),
        headings=column_names(evaluations),
        trajectories=build_metric_rows(evaluations),
        cohorts=_cohort_metrics(evaluations),
        most_cohorts=MAX_COHORTS,
        beside=compare_curves(read_metrics_by_run([folder, *against])) if against else [],
        graph=recorded.draw_graph(),
        curves=draw_main_curves(metrics),
        others=other_curves(metrics),
        samples=_evaluation_samples(evaluations) or recorded.samples(),
        # last, because the calls above collect the unreadable files
        damaged=[f"metrics.jsonl: {problem}" for problem in folder.metrics_problems()] + recorded.problems,
        recipe=mask_recipe(folder.config.read_text(encoding="utf-8")),
    )
    atomic.write_file(folder.report, html)


def read_metrics_by_run(folders: Sequence[RunFolder]) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of several metrics logs by run name, or by path for runs with the same name."""
    name_counts = Counter(folder.path.name for folder in folders)
    names = [str(folder.path) if name_counts[folder.path.name] > 1 else folder.path.name for folder in folders]
    return {name: folder.read_metrics() for name, folder in zip(names, folders, strict=True)}


def _cohort_metrics(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, list[Cohort]]:
    """Return metrics by cohort for each field; [] for a field with too many cohorts for a page."""
    by_field = {field: compute_cohort_metrics(evaluations, field) for field in shared_fields(evaluations)}
    return {field: cohorts if len(cohorts) <= MAX_COHORTS else [] for field, cohorts in by_field.items()}


@dataclass(frozen=True, slots=True)
class Sample:
    """Task with the team's attempts."""

    task: str
    attempts: Sequence[tuple[str, Mapping[str, object]]]  # label of the time, and the episode


def _evaluation_samples(evaluations: Sequence[Mapping[str, Any]]) -> list[Sample]:
    """Return held-out tasks before and after training, from sampled evaluations if any exist."""
    evaluations_with_examples = [e for e in evaluations if not e["shuffled_messages"] and e.get("examples")]
    sampled = [e for e in evaluations_with_examples if e["mode"] == "sampled"] or evaluations_with_examples
    ordered = sorted(sampled, key=lambda e: (e["checkpoint"] != "base", e["checkpoint"]))
    tasks: dict[str, list[tuple[str, Mapping[str, object]]]] = {}
    for evaluation in [*ordered[:1], *ordered[1:][-1:]]:
        label = "before" if evaluation["checkpoint"] == "base" else evaluation["checkpoint"]
        for episode in evaluation["examples"]:
            tasks.setdefault(episode["observation"], []).append((label, episode))
    return [Sample(task, attempts) for task, attempts in tasks.items()]


class RecordedEpisodes:
    """Recorded training episodes, with the problems of unreadable files."""

    def __init__(self, folder: RunFolder) -> None:
        self._files = folder.recorded_steps()
        self.problems: list[str] = []
        self._newest = [episode for file in self._files[-1:] for episode in self._read_file(file)]

    def failure_reasons(self, rows: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
        """Return the reasons for unscored episodes, each with its number of episodes."""
        steps = {row["step"] for row in rows if row.get("episodes_dropped")}
        older = [episode for file in self._files[:-1] if parse_step(file) in steps for episode in self._read_file(file)]
        newest = self._newest if self._files and parse_step(self._files[-1]) in steps else []
        return count_failure_reasons([*older, *newest])

    def samples(self) -> list[Sample]:
        """Return an episode for each task in the newest step."""
        tasks = {episode.task.id: episode for episode in self._newest if episode.is_scored}
        return [
            Sample(
                episode.transitions[0].observation.full_text,
                [(f"training, {self._files[-1].stem}", episode_to_dict(episode))],
            )
            for episode in list(tasks.values())[:MAX_EXAMPLES]
        ]

    def draw_graph(self) -> Markup | None:
        """Draw the first episode in the newest step with the largest number of acting agents, or return None."""
        candidates = [candidate for candidate in self._newest if candidate.is_scored and candidate.actions]
        episode = max(
            candidates, key=lambda candidate: len({action.agent for action in candidate.actions}), default=None
        )
        return to_svg(draw_episode(episode)) if episode else None

    def _read_file(self, file: Path) -> list[Episode]:
        try:
            return read_episodes(file)
        except ValueError as error:
            self.problems.append(str(error))
            return []
