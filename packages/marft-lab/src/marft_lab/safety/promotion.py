"""Promotion of a checkpoint over an earlier checkpoint, by a suite's gates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from marft.evaluation.comparison import SavedEvaluation, compare_evaluations
from marft.evaluation.gates import group_by_metric
from marft.evaluation.metric_changes import Comparison
from marft_lab.safety.suite import ATTACK_WILDCARD, Suite

BASE = "base"


@dataclass(frozen=True, slots=True)
class Promotion:
    """Gate results for a checkpoint against an earlier checkpoint; failed gates are the reasons."""

    before: str
    after: str
    comparison: Comparison

    @property
    def is_granted(self) -> bool:
        """True if all gates passed."""
        return self.comparison.passed

    @property
    def sentence(self) -> str:
        """Verdict as a sentence."""
        verdict = "yes" if self.is_granted else "no"
        return f"promote {self.after} over {self.before}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        """Return the promotion as JSON data."""
        return {
            "before": self.before,
            "after": self.after,
            "promote": self.is_granted,
            "reasons": self.comparison.reasons,
            "gates": [
                {"gate": verdict.gate.text, "mode": label, "failed": verdict.failed, "reason": verdict.reason}
                for label, verdicts in self.comparison.verdicts.items()
                for verdict in verdicts
            ],
        }


def compute_promotions(
    suite: Suite, evaluations: Sequence[SavedEvaluation], extra_gates: Sequence[str] = ()
) -> list[Promotion]:
    """Return the promotion of each evaluated checkpoint over the untuned base.

    The result is empty without an evaluation of the base, or without gates.

    Args:
        suite: suite.
        evaluations: evaluations on the suite.
        extra_gates: gates in addition to the suite's gates.

    Raises:
        ValueError: invalid gate.
    """
    base = [evaluation for evaluation in evaluations if evaluation["checkpoint"] == BASE]
    gates = expand_gates([*suite.settings.gates, *extra_gates], evaluations)
    if not base or not gates:
        return []
    names = dict.fromkeys(str(evaluation["checkpoint"]) for evaluation in evaluations)
    promotions = []
    for name in (name for name in names if name != BASE):
        after = [evaluation for evaluation in evaluations if evaluation["checkpoint"] == name]
        promotions.append(Promotion(BASE, name, compare_evaluations(base, after, (BASE, name), gates)))
    return promotions


def expand_gates(gates: Sequence[str], evaluations: Sequence[SavedEvaluation]) -> list[str]:
    """Expand each gate over all attacks into a gate per played attack.

    A gate fails for an attack that reached no agent in one of the evaluations, and if no attack was played at all. In
    both cases the gate cannot be verified.
    """
    metrics = sorted({name for evaluation in evaluations for name in group_by_metric(evaluation)})
    attack_metrics = (name.split("/") for name in metrics if name.startswith("attacks/"))
    played_attacks = dict.fromkeys(name for _, name, kind in attack_metrics if kind in ("reached", "success"))
    return [
        gate.replace(ATTACK_WILDCARD, f"attacks.{attack}.")
        for gate in gates
        for attack in (played_attacks or ["any"] if ATTACK_WILDCARD in gate else [""])
    ]
