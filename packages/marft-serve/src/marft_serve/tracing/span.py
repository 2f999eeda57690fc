"""Span for export, independent from its encoding, with reproducible ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from marft.common.texts import replace_surrogates, truncate

MAX_TEXT_CHARS = 65_536  # maximum length of a text in an attribute, in characters
AttributeValue = str | bool | int | float | Sequence[str]


class SpanKind(IntEnum):
    """OTLP's ``Span.SpanKind``."""

    INTERNAL = 1
    CLIENT = 3


@dataclass(frozen=True, slots=True)
class SpanLink:
    """Link from one span to another, possibly in a different trace.

    Args:
        trace: id of the other span's trace.
        span: id of the other span.
        attributes: attributes of the link.
    """

    trace: str
    span: str
    attributes: Mapping[str, AttributeValue]


@dataclass(frozen=True, slots=True)
class Span:
    """Span for export.

    Args:
        trace: id of the trace, 32 hexadecimal digits.
        id: id of the span, 16 hexadecimal digits.
        parent: id of the parent span; "" for a root.
        name: name of the span.
        kind: kind of the span.
        start_time: start in nanoseconds since 1970.
        end_time: end in nanoseconds since 1970.
        attributes: attributes of the span.
        links: links to other spans.
        failed: True if the operation failed.
        error: error message.
    """

    trace: str
    id: str
    parent: str
    name: str
    kind: SpanKind
    start_time: int
    end_time: int
    attributes: Mapping[str, AttributeValue]
    links: tuple[SpanLink, ...] = ()
    failed: bool = False
    error: str = ""


def trace_id(run: str, episode: str) -> str:
    """Return the id of an episode's trace, from the run's identity and :attr:`marft.common.types.Episode.name`.

    >>> trace_id("r", "train/0 t #0") == trace_id("r", "train/0 t #0") != trace_id("r", "train/0 t #1")
    True
    """
    return _digest(run, episode)[:32]


def span_id(trace: str, *names: object) -> str:
    """Return the id of a span, from its trace and names."""
    return _digest(trace, *names)[:16]


def sanitize_text(text: str, max_chars: int = MAX_TEXT_CHARS) -> str:
    """Return a text that every endpoint accepts: cut to a maximum length, without lone surrogates and NUL characters.

    Some databases reject NUL.

    >>> sanitize_text("a\\x00b\\ud83d")
    'a�b?'
    """
    return replace_surrogates(truncate(text, max_chars)).replace("\0", "\ufffd")


def _digest(*names: object) -> str:
    serialized = json.dumps([str(name) for name in names])
    return hashlib.sha256(serialized.encode()).hexdigest()
