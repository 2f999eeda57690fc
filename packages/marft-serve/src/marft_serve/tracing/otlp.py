"""OTLP encoding: spans to JSON without extra packages, or to protobuf.

Source: https://github.com/open-telemetry/opentelemetry-proto/blob/main/docs/specification.md, and for files
https://github.com/open-telemetry/opentelemetry-specification/blob/main/specification/protocol/file-exporter.md
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from marft.common.satellites import install_command
from marft.common.version import __version__
from marft_serve.tracing.span import Link, Span, Value

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

SCOPE = "marft"
SCHEMA = "https://opentelemetry.io/schemas/1.41.0"
ERROR = 2  # Status.StatusCode


def check_installed() -> None:
    """Check the installation of the protobuf package.

    Raises:
        ValueError: the package is not installed.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
        raise ValueError(f"sending traces needs the package opentelemetry-proto: {install_command('otel')}")


def json_line(spans: Sequence[Span], resource: Mapping[str, Value]) -> str:
    """Encode spans to one line for a trace file (``TracesData``)."""
    scope = {"scope": {"name": SCOPE, "version": __version__}, "spans": [_span(span) for span in spans]}
    whole = {"resource": {"attributes": _attributes(resource)}, "scopeSpans": [{**scope, "schemaUrl": SCHEMA}]}
    return json.dumps({"resourceSpans": [whole]}, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def protobuf(spans: Sequence[Span], resource: Mapping[str, Value]) -> bytes:
    """Encode spans to a request body (``ExportTraceServiceRequest``)."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    whole = request.resource_spans.add()
    whole.resource.attributes.extend(_pairs(resource))
    scope = whole.scope_spans.add(schema_url=SCHEMA)
    scope.scope.name, scope.scope.version = SCOPE, __version__
    scope.spans.extend(_message(span) for span in spans)
    return bytes(request.SerializeToString())


def _span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace,
        "spanId": span.id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.started),
        "endTimeUnixNano": str(span.ended),
        "attributes": _attributes(span.attributes),
        **({"links": [_link(link) for link in span.links]} if span.links else {}),
        "status": {"code": ERROR, **({"message": span.error} if span.error else {})} if span.failed else {},
    }


def _link(link: Link) -> dict[str, Any]:
    return {"traceId": link.trace, "spanId": link.span, "attributes": _attributes(link.attributes)}


def _attributes(attributes: Mapping[str, Value]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in attributes.items()]


def _value(value: Value) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _unwritable(value)}
    return {"arrayValue": {"values": [_value(one) for one in value]}}


def _unwritable(value: float) -> str:
    """Return protobuf's JSON text for NaN or an infinity."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _message(span: Span) -> SpanMessage:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    message = SpanMessage(
        trace_id=bytes.fromhex(span.trace),
        span_id=bytes.fromhex(span.id),
        parent_span_id=bytes.fromhex(span.parent),
        name=span.name,
        kind=SpanMessage.SpanKind.ValueType(int(span.kind)),
        start_time_unix_nano=span.started,
        end_time_unix_nano=span.ended,
        attributes=_pairs(span.attributes),
        status=Status(code=Status.STATUS_CODE_ERROR, message=span.error) if span.failed else Status(),
    )
    for link in span.links:
        message.links.add(
            trace_id=bytes.fromhex(link.trace), span_id=bytes.fromhex(link.span), attributes=_pairs(link.attributes)
        )
    return message


def _pairs(attributes: Mapping[str, Value]) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    pairs = []
    for key, value in attributes.items():
        pair = KeyValue(key=key)
        _set(pair.value, value)
        pairs.append(pair)
    return pairs


def _set(place: Any, value: Value) -> None:
    """Write a value into an ``AnyValue``."""
    if isinstance(value, str):
        place.string_value = value
    elif isinstance(value, bool):
        place.bool_value = value
    elif isinstance(value, int):
        place.int_value = value
    elif isinstance(value, float):
        place.double_value = value
    else:
        place.array_value.SetInParent()
        for one in value:
            _set(place.array_value.values.add(), one)
