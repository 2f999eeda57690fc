"""Report of a league: tables and plots, written to ``league.json``, ``league.html`` and ``league.svg``."""

from __future__ import annotations

import json
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from marft.common import atomic
from marft.common.texts import single_line
from marft.evaluation.html_pages import disable_math_text, render_page
from marft_lab.league.evaluation.matches import LeagueResult
from marft_lab.team_evaluation.plots import render_svg
from marft_lab.team_evaluation.tables import TextTable


def build_tables(result: LeagueResult) -> list[TextTable]:
    """Return the tables with ratings and with scores between versions."""
    match_counts = [
        sum(p.tally.matches for p in result.pairings if n in (p.tally.first, p.tally.second))
        for n in _version_indices(result)
    ]
    rating_rows = [
        [name, f"{rating.elo:+.0f}", f"{rating.interval[0]:+.0f} to {rating.interval[1]:+.0f}", str(count)]
        for name, rating, count in zip(result.versions, result.ratings, match_counts, strict=True)
    ]
    score_rows = [
        [name, *(_format_percent(result.score(version, opponent)) for opponent in _version_indices(result))]
        for version, name in enumerate(result.versions)
    ]
    headings = ["version", "Elo", "95 %", "matches"]
    if result.exploitability:
        headings.append("exploitability")
        rating_rows = [
            [*row, "" if value is None else f"{value:.3f}"]
            for row, value in zip(rating_rows, result.exploitability, strict=True)
        ]
    return [
        TextTable("Ratings", headings, rating_rows),
        TextTable("Score of the row against the column", ["", *result.versions], score_rows),
    ]


def format_headline(result: LeagueResult) -> str:
    """Return a sentence that compares the newest version with the first."""
    first, newest = result.ratings[0].elo, result.ratings[-1].elo
    best = max(_version_indices(result), key=lambda n: result.ratings[n].elo)
    score = _format_percent(result.score(len(result.versions) - 1, 0))
    return (
        f"{result.versions[-1]} is {newest - first:+.0f} Elo beside {result.versions[0]}, and scores {score} against "
        f"it; the highest rating is that of {result.versions[best]}"
    )


@disable_math_text()
def plot_league(result: LeagueResult) -> Figure:
    """Plot the ratings with intervals, beside the scores between versions."""
    size = 1.5 + 0.55 * len(result.versions)
    figure = Figure(figsize=(2 * size + 2.5, size), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = list(_version_indices(result))
    names = [single_line(name) for name in result.versions]
    for place, rating in zip(places, result.ratings, strict=True):
        left.plot([place, place], rating.interval, color="C0", linewidth=2)
        left.plot(place, rating.elo, "o", color="C0", markersize=5)
    left.axhline(0, color="0.5", linewidth=0.8)
    left.set_xticks(places, names, rotation=45, ha="right")
    left.set_ylabel("Elo, 0 is the mean")
    for side in ("top", "right"):
        left.spines[side].set_visible(False)
    scores = [[result.score(version, opponent) for opponent in places] for version in places]
    edges = [place - 0.5 for place in range(len(places) + 1)]
    cells = [[float("nan") if score is None else score for score in line] for line in scores]
    right.pcolormesh(edges, edges, cells, cmap="RdBu", vmin=0.0, vmax=1.0)
    right.invert_yaxis()
    for y, line in enumerate(scores):
        for x, score in enumerate(line):
            right.text(x, y, _format_percent(score) if score is not None else "", ha="center", va="center", fontsize=8)
    right.set_xticks(places, names, rotation=45, ha="right")
    right.set_yticks(places, names)
    right.set_title("score of the row against the column", fontsize=9)
    return figure


def write_report(folder: Path, result: LeagueResult) -> Path:
    """Write the report files and return the path of the page."""
    folder.mkdir(exist_ok=True)
    image: Markup = render_svg(plot_league(result))
    files = {
        "league.svg": str(image),
        "league.json": json.dumps({"headline": format_headline(result), **result.as_json()}, indent=2) + "\n",
        "league.html": render_page(
            "marft_lab.league.evaluation",
            "league.html.jinja",
            found=result,
            headline=format_headline(result),
            tables=build_tables(result),
            picture=image,
        ),
    }
    for name, text in files.items():
        atomic.write_file(folder / name, text)
    return folder / "league.html"


def _version_indices(result: LeagueResult) -> range:
    return range(len(result.versions))


def _format_percent(score: float | None) -> str:
    return "" if score is None else f"{score:.0%}"
