"""Reader for trace files and row folders: yields episodes individually, in any supported format.

A row folder from ``marft synthesize`` has one file per role and one action per line. A row has a prompt and its
completion, in the usual format for supervised fine-tuning. ``order`` gives its position among all rows of the folder.
So the files of the roles can be merged into episodes.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from itertools import groupby
from pathlib import Path
from typing import BinaryIO, Literal

from marft.common.atomic import check_regular_file, digest_of_file
from marft.common.errors import UserError
from marft_serve.traces.conversations import is_conversation, iter_episodes
from marft_serve.traces.spans import ImportedSpan, has_spans, parse_spans
from marft_serve.traces.trace_builder import TraceBuilder
from marft_serve.traces.types import SkipCounter, TracedEpisode

MAX_LINE_BYTES = 64 * 2**20  # bytes
ROWS_FOLDER, MANIFEST = "rows", "manifest.json"
Line = tuple[str, Mapping[str, object]]
LineFormat = Literal["conversation", "spans", ""]
UNKNOWN_FORMAT = (
    'it is neither a conversation ({"messages": […]}), nor spans in OTLP JSON ({"resourceSpans": […]}), nor a span as '
    "its to_json() has it"
)


def read_objects(path: Path, skip_counter: SkipCounter) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield ``(place, object)`` for each line; ignore blank lines.

    Args:
        path: the file.
        skip_counter: counter of skipped lines.

    Raises:
        UserError: the file cannot be opened.
    """
    try:
        file = check_regular_file(path).open("rb")
    except OSError as error:
        raise UserError(f"cannot read the traces of {path}: {error.strerror or error}") from error
    with file:
        for number, line in enumerate(_iter_lines(file), 1):
            location = f"{path.name}:{number}"
            if line is None:
                skip_counter.skip("line", f"it has more than {MAX_LINE_BYTES >> 20} MiB", location)
                continue
            if not line.strip():
                continue
            try:
                parsed = json.loads(line.removeprefix(BOM_UTF8) if number == 1 else line)
            # truncated, not UTF-8, numbers with thousands of digits, or nested too deep
            except (ValueError, RecursionError):
                skip_counter.skip("line", "it is no JSON; one object a line is read", location)
                continue
            if isinstance(parsed, dict):
                yield location, parsed
            else:
                skip_counter.skip("line", f"it is a {type(parsed).__name__}, not an object", location)


def _iter_lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Yield lines; None replaces a line beyond the length limit, without loading it whole."""
    while line := file.readline(MAX_LINE_BYTES):
        if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MAX_LINE_BYTES)
        yield None


def find_rows(path: Path) -> Path | None:
    """Return the folder with the rows: ``path`` or its subfolder; None without rows."""
    return next((folder for folder in (path, path / ROWS_FOLDER) if (folder / MANIFEST).is_file()), None)


def read_rows(path: Path, skip_counter: SkipCounter) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield ``(place, object)`` for each row in a folder, grouped by episode, in request order.

    Raises:
        UserError: the folder has no rows, a file cannot be opened, or a file has changed. Lost rows would remove one
            role's share of an episode but keep the shares of the other roles.
    """
    folder = find_rows(path)
    if folder is None:
        raise UserError(f"{path} has no rows ({MANIFEST}); make some:  marft synthesize RECIPE --teacher …")
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
        raise UserError(f"{folder / MANIFEST} is damaged ({error!r:.80}); {hint}") from error
    present = {file.name for file in folder.glob("*.jsonl")}
    if mismatched := sorted(present ^ files.keys()):
        raise UserError(f"{folder} has not the files that its {MANIFEST} lists ({', '.join(mismatched)}); {hint}")
    for name, digest in files.items():
        if digest_of_file(folder / name) != digest:
            raise UserError(f"{folder / name} is not as it was written; {hint}")
    return sorted(files)


def _iter_ordered(file: Path, skip_counter: SkipCounter) -> Iterator[tuple[tuple[int, int], str, dict[str, object]]]:
    for location, row in read_objects(file, skip_counter):
        order = row.get("order")
        if isinstance(order, list) and len(order) == 2 and all(type(number) is int for number in order):
            yield (order[0], order[1]), location, row
        else:
            skip_counter.skip("line", "it does not say where it stands among the rows (order)", location)


def read_traces(paths: Sequence[Path], skip_counter: SkipCounter) -> Iterator[TracedEpisode]:
    """Yield the episodes in files and row folders, with bounded memory.

    Args:
        paths: files of traces, or folders of rows.
        skip_counter: counter of skipped items.

    Raises:
        UserError: a file cannot be opened.
    """
    for path in paths:
        builder = TraceBuilder(skip_counter)
        entries = read_rows(path, skip_counter) if path.is_dir() else read_objects(path, skip_counter)
        for kind, lines in groupby(entries, key=lambda line: detect_format(line[1])):
            if kind == "conversation":
                yield from iter_episodes(lines, skip_counter)
            elif kind == "spans":
                for span in _iter_spans(lines, skip_counter):
                    yield from builder.add_span(span)
            else:
                for location, _ in lines:
                    skip_counter.skip("line", UNKNOWN_FORMAT, location)
        yield from builder.close()


def detect_format(table: Mapping[str, object]) -> LineFormat:
    """Return a line's format; "" if unknown."""
    return "conversation" if is_conversation(table) else "spans" if has_spans(table) else ""


def _iter_spans(lines: Iterator[Line], skip_counter: SkipCounter) -> Iterator[ImportedSpan]:
    for location, table in lines:
        yield from parse_spans(table, location, skip_counter)
