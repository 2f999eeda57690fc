"""Whether a team may take the place of the one before it, by the gates of a suite."""

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
    """What the gates say of one checkpoint against another; the ones that did not hold are its reasons."""

    before: str
    after: str
    comparison: Comparison

    @property
    def granted(self) -> bool:
        return self.comparison.passed

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        verdict = "yes" if self.granted else "no"
        return f"promote {self.after} over {self.before}: {verdict}"

    def as_json(self) -> dict[str, Any]:
        return {
            "before": self.before, "after": self.after, "promote": self.granted, "reasons": self.comparison.reasons,
            "gates": [
                {"gate": verdict.gate.text, "mode": label, "failed": verdict.failed, "reason": verdict.reason}
                for label, some in self.comparison.verdicts.items() for verdict in some
            ],
        }  # fmt: skip


def promotions(suite: Suite, found: Sequence[Saved], more: Sequence[str] = ()) -> list[Promotion]:
    """Each evaluated checkpoint of a run against its untuned base; none where that was not evaluated, or there are no
    gates.

    Args:
        found: evaluations on the suite.
        more: gates beside the suite's.

    Raises:
        ValueError: a gate cannot be read.
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
    """Gates, those of every attack once for each that was played in any evaluation: one that has reached nobody in
    either fails, and so does one of no attack at all, for nobody can say that it holds."""
    metrics = sorted({name for one in found for name in by_metric(one)})
    of_attacks = (name.split("/") for name in metrics if name.startswith("attacks/"))
    played = dict.fromkeys(name for _, name, what in of_attacks if what in ("reached", "success"))
    return [
        gate.replace(EVERY, f"attacks.{attack}.")
        for gate in gates
        for attack in (played or ["any"] if EVERY in gate else [""])
    ]  # fmt: skip
