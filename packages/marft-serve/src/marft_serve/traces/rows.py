"""Row folders from ``marft synthesize``: one file per role and one action per line.

A row has a prompt and its completion, in the usual format for supervised fine-tuning. ``order`` gives its position
among all rows of the folder. So the files of the roles can be merged into episodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from heapq import merge
from pathlib import Path
from typing import Any

from marft_serve.traces.lines import objects
from marft_serve.traces.record import Tally

ROWS, MANIFEST = "rows", "manifest.json"


def rows_in(path: Path) -> Path | None:
    """Return the folder with the rows: ``path`` or its subfolder; None without rows."""
    return next((place for place in (path, path / ROWS) if (place / MANIFEST).is_file()), None)


def lines(path: Path, tally: Tally) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(place, object)`` for each row in a folder, grouped by episode, in request order.

    Raises:
        ValueError: the folder has no rows, a file cannot be opened, or a file has changed. Lost rows would remove one
            role's share of an episode but keep the shares of the other roles.
    """
    folder = rows_in(path)
    if folder is None:
        raise ValueError(f"{path} has no rows ({MANIFEST}); make some:  marft synthesize RECIPE --teacher …")
    names = _listed(folder)
    files = [_ordered(folder / name, tally) for name in names]
    return ((place, row) for _, place, row in merge(*files, key=lambda row: row[0]))


def _listed(folder: Path) -> list[str]:
    """Return the manifest's file names, after a hash check."""
    remedy = "marft synthesize … --resume writes them anew; rows that you changed yourself go as files of their own"
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        files = {str(name): str(digest) for name, digest in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / MANIFEST} is damaged ({error!r:.80}); {remedy}") from error
    there = {file.name for file in folder.glob("*.jsonl")}
    if odd := sorted(there ^ files.keys()):
        raise ValueError(f"{folder} has not the files that its {MANIFEST} lists ({', '.join(odd)}); {remedy}")
    for name, digest in files.items():
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{folder / name} is not as it was written; {remedy}")
    return sorted(files)


def _ordered(file: Path, tally: Tally) -> Iterator[tuple[tuple[int, int], str, dict[str, Any]]]:
    for place, row in objects(file, tally):
        order = row.get("order")
        if isinstance(order, list) and len(order) == 2 and all(type(number) is int for number in order):
            yield (order[0], order[1]), place, row
        else:
            tally.skip("line", "it does not say where it stands among the rows (order)", place)
