"""Files of the comparison in the run folder: ``worth.json``, ``worth.md``, ``worth.html`` and plots."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from marft.common import atomic
from marft.common.texts import replace_surrogates, truncate
from marft.common.types import Episode
from marft.evaluation.html_pages import render_page
from marft_lab.team_evaluation import plots
from marft_lab.team_evaluation.counterfactual import ActionContribution
from marft_lab.team_evaluation.session import TeamEvaluation
from marft_lab.team_evaluation.tables import build_tables, format_headline, render_markdown

MAX_CHARACTERS = 600  # maximum characters of a text
MAX_PLOTTED_EPISODES = 4  # maximum number of episodes with a plot
PLOT_NAME = re.compile(r"(contributions|(cross-play|episode)-\d+)\.svg")


def build_timeline(episode: Episode, contributions: Sequence[ActionContribution]) -> dict[str, object]:
    """Return an episode as JSON data on a time axis; ``contribution`` is None without resamples."""
    by_action = {item.action: item for item in contributions}
    actions = []
    for action in episode.actions:
        item = by_action.get(action.id)
        actions.append(
            {
                "id": action.id,
                "agent": action.agent,
                "step": action.step,
                "index": action.index,
                "started": action.started,
                "ended": action.ended,
                "sees": list(action.sees),
                "tokens": len(action.tokens),
                "text": _shorten(action.message),
                "contribution": item.contribution if item else None,
                "resampled": list(item.resampled) if item else [],
            }
        )
    return {
        "task": replace_surrogates(episode.task.id),
        "prompt": _shorten(episode.task.prompt),
        "reward": episode.total_reward,
        "actions": actions,
    }


def _shorten(text: str) -> str:
    return replace_surrogates(truncate(text, MAX_CHARACTERS))


def write_report(folder: Path, result: TeamEvaluation) -> Path:
    """Write the files and return the path to the page."""
    folder.mkdir(exist_ok=True)
    figures = {"differences": plots.plot_differences(result.rows, result.measure)}
    if result.counterfactual and result.counterfactual.shares:
        figures["contributions"] = plots.plot_variances(result.counterfactual.shares)
    images = {name: plots.render_svg(figure) for name, figure in figures.items()}
    cross_play_plots = [
        ("cross-play", plots.render_svg(plots.plot_cross_play(matrix, result.measure))) for matrix in result.matrices
    ]
    plotted = result.counterfactual.episodes[:MAX_PLOTTED_EPISODES] if result.counterfactual else ()
    table_plots = [[("differences", images["differences"])], *([item] for item in cross_play_plots)]
    table_plots += [[("contributions", images["contributions"])]] if "contributions" in images else []
    episodes = [
        (episode, plots.render_svg(plots.plot_contributions(episode, contributions)))
        for episode, contributions in plotted
    ]
    html = render_page(
        "marft_lab.team_evaluation",
        "worth.html.jinja",
        found=result,
        headline=format_headline(result),
        tables=build_tables(result),
        pictures=table_plots,
        notes=result.notes,
        paraphrases=result.paraphrases,
        episodes=episodes,
    )
    timelines = [build_timeline(*item) for item in plotted]
    content = {"headline": format_headline(result), **result.as_json(), "shown": timelines}
    files = {
        **{f"{name}.svg": str(image) for name, image in images.items()},
        **{f"cross-play-{number}.svg": str(image) for number, (_, image) in enumerate(cross_play_plots)},
        **{f"episode-{number}.svg": str(image) for number, (_, image) in enumerate(episodes)},
        "worth.md": render_markdown(result, [*images]),
        "worth.json": json.dumps(content, indent=2) + "\n",
        "worth.html": html,
    }
    for name, text in files.items():
        atomic.write_file(folder / name, text)
    for path in folder.glob("*.svg"):  # remove plots of earlier comparisons with more parts
        if PLOT_NAME.fullmatch(path.name) and path.name not in files:
            path.unlink()
    return folder / "worth.html"
