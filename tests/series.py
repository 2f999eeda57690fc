"""Series of metrics for guards: values a step, in windows of five."""

from __future__ import annotations

from collections.abc import Sequence

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import GuardAlert, History
from marft.evaluation.guards.monitor import GUARDS

Values = Sequence[float | None]


def history(series: dict[str, Values]) -> History:
    """Metrics by their names, a value a step; None where it was not measured."""
    found = History()
    for step in range(1, max(map(len, series.values())) + 1):
        found.add({"step": step, **{name: values[step - 1] for name, values in series.items() if step <= len(values)}})
    return found


def found(guard: str, series: dict[str, Values]) -> GuardAlert | None:
    (it,) = (it for it in GUARDS if it.name == guard)
    return it.check(history(series), GuardSettings())


def around(mean: float, by: float) -> list[float]:
    """Five values whose neighbours differ by ``by``."""
    return [mean, mean + by, mean, mean - by, mean]
