"""Guard monitor: runs all guards after each step, reports each new finding once and returns metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from marft.config.guards import GuardSettings
from marft.evaluation.guards import (
    capability,
    dependence,
    entropy,
    format,
    gradient,
    held_out,
    kl,
    language,
    length,
    private_code,
    readability,
    repetition,
    reward_fall,
    term,
    work,
)
from marft.evaluation.guards.history import RETURNED, History, Row
from marft.evaluation.guards.interface import Finding, Guard

GUARDS = (
    Guard("kl", kl.look, collapse=True),
    Guard("reward_fall", reward_fall.look, collapse=True),
    Guard("entropy_surge", entropy.surge, collapse=True),
    Guard("entropy_lost", entropy.lost, collapse=True),
    Guard("gradient", gradient.look, collapse=True),
    Guard("length", length.look, collapse=False),
    Guard("term", term.look, collapse=False),
    Guard("held_out_fall", held_out.look, collapse=False),
    Guard("repetition", repetition.look, collapse=False),
    Guard("format", format.look, collapse=False),
    Guard("dependence", dependence.look, collapse=False),
    Guard("work", work.look, collapse=False),
    Guard("private_code", private_code.look, collapse=False),
    Guard("readability", readability.look, collapse=False),
    Guard("language", language.look, collapse=False),
    Guard("capability", capability.look, collapse=False),
)


@dataclass(frozen=True, slots=True)
class Raised:
    """Guard findings in one step, by guard name."""

    findings: Mapping[str, Finding]

    def metrics(self) -> dict[str, float]:
        """Return ``guards/<name>`` = 1 for each guard with a finding."""
        return {f"guards/{name}": 1.0 for name in self.findings}

    def well(self) -> int | None:
        """Return the last step before a collapse, or None without a collapse."""
        collapses = {guard.name for guard in GUARDS if guard.collapse}
        return min((it.well for name, it in self.findings.items() if name in collapses), default=None)


class Watch:
    """Monitor that runs the guards on the metrics of every step.

    Its state follows from the rows of ``metrics.jsonl``, so a resumed run is monitored as if it had not been
    interrupted.

    Args:
        rows: rows of the previous steps.
        note: receives messages about the run.
        guard: called with the step, the guard's name and the sentence of a finding that is new in this step. None
            passes the finding to ``note``.
    """

    def __init__(
        self, settings: GuardSettings, rows: Iterable[Row], note: Callable[[str], None],
        guard: Callable[[int, str, str], None] | None = None,
    ) -> None:  # fmt: skip
        self._settings, self._note = settings, note
        self._guard = guard or (lambda step, _, sentence: note(f"step {step}: {sentence}"))
        self._history = History()
        self._raised: set[str] = set()
        for row in rows:
            self._history.add(row)
            self._raised = {guard.name for guard in GUARDS if row.get(f"guards/{guard.name}")}
            if (back := row.get(RETURNED)) is not None:
                self._forget(int(back))

    def look(self, row: Row) -> Raised:
        """Add the metrics of one step and run the guards; ``row`` includes the step number."""
        self._history.add(row)
        found = {guard.name: guard.look(self._history, self._settings) for guard in GUARDS if self._is_on(guard)}
        findings = {name: finding for name, finding in found.items() if finding is not None}
        for name, finding in findings.items():
            if name not in self._raised:
                threshold = f"guards.{name} = {getattr(self._settings, name):g}"
                self._guard(self._history.step, name, f"{finding.sentence} ({threshold})")
        self._raised = set(findings)
        return Raised(findings)

    def cooled(self) -> float:
        """Return the factor for all learning rates if the run is rolled back now."""
        return kl.cooled(self._history, self._settings)

    def go_back(self, step: int) -> None:
        """Roll back the history to ``step``, and report the rollback."""
        self._note(
            f"step {self._history.step}: the run goes back to the checkpoint of step {step}, and on from there with "
            f"learning rates {self.cooled():.2g} times what they were"
        )
        self._forget(step)

    def _forget(self, step: int) -> None:
        self._history.go_back(step)
        self._raised = set()

    def _is_on(self, guard: Guard) -> bool:
        return bool(getattr(self._settings, guard.name))


def sentences(settings: GuardSettings, rows: Sequence[Row]) -> list[str]:
    """Return the messages of the guards for the steps of a metrics log."""
    said: list[str] = []
    watch = Watch(settings, (), said.append)
    for row in rows:
        watch.look(row)
        if (back := row.get(RETURNED)) is not None:
            watch.go_back(int(back))
    return said
