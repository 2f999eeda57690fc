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

from marft_serve.traces.json_lines import read_objects
from marft_serve.traces.types import SkipCounter

ROWS_FOLDER, MANIFEST = "rows", "manifest.json"


def find_rows(path: Path) -> Path | None:
    """Return the folder with the rows: ``path`` or its subfolder; None without rows."""
    return next((folder for folder in (path, path / ROWS_FOLDER) if (folder / MANIFEST).is_file()), None)


def read_rows(path: Path, skip_counter: SkipCounter) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield ``(place, object)`` for each row in a folder, grouped by episode, in request order.

    Raises:
        ValueError: the folder has no rows, a file cannot be opened, or a file has changed. Lost rows would remove one
            role's share of an episode but keep the shares of the other roles.
    """
    folder = find_rows(path)
    if folder is None:
        raise ValueError(f"{path} has no rows ({MANIFEST}); make some:  marft synthesize RECIPE --teacher …")
    names = _read_manifest(folder)
    files = [_iter_ordered(folder / name, skip_counter) for name in names]
    return ((location, row) for _, location, row in merge(*files, key=lambda row: row[0]))


def _read_manifest(folder: Path) -> list[str]:
    """Return the manifest's file names, after a hash check."""
    hint = "marft synthesize … --resume writes them anew; rows that you changed yourself go as files of their own"
    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        files = {str(name): str(digest) for name, digest in listed.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{folder / MANIFEST} is damaged ({error!r:.80}); {hint}") from error
    present = {file.name for file in folder.glob("*.jsonl")}
    if mismatched := sorted(present ^ files.keys()):
        raise ValueError(f"{folder} has not the files that its {MANIFEST} lists ({', '.join(mismatched)}); {hint}")
    for name, digest in files.items():
        with (folder / name).open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise ValueError(f"{folder / name} is not as it was written; {hint}")
    return sorted(files)


def _iter_ordered(file: Path, skip_counter: SkipCounter) -> Iterator[tuple[tuple[int, int], str, dict[str, Any]]]:
    for location, row in read_objects(file, skip_counter):
        order = row.get("order")
        if isinstance(order, list) and len(order) == 2 and all(type(number) is int for number in order):
            yield (order[0], order[1]), location, row
        else:
            skip_counter.skip("line", "it does not say where it stands among the rows (order)", location)
