"""``report.html``: one self-contained page that shows what a run learned."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from marft import atomic
from marft.endpoints.keys import masked_recipe
from marft.evaluation.compare import cells_of, gains_of, measures_of
from marft.evaluation.pages import page, plain_labels
from marft.evaluation.showing import shown
from marft.metrics import Metric, find, named
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder

CURVES = (
    "accuracy", "reward", "validation_accuracy", "validation_reward", "rewards/*", "own_reward", "policy_loss",
    "critic/loss", "kl", "entropy", "action_length", "episodes_per_second",
)  # fmt: skip
COLUMNS = 3
EXAMPLES = 3


def write_report(folder: RunFolder, against: Sequence[RunFolder] = ()) -> None:
    """Write the report of a run, from what its folder holds; other runs are shown beside its own results."""
    recipe, metrics, evaluations = folder.read_recipe(), folder.read_metrics(), folder.read_evaluations()
    rows = gains_of([folder, *against])
    episodes, seconds = (sum(row.get(name) or 0.0 for row in metrics) for name in ("episodes", "seconds"))
    written = page(
        "report.html.jinja",
        name=folder.path.name,
        summary=f"{recipe.algorithm.name} at {recipe.algorithm.level} level · "
        f"{' → '.join(agent.role for agent in recipe.agents)} · "
        f"{len(metrics)} of {recipe.training.steps} steps, {episodes:.0f} episodes in {seconds:.0f} s",
        dropped=int(sum(row.get("episodes_dropped") or 0.0 for row in metrics)),
        damaged=folder.metrics_problems(),
        gains=rows,
        measures=measures_of(rows),
        cells_of=cells_of,
        unknown=any(row.unknown for row in rows),
        several=len({row.run for row in rows}) > 1,
        curves=Markup(_curves(metrics)),  # our own picture
        examples=_evaluated(evaluations) or _recorded(folder),
        recipe=masked_recipe(folder.config.read_text(encoding="utf-8")),
    )
    atomic.write_file(folder.report, written)


@plain_labels()
def _curves(rows: Sequence[Mapping[str, object]]) -> str:
    """Training curves as SVG: one panel a metric, one line an agent where agents have it, else the team's."""
    panels = [(metric, lines) for metric in map(named, CURVES) if (lines := _lines(rows, metric))]
    if not panels:
        return ""
    from matplotlib.figure import Figure

    deep = -(-len(panels) // COLUMNS)
    figure = Figure(figsize=(11, 2.8 * deep), layout="constrained")
    for index, (metric, lines) in enumerate(panels, 1):
        axes = figure.add_subplot(deep, COLUMNS, index)
        for label, points in lines.items():
            alone = "o" if len(points) == 1 else ""
            axes.plot(*zip(*points, strict=True), label=label, linewidth=1.4, marker=alone, markersize=3)
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_title(metric.label, fontsize=10, loc="left")
        axes.set_xlabel("\n".join(textwrap.wrap(f"step ({metric.meaning}{_unit(metric)})", 52)), fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _lines(rows: Sequence[Mapping[str, Any]], metric: Metric) -> dict[str, list[tuple[int, float]]]:
    """The points of a metric's curves, by agent or term; those of agents stand for the team's."""
    found: dict[str, dict[str, list[tuple[int, float]]]] = {"team": {}, "agent": {}}
    for row in rows:
        for name, value in row.items():
            if value is None or name == "step" or find(name) is not metric:
                continue
            scope = "agent" if name.startswith("agents/") else "team"
            found[scope].setdefault(_label(name, metric), []).append((row["step"], value))
    if metric.unless_zero and not any(y for lines in found.values() for points in lines.values() for _, y in points):
        return {}
    return found["agent"] if found["agent"] and metric.name != "rewards/*" else {**found["team"], **found["agent"]}


def _label(name: str, metric: Metric) -> str:
    """Whose line it is: ``actor``, the term ``format``, or ``actor, format``."""
    first, _, rest = name.partition("/")
    role = rest.partition("/")[0] if first == "agents" else ""
    term = name.rpartition("/")[2] if metric.name.endswith("*") else ""
    return ", ".join(part for part in (role, term) if part) or "team"


def _unit(metric: Metric) -> str:
    return f", {metric.unit}" if metric.unit else ""


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, Sequence[Mapping[str, object]]]]:
    """The same held-out tasks before and after."""
    sampled = [e for e in evaluations if e["mode"] == "sampled" and not e["shuffled_messages"] and e["examples"]]
    ordered = sorted(sampled, key=lambda e: (e["checkpoint"] != "base", e["checkpoint"]))
    return [("before" if e["checkpoint"] == "base" else e["checkpoint"], e["examples"]) for e in ordered]


def _recorded(folder: RunFolder) -> list[tuple[str, Sequence[Mapping[str, object]]]]:
    """While nothing is evaluated, the newest training episodes."""
    files = folder.recorded_steps()
    if not files:
        return []
    played = [
        {
            "observation": episode.task.prompt,
            "actions": [shown(action) for action in episode.actions],
            "success": episode.success,
            "reward": episode.total_reward,
        }
        for episode in read_episodes(files[-1])[:EXAMPLES]
    ]
    return [(f"training, {files[-1].stem}", played)]
