"""Files of the comparison in the run folder: ``worth.json``, ``worth.md``, ``worth.html`` and plots."""

from __future__ import annotations

import json
import re
from pathlib import Path

from marft.common import atomic
from marft.evaluation.pages import page
from marft_lab.team_worth import pictures
from marft_lab.team_worth.session import Worth
from marft_lab.team_worth.timeline import timeline
from marft_lab.team_worth.words import as_markdown, headline, tables

SHOWN = 4  # maximum number of episodes with a plot
PICTURE = re.compile(r"(contributions|(cross-play|episode)-\d+)\.svg")


def write_worth(folder: Path, found: Worth) -> Path:
    """Write the files and return the path to the page."""
    folder.mkdir(exist_ok=True)
    drawn = {"differences": pictures.differences(found.rows, found.measure)}
    if found.resampled and found.resampled.shares:
        drawn["contributions"] = pictures.variances(found.resampled.shares)
    images = {name: pictures.svg(figure) for name, figure in drawn.items()}
    crossed = [("cross-play", pictures.svg(pictures.crossed(matrix, found.measure))) for matrix in found.matrices]
    shown = found.resampled.episodes[:SHOWN] if found.resampled else ()
    of_tables = [[("differences", images["differences"])], *([one] for one in crossed)]
    of_tables += [[("contributions", images["contributions"])]] if "contributions" in images else []
    episodes = [(episode, pictures.svg(pictures.contributed(episode, of_it))) for episode, of_it in shown]
    written = page(
        "marft_lab.team_worth", "worth.html.jinja",
        found=found, headline=headline(found), tables=tables(found), pictures=of_tables,
        notes=found.notes, paraphrases=found.paraphrases, episodes=episodes,
    )  # fmt: skip
    kept = {"headline": headline(found)} | found.as_json() | {"shown": [timeline(*one) for one in shown]}
    files = {
        **{f"{name}.svg": str(image) for name, image in images.items()},
        **{f"cross-play-{number}.svg": str(image) for number, (_, image) in enumerate(crossed)},
        **{f"episode-{number}.svg": str(image) for number, (_, image) in enumerate(episodes)},
        "worth.md": as_markdown(found, [*images]),
        "worth.json": json.dumps(kept, indent=2) + "\n",
        "worth.html": written,
    }
    for name, text in files.items():
        atomic.write_file(folder / name, text)
    for path in folder.glob("*.svg"):  # remove plots of earlier comparisons with more parts
        if PICTURE.fullmatch(path.name) and path.name not in files:
            path.unlink()
    return folder / "worth.html"
