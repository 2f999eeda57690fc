"""Metric catalog with lookup by name.

The console, the report, comparisons and docs/metrics.md use it. ``python -m marft.common.metrics`` prints the page.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache

from marft.common.metrics.catalogue import CATALOGUE as CATALOGUE
from marft.common.metrics.metric import Metric as Metric
from marft.common.metrics.metric import Scope

PREFIX: dict[str, Scope] = {"agents": "agent", "policies": "policy"}


def everything() -> Iterable[Metric]:
    """Return all metrics, in catalog order."""
    return (metric for group in CATALOGUE.values() for metric in group)


@cache
def find(name: str) -> Metric | None:
    """Return the metric behind a name from ``metrics.jsonl``.

    None means the catalog has no match: the metric comes from a plugin.
    """
    first, _, rest = name.partition("/")
    scope = PREFIX.get(first, "team")
    plain = rest.partition("/")[2] if scope != "team" else name
    fitting = [metric for metric in everything() if scope in metric.scopes and _fits(metric.name, plain)]
    return min(fitting, key=lambda metric: "*" in metric.name, default=None)


def named(name: str) -> Metric:
    """Return the catalog entry with exactly this name.

    Raises:
        StopIteration: the catalog has no such entry.
    """
    return next(metric for metric in everything() if metric.name == name)


def known(name: str) -> Metric:
    """Return the metric behind a known name.

    Raises:
        AssertionError: the catalog has no match.
    """
    metric = find(name)
    assert metric is not None, f"{name} is not in the catalogue"
    return metric


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".+"), name) is not None
