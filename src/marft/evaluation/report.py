"""``report.html``: one self-contained page that shows what a run learned."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from marft import atomic
from marft.endpoints.keys import masked_recipe
from marft.evaluation.compare import cells_of, gains_of, measures_of
from marft.evaluation.pages import page, plain_labels
from marft.evaluation.showing import shown
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder

CURVES = (
    ("accuracy", "accuracy", "of the sampled episodes"),
    ("reward", "reward", "mean team reward"),
    ("policy_loss", "policy loss", "surrogate, mean over minibatches"),
    ("critic/loss", "value loss", "mean over minibatches"),
    ("kl", "KL", "old to new policy, nats a token"),
    ("entropy", "entropy", "nats a token"),
)
BY_AGENT = ("kl", "entropy")
EXAMPLES = 3


def write_report(folder: RunFolder, against: Sequence[RunFolder] = ()) -> None:
    """Write the report of a run, from what its folder holds; other runs are shown beside its own results."""
    run, metrics, evaluations = folder.settings(), folder.read_metrics(), folder.read_evaluations()
    rows = gains_of([folder, *against])
    episodes, seconds = (sum(row.get(name) or 0.0 for row in metrics) for name in ("episodes", "seconds"))
    written = page(
        "report.html.jinja",
        name=folder.path.name,
        summary=f"{run.algorithm.name} at {run.algorithm.level} level · {' → '.join(a.role for a in run.agents)} · "
        f"{len(metrics)} of {run.training.steps} steps, {episodes:.0f} episodes in {seconds:.0f} s",
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
def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
    """The six training curves as SVG."""
    if not rows:
        return ""
    from matplotlib.figure import Figure

    shown = [
        curve for curve in CURVES if curve[0] != "accuracy" or any(row.get("accuracy") is not None for row in rows)
    ]
    figure = Figure(figsize=(11, 5.6), layout="constrained")
    roles = sorted({name.split("/")[1] for row in rows for name in row if name.startswith("agents/")})
    panels = list(figure.subplots(2, 3).flat)
    for spare in panels[len(shown) :]:
        spare.remove()
    for axes, (metric, title, meaning) in zip(panels, shown, strict=False):
        names = [(f"agents/{role}/{metric}", role) for role in roles] if metric in BY_AGENT else [(metric, "team")]
        for name, label in names:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
        if len(axes.lines) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(f"step ({meaning})", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()[buffer.getvalue().index("<svg") :]


def _evaluated(evaluations: Sequence[Mapping[str, Any]]) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    """The same held-out tasks before and after."""
    sampled = [e for e in evaluations if e["mode"] == "sampled" and not e["shuffled_messages"] and e["examples"]]
    ordered = sorted(sampled, key=lambda e: (e["checkpoint"] != "base", e["checkpoint"]))
    return [("before" if e["checkpoint"] == "base" else e["checkpoint"], e["examples"]) for e in ordered]


def _recorded(folder: RunFolder) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
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
