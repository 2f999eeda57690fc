"""Report of a league: tables and plots, written to ``league.json``, ``league.html`` and ``league.svg``."""

from __future__ import annotations

import json
from pathlib import Path

from markupsafe import Markup
from matplotlib.figure import Figure

from marft.common import atomic
from marft.common.texts import one_line
from marft.evaluation.pages import page, plain_labels
from marft_lab.league.evaluation.matches import League
from marft_lab.team_worth.pictures import svg
from marft_lab.team_worth.words import Rows


def tables(found: League) -> list[Rows]:
    """Return the tables with ratings and with scores between versions."""
    played = [sum(p.tally.matches for p in found.pairings if n in (p.tally.first, p.tally.second)) for n in _all(found)]
    rated = [
        [name, f"{rating.elo:+.0f}", f"{rating.interval[0]:+.0f} to {rating.interval[1]:+.0f}", str(count)]
        for name, rating, count in zip(found.versions, found.ratings, played, strict=True)
    ]
    crossed = [
        [found.versions[mine], *(_percent(found.score(mine, theirs)) for theirs in _all(found))] for mine in _all(found)
    ]
    headings = ["version", "Elo", "95 %", "matches"]
    if found.exploitability:
        headings.append("exploitability")
        rated = [
            [*row, "" if one is None else f"{one:.3f}"] for row, one in zip(rated, found.exploitability, strict=True)
        ]
    return [
        Rows("Ratings", headings, rated),
        Rows("Score of the row against the column", ["", *found.versions], crossed),
    ]


def headline(found: League) -> str:
    """Return a sentence that compares the newest version with the first."""
    first, newest = found.ratings[0].elo, found.ratings[-1].elo
    best = max(_all(found), key=lambda n: found.ratings[n].elo)
    score = _percent(found.score(len(found.versions) - 1, 0))
    return (
        f"{found.versions[-1]} is {newest - first:+.0f} Elo beside {found.versions[0]}, and scores {score} against it; "
        f"the highest rating is that of {found.versions[best]}"
    )


@plain_labels()
def picture(found: League) -> Figure:
    """Plot the ratings with intervals, beside the scores between versions."""
    size = 1.5 + 0.55 * len(found.versions)
    figure = Figure(figsize=(2 * size + 2.5, size), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = list(_all(found))
    names = [one_line(name) for name in found.versions]
    for place, rating in zip(places, found.ratings, strict=True):
        left.plot([place, place], rating.interval, color="C0", linewidth=2)
        left.plot(place, rating.elo, "o", color="C0", markersize=5)
    left.axhline(0, color="0.5", linewidth=0.8)
    left.set_xticks(places, names, rotation=45, ha="right")
    left.set_ylabel("Elo, 0 is the mean")
    for side in ("top", "right"):
        left.spines[side].set_visible(False)
    scores = [[found.score(mine, theirs) for theirs in places] for mine in places]
    edges = [place - 0.5 for place in range(len(places) + 1)]
    cells = [[float("nan") if score is None else score for score in line] for line in scores]
    right.pcolormesh(edges, edges, cells, cmap="RdBu", vmin=0.0, vmax=1.0)
    right.invert_yaxis()
    for y, line in enumerate(scores):
        for x, score in enumerate(line):
            right.text(x, y, _percent(score) if score is not None else "", ha="center", va="center", fontsize=8)
    right.set_xticks(places, names, rotation=45, ha="right")
    right.set_yticks(places, names)
    right.set_title("score of the row against the column", fontsize=9)
    return figure


def write_league(folder: Path, found: League) -> Path:
    """Write the report files and return the path of the page."""
    folder.mkdir(exist_ok=True)
    image: Markup = svg(picture(found))
    files = {
        "league.svg": str(image),
        "league.json": json.dumps({"headline": headline(found), **found.as_json()}, indent=2) + "\n",
        "league.html": page(
            "marft_lab.league.evaluation",
            "league.html.jinja",
            found=found,
            headline=headline(found),
            tables=tables(found),
            picture=image,
        ),
    }
    for name, text in files.items():
        atomic.write_file(folder / name, text)
    return folder / "league.html"


def _all(found: League) -> range:
    return range(len(found.versions))


def _percent(score: float | None) -> str:
    return "" if score is None else f"{score:.0%}"
