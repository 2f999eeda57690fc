"""Files of the comparison in the run folder: ``worth.json``, ``worth.md``, ``worth.html`` and plots."""

from __future__ import annotations

import json
import re
from pathlib import Path

from marft.common import atomic
from marft.evaluation.html_pages import render_page
from marft_lab.team_evaluation import plots
from marft_lab.team_evaluation.session import TeamEvaluation
from marft_lab.team_evaluation.tables import build_tables, format_headline, render_markdown
from marft_lab.team_evaluation.timeline import build_timeline

MAX_PLOTTED_EPISODES = 4  # maximum number of episodes with a plot
PLOT_NAME = re.compile(r"(contributions|(cross-play|episode)-\d+)\.svg")


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
    content = (
        {"headline": format_headline(result)}
        | result.as_json()
        | {"shown": [build_timeline(*item) for item in plotted]}
    )
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
