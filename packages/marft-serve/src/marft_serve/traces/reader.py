"""Reader for trace files: yields episodes individually, in any supported format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from marft_serve.traces import conversations, rows, trace_builder
from marft_serve.traces.json_lines import read_objects
from marft_serve.traces.message_formats import is_conversation
from marft_serve.traces.spans import ImportedSpan, has_spans, parse_spans
from marft_serve.traces.types import SkipCounter, TracedEpisode

Line = tuple[str, Mapping[str, Any]]
LineFormat = Literal["conversation", "spans", ""]
UNKNOWN_FORMAT = (
    'it is neither a conversation ({"messages": […]}), nor spans in OTLP JSON ({"resourceSpans": […]}), nor a span as '
    "its to_json() has it"
)


def read_traces(paths: Sequence[Path], skip_counter: SkipCounter) -> Iterator[TracedEpisode]:
    """Yield the episodes in files and row folders, with bounded memory.

    Args:
        paths: files of traces, or folders of rows.
        skip_counter: counter of skipped items.

    Raises:
        ValueError: a file cannot be opened.
    """
    for path in paths:
        builder = trace_builder.TraceBuilder(skip_counter)
        entries = rows.read_rows(path, skip_counter) if path.is_dir() else read_objects(path, skip_counter)
        for kind, lines in groupby(entries, key=lambda line: detect_format(line[1])):
            if kind == "conversation":
                yield from conversations.iter_episodes(lines, skip_counter)
            elif kind == "spans":
                for span in _iter_spans(lines, skip_counter):
                    yield from builder.add_span(span)
            else:
                for location, _ in lines:
                    skip_counter.skip("line", UNKNOWN_FORMAT, location)
        yield from builder.close()


def detect_format(table: Mapping[str, Any]) -> LineFormat:
    """Return a line's format; "" if unknown."""
    return "conversation" if is_conversation(table) else "spans" if has_spans(table) else ""


def _iter_spans(lines: Iterator[Line], skip_counter: SkipCounter) -> Iterator[ImportedSpan]:
    for location, table in lines:
        yield from parse_spans(table, location, skip_counter)
