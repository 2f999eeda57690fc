"""``report.html``: one self-contained page that shows what a run learned."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from marft.evaluation.compare import Gain, gains
from marft.runs import atomic
from marft.runs.episodes import read_rows
from marft.runs.folder import RunFolder

CURVES = (
    ("accuracy", "accuracy", "accuracy of the sampled episodes"),
    ("reward", "reward", "mean team reward"),
    ("policy_loss", "policy loss", "surrogate, mean over minibatches"),
    ("critic/loss", "value loss", "mean over minibatches"),
    ("kl", "KL", "k3 estimate, old to new policy, nats a token"),
    ("entropy", "entropy", "nats a token"),
)
BY_AGENT = ("kl", "entropy")
EXAMPLES = 3

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
table { border-collapse: collapse; margin: 1rem 0; }
td, th { padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); text-align: left; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
svg { max-width: 100%; height: auto; background: #fff; border-radius: 6px; }
.episode { border: 1px solid var(--line); border-radius: 6px; padding: .2rem 1rem; margin: .8rem 0; }
.said { background: var(--soft); border-radius: 6px; padding: .4rem .8rem; margin: .4rem 0; white-space: pre-wrap; }
.right { color: #18794e; } .wrong { color: #cd2b31; } small { opacity: .7; }
"""


def write_report(folder: RunFolder, against: Sequence[RunFolder] = ()) -> None:
    """Write the report of a run, from what its folder holds; other runs are shown beside its own results."""
    evaluations = folder.read_evaluations()
    parts = [
        f"<h1>{escape(folder.path.name)}</h1>",
        _summary(folder),
        _results([(folder.path.name, evaluations), *((other.path.name, other.read_evaluations()) for other in against)]),
        _curves(folder.read_metrics()),
        _episodes(folder, evaluations),
        f"<h2>Recipe</h2><details><summary>config.toml</summary><pre>{escape(folder.config.read_text())}</pre></details>",
    ]
    title = escape(folder.path.name)
    page = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{STYLE}</style>"
    atomic.write_file(folder.report, page + "\n".join(part for part in parts if part) + "</html>\n")


def _summary(folder: RunFolder) -> str:
    run, rows = folder.settings(), folder.read_metrics()
    team = " → ".join(agent.role for agent in run.agents)
    seconds = sum(row.get("seconds") or 0.0 for row in rows)
    dropped = sum(row.get("episodes_dropped") or 0.0 for row in rows)
    words = [
        f"{escape(run.algorithm.name)} at {run.algorithm.level} level, team {escape(team)}",
        f"{len(rows)} of {run.training.steps} steps, {sum(row.get('episodes') or 0 for row in rows):.0f} episodes "
        f"in {seconds:.0f} s",
    ]
    if dropped:
        words.append(f"<span class='wrong'>{dropped:.0f} episodes could not be scored</span>")
    return f"<p>{' · '.join(words)}</p>"


def _results(runs: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]) -> str:
    rows = [gain for name, evaluations in runs for gain in gains(name, evaluations)]
    if not rows:
        return "<h2>Before and after</h2><p>Not evaluated yet: <code>marft eval</code> this folder.</p>"
    several = len({row.run for row in rows}) > 1
    head = "<tr>" + ("<th>run</th>" if several else "") + (
        "<th>checkpoint</th><th>mode</th><th class='n'>tasks</th><th class='n'>before</th><th class='n'>after</th>"
        "<th class='n'>95 % interval</th><th class='n'>gain (95 % interval)</th><th class='n'>shuffled messages cost</th></tr>"
    )
    body = "".join(_result(row, several) for row in rows)
    note = (
        "<p><small>Held-out tasks, none of them seen in training. Gains are paired by task. "
        "Shuffled messages: every agent sees what was said about another task; "
        "what that costs is what the messages are worth.</small></p>"
    )
    return f"<h2>Before and after</h2><table>{head}{body}</table>{note}"


def _result(row: Gain, several: bool) -> str:
    def points(value: float | None) -> str:
        return "" if value is None else f"{100 * value:+.1f}"

    low, high = row.interval
    gain = points(row.gain)
    if row.gain_interval:
        gain += f" ({points(row.gain_interval[0])} to {points(row.gain_interval[1])})"
    cost = "" if row.shuffle_cost is None else f"{100 * row.shuffle_cost:.1f}"
    cells = [
        *([f"<td>{escape(row.run)}</td>"] if several else []),
        f"<td>{escape(row.checkpoint)}</td><td>{escape(row.mode)}</td>",
        *(
            f"<td class='n'>{text}</td>"
            for text in (
                str(row.tasks), "" if row.base is None else f"{row.base:.1%}", f"<b>{row.accuracy:.1%}</b>",
                f"{low:.1%} to {high:.1%}", gain, cost,
            )
        ),
    ]  # fmt: skip
    return "<tr>" + "".join(cells) + "</tr>"


def _curves(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5.6), layout="constrained")
    roles = sorted({name.split("/")[1] for name in rows[-1] if name.startswith("agents/")})
    for axes, (metric, title, meaning) in zip(figure.subplots(2, 3).flat, CURVES, strict=True):
        names = [(f"agents/{role}/{metric}", role) for role in roles] if metric in BY_AGENT else [(metric, "team")]
        for name, label in names:
            points = [(row["step"], row[name]) for row in rows if row.get(name) is not None]
            if points:
                axes.plot(*zip(*points, strict=True), label=label, linewidth=1.4)
        if metric in BY_AGENT and len(roles) > 1:
            axes.legend(frameon=False, fontsize=8)
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel(f"step  ({meaning})", fontsize=7.5)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    return f"<h2>Training</h2>{buffer.getvalue()[buffer.getvalue().index('<svg') :]}"


def _episodes(folder: RunFolder, evaluations: Sequence[Mapping[str, Any]]) -> str:
    """The same held-out tasks before and after; while nothing is evaluated, the newest recorded training episodes."""
    parts = []
    sampled = [e for e in evaluations if e["mode"] == "sampled" and not e["shuffled_messages"] and e["examples"]]
    for evaluation in sorted(sampled, key=lambda e: (e["checkpoint"] != "base", e["checkpoint"])):
        parts.append(f"<h3>{escape(evaluation['checkpoint'])}</h3>")
        parts += [_episode(example["observation"], example["actions"], example["success"]) for example in evaluation["examples"]]
    if not parts:
        files = sorted(folder.episodes.glob("*.parquet"))
        if not files:
            return ""
        parts.append(f"<h3>{escape(files[-1].stem)}</h3>")
        by_episode: dict[tuple[str, int], list[dict[str, Any]]] = {}
        for row in read_rows(files[-1]):
            by_episode.setdefault((row["task"], row["sample"]), []).append(row)
        for actions in list(by_episode.values())[:EXAMPLES]:
            parts.append(_episode(actions[0]["observation"], actions, actions[0]["success"]))
    return "<h2>Sample episodes</h2>" + "\n".join(parts)


def _episode(observation: str, actions: Sequence[Mapping[str, Any]], success: bool | None) -> str:
    said = "".join(
        f"<small>{escape(str(action['agent']))}</small><div class='said'>{escape(str(action['text']))}</div>"
        for action in actions
    )
    verdict = "" if success is None else "<p class='right'>solved</p>" if success else "<p class='wrong'>not solved</p>"
    return f"<div class='episode'><p>{escape(observation)}</p>{said}{verdict}</div>"
