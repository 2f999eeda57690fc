"""Promotion of a checkpoint over an earlier checkpoint, by a suite's gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marft.evaluation.comparison import Comparison, Saved, compared
from marft.evaluation.gates import by_metric
from marft_lab.safety.suite import EVERY, Suite

BASE = "base"


@dataclass(frozen=True, slots=True)
class Promotion:
    """Gate results for a checkpoint against an earlier checkpoint; failed gates are the reasons."""

    before: str
    after: str
    comparison: Comparison

    @property
    def granted(self) -> bool:
        """True if all gates passed."""
        return self.comparison.passed

    @property
    def sentence(self) -> str:
        """Verdict as a sentence."""
        verdict = "yes" if self.granted else "no"
        return f"promote {self.after} over {self.before}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        """Return the promotion as JSON data."""
        return {
            "before": self.before, "after": self.after, "promote": self.granted, "reasons": self.comparison.reasons,
            "gates": [
                {"gate": verdict.gate.text, "mode": label, "failed": verdict.failed, "reason": verdict.reason}
                for label, some in self.comparison.verdicts.items() for verdict in some
            ],
        }  # fmt: skip


def promotions(suite: Suite, found: Sequence[Saved], more: Sequence[str] = ()) -> list[Promotion]:
    """Return the promotion of each evaluated checkpoint over the untuned base.

    The result is empty without an evaluation of the base, or without gates.

    Args:
        suite: suite.
        found: evaluations on the suite.
        more: gates in addition to the suite's gates.

    Raises:
        ValueError: invalid gate.
    """
    base = [one for one in found if one["checkpoint"] == BASE]
    gates = gates_of([*suite.settings.gates, *more], found)
    if not base or not gates:
        return []
    return [
        Promotion(BASE, name, compared(base, [one for one in found if one["checkpoint"] == name], (BASE, name), gates))
        for name in dict.fromkeys(str(one["checkpoint"]) for one in found)
        if name != BASE
    ]


def gates_of(gates: Sequence[str], found: Sequence[Saved]) -> list[str]:
    """Expand each gate over all attacks into a gate per played attack.

    A gate fails for an attack that reached no agent in one of the evaluations, and if no attack was played at all. In
    both cases the gate cannot be verified.
    """
    metrics = sorted({name for one in found for name in by_metric(one)})
    of_attacks = (name.split("/") for name in metrics if name.startswith("attacks/"))
    played = dict.fromkeys(name for _, name, what in of_attacks if what in ("reached", "success"))
    return [
        gate.replace(EVERY, f"attacks.{attack}.")
        for gate in gates
        for attack in (played or ["any"] if EVERY in gate else [""])
    ]  # fmt: skip
