"""Prometheus metrics for a server."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKET_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)
UNKNOWN_MODEL = "unknown"  # label for requests with an unknown model, since clients choose model names


class ServerMetrics:
    """Metrics for one server."""

    def __init__(self, running: Callable[[], float], waiting: Callable[[], float]) -> None:
        self.registry = registry = CollectorRegistry()
        self.requests = Counter(
            "marft_requests", "Requests, by what became of them.", ["model", "status"], registry=registry
        )
        self.tokens = Counter("marft_tokens", "Tokens of all agents that acted.", ["model", "kind"], registry=registry)
        self.seconds = Histogram(
            "marft_request_seconds",
            "From a request to its answer, waiting included.",
            ["model"],
            buckets=BUCKET_SECONDS,
            registry=registry,
        )
        self.actions = Counter("marft_actions", "Actions, by agent.", ["agent"], registry=registry)
        self.unrecorded = Counter("marft_unrecorded", "Sessions that could not be written down.", registry=registry)
        Gauge("marft_running", "Requests that are answered now.", registry=registry).set_function(running)
        Gauge("marft_waiting", "Requests that wait for a place.", registry=registry).set_function(waiting)

    def format_text(self) -> bytes:
        """Return all metrics in Prometheus text format."""
        return bytes(generate_latest(self.registry))
