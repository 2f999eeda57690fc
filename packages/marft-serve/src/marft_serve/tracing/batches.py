"""Batching of spans from many episodes into export requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from marft.common.types import Episode
from marft.common.version import __version__
from marft_serve.tracing.episode_spans import Tracer
from marft_serve.tracing.span import AttributeValue, Span

# per request: number of spans, total characters; OpenTelemetry's own exporters send 512 spans
MAX_SPANS, MAX_TEXT_CHARS = 512, 2**20


@dataclass(frozen=True, slots=True)
class SpanBatch:
    """Spans for one request, or for one line in a file.

    Args:
        spans: the spans.
        episodes: number of episodes that this batch completes.
    """

    spans: list[Span]
    episodes: int


def make_batches(episodes: Iterable[Episode], tracer: Tracer) -> Iterator[SpanBatch]:
    """Yield batches with the spans of episodes, in order.

    A batch has whole episodes up to the size limits. A larger episode is split over several batches.
    """
    pending, count, size = list[Span](), 0, 0
    for episode in episodes:
        spans = tracer.build_spans(episode)
        episode_size = sum(map(_estimate_size, spans))
        if pending and (len(pending) + len(spans) > MAX_SPANS or size + episode_size > MAX_TEXT_CHARS):
            yield SpanBatch(pending, count)
            pending, count, size = [], 0, 0
        for span in spans:
            if pending and (len(pending) >= MAX_SPANS or size + _estimate_size(span) > MAX_TEXT_CHARS):
                yield SpanBatch(pending, count)
                pending, count, size = [], 0, 0
            pending.append(span)
            size += _estimate_size(span)
        count += 1
    if pending:
        yield SpanBatch(pending, count)


def build_resource(tracer: Tracer) -> Mapping[str, AttributeValue]:
    """Return the resource attributes for all spans in a run."""
    return {
        "service.name": "marft",
        "service.version": __version__,
        "marft.run": tracer.team.name,
        "marft.run.identity": tracer.run,
    }


def _estimate_size(span: Span) -> int:
    """Return the approximate size of a span, in characters."""
    texts = sum(len(key) + len(str(value)) for key, value in span.attributes.items())
    return 200 + texts + 100 * len(span.links)
