"""Parsing of exported OpenTelemetry spans: OTLP JSON (``resourceSpans`` per line) and ``ReadableSpan.to_json()``."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from marft_serve.traces.record import Tally, UnreadableError

LONGEST_ID = 128
Attributes = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """Event of a span."""

    name: str
    attributes: Attributes


@dataclass(frozen=True, slots=True)
class Span:
    """Imported span. Times are in seconds since 1970, or 0 if unknown.

    Args:
        trace: id of the trace.
        id: id of the span.
        parent: id of the parent span; "" for a root.
        name: name of the span.
        attributes: attributes of the span.
        events: events of the span.
        links: ids of the linked spans.
        started: start of the span.
        ended: end of the span.
        place: file and line number.
        size: approximate size in characters.
    """

    trace: str
    id: str
    parent: str
    name: str
    attributes: Attributes
    events: tuple[Event, ...] = ()
    links: tuple[str, ...] = ()
    started: float = 0.0
    ended: float = 0.0
    place: str = ""
    size: int = 0


def is_spans(table: Mapping[str, Any]) -> bool:
    """Return True if a line contains spans in either format."""
    return "resourceSpans" in table or "resource_spans" in table or isinstance(table.get("context"), Mapping)


def spans_of(table: Mapping[str, Any], place: str, tally: Tally) -> Iterator[Span]:
    """Yield a line's spans; skip and count invalid spans."""
    if isinstance(table.get("context"), Mapping):
        found, read = [table], _readable_span
    else:
        found, read = list(_exported(table)), _otlp_span
    for one in found:
        try:
            yield replace(read(one, place), size=len(str(one)))
        except (UnreadableError, RecursionError) as error:
            tally.skip("span", str(error) if isinstance(error, UnreadableError) else "it is nested too deep", place)


def _exported(table: Mapping[str, Any]) -> Iterator[Any]:
    for resource in _list(table.get("resourceSpans", table.get("resource_spans"))):
        for scope in _list(_of(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans")):
            yield from _list(_of(scope, "spans"))


def _otlp_span(table: Any, place: str) -> Span:
    return Span(
        trace=_id(_of(table, "traceId", "trace_id"), "trace id"),
        id=_id(_of(table, "spanId", "span_id"), "span id"),
        parent=str(_of(table, "parentSpanId", "parent_span_id") or "")[:LONGEST_ID],
        name=str(_of(table, "name") or ""),
        attributes=_attributes(_of(table, "attributes")),
        events=tuple(
            Event(str(_of(event, "name") or ""), _attributes(_of(event, "attributes")))
            for event in _list(_of(table, "events"))
        ),
        links=tuple(str(_of(link, "spanId", "span_id")) for link in _list(_of(table, "links"))),
        started=_seconds(_of(table, "startTimeUnixNano", "start_time_unix_nano")),
        ended=_seconds(_of(table, "endTimeUnixNano", "end_time_unix_nano")),
        place=place,
    )


def _readable_span(table: Any, place: str) -> Span:
    context = table["context"]
    return Span(
        trace=_id(context.get("trace_id"), "trace id"),
        id=_id(context.get("span_id"), "span id"),
        parent=str(table.get("parent_id") or "").removeprefix("0x")[:LONGEST_ID],
        name=str(table.get("name") or ""),
        attributes=_plain(table.get("attributes")),
        events=tuple(
            Event(str(_of(event, "name") or ""), _plain(_of(event, "attributes")))
            for event in _list(table.get("events"))
        ),
        links=tuple(str(_of(_of(link, "context"), "span_id")).removeprefix("0x") for link in _list(table.get("links"))),
        started=_moment(table.get("start_time")),
        ended=_moment(table.get("end_time")),
        place=place,
    )


def _id(value: object, what: str) -> str:
    """Return a trace or span id.

    Raises:
        UnreadableError: the id is missing.
    """
    if not isinstance(value, str) or not value.removeprefix("0x").strip("0"):
        raise UnreadableError(f"it has no {what}")
    return value.removeprefix("0x")[:LONGEST_ID]


def _of(table: object, *names: str) -> Any:
    """Return a table's first existing field; None without a match."""
    return next((table[name] for name in names if name in table), None) if isinstance(table, Mapping) else None


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _plain(value: object) -> Attributes:
    return {str(key): inner for key, inner in value.items()} if isinstance(value, Mapping) else {}


def _attributes(listed: object) -> Attributes:
    """Return attributes from an OTLP list of keys and typed values, or from a plain table."""
    if isinstance(listed, Mapping):
        return _plain(listed)
    return {str(_of(one, "key")): _value(_of(one, "value")) for one in _list(listed) if _of(one, "key") is not None}


def _value(value: object) -> Any:
    """Convert a typed OTLP value (``AnyValue``) to Python."""
    if not isinstance(value, Mapping):
        return value
    for kind, inner in value.items():
        if kind in ("arrayValue", "array_value"):
            return [_value(one) for one in _list(_of(inner, "values"))]
        if kind in ("kvlistValue", "kvlist_value"):
            return _attributes(_of(inner, "values"))
        if kind in ("intValue", "int_value"):
            return _whole(inner)
        return inner
    return None


def _whole(value: object) -> object:
    """Convert an integer from text; OTLP JSON writes 64-bit integers as text."""
    try:
        return int(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _seconds(nanoseconds: object) -> float:
    try:
        found = float(nanoseconds) / 1e9 if isinstance(nanoseconds, str | int | float) else 0.0
    except (ValueError, OverflowError):
        return 0.0
    return found if math.isfinite(found) else 0.0


def _moment(text: object) -> float:
    try:
        return datetime.fromisoformat(text).timestamp() if isinstance(text, str) else 0.0
    except (ValueError, OverflowError, OSError):
        return 0.0
