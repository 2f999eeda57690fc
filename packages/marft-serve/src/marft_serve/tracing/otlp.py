"""OTLP encoding: spans to protobuf, or to JSON without extra packages.

Source: https://github.com/open-telemetry/opentelemetry-proto/blob/main/docs/specification.md, and for files
https://github.com/open-telemetry/opentelemetry-specification/blob/main/specification/protocol/file-exporter.md
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from marft.common.errors import UserError
from marft.common.packages import install_command
from marft.common.version import __version__
from marft_serve.tracing.span import AttributeValue, Span, SpanLink

Fields = dict[str, Any]  # fields of a protobuf message
INT64_FIELDS = ("start_time_unix_nano", "end_time_unix_nano", "int_value")
SCOPE_NAME = "marft"
SCHEMA_URL = "https://opentelemetry.io/schemas/1.41.0"
ERROR_STATUS = 2  # Status.StatusCode


def check_installed() -> None:
    """Check the installation of the protobuf package.

    Raises:
        UserError: the package is not installed.
    """
    if find_spec("opentelemetry") is None or find_spec("opentelemetry.proto") is None:
        raise UserError(f"sending traces needs the package opentelemetry-proto: {install_command('otel')}")


def encode_json_line(spans: Sequence[Span], resource: Mapping[str, AttributeValue]) -> str:
    """Encode spans to one line for a trace file (``TracesData``)."""
    table = _to_json(_build_request(spans, resource))
    return json.dumps(table, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"


def encode_protobuf(spans: Sequence[Span], resource: Mapping[str, AttributeValue]) -> bytes:
    """Encode spans to a request body (``ExportTraceServiceRequest``)."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    return bytes(ExportTraceServiceRequest(**_build_request(spans, resource)).SerializeToString())


def _build_request(spans: Sequence[Span], resource: Mapping[str, AttributeValue]) -> Fields:
    """Return the fields of a request, named as in protobuf."""
    scope = {"name": SCOPE_NAME, "version": __version__}
    scope_spans = {"scope": scope, "spans": [_build_span(span) for span in spans], "schema_url": SCHEMA_URL}
    return {"resource_spans": [{"resource": {"attributes": _build_pairs(resource)}, "scope_spans": [scope_spans]}]}


def _build_span(span: Span) -> Fields:
    return {
        "trace_id": bytes.fromhex(span.trace),
        "span_id": bytes.fromhex(span.id),
        **({"parent_span_id": bytes.fromhex(span.parent)} if span.parent else {}),
        "name": span.name,
        "kind": int(span.kind),
        "start_time_unix_nano": span.start_time,
        "end_time_unix_nano": span.end_time,
        "attributes": _build_pairs(span.attributes),
        **({"links": [_build_link(link) for link in span.links]} if span.links else {}),
        "status": {"code": ERROR_STATUS, **({"message": span.error} if span.error else {})} if span.failed else {},
    }


def _build_link(link: SpanLink) -> Fields:
    return {
        "trace_id": bytes.fromhex(link.trace),
        "span_id": bytes.fromhex(link.span),
        "attributes": _build_pairs(link.attributes),
    }


def _build_pairs(attributes: Mapping[str, AttributeValue]) -> list[Fields]:
    return [{"key": key, "value": _build_value(value)} for key, value in attributes.items()]


def _build_value(value: AttributeValue) -> Fields:
    """Return the fields of an ``AnyValue``."""
    if isinstance(value, str):
        return {"string_value": value}
    if isinstance(value, bool):
        return {"bool_value": value}
    if isinstance(value, int):
        return {"int_value": value}
    if isinstance(value, float):
        return {"double_value": value}
    return {"array_value": {"values": [_build_value(item) for item in value]}}


def _to_json(value: object, name: str = "") -> object:
    """Convert a field to OTLP's JSON: camel case, ids in hexadecimal digits, and 64-bit integers as text."""
    if isinstance(value, dict):
        return {_to_camel_case(key): _to_json(inner, key) for key, inner in value.items()}
    if isinstance(value, list):
        return [_to_json(inner) for inner in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return str(value) if name in INT64_FIELDS else value


@cache
def _to_camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
