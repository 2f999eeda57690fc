"""Parsing of exported OpenTelemetry spans: OTLP JSON (``resourceSpans`` per line) and ``ReadableSpan.to_json()``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from marft_serve.traces.types import SkipCounter, UnreadableError

MAX_ID_CHARS = 128
Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SpanEvent:
    """Event of a span."""

    name: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class ImportedSpan:
    """Imported span. Times are in seconds since 1970, or 0 if unknown.

    Args:
        trace: id of the trace.
        id: id of the span.
        parent: id of the parent span; "" for a root.
        name: name of the span.
        attributes: attributes of the span.
        events: events of the span.
        links: ids of the linked spans.
        start_time: start of the span.
        end_time: end of the span.
        location: file and line number.
        size: approximate size in characters.
    """

    trace: str
    id: str
    parent: str
    name: str
    attributes: Attributes
    events: tuple[SpanEvent, ...] = ()
    links: tuple[str, ...] = ()
    start_time: float = 0.0
    end_time: float = 0.0
    location: str = ""
    size: int = 0


def has_spans(table: Mapping[str, Any]) -> bool:
    """Return True if a line contains spans in either format."""
    return "resourceSpans" in table or "resource_spans" in table or isinstance(table.get("context"), Mapping)


def parse_spans(table: Mapping[str, Any], location: str, skip_counter: SkipCounter) -> Iterator[ImportedSpan]:
    """Yield a line's spans; skip and count invalid spans."""
    if isinstance(table.get("context"), Mapping):
        entries, parse = [table], _parse_readable_span
    else:
        entries, parse = list(_iter_spans(table)), _parse_otlp_span
    for entry in entries:
        try:
            yield replace(parse(entry, location), size=len(str(entry)))
        except (UnreadableError, RecursionError) as error:
            skip_counter.skip(
                "span", str(error) if isinstance(error, UnreadableError) else "it is nested too deep", location
            )


def _iter_spans(table: Mapping[str, Any]) -> Iterator[Any]:
    for resource in _as_list(table.get("resourceSpans", table.get("resource_spans"))):
        for scope in _as_list(_get_first(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")):
            yield from _as_list(_get_first(scope, "spans"))


def _parse_otlp_span(table: Any, location: str) -> ImportedSpan:
    return ImportedSpan(
        trace=_parse_id(_get_first(table, "traceId", "trace_id"), "trace id"),
        id=_parse_id(_get_first(table, "spanId", "span_id"), "span id"),
        parent=str(_get_first(table, "parentSpanId", "parent_span_id") or "")[:MAX_ID_CHARS],
        name=str(_get_first(table, "name") or ""),
        attributes=_parse_attributes(_get_first(table, "attributes")),
        events=tuple(
            SpanEvent(str(_get_first(event, "name") or ""), _parse_attributes(_get_first(event, "attributes")))
            for event in _as_list(_get_first(table, "events"))
        ),
        links=tuple(str(_get_first(link, "spanId", "span_id")) for link in _as_list(_get_first(table, "links"))),
        start_time=_parse_timestamp(_get_first(table, "startTimeUnixNano", "start_time_unix_nano")),
        end_time=_parse_timestamp(_get_first(table, "endTimeUnixNano", "end_time_unix_nano")),
        location=location,
    )


def _parse_readable_span(table: Any, location: str) -> ImportedSpan:
    context = table["context"]
    return ImportedSpan(
        trace=_parse_id(context.get("trace_id"), "trace id"),
        id=_parse_id(context.get("span_id"), "span id"),
        parent=str(table.get("parent_id") or "").removeprefix("0x")[:MAX_ID_CHARS],
        name=str(table.get("name") or ""),
        attributes=_as_attributes(table.get("attributes")),
        events=tuple(
            SpanEvent(str(_get_first(event, "name") or ""), _as_attributes(_get_first(event, "attributes")))
            for event in _as_list(table.get("events"))
        ),
        links=tuple(
            str(_get_first(_get_first(link, "context"), "span_id")).removeprefix("0x")
            for link in _as_list(table.get("links"))
        ),
        start_time=_parse_iso_time(table.get("start_time")),
        end_time=_parse_iso_time(table.get("end_time")),
        location=location,
    )


def _parse_id(value: object, label: str) -> str:
    """Return a trace or span id.

    Raises:
        UnreadableError: the id is missing.
    """
    if not isinstance(value, str) or not value.removeprefix("0x").strip("0"):
        raise UnreadableError(f"it has no {label}")
    return value.removeprefix("0x")[:MAX_ID_CHARS]


def _get_first(table: object, *names: str) -> Any:
    """Return a table's first existing field; None without a match."""
    return next((table[name] for name in names if name in table), None) if isinstance(table, Mapping) else None


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _as_attributes(value: object) -> Attributes:
    return {str(key): inner for key, inner in value.items()} if isinstance(value, Mapping) else {}


def _parse_attributes(listed: object) -> Attributes:
    """Return attributes from an OTLP list of keys and typed values, or from a plain table."""
    if isinstance(listed, Mapping):
        return _as_attributes(listed)
    return {
        str(_get_first(entry, "key")): _parse_value(_get_first(entry, "value"))
        for entry in _as_list(listed)
        if _get_first(entry, "key") is not None
    }


def _parse_value(value: object) -> Any:
    """Convert a typed OTLP value (``AnyValue``) to Python."""
    if not isinstance(value, Mapping):
        return value
    for kind, inner in value.items():
        if kind in ("arrayValue", "array_value"):
            return [_parse_value(item) for item in _as_list(_get_first(inner, "values"))]
        if kind in ("kvlistValue", "kvlist_value"):
            return _parse_attributes(_get_first(inner, "values"))
        if kind in ("intValue", "int_value"):
            return _parse_int(inner)
        return inner
    return None


def _parse_int(value: object) -> object:
    """Convert an integer from text; OTLP JSON writes 64-bit integers as text."""
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _parse_timestamp(value: object) -> float:
    try:
        seconds = float(value) / 1e9 if isinstance(value, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return seconds if math.isfinite(seconds) else 0.0


def _parse_iso_time(text: object) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0
