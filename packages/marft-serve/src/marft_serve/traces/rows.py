"""Folders of rows: what each role of a team said, a file a role and an action a line, as ``marft synthesize`` has it.

A row is a prompt and its completion, as programs for supervised fine-tuning take them. ``order`` says where it stands
among all rows of the folder: so the roles' files are read as the episodes that they are of.
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
    """Where a folder has its rows, in itself or below; None where it has none."""
    return next((place for place in (path, path / ROWS) if (place / MANIFEST).is_file()), None)


def lines(path: Path, tally: Tally) -> Iterator[tuple[str, dict[str, Any]]]:
    """``(place, object)`` of each row of a folder, those of an episode one after the other, as they were asked for.

    Raises:
        ValueError: the folder has no rows, a file cannot be opened, or is not as it was written: with rows that are
            lost, one role's share of an episode goes, and the others' stays.
    """
    folder = rows_in(path)
    if folder is None:
        raise ValueError(f"{path} has no rows ({MANIFEST}); make some:  marft synthesize RECIPE --teacher …")
    names = _listed(folder)
    files = [_ordered(folder / name, tally) for name in names]
    return ((place, row) for _, place, row in merge(*files, key=lambda row: row[0]))


def _listed(folder: Path) -> list[str]:
    """The files of a folder of rows, as its manifest has them."""
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
