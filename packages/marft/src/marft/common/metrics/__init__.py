"""Metric catalog with lookup by name.

The console, the report, comparisons and docs/metrics.md use it. ``python -m marft.common.metrics`` prints the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from marft.common.metrics.catalog import CATALOG as CATALOG
from marft.common.metrics.catalog import Metric as Metric
from marft.common.metrics.catalog import Scope

PREFIX: dict[str, Scope] = {"agents": "agent", "policies": "policy"}


def all_metrics() -> Iterable[Metric]:
    """Return all metrics, in catalog order."""
    return (metric for group in CATALOG.values() for metric in group)


@cache
def find_metric(name: str) -> Metric | None:
    """Return the metric behind a name from ``metrics.jsonl``.

    None means the catalog has no match: the metric comes from a plugin.
    """
    first, _, suffix = name.partition("/")
    scope = PREFIX.get(first, "team")
    plain = suffix.partition("/")[2] if scope != "team" else name
    matches = [metric for metric in all_metrics() if scope in metric.scopes and _matches_pattern(metric.name, plain)]
    return min(matches, key=lambda metric: "*" in metric.name, default=None)


def catalog_metric(name: str) -> Metric:
    """Return the catalog entry with exactly this name.

    Raises:
        StopIteration: the catalog has no such entry.
    """
    return next(metric for metric in all_metrics() if metric.name == name)


def require_metric(name: str) -> Metric:
    """Return the metric behind a known name.

    Raises:
        AssertionError: the catalog has no match.
    """
    metric = find_metric(name)
    assert metric is not None, f"{name} is not in the catalogue"
    return metric


def _matches_pattern(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".+"), name) is not None
