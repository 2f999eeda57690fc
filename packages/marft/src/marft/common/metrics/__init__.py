"""Every metric that a run writes, and the one behind a name.

The console, the report, comparisons and docs/metrics.md read it here. ``python -m marft.common.metrics`` prints the
page.
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
    """All metrics, in the catalogue's order."""
    return (metric for group in CATALOGUE.values() for metric in group)


@cache
def find(name: str) -> Metric | None:
    """The metric behind a name of ``metrics.jsonl``; None where the catalogue has none: a plugin's own."""
    first, _, rest = name.partition("/")
    scope = PREFIX.get(first, "team")
    plain = rest.partition("/")[2] if scope != "team" else name
    fitting = [metric for metric in everything() if scope in metric.scopes and _fits(metric.name, plain)]
    return min(fitting, key=lambda metric: "*" in metric.name, default=None)


def named(name: str) -> Metric:
    """The metric that the catalogue has under this name."""
    return next(metric for metric in everything() if metric.name == name)


def known(name: str) -> Metric:
    """The metric of a name that is in the catalogue."""
    metric = find(name)
    assert metric is not None, f"{name} is not in the catalogue"
    return metric


def _fits(pattern: str, name: str) -> bool:
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".+"), name) is not None
