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

from marft.common.packages import install_command
from marft.common.version import __version__
from marft_serve.tracing.span import AttributeValue, Span, SpanLink

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

SCOPE_NAME = "marft"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
ERROR_STATUS = 2  # Status.StatusCode


def check_installed() -> None:
    """Check the installation of the protobuf package.

    Raises:
        ValueError: the package is not installed.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
        raise ValueError(f"sending traces needs the package opentelemetry-proto: {install_command('otel')}")


def encode_json_line(spans: Sequence[Span], resource: Mapping[str, AttributeValue]) -> str:
    """Encode spans to one line for a trace file (``TracesData``)."""
    scope = {"scope": {"name": SCOPE_NAME, "version": __version__}, "spans": [_encode_span(span) for span in spans]}
    resource_spans = {
        "resource": {"attributes": _encode_attributes(resource)},
        "scopeSpans": [{**scope, "schemaUrl": SCHEMA_URL}],
    }
    return (
        json.dumps({"resourceSpans": [resource_spans]}, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        + "\n"
    )


def encode_protobuf(spans: Sequence[Span], resource: Mapping[str, AttributeValue]) -> bytes:
    """Encode spans to a request body (``ExportTraceServiceRequest``)."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(_build_pairs(resource))
    scope = resource_spans.scope_spans.add(schema_url=SCHEMA_URL)
    scope.scope.name, scope.scope.version = SCOPE_NAME, __version__
    scope.spans.extend(_build_message(span) for span in spans)
    return bytes(request.SerializeToString())


def _encode_span(span: Span) -> dict[str, Any]:
    return {
        "traceId": span.trace,
        "spanId": span.id,
        **({"parentSpanId": span.parent} if span.parent else {}),
        "name": span.name,
        "kind": int(span.kind),
        "startTimeUnixNano": str(span.start_time),
        "endTimeUnixNano": str(span.end_time),
        "attributes": _encode_attributes(span.attributes),
        **({"links": [_encode_link(link) for link in span.links]} if span.links else {}),
        "status": {"code": ERROR_STATUS, **({"message": span.error} if span.error else {})} if span.failed else {},
    }


def _encode_link(link: SpanLink) -> dict[str, Any]:
    return {"traceId": link.trace, "spanId": link.span, "attributes": _encode_attributes(link.attributes)}


def _encode_attributes(attributes: Mapping[str, AttributeValue]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _encode_value(value)} for key, value in attributes.items()]


def _encode_value(value: AttributeValue) -> dict[str, Any]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _format_non_finite(value)}
    return {"arrayValue": {"values": [_encode_value(item) for item in value]}}


def _format_non_finite(value: float) -> str:
    """Return protobuf's JSON text for NaN or an infinity."""
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _build_message(span: Span) -> SpanMessage:
    from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage
    from opentelemetry.proto.trace.v1.trace_pb2 import Status

    message = SpanMessage(
        trace_id=bytes.fromhex(span.trace),
        span_id=bytes.fromhex(span.id),
        parent_span_id=bytes.fromhex(span.parent),
        name=span.name,
        kind=SpanMessage.SpanKind.ValueType(int(span.kind)),
        start_time_unix_nano=span.start_time,
        end_time_unix_nano=span.end_time,
        attributes=_build_pairs(span.attributes),
        status=Status(code=Status.STATUS_CODE_ERROR, message=span.error) if span.failed else Status(),
    )
    for link in span.links:
        message.links.add(
            trace_id=bytes.fromhex(link.trace),
            span_id=bytes.fromhex(link.span),
            attributes=_build_pairs(link.attributes),
        )
    return message


def _build_pairs(attributes: Mapping[str, AttributeValue]) -> list[KeyValue]:
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    pairs = []
    for key, value in attributes.items():
        pair = KeyValue(key=key)
        _set_value(pair.value, value)
        pairs.append(pair)
    return pairs


def _set_value(target: Any, value: AttributeValue) -> None:
    """Write a value into an ``AnyValue``."""
    if isinstance(value, str):
        target.string_value = value
    elif isinstance(value, bool):
        target.bool_value = value
    elif isinstance(value, int):
        target.int_value = value
    elif isinstance(value, float):
        target.double_value = value
    else:
        target.array_value.SetInParent()
        for item in value:
            _set_value(target.array_value.values.add(), item)
