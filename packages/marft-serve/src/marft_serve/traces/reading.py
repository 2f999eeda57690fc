"""Reader for trace files: yields episodes individually, in any supported format."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from marft_serve.traces import assembling, conversations, rows
from marft_serve.traces.layouts import is_conversation
from marft_serve.traces.lines import objects
from marft_serve.traces.record import Tally, TracedEpisode
from marft_serve.traces.spans import Span, is_spans, spans_of

Line = tuple[str, Mapping[str, Any]]
Kind = Literal["conversation", "spans", ""]
WHAT_IS_READ = (
    'it is neither a conversation ({"messages": […]}), nor spans in OTLP JSON ({"resourceSpans": […]}), nor a span as '
    "its to_json() has it"
)


def read_traces(paths: Sequence[Path], tally: Tally) -> Iterator[TracedEpisode]:
    """Yield the episodes in files and row folders, with bounded memory.

    Args:
        paths: files of traces, or folders of rows.
        tally: counter of skipped items.

    Raises:
        ValueError: a file cannot be opened.
    """
    for path in paths:
        spans = assembling.Assembly(tally)
        found = rows.lines(path, tally) if path.is_dir() else objects(path, tally)
        for kind, lines in groupby(found, key=lambda line: kind_of(line[1])):
            if kind == "conversation":
                yield from conversations.episodes(lines, tally)
            elif kind == "spans":
                for span in _spans(lines, tally):
                    yield from spans.add(span)
            else:
                for place, _ in lines:
                    tally.skip("line", WHAT_IS_READ, place)
        yield from spans.close()


def kind_of(table: Mapping[str, Any]) -> Kind:
    """Return a line's format; "" if unknown."""
    return "conversation" if is_conversation(table) else "spans" if is_spans(table) else ""


def _spans(lines: Iterator[Line], tally: Tally) -> Iterator[Span]:
    for place, table in lines:
        yield from spans_of(table, place, tally)
