"""Batching of spans from many episodes into export requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from marft.common.types import Episode
from marft.common.version import __version__
from marft_serve.tracing.episode import Tracer
from marft_serve.tracing.span import Span, Value

# per request: number of spans, total characters; OpenTelemetry's own exporters send 512 spans
MOST_SPANS, MOST_TEXT = 512, 2**20


@dataclass(frozen=True, slots=True)
class Batch:
    """Spans for one request, or for one line in a file.

    Args:
        spans: the spans.
        episodes: number of episodes that this batch completes.
    """

    spans: list[Span]
    episodes: int


def batches(episodes: Iterable[Episode], tracer: Tracer) -> Iterator[Batch]:
    """Yield batches with the spans of episodes, in order.

    A batch has whole episodes up to the size limits. A larger episode is split over several batches.
    """
    waiting, count, size = list[Span](), 0, 0
    for episode in episodes:
        spans = tracer.spans(episode)
        added = sum(map(_size, spans))
        if waiting and (len(waiting) + len(spans) > MOST_SPANS or size + added > MOST_TEXT):
            yield Batch(waiting, count)
            waiting, count, size = [], 0, 0
        for span in spans:
            if waiting and (len(waiting) >= MOST_SPANS or size + _size(span) > MOST_TEXT):
                yield Batch(waiting, count)
                waiting, count, size = [], 0, 0
            waiting.append(span)
            size += _size(span)
        count += 1
    if waiting:
        yield Batch(waiting, count)


def resource_of(tracer: Tracer) -> Mapping[str, Value]:
    """Return the resource attributes for all spans in a run."""
    return {
        "service.name": "marft",
        "service.version": __version__,
        "marft.run": tracer.cast.name,
        "marft.run.identity": tracer.run,
    }


def _size(span: Span) -> int:
    """Return the approximate size of a span, in characters."""
    texts = sum(len(key) + len(str(value)) for key, value in span.attributes.items())
    return 200 + texts + 100 * len(span.links)
